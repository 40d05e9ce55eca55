"""What it all comes to."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """Whether anything is missing."""

    FINE = "fine"
    """Everything is accounted for: it was received, or it is known where it is."""

    MISSING = "missing"
    UNKNOWN = "unknown"
    """The ledgers do not hold everything: what looks missing may be there, and the other way round."""
