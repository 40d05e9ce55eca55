"""Conversion of times between the public API and the dialect: milliseconds, with ``timedelta.max`` for never."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.dialect.atom.values import LONGEST_MS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""The value that .NET uses for an event that has not occurred."""
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


def to_milliseconds(length: timedelta) -> int | None:
    """Return whole milliseconds, rounded down; ``None`` for never."""
    length_ms = length // _MILLISECOND
    return length_ms if length_ms < LONGEST_MS else None


def from_milliseconds(length_ms: int | None) -> timedelta:
    return timedelta.max if length_ms is None or length_ms >= LONGEST_MS else timedelta(milliseconds=length_ms)


def to_ms(moment: datetime) -> int:
    """Return milliseconds since the Unix epoch; raises ``ValueError`` if the time is naive, because it is ambiguous."""
    if not isinstance(moment, datetime):
        raise TypeError(f"expected a datetime, got {moment!r:.100}")
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; use datetime.now(UTC), for example")
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(time_ms: int) -> datetime:
    """Return a UTC datetime, clamped to the range that Python supports."""
    try:
        return _EPOCH + timedelta(milliseconds=int(time_ms))
    except OverflowError:
        return _LATEST if time_ms > 0 else _NO_TIME


def happened_ms(time_ms: int) -> datetime | None:
    """Return a UTC datetime; ``None`` for an event that has not occurred."""
    moment = from_ms(time_ms)
    return None if moment == _NO_TIME else moment
