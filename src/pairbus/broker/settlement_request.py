"""The settlement of a message, as a receiver requests it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from pairbus.broker import errors
from pairbus.broker.descriptions import Value


class SettlementKind(Enum):
    """The outcome with which a receiver settles a message."""

    COMPLETE = auto()
    ABANDON = auto()
    DEFER = auto()
    DEAD_LETTER = auto()
    RELEASE = auto()
    """Return the message without counting a delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRequest:
    """A settlement outcome with its arguments."""

    disposition: SettlementKind = SettlementKind.COMPLETE
    properties: Mapping[str, Value] = field(default_factory=dict)
    """Application properties to set, if the message stays."""

    reason: str | None = None
    description: str | None = None

    def changes(self) -> dict[str, Value]:
        """Return the properties to set, including the reason and description of a dead letter."""
        reasons = {errors.REASON_PROPERTY: self.reason, errors.DESCRIPTION_PROPERTY: self.description}
        return {**self.properties, **{name: value for name, value in reasons.items() if value is not None}}


COMPLETE: Final = SettlementRequest()
"""The default settlement."""
