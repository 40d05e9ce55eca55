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
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
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
    EncodeError,
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
from pairbus.wire.types import decimal128, decimal_of


def text_of(value: object) -> str | None:
    """Return a value as text; ``None`` only for null."""
    write = _TEXTS.get(type(value))
    return None if value is None else _json(value) if write is None else write(value)


_NAMES: Final[dict[type, str]] = {
    type(None): "null",
    str: "string",
    Symbol: "symbol",
    Char: "char",
    bool: "boolean",
    Byte: "byte",
    Short: "short",
    Int: "int",
    int: "long",
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Float: "float",
    float: "double",
    Timestamp: "timestamp",
    UUID: "uuid",
    Decimal32: "decimal32",
    Decimal64: "decimal64",
    Decimal128: "decimal128",
    bytes: "binary",
    list: "list",
    Array: "array",
    dict: "map",
    Map: "map",
    Described: "described",
}


def type_of(value: object) -> str:
    """Return the name of a value's AMQP type."""
    return _NAMES[type(value)]


def value_of(text: str | None, kind: str) -> object:
    """Return the value that ``text_of`` and ``type_of`` describe. Raise ``ValueError``.

    Values that contain others have no text that could be parsed, and the smaller decimals cannot be encoded.
    """
    parse = _PARSERS.get(kind)
    if parse is None:
        raise ValueError(f"a value of type {kind!r:.50} cannot be written; available: {', '.join(_PARSERS)}")
    try:
        return None if text is None else parse(text)
    except (ArithmeticError, EncodeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{text!r:.50} is not a value of type {kind}") from None


def _parse_moment(text: str) -> Timestamp:
    return Timestamp(round(datetime.fromisoformat(text).timestamp() * 1_000))


_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "null": lambda _: None,
    "string": str,
    "symbol": Symbol,
    "char": Char,
    "boolean": {"true": True, "false": False}.__getitem__,
    **{name: kind for kind, name in _NAMES.items() if issubclass(kind, int) and kind not in {bool, Timestamp}},
    "float": lambda text: Float(float(text)),
    "double": float,
    "timestamp": _parse_moment,
    "uuid": UUID,
    "decimal128": lambda text: decimal128(Decimal(text)),
    "binary": lambda text: b64decode(text, validate=True),
}


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
