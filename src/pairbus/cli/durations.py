"""Lengths and points of time, as a person types them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.cli.connection import USAGE
from pairbus.cli.failure import fail
from pairbus.client.validation import shown
from pairbus.spark.option import duration

NEVER: Final = "never"
_LONGEST: Final = timedelta(days=36_500)
_FORM: Final = duration(timedelta(), _LONGEST, "a number and a unit, such as 500ms, 30s, 15m, 1h or 14d")


_UNITS: Final = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}


def duration_text(length: timedelta) -> str:
    """As it would be typed: 14d, 90s, never."""
    if length == timedelta.max:
        return NEVER
    for unit, size in _UNITS.items():
        if length and not length % size:
            return f"{length // size}{unit}"
    return f"{length.total_seconds():g}s"


def read_duration(option: str, text: str, *, least: timedelta = timedelta()) -> timedelta:
    """What an option says; ends the command if it is no good."""
    try:
        length: timedelta = _FORM.read(text.strip())
    except ValueError:
        fail(f"{option} is {shown(text)}; it is {_FORM.text}", USAGE)
    if length < least:
        fail(f"{option} is {shown(text)}; it is at least {least.total_seconds():g} s", USAGE)
    return length


def read_lifetime(option: str, text: str) -> timedelta:
    """The same, which may also have no end."""
    return timedelta.max if text.strip().lower() == NEVER else read_duration(option, text)


def read_utc(option: str, text: str | None) -> datetime | None:
    """A point in time that is over, as ledgers have it: without a zone it is UTC."""
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text.strip())
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (OverflowError, ValueError):
        fail(f"{option} is {shown(text)}; it is a time in UTC such as 2026-03-01 or 2026-03-01T12:00", USAGE)


def read_moment(option: str, text: str, now: datetime) -> datetime:
    """A point in time, or how long it is until then; without a zone it is of this machine's."""
    with suppress(ValueError):
        length: timedelta = _FORM.read(text.strip())
        return now + length
    try:
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (OverflowError, ValueError):
        fail(f"{option} is {shown(text)}; it is a time such as 2030-01-02T03:04:05Z, or {_FORM.text}", USAGE)
