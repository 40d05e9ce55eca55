"""``make demo``: what works so far, shown on this machine."""
