"""Values that carry their type with them: the parameters and properties of rules."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from pairbus.dialect.atom.duration import LONGEST_MS, format_duration, parse_duration
from pairbus.dialect.atom.instant import format_instant, parse_date_time

Plain: TypeAlias = str | int | float | bool | None


class ValueType(Enum):
    """The types of XML Schema that Service Bus writes values in."""

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
    """A value with its type; ``None`` is of any type."""

    type: ValueType
    value: Plain


def _integer(text: str) -> int:
    return parse_integer(text)


def _duration(text: str) -> int:
    length_ms = parse_duration(text)
    return LONGEST_MS if length_ms is None else length_ms


def parse_integer(text: str) -> int:
    """A whole number of 64 bits; raises ``ValueError``."""
    digits = text.removeprefix("-").removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and len(text) - len(digits) <= 1):
        raise ValueError(f"{text[:64]!r} is no whole number")
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{text[:64]!r} does not fit into 64 bits")
    return number


_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}


def parse_boolean(text: str) -> bool:
    """Raises ``ValueError``. Some clients write truth with a capital."""
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
        raise ValueError(f"{text[:64]!r} is no number") from None


def _format_double(value: float) -> str:
    text = repr(float(value))
    return {"inf": "INF", "-inf": "-INF", "nan": "NaN"}.get(text, text)


_READERS: Final[dict[ValueType, Callable[[str], Plain]]] = {
    ValueType.STRING: str,
    # Clients say int for every number up to 2^31, also for those far below zero.
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
    """Raises ``ValueError``."""
    try:
        kind = ValueType(type_name)
    except ValueError:
        raise ValueError(f"{type_name[:64]!r} is no type of a value that is known here") from None
    return TypedValue(kind, _READERS[kind](text if kind is ValueType.STRING else text.strip()))


def format_value(value: TypedValue) -> str | None:
    return None if value.value is None else _WRITERS[value.type](value.value)
