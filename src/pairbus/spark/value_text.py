"""AMQP values as text, for columns that hold values of every type.

===================================  ==================================================
null                                 null
string, symbol, char                 unchanged
boolean                              ``true``, ``false``
integers of every size               decimal digits
float, double                        ``1.5``, ``1e+300``, ``NaN``, ``Infinity``, ``-Infinity``
timestamp                            ``2030-01-02T03:04:05.678Z``
uuid                                 ``2f1a9c0e-…``, in lower case
decimal32, decimal64, decimal128     ``12.50``, ``1E+6``, ``NaN``, ``Infinity``, ``-Infinity``
binary                               base64
list, array                          a JSON array
map                                  a JSON object, or an array of pairs if a name would occur twice
described value                      ``{"descriptor": …, "value": …}``
===================================  ==================================================

Inside JSON, null, booleans and binary numbers are JSON's own where it has them; all other values are text as above.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import UUID

from pairbus.client.validation import from_ms
from pairbus.wire import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Map,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.wire.types import decimal_of


def text_of(value: object) -> str | None:
    """Return a value as text; ``None`` only for null."""
    write = _TEXTS.get(type(value))
    return None if value is None else _json(value) if write is None else write(value)


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: int) -> str:
    return from_ms(value).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _decimal(value: Decimal32 | Decimal64 | Decimal128) -> str:
    return str(decimal_of(value))


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    **dict.fromkeys((str, Symbol, Char), str),
    bool: _boolean,
    **dict.fromkeys((int, Byte, Short, Int, UByte, UShort, UInt, ULong), int.__repr__),
    **dict.fromkeys((float, Float), _float),
    Timestamp: _moment,
    UUID: str,
    **dict.fromkeys((Decimal32, Decimal64, Decimal128), _decimal),
    bytes: _base64,
}


def _json(value: object) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> object:
    """Return a value that JSON can represent."""
    match value:
        case list():
            return [_plain(item) for item in value]
        case Array():
            return [_plain(item) for item in value.items]
        case dict():
            return _object(value.items())
        case Map():
            return _object(value.pairs)
        case Described():
            return {"descriptor": _plain(value.descriptor), "value": _plain(value.value)}
        case bool() | None:
            return value
        case Timestamp():
            return text_of(value)
        case int():
            return int(value)
        case float() if math.isfinite(value):
            return float(value)
    return text_of(value)


def _object(pairs: Iterable[tuple[Any, Any]]) -> object:
    """Return a JSON object, or pairs if two keys have the same text."""
    plain = [(text_of(key), _plain(value)) for key, value in pairs]
    named = {"null" if name is None else name: value for name, value in plain}
    return named if len(named) == len(plain) else [[name, value] for name, value in plain]
