"""Times of the public API as the dialect counts them: in milliseconds, with ``timedelta.max`` for never."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.dialect.atom.duration import LONGEST_MS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""What .NET says of what has not happened."""
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


def to_milliseconds(length: timedelta) -> int | None:
    """``None`` for never. What is less than a millisecond is left away."""
    length_ms = length // _MILLISECOND
    return length_ms if length_ms < LONGEST_MS else None


def from_milliseconds(length_ms: int | None) -> timedelta:
    return timedelta.max if length_ms is None or length_ms >= LONGEST_MS else timedelta(milliseconds=length_ms)


def to_ms(moment: datetime) -> int:
    """Milliseconds since the Unix epoch; raises ``ValueError`` if it has no zone, since any could be meant."""
    if not isinstance(moment, datetime):
        raise TypeError(f"{moment!r:.100} is no datetime")
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone; use datetime.now(UTC) and the like")
    return (moment - _EPOCH) // _MILLISECOND


def from_ms(time_ms: int) -> datetime:
    """A point in time in UTC; those that Python cannot name become the earliest or latest that it can."""
    try:
        return _EPOCH + timedelta(milliseconds=int(time_ms))
    except OverflowError:
        return _LATEST if time_ms > 0 else _NO_TIME


def happened_ms(time_ms: int) -> datetime | None:
    """The same; ``None`` for what has not happened yet."""
    moment = from_ms(time_ms)
    return None if moment == _NO_TIME else moment
