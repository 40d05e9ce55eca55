"""AMQP values in JSON, with their types.

===========================  ==================================================================================
null, boolean, string, list  as JSON has them
long                         a number without a fraction
double                       a number with one, ``1.0``; ``{"double": "NaN"}``, ``"Infinity"``, ``"-Infinity"``
a NaN with a payload         its 64 bits behind the name, ``{"double": "NaN:7ff8000000000001"}``
float                        ``{"float": 1.5}``
other whole numbers          ``{"uint": 5}``; so ``ubyte``, ``ushort``, ``ulong``, ``byte``, ``short``, ``int``
timestamp                    ``{"timestamp": "2030-01-02T03:04:05.678Z"}``, or a number of milliseconds
uuid                         ``{"uuid": "2f1a9c0e-…"}``
binary                       ``{"binary": "…"}``, in base64
symbol, char                 ``{"symbol": "text"}``, ``{"char": "x"}``
decimals                     ``{"decimal128": "…"}``, their bytes in hexadecimal digits
map                          ``{"map": {"name": value}}``, or ``{"map": [[key, value], …]}``
array                        ``{"array": [value, …], "constructor": "…"}``
described value              ``{"described": [descriptor, value]}``
===========================  ==================================================================================
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from struct import Struct
from typing import Any, Final
from uuid import UUID

from pairbus.client.validation import from_ms, to_ms
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
from pairbus.wire.types import misfit

_WHOLE: Final[dict[str, type[int]]] = {
    "ubyte": UByte,
    "ushort": UShort,
    "uint": UInt,
    "ulong": ULong,
    "byte": Byte,
    "short": Short,
    "int": Int,
    "long": int,
}
_DECIMALS: Final[dict[str, tuple[type[bytes], int]]] = {
    "decimal32": (Decimal32, 4),
    "decimal64": (Decimal64, 8),
    "decimal128": (Decimal128, 16),
}
_SPECIAL: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAN_BITS: Final = "NaN:"
_DOUBLE: Final = Struct(">d")


_TYPE_NAMES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    str: "string",
    float: "double",
    Float: "float",
    **{kind: name for name, kind in _WHOLE.items()},
    **{kind: name for name, (kind, _) in _DECIMALS.items()},
    Timestamp: "timestamp",
    datetime: "timestamp",
    UUID: "uuid",
    bytes: "binary",
    Symbol: "symbol",
    Char: "char",
    list: "list",
    dict: "map",
    Map: "map",
    Array: "array",
    Described: "described",
}


def type_name(value: Any) -> str:
    """Return the AMQP name of a value's type. Raises ``TypeError`` if AMQP has no such type."""
    name = _TYPE_NAMES.get(type(value))
    if name is None:
        raise TypeError(f"AMQP has no {type(value).__name__}")
    return name


# From AMQP to JSON.


def json_of(value: Any) -> Any:
    """Return the JSON form of a value. Raises ``TypeError`` if AMQP has no such type."""
    if value is None or type(value) in (bool, str, int):
        return value
    write = _WRITERS.get(type(value))
    if write is None:
        raise TypeError(f"AMQP has no {type(value).__name__}")
    return write(value)


def moment_text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def base64_text(octets: bytes) -> str:
    return b64encode(octets).decode()


def _whole(name: str, value: int) -> Any:
    return {name: int(value)}


def _decimal(name: str, value: bytes) -> Any:
    return {name: value.hex()}


def _double(value: float) -> Any:
    return value if math.isfinite(value) else {"double": _special(value)}


def _float(value: float) -> Any:
    return {"float": float(value) if math.isfinite(value) else _special(value)}


def _special(value: float) -> str:
    """Return the name of a number that JSON lacks. Descriptors are compared bit by bit, so a NaN keeps its bits."""
    if not math.isnan(value):
        return "Infinity" if value > 0 else "-Infinity"
    bits = _DOUBLE.pack(value)
    return "NaN" if bits == _DOUBLE.pack(math.nan) else f"{_NAN_BITS}{bits.hex()}"


def _timestamp(value: int) -> Any:
    moment = from_ms(value)
    is_exact = to_ms(moment) == value  # Python cannot represent every timestamp
    return {"timestamp": moment_text(moment) if is_exact else int(value)}


def _map(pairs: Mapping[Any, Any] | tuple[tuple[Any, Any], ...]) -> Any:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    if isinstance(pairs, Mapping) and all(type(key) is str for key in pairs):
        return {"map": {key: json_of(value) for key, value in items}}
    return {"map": [[json_of(key), json_of(value)] for key, value in items]}


def _array(array: Array) -> Any:
    items = [json_of(item) for item in array.items]
    return {"array": items} if array.constructor is None else {"array": items, "constructor": array.constructor.hex()}


_WRITERS: Final[dict[type, Callable[[Any], Any]]] = {
    float: _double,
    Float: _float,
    **{kind: partial(_whole, name) for name, kind in _WHOLE.items()},
    **{kind: partial(_decimal, name) for name, (kind, _) in _DECIMALS.items()},
    Timestamp: _timestamp,
    datetime: lambda moment: {"timestamp": moment_text(moment)},
    UUID: lambda value: {"uuid": str(value)},
    bytes: lambda value: {"binary": base64_text(value)},
    Symbol: lambda value: {"symbol": str(value)},
    Char: lambda value: {"char": str(value)},
    list: lambda items: [json_of(item) for item in items],
    dict: _map,
    Map: lambda value: _map(value.pairs),
    Array: _array,
    Described: lambda value: {"described": [json_of(value.descriptor), json_of(value.value)]},
}


# From JSON to AMQP.


def value_of(thing: Any) -> Any:
    """Return the AMQP value of a JSON form. Raises ``ValueError``."""
    if isinstance(thing, list):
        return [value_of(item) for item in thing]
    if not isinstance(thing, dict):
        return thing
    name = next(iter(thing), None)
    read = _READERS.get(name or "")
    if read is None or set(thing) - {name, "constructor"} or ("constructor" in thing and name != "array"):
        raise ValueError(f"{{{', '.join(map(repr, thing))}}} is not an AMQP type; use one of {', '.join(_READERS)}")
    return _array_of(thing) if name == "array" else read(thing[name])


def octets_of(text: Any) -> bytes:
    """Decode base64. Raises ``ValueError`` if the text is not base64."""
    try:
        return b64decode(text_of(text), validate=True)
    except Base64Error:
        raise ValueError("invalid base64") from None


def moment_of(text: Any) -> datetime:
    """Parse an ISO 8601 time. Raises ``ValueError`` if it is invalid or has no time zone."""
    try:
        moment = datetime.fromisoformat(text_of(text))
    except ValueError:
        raise ValueError(f"{text!r:.50} is not a time such as 2030-01-02T03:04:05Z") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r:.50} has no time zone; append Z for UTC")
    to_ms(moment)
    return moment


def value_from_text(kind: str, text: str) -> Any:
    """Parse a value of a type from text, as typed on a command line. Raises ``ValueError``."""
    if kind == "string":
        return text
    if kind == "boolean":
        return {"true": True, "false": False}[text] if text in {"true", "false"} else _refuse(text, "true or false")
    if kind in _WHOLE:
        return value_of({kind: _number_from(int, text, "a whole number")})
    if kind in {"float", "double"}:
        is_special = text in _SPECIAL or text.startswith(_NAN_BITS)
        return value_of({kind: text if is_special else _number_from(float, text, "a number")})
    return value_of({kind: text})


def _number_from(kind: Callable[[str], Any], text: str, wanted: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        return _refuse(text, wanted)


def _refuse(given: Any, wanted: str) -> Any:
    raise ValueError(f"{given!r:.50} is not {wanted}")


def text_of(given: Any) -> str:
    text: str = given if isinstance(given, str) else _refuse(given, "a text")
    return text


def whole_of(given: Any) -> int:
    is_whole = isinstance(given, int) and not isinstance(given, bool)
    number: int = given if is_whole else _refuse(given, "a whole number")
    return number


def _binary_fraction(given: Any) -> float:
    if isinstance(given, str):
        return _SPECIAL[given] if given in _SPECIAL else _nan_of(given)
    return float(given) if isinstance(given, float) else float(whole_of(given))


def _nan_of(given: str) -> float:
    bits = re.fullmatch(rf"{_NAN_BITS}([0-9a-f]{{16}})", given)
    (value,) = _DOUBLE.unpack(bytes.fromhex(bits[1])) if bits else (0.0,)
    return value if math.isnan(value) else float(_refuse(given, "NaN, Infinity or -Infinity"))


def _timestamp_of(given: Any) -> Timestamp:
    return Timestamp(to_ms(moment_of(given)) if isinstance(given, str) else _number_of(Timestamp, given))


def _uuid_of(given: Any) -> UUID:
    try:
        return UUID(text_of(given))
    except ValueError:
        raise ValueError(f"{given!r:.50} is not 32 hexadecimal digits") from None


def _character(given: Any) -> Char:
    return Char(given if len(text_of(given)) == 1 else _refuse(given, "one character"))


def _number_of(kind: type[int], given: Any) -> int:
    number = whole_of(given)
    reason = misfit(number, kind)
    if reason is not None:
        raise ValueError(reason)
    return kind(number)


def _decimal_of(kind: type[bytes], length: int, given: Any) -> bytes:
    octets = bytes.fromhex(text_of(given))
    return kind(octets if len(octets) == length else _refuse(given, f"{length} bytes"))


def _map_of(given: Any) -> Any:
    if isinstance(given, dict):
        return {key: value_of(value) for key, value in given.items()}
    if not isinstance(given, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in given):
        _refuse(given, "a list of pairs")
    pairs = tuple((value_of(key), value_of(value)) for key, value in given)
    try:
        found = dict(pairs)
    except TypeError:  # AMQP allows keys that Python does not
        return Map(pairs)
    return found if len(found) == len(pairs) else Map(pairs)


def _array_of(thing: Any) -> Array:
    items = thing["array"] if isinstance(thing["array"], list) else _refuse(thing["array"], "a list")
    constructor = bytes.fromhex(text_of(thing["constructor"])) if "constructor" in thing else None
    return Array(tuple(value_of(item) for item in items), constructor)


def _described_of(given: Any) -> Described:
    if not isinstance(given, list) or len(given) != 2:
        _refuse(given, "a descriptor and a value")
    return Described(value_of(given[0]), value_of(given[1]))


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "float": lambda given: Float(_binary_fraction(given)),
    "double": _binary_fraction,
    **{name: partial(_number_of, kind) for name, kind in _WHOLE.items()},
    **{name: partial(_decimal_of, kind, length) for name, (kind, length) in _DECIMALS.items()},
    "timestamp": _timestamp_of,
    "uuid": _uuid_of,
    "binary": octets_of,
    "symbol": lambda given: Symbol(text_of(given)),
    "char": _character,
    "map": _map_of,
    "array": lambda given: _array_of({"array": given}),
    "described": _described_of,
}

TYPED_TEXTS: Final = (
    *("string", "boolean", *_WHOLE, "float", "double"),
    *("timestamp", "uuid", "binary", "symbol", "char"),
)
"""The types whose values can be typed on a command line."""
