"""Values of the public API: checks of types and ranges before they are sent, and conversion of times."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from pairbus.dialect.atom.document import speakable
from pairbus.dialect.atom.values import LONGEST_MS

_INT64: Final = range(-(2**63), 2**63)
_FORBIDDEN: Final = re.compile(r"[@?#*\\\x00-\x1f\x7f]")
"""Characters that the service allows in no name. Some would end the path of an address, and name another entity."""


def check_fields(description: object) -> None:
    """Check each field of a dataclass against its annotation, and numbers and durations against zero.

    Raises ``TypeError`` or ``ValueError``.
    """
    kind: type = type(description)
    for name, types in _types(kind).items():
        value = getattr(description, name)
        check_type(name, value, types)
        check_value(name, value)
        if (isinstance(value, int) and value < 0) or (isinstance(value, timedelta) and value < timedelta()):
            raise ValueError(f"{name} must be >= 0, got {value}")


def shown(value: object) -> str:
    """Return a value for the text of an error; hides values that may be a connection string with a key."""
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        if "=" in text or "sharedaccess" in text.lower():
            return "the given value"
    return f"{value!r:.100}"


def check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    # bool is a subclass of int, but a bool in place of a number is a mistake.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in types)
        raise TypeError(f"{name} must be {wanted}, got {shown(value)} of type {type(value).__name__}")


def check_value(name: str, value: object) -> None:
    """Raise ``ValueError`` if the value cannot be encoded."""
    if isinstance(value, str) and speakable(value) != value:
        raise ValueError(f"{name} contains a character that XML cannot represent: {shown(value)}")
    if isinstance(value, int) and value not in _INT64:
        raise ValueError(f"{name} does not fit into 64 bits")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{name} is a datetime without a time zone; use datetime.now(UTC), for example")


def check_path(name: str, path: object) -> None:
    """Check a name that may consist of several segments."""
    check_type(name, path, (str,))
    check_value(name, path)
    found = _FORBIDDEN.search(str(path))
    if found is not None:
        raise ValueError(f"{name} must not contain {found.group()!r}, got {shown(path)}")
    if not all(str(path).split("/")):
        raise ValueError(f"{name} must not be empty, or begin or end with a slash, got {shown(path)}")


@cache
def _types(kind: type) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(kind)
    return {field.name: _choices(hints[field.name]) for field in fields(kind)}


def _choices(hint: Any) -> tuple[type, ...]:
    choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(choice) or choice for choice in choices)


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
