"""A message for filters and actions, and the evaluation of a filter for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from pairbus.broker.descriptions import Value
from pairbus.broker.sql import MISSING, Missing, parse_action, parse_filter
from pairbus.broker.sql.filter import PropertyChanges
from pairbus.broker.sql.parser import NO_PARAMETERS

FRESH: Final = UUID("00000000-0000-4000-8000-00000000abcd")

T: Final = True
F: Final = False
U: Final = None
"""Unknown."""


class Message:
    """A message with these properties."""

    def __init__(self, user: Mapping[str, Value] = NO_PARAMETERS, system: Mapping[str, Value] = NO_PARAMETERS) -> None:
        self._user = {name.lower(): value for name, value in user.items()}
        self._system = dict(system)
        self.spent = 0

    def user(self, name: str) -> Value | Missing:
        return self._user.get(name.lower(), MISSING)

    def system(self, name: str) -> Value:
        return self._system.get(name)

    def spend(self, units: int) -> None:
        self.spent += units


def fresh_id() -> UUID:
    return FRESH


def judge(expression: str, message: Message, parameters: Mapping[str, Value] = NO_PARAMETERS) -> bool | None:
    """Return the result of a filter; it is unknown if neither the filter nor its negation matches."""
    matches = parse_filter(expression, parameters, fresh_id=fresh_id).matches(message)
    opposite = parse_filter(f"NOT ({expression})", parameters, fresh_id=fresh_id).matches(message)
    assert not (matches and opposite), expression
    return matches if matches or opposite else None


def apply(expression: str, message: Message, parameters: Mapping[str, Value] = NO_PARAMETERS) -> PropertyChanges:
    return parse_action(expression, parameters, fresh_id=fresh_id).apply(message)
