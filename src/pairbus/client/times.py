"""Times of the public API as the dialect counts them: in milliseconds, with ``timedelta.max`` for never."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.dialect.atom.duration import LONGEST_MS

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_TIME: Final = datetime.min.replace(tzinfo=UTC)
"""What .NET says of what has not happened."""


def to_milliseconds(length: timedelta) -> int | None:
    """``None`` for never. What is less than a millisecond is left away."""
    length_ms = length // _MILLISECOND
    return length_ms if length_ms < LONGEST_MS else None


def from_milliseconds(length_ms: int | None) -> timedelta:
    return timedelta.max if length_ms is None or length_ms >= LONGEST_MS else timedelta(milliseconds=length_ms)


def to_epoch_milliseconds(time: datetime) -> int:
    return (time - _EPOCH) // _MILLISECOND


def from_epoch_milliseconds(time_ms: int) -> datetime | None:
    """``None`` for what has not happened yet."""
    time = _EPOCH + timedelta(milliseconds=time_ms)
    return None if time == _NO_TIME else time
