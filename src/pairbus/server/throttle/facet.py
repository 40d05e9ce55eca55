"""Something that all entities of a node share: how it is read, and how much of it is too much."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pairbus.server.settings import Settings
from pairbus.server.throttle.gauges import Gauges

_SIZES: Final = ("bytes", "KB", "MB", "GB", "TB")
_KILO: Final = 1024


class Unit(StrEnum):
    """What a facet is counted in."""

    BYTES = "bytes"
    RATIO = "ratio"
    SECONDS = "seconds"
    CONNECTIONS = "connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One line of the table."""

    name: str
    title: str
    """What a person calls it."""

    unit: Unit
    setting: str
    """Where its threshold is set."""

    threshold: Callable[[Settings], float | None]
    """``None``: it is read, and never denies anything."""

    read: Callable[[Gauges], float | None]
    denies: frozenset[str]
    """The operations that are denied when it is past its threshold."""

    is_floor: bool = False
    """Whether too little of it is the trouble, and not too much."""

    relief: float = 0.9
    """How far behind the threshold it has to be before requests are taken again, so that it does not flap."""

    def is_past(self, reading: float, threshold: float, *, was_past: bool) -> bool:
        """Whether a reading is past the threshold, or not far enough behind it yet."""
        slack = self.relief if was_past else 1.0
        return reading <= threshold / slack if self.is_floor else reading >= threshold * slack

    def shown(self, value: float) -> str:
        """A reading or a threshold as a person reads it."""
        match self.unit:
            case Unit.BYTES:
                return _size(value)
            case Unit.RATIO:
                return f"{value * 100:.0f} %"
            case Unit.SECONDS:
                return f"{value:.2f} s"
            case Unit.CONNECTIONS:
                return f"{value:,.0f}"


def _size(value: float) -> str:
    for unit in _SIZES:
        if value < _KILO or unit == _SIZES[-1]:
            break
        value /= _KILO
    return f"{value:,.0f} {unit}" if unit == _SIZES[0] or value >= 10 else f"{value:.1f} {unit}"
