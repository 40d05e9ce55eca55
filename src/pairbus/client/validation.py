"""Checks of the types and ranges of values before they are sent; the service checks the rest."""

from __future__ import annotations

import re
from dataclasses import fields
from datetime import datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from pairbus.dialect.atom.document import speakable

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
