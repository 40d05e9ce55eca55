"""Whether the values of a description can be what they are said to be; the service judges the rest."""

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
"""What the service takes in no name. Some of it would end the path of an address, and lead to something else."""


def check_fields(description: object) -> None:
    """Compare each field of a dataclass with its annotation, and what counts or measures with zero.

    Raises ``TypeError`` or ``ValueError``.
    """
    kind: type = type(description)
    for name, types in _types(kind).items():
        value = getattr(description, name)
        check_type(name, value, types)
        check_value(name, value)
        if (isinstance(value, int) and value < 0) or (isinstance(value, timedelta) and value < timedelta()):
            raise ValueError(f"{name} is {value}; it cannot be below zero")


def shown(value: object) -> str:
    """A value for the text of an error; not one that may be a connection string, and hold a key."""
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        if "=" in text or "sharedaccess" in text.lower():
            return "what was given"
    return f"{value!r:.100}"


def check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    # A truth value is a number to Python, and a mistake to everybody else.
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("None" if kind is NoneType else kind.__name__ for kind in types)
        raise TypeError(f"{name} has to be {wanted}; {shown(value)} is {type(value).__name__}")


def check_value(name: str, value: object) -> None:
    """Whether it can be written at all. Raises ``ValueError``."""
    if isinstance(value, str) and speakable(value) != value:
        raise ValueError(f"{name} has a character that XML cannot write: {shown(value)}")
    if isinstance(value, int) and value not in _INT64:
        raise ValueError(f"{name} does not fit into 64 bits")
    if isinstance(value, datetime) and value.tzinfo is None:
        raise ValueError(f"{name} is a time without a time zone; use datetime.now(UTC) and the like")


def check_path(name: str, path: object) -> None:
    """A name that may have several segments."""
    check_type(name, path, (str,))
    check_value(name, path)
    found = _FORBIDDEN.search(str(path))
    if found is not None:
        raise ValueError(f"{name} is {shown(path)}; no name has the character {found.group()!r}")
    if not all(str(path).split("/")):
        raise ValueError(f"{name} is {shown(path)}; it can neither be empty, nor begin or end with a slash")


@cache
def _types(kind: type) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(kind)
    return {field.name: _choices(hints[field.name]) for field in fields(kind)}


def _choices(hint: Any) -> tuple[type, ...]:
    choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return tuple(get_origin(choice) or choice for choice in choices)
