"""How a job ends as a command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DONE: Final = 0
"""Everything is done, or it was told to stop."""
FAILED: Final = 1
USAGE: Final = 2
WAITING: Final = 3
"""Something is left to be done: messages still wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a command has ended, and why it was not well."""

    code: int
    reason: str | None = None
