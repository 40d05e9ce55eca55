"""Values with their type: the parameters and properties of rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

NEVER: Final = "P10675199DT2H48M5.4775807S"
"""The maximum duration of .NET, which means never."""

DAY_MS: Final = 86_400_000
LONGEST_MS: Final = 10_675_199 * DAY_MS
"""Durations from here on mean never: clients round the fraction of the maximum up and down."""

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
_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?=[0-9T])"
    r"(?:(?P<years>[0-9]{1,18})Y)?(?:(?P<months>[0-9]{1,18})M)?"
    r"(?:(?P<weeks>[0-9]{1,18})W)?(?:(?P<days>[0-9]{1,18})D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]{1,18})H)?(?:(?P<minutes>[0-9]{1,18})M)?"
    r"(?:(?P<seconds>[0-9]{1,18})(?:\.(?P<fraction>[0-9]{1,18}))?S)?)?"
)


def parse_duration(text: str) -> int | None:
    """Parse a duration; return whole milliseconds, rounded down, or ``None`` for never. Raises ``ValueError``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:64]!r} is not a duration such as PT1M30S")
    length_ms = sum(int(found[unit] or 0) * unit_ms for unit, unit_ms in _UNITS_MS.items())
    length_ms += int((found["fraction"] or "")[:3].ljust(3, "0"))
    if length_ms < LONGEST_MS:
        return -length_ms if found["sign"] else length_ms
    if found["sign"]:
        raise ValueError(f"{text[:64]!r} is out of range: the shortest duration is -P10675199D")
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


_INSTANT: Final = re.compile(
    r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
    r"T(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,18}))?"
    r"(?:Z|(?P<sign>[+-])(?P<zone_hour>[0-9]{2}):(?P<zone_minute>[0-9]{2}))?"
)
_ZONE: Final = re.compile(r"(?:Z|[+-][0-9]{2}:[0-9]{2})\Z")
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999


class Zoneless(int):
    """Milliseconds since the Unix epoch of a time that was written without a zone, and is formatted without one."""

    __slots__ = ()


def parse_date_time(text: str) -> int:
    """Parse a time and keep whether it has a zone: the number is ``Zoneless`` without one. Raises ``ValueError``."""
    time_ms = parse_instant(text)
    return time_ms if _ZONE.search(text) else Zoneless(time_ms)


def parse_instant(text: str) -> int:
    """Parse a time; return milliseconds since the Unix epoch. Raises ``ValueError``. Without a zone it is UTC."""
    found = _INSTANT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:64]!r} is not a time such as 2030-01-31T12:00:00Z")
    year, month, day = int(found["year"]), int(found["month"]), int(found["day"])
    hour, minute, second = int(found["hour"]), int(found["minute"]), int(found["second"])
    if not (year and _is_day(year, month, day) and hour < 24 and minute < 60 and second < 60):
        raise ValueError(f"{text[:64]!r} is not a valid date and time")
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
    """Return the days since the Unix epoch."""
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


Plain: TypeAlias = str | int | float | bool | None


class ValueType(Enum):
    """The XML Schema types of values in Service Bus."""

    STRING = "string"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    DATE_TIME = "dateTime"
    """Milliseconds since the Unix epoch; ``Zoneless`` if the text has no zone."""

    DURATION = "duration"
    """Milliseconds."""


class TypedValue(NamedTuple):
    """A value with its type; ``None`` is valid for every type."""

    type: ValueType
    value: Plain


def _integer(text: str) -> int:
    return parse_integer(text)


def _duration(text: str) -> int:
    length_ms = parse_duration(text)
    return LONGEST_MS if length_ms is None else length_ms


def parse_integer(text: str) -> int:
    """Parse a 64-bit integer; raises ``ValueError``."""
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and len(text) - len(digits) <= 1):
        raise ValueError(f"{text[:64]!r} is not a whole number")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:64]!r} does not fit into 64 bits")
    return number


_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


def parse_boolean(text: str) -> bool:
    """Parse a boolean; raises ``ValueError``. Some clients capitalize the first letter."""
    try:
        return _TRUTH[text.lower()]
    except KeyError:
        raise ValueError(f"{text[:64]!r} is neither true nor false") from None


def format_boolean(value: bool) -> str:
    return "true" if value else "false"


def _double(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text[:64]!r} is not a number") from None


def _format_double(value: float) -> str:
    text = repr(float(value))
    return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(text, text)


_READERS: Final[dict[ValueType, Callable[[str], Plain]]] = {
    ValueType.STRING: str,
    # Clients use int for every number up to 2^31, also for large negative ones.
    ValueType.INT: _integer,
    ValueType.LONG: _integer,
    ValueType.DOUBLE: _double,
    ValueType.BOOLEAN: parse_boolean,
    ValueType.DATE_TIME: parse_date_time,
    ValueType.DURATION: _duration,
}
_WRITERS: Final[dict[ValueType, Callable[..., str]]] = {
    ValueType.STRING: str,
    ValueType.INT: str,
    ValueType.LONG: str,
    ValueType.DOUBLE: _format_double,
    ValueType.BOOLEAN: format_boolean,
    ValueType.DATE_TIME: format_instant,
    ValueType.DURATION: format_duration,
}


def parse_value(type_name: str, text: str) -> TypedValue:
    """Parse a value of a named type; raises ``ValueError``."""
    try:
        kind = ValueType(type_name)
    except ValueError:
        raise ValueError(f"{type_name[:64]!r} is not a supported type") from None
    return TypedValue(kind, _READERS[kind](text if kind is ValueType.STRING else text.strip()))


def format_value(value: TypedValue) -> str | None:
    return None if value.value is None else _WRITERS[value.type](value.value)
