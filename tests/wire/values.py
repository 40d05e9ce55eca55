"""Hypothesis strategies for AMQP values and composites, and what makes two of them the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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
from pairbus.wire.composites import LAYOUTS, AmqpType, Field, Provides
from tests.thoroughness import times

Strategy = st.SearchStrategy[Any]
N = TypeVar("N", bound=int)


def examples(count: int) -> settings:
    """Return settings for ``count`` examples of a property, without a deadline."""
    return settings(max_examples=times(count), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def identity(value: object) -> object:
    """Return the identity of a value: equal identities mean equal values of the same types, at every depth.

    Unlike ``==`` this distinguishes ``UInt(1)`` from ``1`` and ``True``, ``Symbol("a")`` from ``"a"``, ``-0.0`` from
    ``0.0`` and a map from the same map in another order, and treats a NaN as equal to a NaN.
    """
    content: object = value
    if isinstance(value, float):
        content = repr(float(value))
    elif dataclasses.is_dataclass(value):
        compared = [field for field in dataclasses.fields(value) if field.compare]
        content = tuple(identity(getattr(value, field.name)) for field in compared)
    elif isinstance(value, dict):
        content = tuple((identity(key), identity(member)) for key, member in value.items())
    elif isinstance(value, list | tuple):
        content = tuple(identity(member) for member in value)
    return type(value), content


def _numbers(kind: type[N], bits: int, *, signed: bool) -> st.SearchStrategy[N]:
    """Numbers over the whole range, the bounds of short and long encodings among them."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    edges = [edge for edge in (low, -129, -128, -1, 0, 1, 127, 128, 255, 256, high) if low <= edge <= high]
    return st.one_of(st.integers(low, high), st.sampled_from(edges)).map(kind)


def _sizes(text: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The same text or bytes, now and then too long for a length of 8 bits."""
    return st.one_of(text, text, text, text.map(lambda part: part * 60))


PRIMITIVES: dict[str, Strategy] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "ubyte": _numbers(UByte, 8, signed=False),
    "ushort": _numbers(UShort, 16, signed=False),
    "uint": _numbers(UInt, 32, signed=False),
    "ulong": _numbers(ULong, 64, signed=False),
    "byte": _numbers(Byte, 8, signed=True),
    "short": _numbers(Short, 16, signed=True),
    "int": _numbers(Int, 32, signed=True),
    "long": _numbers(int, 64, signed=True),
    "float": st.floats(width=32).map(Float),
    "double": st.floats(),
    "decimal32": st.binary(min_size=4, max_size=4).map(Decimal32),
    "decimal64": st.binary(min_size=8, max_size=8).map(Decimal64),
    "decimal128": st.binary(min_size=16, max_size=16).map(Decimal128),
    "char": st.characters(codec="utf-8").map(Char),
    "timestamp": _numbers(Timestamp, 64, signed=True),
    "uuid": st.uuids(),
    "binary": _sizes(st.binary(max_size=8)),
    "string": _sizes(st.text(max_size=8)),
    "symbol": _sizes(st.text(st.characters(max_codepoint=127), max_size=8)).map(Symbol),
}
"""A strategy for each primitive type of the standard that does not hold other values, by its name."""

primitives: Strategy = st.one_of(*PRIMITIVES.values())

likes: Strategy = st.sampled_from(
    [
        1,
        True,
        UInt(1),
        ULong(1),
        Timestamp(1),
        1.0,
        Float(1.0),
        "a",
        Symbol("a"),
        Char("a"),
        b"four",
        Decimal32(b"four"),
    ]
)
"""Values that are distinct in AMQP and equal in Python: as keys of one map they need a ``Map``."""

descriptors: Strategy = st.one_of(PRIMITIVES["symbol"], PRIMITIVES["ulong"], primitives)

SHAPES = ("list", "map", "array", "described")
_COUNTS = st.integers(0, 3)


@st.composite
def values(draw: st.DrawFn, shapes: Sequence[str] = ("primitive", *SHAPES), depth: int = 2) -> Any:
    """Values of certain shapes, which hold values of all shapes down to a depth."""
    within = values(depth=depth - 1) if depth > 0 else primitives
    match draw(st.sampled_from(shapes)):
        case "list":
            return [draw(within) for _ in range(draw(_COUNTS))]
        case "map":
            keys = draw(st.sampled_from([likes, primitives, within]))
            return draw(maps(keys, within))
        case "array":
            return Array(tuple(draw(elements(depth))))
        case "described":
            return Described(draw(descriptors), draw(within))
        case _:
            return draw(primitives)


def maps(keys: Strategy, members: Strategy) -> Strategy:
    """Maps: a ``dict`` where it can hold every pair, and a ``Map`` where it cannot."""
    pairs = st.lists(st.tuples(keys, members), max_size=4, unique_by=lambda pair: identity(pair[0]))
    return pairs.map(to_map)


def to_map(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any] | Map:
    pairs = tuple(pairs)
    try:
        held = dict(pairs)
    except TypeError:
        return Map(pairs)
    return held if len(held) == len(pairs) else Map(pairs)


@st.composite
def elements(draw: st.DrawFn, depth: int) -> list[object]:
    """Values that can stand in one array: all of one primitive type or shape, and with the same descriptors."""
    compounds = ("list", "map", "array") if depth > 0 else ()
    kind = draw(st.sampled_from([*PRIMITIVES, *compounds]))
    strategy = PRIMITIVES[kind] if kind in PRIMITIVES else values((kind,), depth=depth - 1)
    items = draw(st.lists(strategy, max_size=4))
    for _ in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        descriptor = draw(descriptors)
        items = [Described(descriptor, item) for item in items]
    return items


amqp_values: Strategy = values()
"""Values of every type and shape."""


# Composites, made from their declarations.

BY_NAME = {layout.name: layout for layout in LAYOUTS.values()}

UNKNOWN = Described(Symbol("example:state:list"), [UInt(1), "two"])
"""A composite that the standard does not define."""

ONE_OF_EACH: tuple[object, ...] = (
    True,
    UByte(1),
    UShort(1),
    UInt(1),
    ULong(1),
    Byte(1),
    Short(1),
    Int(1),
    1,
    Float(1),
    1.0,
    Decimal32(b"1234"),
    Char("c"),
    Timestamp(1),
    UUID(int=1),
    b"binary",
    "string",
    Symbol("symbol"),
    [],
    {},
    Map(((1, 1), (True, 1))),
    Array((1,)),
    Described(ULong(0x10), ["container"]),
    UNKNOWN,
)
"""A value of each type that the decoder gives, with a composite of no use in a field among them."""


_TEXT = st.text(max_size=8)
_NAMES = st.text(st.characters(max_codepoint=127), max_size=8)
_FIELDS = maps(PRIMITIVES["symbol"], primitives)

PYTHON_VALUES: dict[str, Strategy] = {
    "boolean": st.booleans(),
    "ubyte": PRIMITIVES["ubyte"].map(int),
    "ushort": PRIMITIVES["ushort"].map(int),
    "uint": PRIMITIVES["uint"].map(int),
    "ulong": PRIMITIVES["ulong"].map(int),
    "timestamp": PRIMITIVES["timestamp"].map(int),
    "binary": st.binary(max_size=8),
    "string": _TEXT,
    "symbol": _NAMES,
    "map": _FIELDS,
    "message-id": st.one_of(_TEXT, st.uuids(), st.binary(max_size=8), PRIMITIVES["ulong"]),
}
"""The Python types of the fields of each type."""


@cache
def field_values(kind: AmqpType | Provides | type) -> Strategy:
    if isinstance(kind, Provides):
        providers = [layout for layout in LAYOUTS.values() if kind.role in layout.provides]
        return st.one_of(st.just(UNKNOWN), *[composites(layout.name) for layout in providers])
    if not isinstance(kind, AmqpType):
        return composites(LAYOUTS[kind].name)
    if isinstance(kind.make, type) and issubclass(kind.make, Enum):
        return st.sampled_from(list(kind.make))
    return PYTHON_VALUES[kind.name]


def values_of(field: Field) -> Strategy:
    one = field_values(field.kind)
    return st.lists(one, max_size=3).map(tuple) if field.multiple else one


@cache
def composites(name: str) -> Strategy:
    """Composites with all of their fields set."""
    layout = BY_NAME[name]
    return st.builds(layout.composite, **{field.attribute: values_of(field) for field in layout.fields})


@cache
def sparse_composites(name: str) -> Strategy:
    """Composites with their mandatory fields, and some of the others."""
    layout = BY_NAME[name]
    mandatory = {field.attribute: values_of(field) for field in layout.fields if field.mandatory}
    optional = {field.attribute: values_of(field) for field in layout.fields if not field.mandatory}
    return st.fixed_dictionaries(mandatory, optional=optional).map(lambda fields: layout.composite(**fields))
