"""Numbers, sizes and times as a person reads them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB")
_KILO: Final = 1024
_MINUTE_S: Final = 60
_LENGTHS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}


def sentence(text: str) -> str:
    """Begin a text with a capital, and end it with one mark."""
    text = f"{text[:1].upper()}{text[1:]}".rstrip(".")
    return text if text.endswith(("?", "!")) else f"{text}."


def number(value: int) -> str:
    return f"{value:,}"


def rate(per_second: float) -> str:
    """How many a second; small ones with a digit behind the point."""
    return f"{per_second:.1f}" if 0 < per_second < 10 else f"{per_second:,.0f}"


def size(size_bytes: int) -> str:
    value: float = size_bytes
    for unit in _UNITS:
        if value < _KILO or unit == _UNITS[-1]:
            break
        value /= _KILO
    return f"{value:,.0f} {unit}" if unit == _UNITS[0] or value >= 10 else f"{value:.1f} {unit}"


def moment(at_ms: int) -> str:
    """A day and a time, in UTC."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "a time that no calendar has"


def clock_time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%H:%M:%S}"


def length(length_ms: int | None) -> str:
    """Write a setting's time in full, such as ``1 min 30 s``; ``None`` means never."""
    if length_ms is None:
        return "never"
    parts = []
    for unit, unit_ms in _LENGTHS_MS.items():
        count, length_ms = divmod(length_ms, unit_ms)
        parts += [f"{number(count)} {unit}"] if count else []
    return " ".join(parts) or "0 s"


def span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), _MINUTE_S)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    told = [f"{value} {unit}" for value, unit in parts if value][:2]
    return " ".join(told) or "0 s"
