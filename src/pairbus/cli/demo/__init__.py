"""``pairbus demo``: an outage of a pair, survived on this machine and accounted for."""
