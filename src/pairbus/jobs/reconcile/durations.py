"""Lengths of time as people read them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

_UNITS: Final = ((timedelta(days=1), "d"), (timedelta(hours=1), "h"), (timedelta(minutes=1), "min"))


def told(duration: timedelta | None) -> str:
    """With the unit that fits."""
    if duration is None:
        return "-"
    for unit, name in _UNITS:
        if duration >= unit:
            return f"{duration / unit:.1f}".removesuffix(".0") + f" {name}"
    seconds = duration.total_seconds()
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
