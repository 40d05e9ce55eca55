"""Numbers, sizes and times as texts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("bytes", "KB", "MB", "GB", "TB")
_KILO: Final = 1024
_DURATIONS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}


def sentence(text: str) -> str:
    """Return a text with a capital at the start and one full stop at the end."""
    text = f"{text[:1].upper()}{text[1:]}".rstrip(".")
    return text if text.endswith(("?", "!")) else f"{text}."


def number(value: int) -> str:
    return f"{value:,}"


def rate(per_second: float) -> str:
    """Format a rate; small ones have one decimal."""
    return f"{per_second:.1f}" if 0 < per_second < 10 else f"{per_second:,.0f}"


def size(size_bytes: int) -> str:
    value: float = size_bytes
    for unit in _UNITS:
        if value < _KILO or unit == _UNITS[-1]:
            break
        value /= _KILO
    return f"{value:,.0f} {unit}" if unit == _UNITS[0] or value >= 10 else f"{value:.1f} {unit}"


def date_time(at_ms: int) -> str:
    """Format a date and a time, in UTC."""
    try:
        return f"{datetime.fromtimestamp(at_ms // 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError, OSError):
        return "out of range"


def clock_time(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%H:%M:%S}"


def duration(duration_ms: int | None) -> str:
    """Format the exact duration of a setting, such as ``1 min 30 s``; ``None`` means never."""
    if duration_ms is None:
        return "never"
    return " ".join(_parts(duration_ms)) or "0 s"


def uptime(seconds: float) -> str:
    """Format a duration in its two largest units."""
    return " ".join(_parts(int(seconds) * 1_000)[:2]) or "0 s"


def _parts(duration_ms: int) -> list[str]:
    parts = []
    for unit, unit_ms in _DURATIONS_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        parts += [f"{number(count)} {unit}"] if count else []
    return parts
