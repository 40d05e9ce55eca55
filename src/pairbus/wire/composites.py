"""Composite types: classes that encode as a described list of fields (part 1.4 of the standard).

A composite is declared once, as a frozen dataclass or a ``NamedTuple`` whose annotations are the AMQP types of its
fields, in the standard's order. A field without a default is mandatory. From that declaration come the decoder, the
encoder, and the tables that the tests compare with the standard's.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from pairbus.wire import encoder
from pairbus.wire.errors import DecodeError, EncodeError, InvalidFieldError
from pairbus.wire.types import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, UShort


@dataclasses.dataclass(frozen=True, slots=True)
class AmqpType:
    """The validation, conversion and encoding of fields of one AMQP type."""

    name: str
    decoded: frozenset[type]
    """The Python types to which the decoder converts values of this type."""
    make: Callable[[Any], Any] | None
    """Converts a decoded value to the field's value; raises ``ValueError`` if it is invalid."""
    encode: Callable[[Any, int], bytes]


def amqp_type(
    name: str, decoded: type, make: Callable[[Any], Any] | None, encode: Callable[[Any, int], bytes]
) -> AmqpType:
    return AmqpType(name, frozenset({decoded}), make, encode)


def _encode_fields(fields: dict[Any, Any], depth: int) -> bytes:
    """Encode a map of type ``fields``, whose keys must be symbols."""
    named = {Symbol(key) if type(key) is str else key: value for key, value in fields.items()}
    return encoder.encode_nested(named, depth)


boolean = Annotated[bool, amqp_type("boolean", bool, None, encoder.encode_boolean)]
ubyte = Annotated[int, amqp_type("ubyte", UByte, int, encoder.encode_ubyte)]
ushort = Annotated[int, amqp_type("ushort", UShort, int, encoder.encode_ushort)]
uint = Annotated[int, amqp_type("uint", UInt, int, encoder.encode_uint)]
ulong = Annotated[int, amqp_type("ulong", ULong, int, encoder.encode_ulong)]
timestamp = Annotated[int, amqp_type("timestamp", Timestamp, int, encoder.encode_timestamp)]
binary = Annotated[bytes, amqp_type("binary", bytes, None, encoder.encode_binary)]
string = Annotated[str, amqp_type("string", str, None, encoder.encode_string)]
symbol = Annotated[str, amqp_type("symbol", Symbol, str, encoder.encode_symbol)]
fields = Annotated[dict[Any, Any], amqp_type("map", dict, None, _encode_fields)]
any_message_id = Annotated[
    Any, AmqpType("message-id", frozenset({str, UUID, bytes, ULong}), None, encoder.encode_nested)
]


@dataclasses.dataclass(frozen=True, slots=True)
class Provides:
    """The type of a field that accepts any composite with a certain role, such as ``delivery-state``."""

    role: str


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field of a composite, as the standard's tables list it."""

    name: str
    attribute: str
    kind: AmqpType | Provides | type
    mandatory: bool
    default: object
    multiple: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """The wire format of a composite."""

    composite: type
    name: str
    code: int
    provides: frozenset[str]
    fields: tuple[Field, ...]
    pad: bool
    """True if trailing null fields are written too."""


LAYOUTS: Final[dict[type, Layout]] = {}
"""All declared composites."""

_BY_DESCRIPTOR: Final[dict[object, Layout]] = {}

C = TypeVar("C", bound=type)


def composite(name: str, code: int, *, provides: str = "", pad: bool = False) -> Callable[[C], C]:
    """Declare a class as the composite type ``name``."""

    def declare(cls: C) -> C:
        layout = Layout(cls, name, code, frozenset(provides.split()), _fields_of(cls), pad)
        LAYOUTS[cls] = layout
        _BY_DESCRIPTOR[code] = _BY_DESCRIPTOR[name] = layout
        encoder.register(cls, _encoder_of(layout))
        return cls

    return declare


_MANDATORY: Final = object()


def _fields_of(cls: type) -> tuple[Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    return tuple(_field(attribute, hints[attribute], default) for attribute, default in _defaults_of(cls).items())


def _defaults_of(cls: Any) -> dict[str, object]:
    if dataclasses.is_dataclass(cls):
        return {
            field.name: _MANDATORY if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(cls)
        }
    return {name: cls._field_defaults.get(name, _MANDATORY) for name in cls._fields}


def _field(attribute: str, hint: object, default: object) -> Field:
    multiple = get_origin(hint) is tuple
    return Field(
        name=attribute.replace("_", "-"),
        attribute=attribute,
        kind=_kind_of(get_args(hint)[0] if multiple else hint),
        mandatory=default is _MANDATORY,
        default=None if default is _MANDATORY else default,
        multiple=multiple,
    )


def _kind_of(hint: object) -> AmqpType | Provides | type:
    """Find the AMQP type in ``Annotated[…, type]``, a composite class, or either of them ``| None``."""
    if get_origin(hint) is Annotated:
        kind: AmqpType | Provides = get_args(hint)[-1]
        return kind
    if isinstance(hint, type):
        return hint
    return _kind_of(next(option for option in get_args(hint) if option is not type(None)))


def _encoder_of(layout: Layout) -> Callable[[Any, int], bytes]:
    descriptor = b"\x00" + encoder.encode_ulong(layout.code)

    def encode_field(value: object, field: Field, depth: int) -> bytes:
        try:
            return _encode_field(value, field, depth)
        except (struct.error, ValueError, TypeError, AttributeError, IndexError) as error:
            raise EncodeError(f"{layout.name}: {field.name} cannot be {_brief(value)}") from error

    def encode_composite(value: object, depth: int) -> bytes:
        encoder.check_depth(depth + 1)
        parts: list[bytes] = []
        nulls = 0  # trailing nulls are left out, and most fields of most composites are null
        for field in layout.fields:
            item = getattr(value, field.attribute)
            encoded = encoder.NULL if item is None else encode_field(item, field, depth + 2)
            if encoded == encoder.NULL:
                nulls += 1
                continue
            if nulls:
                parts += [encoder.NULL] * nulls
                nulls = 0
            parts.append(encoded)
        if layout.pad:
            parts += [encoder.NULL] * nulls
        return descriptor + encoder.enclose_list(parts)

    return encode_composite


def _brief(value: object) -> str:
    """Return a value for the text of an error; a container is shown by its type alone, because it may be large."""
    return f"{value!r:.200}" if isinstance(value, str | bytes | int | float) else f"a {type(value).__name__}"


def _encode_field(value: Any, field: Field, depth: int) -> bytes:
    if value is None or value == field.default:
        return encoder.NULL
    if field.multiple:
        return encoder.encode_symbols(value)
    if isinstance(field.kind, AmqpType):
        if field.kind.make is not None:
            field.kind.make(value)  # raises if the value is invalid
        if bool in field.kind.decoded and not isinstance(value, bool):
            raise TypeError
        return field.kind.encode(value, depth)
    if not _fits(field.kind, value):
        raise TypeError
    return encoder.encode_nested(value, depth)


def _fits(kind: Provides | type, value: object) -> bool:
    """Return True if a composite is allowed in a field that requires a class of them, or a certain role."""
    if isinstance(kind, type):
        return type(value) is kind
    layout = LAYOUTS.get(type(value))
    if layout is None:  # not defined by the standard, so left Described: an extension that the application may know
        return isinstance(value, Described)
    return kind.role in layout.provides


def is_delivery_state(value: object) -> bool:
    """Return True if a value is valid as the state of a delivery."""
    return value is None or _fits(Provides("delivery-state"), value)


def from_described(value: object) -> object:
    """Return the composite that a described list encodes; return any other value unchanged."""
    if not isinstance(value, Described):
        return value
    layout = layout_of(value.descriptor)
    return value if layout is None else from_list(layout, value.value)


def layout_of(descriptor: object) -> Layout | None:
    """Return the composite with a numeric or symbolic descriptor."""
    if type(descriptor) is ULong or type(descriptor) is Symbol:
        return _BY_DESCRIPTOR.get(descriptor)
    return None


def from_list(layout: Layout, values: object) -> object:
    """Create the composite of ``layout`` from its fields."""
    if type(values) is not list:
        raise DecodeError(f"{layout.name} is not a list")
    if len(values) > len(layout.fields):
        raise DecodeError(f"{layout.name} has {len(values)} fields, the standard knows {len(layout.fields)}")
    arguments: dict[str, Any] = {}
    for field, value in zip(layout.fields, values, strict=False):
        if value is not None:
            arguments[field.attribute] = _decode_field(layout, field, value)
    for field in layout.fields:
        if field.mandatory and field.attribute not in arguments:
            raise InvalidFieldError(f"{layout.name} lacks its mandatory field {field.name}")
    made: object = layout.composite(**arguments)
    return made


def _decode_field(layout: Layout, field: Field, value: object) -> object:
    if isinstance(field.kind, AmqpType):
        if field.multiple:
            items = value.items if isinstance(value, Array) else (value,)
            return tuple(_decode_primitive(layout, field, field.kind, item) for item in items)
        return _decode_primitive(layout, field, field.kind, value)
    made = from_described(value)
    if not _fits(field.kind, made):
        raise _wrong_type(layout, field, value)
    return made


def _decode_primitive(layout: Layout, field: Field, kind: AmqpType, value: object) -> object:
    if type(value) not in kind.decoded:
        raise _wrong_type(layout, field, value)
    if kind.make is None:
        return value
    try:
        return kind.make(value)
    except ValueError:
        raise _wrong_type(layout, field, value) from None


def _wrong_type(layout: Layout, field: Field, value: object) -> InvalidFieldError:
    return InvalidFieldError(f"{layout.name}: {field.name} cannot be {value!r:.200}")
