"""Where sends go while the store cannot take them, and how they come into it afterwards."""
