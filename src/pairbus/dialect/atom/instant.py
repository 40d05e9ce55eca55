"""Points in time as ISO 8601 writes them, and as milliseconds since the Unix epoch."""

from __future__ import annotations

import re
from typing import Final

from pairbus.dialect.atom.duration import DAY_MS

_FORM: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"T(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,18}))?"
    r"(?:Z|(?P<sign>[+-])(?P<zone_hour>[0-9]{2}):(?P<zone_minute>[0-9]{2}))?"
)
_ZONE: Final = re.compile(r"(?:Z|[+-][0-9]{2}:[0-9]{2})\Z")
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999


class Zoneless(int):
    """Milliseconds since the Unix epoch of a time that was written without a zone, and is written so again."""

    __slots__ = ()


def parse_date_time(text: str) -> int:
    """Parse a time that keeps whether it has a zone: the number is ``Zoneless`` without one. Raises ``ValueError``."""
    time_ms = parse_instant(text)
    return time_ms if _ZONE.search(text) else Zoneless(time_ms)


def parse_instant(text: str) -> int:
    """Milliseconds since the Unix epoch; raises ``ValueError``. A time without a zone is in UTC."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:64]!r} is no time such as 2030-01-31T12:00:00Z")
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
    if not (year and _is_day(year, month, day) and hour < 24 and minute < 60 and second < 60):
        raise ValueError(f"{text[:64]!r} is no time that there is")
    time_ms = _days(year, month, day) * DAY_MS + ((hour * 60 + minute) * 60 + second) * 1_000
    time_ms += int((found["fraction"] or "")[:3].ljust(3, "0"))
    if found["sign"]:
        offset_ms = (int(found["zone_hour"]) * 60 + int(found["zone_minute"])) * 60_000
        time_ms += offset_ms if found["sign"] == "-" else -offset_ms
    return time_ms


def format_instant(time_ms: int) -> str:
    days, rest_ms = divmod(min(max(time_ms, _EARLIEST_MS), _LATEST_MS), DAY_MS)
    year, month, day = _date(days)
    seconds, fraction = divmod(rest_ms, 1_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    end = f".{fraction:03}" if fraction else ""
    zone = "" if isinstance(time_ms, Zoneless) else "Z"
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{end}{zone}"


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _is_day(year: int, month: int, day: int) -> bool:
    if not 1 <= month <= 12:
        return False
    return 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and _is_leap(year))


# The calendar is counted from the first of March, so that the leap day comes last; an era has 400 years.


def _days(year: int, month: int, day: int) -> int:
    """Days since the Unix epoch."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719_468


def _date(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_from_march + 2) // 5 + 1
    month = (month_from_march + 2) % 12 + 1
    return era * 400 + year_of_era + (month <= 2), month, day
