"""The message under a filter's eyes."""

from __future__ import annotations

from enum import Enum
from typing import Final, Protocol

from pairbus.broker.values import Value


class Missing(Enum):
    """The type of ``MISSING``."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Says that a message has no such user property; a property that is there without a value holds ``None``."""


class Subject(Protocol):
    """What a filter or an action asks of a message."""

    def user(self, name: str) -> Value | Missing:
        """The user property of that name in whatever case; the name comes as the expression has it."""

    def system(self, name: str) -> Value:
        """The system property of that canonical name, such as ``MessageId``; ``None`` where it is not set."""

    def spend(self, units: int) -> object:
        """Count work that depends on what the message holds; raises an error once it is too much.

        A unit is about a nanosecond in plain Python: as long as it takes to look at one character of a text.
        """


def fold_name(name: str) -> str:
    """What two names of user properties have in common that differ only in case."""
    return name.lower()
