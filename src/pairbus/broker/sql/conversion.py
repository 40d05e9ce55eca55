"""Values in the types that the properties of a message already have.

Nothing gets lost on the way: a text becomes a number only if the number, written out, is that text again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from pairbus.broker.sql.operators import KINDS, Kind, fits
from pairbus.broker.values import Value

_TRUTHS: Final = {"true": True, "false": False}


def convert(value: Value, kind: Kind) -> Value:
    """The value in that kind, or ``None`` if it has no counterpart there."""
    if KINDS[type(value)] is kind:
        return value
    rule = _RULES.get((KINDS[type(value)], kind))
    return None if rule is None else rule(value)


def _real_to_integer(value: float) -> int | None:
    return int(value) if value.is_integer() and fits(int(value)) else None


def _integer_to_real(value: int) -> float | None:
    return float(value) if int(float(value)) == value else None


def _text_to_integer(text: str) -> int | None:
    number = _read(int, text)
    return number if number is not None and str(number) == text and fits(number) else None


def _text_to_real(text: str) -> float | None:
    number = _read(float, text)
    if number is None or not math.isfinite(number):
        return None
    return number if text in {repr(number), repr(number).removesuffix(".0")} else None


def _real_to_text(value: float) -> str | None:
    return repr(float(value)) if math.isfinite(value) else None


def _text_to_id(text: str) -> UUID | None:
    identifier = _read(UUID, text)
    return identifier if identifier is not None and str(identifier) == text.lower() else None


def _read(make: Callable[[str], Any], text: str) -> Any:
    """What the class makes of a text, or ``None``."""
    try:
        return make(text)
    except ValueError:
        return None


_RULES: Final[dict[tuple[Kind, Kind], Callable[[Any], Value]]] = {
    (Kind.REAL, Kind.INTEGER): _real_to_integer,
    (Kind.TEXT, Kind.INTEGER): _text_to_integer,
    (Kind.INTEGER, Kind.REAL): _integer_to_real,
    (Kind.TEXT, Kind.REAL): _text_to_real,
    (Kind.INTEGER, Kind.TEXT): lambda value: str(int(value)),
    (Kind.REAL, Kind.TEXT): _real_to_text,
    (Kind.BOOLEAN, Kind.TEXT): lambda value: str(value).lower(),
    (Kind.ID, Kind.TEXT): str,
    (Kind.TEXT, Kind.BOOLEAN): lambda text: _TRUTHS.get(text.lower()),
    (Kind.TEXT, Kind.ID): _text_to_id,
}
