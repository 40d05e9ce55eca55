"""``pairbus demo``: an outage of the primary of a pair on this machine, with an account of every message."""
