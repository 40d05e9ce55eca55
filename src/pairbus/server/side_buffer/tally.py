"""What a side buffer counts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Numbers of messages."""

    held: int = 0
    """In the buffer now."""

    taken: int = 0
    """Taken into it since the start."""

    merged: int = 0
    """Brought into the store since the start."""

    set_aside: int = 0
    """Put into a file of their own since the start; a damaged place counts as one."""
