"""Lengths of time as ISO 8601 writes them, and as milliseconds."""

from __future__ import annotations

import re
from typing import Final

NEVER: Final = "P10675199DT2H48M5.4775807S"
"""The longest time that .NET knows, which stands for: never."""

DAY_MS: Final = 86_400_000
LONGEST_MS: Final = 10_675_199 * DAY_MS
"""From here on it is never: clients round the fraction of the longest time up and down."""

# Years and months have fixed lengths, as in .NET.
_UNITS_MS: Final = {
    "years": 365 * DAY_MS,
    "months": 30 * DAY_MS,
    "weeks": 7 * DAY_MS,
    "days": DAY_MS,
    "hours": 3_600_000,
    "minutes": 60_000,
    "seconds": 1_000,
}
_FORM: Final = re.compile(
    r"(?P<sign>-?)P(?=[0-9T])"
    r"(?:(?P<years>[0-9]{1,18})Y)?(?:(?P<months>[0-9]{1,18})M)?"
    r"(?:(?P<weeks>[0-9]{1,18})W)?(?:(?P<days>[0-9]{1,18})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,18})H)?(?:(?P<minutes>[0-9]{1,18})M)?"
    r"(?:(?P<seconds>[0-9]{1,18})(?:\.(?P<fraction>[0-9]{1,18}))?S)?)?"
)


def parse_duration(text: str) -> int | None:
    """Milliseconds, or ``None`` for never; raises ``ValueError``. What is less than a millisecond is left away."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:64]!r} is no duration such as PT1M30S")
    length_ms = sum(int(found[unit] or 0) * unit_ms for unit, unit_ms in _UNITS_MS.items())
    length_ms += int((found["fraction"] or "")[:3].ljust(3, "0"))
    if length_ms < LONGEST_MS:
        return -length_ms if found["sign"] else length_ms
    if found["sign"]:
        raise ValueError(f"{text[:64]!r} is too far below zero")
    return None


def format_duration(length_ms: int | None) -> str:
    if length_ms is None or length_ms >= LONGEST_MS:
        return NEVER
    sign = "-" if length_ms < 0 else ""
    days, rest_ms = divmod(abs(length_ms), DAY_MS)
    date = f"{days}D" if days else ""
    time = _format_time(rest_ms)
    return f"{sign}P{date}{time}" if date or time else "PT0S"


def _format_time(rest_ms: int) -> str:
    hours, rest_ms = divmod(rest_ms, _UNITS_MS["hours"])
    minutes, rest_ms = divmod(rest_ms, _UNITS_MS["minutes"])
    seconds, fraction = divmod(rest_ms, 1_000)
    parts = f"{hours}H" if hours else ""
    parts += f"{minutes}M" if minutes else ""
    if fraction:
        parts += f"{seconds}.{fraction:03}".rstrip("0") + "S"
    elif seconds:
        parts += f"{seconds}S"
    return f"T{parts}" if parts else ""
