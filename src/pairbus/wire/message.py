"""Messages, and the positions of their sections in a payload (part 3.2 of the standard)."""

from __future__ import annotations

from typing import Any, Final

from pairbus.wire import encoder
from pairbus.wire.composites import LAYOUTS, AmqpType
from pairbus.wire.decoder import count_values, decode_at, decode_list, decode_map, skip
from pairbus.wire.errors import DecodeError, EncodeError, InvalidFieldError, PeerLimitError
from pairbus.wire.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    NO_HEADER,
    NO_PROPERTIES,
    PROPERTIES,
    SECTION_CODES,
    Header,
    Message,
    Properties,
)
from pairbus.wire.types import Char, Symbol, ULong

_new_tuple: Final = tuple.__new__  # the constructor of a NamedTuple calls this; calling it directly is faster


def _field_types(section: type) -> list[frozenset[type]]:
    kinds = [field.kind for field in LAYOUTS[section].fields]
    return [kind.decoded for kind in kinds if isinstance(kind, AmqpType)]


_HEADER_TYPES: Final = _field_types(Header)
_PROPERTIES_TYPES: Final = _field_types(Properties)

_PADDING: Final[list[list[Any]]] = [[None] * (len(NO_PROPERTIES) - count) for count in range(len(NO_PROPERTIES) + 1)]
"""The nulls that complete a list of this many properties."""


class Sections:
    """The positions of the sections of a message in its payload.

    Created without decoding any section. ``spans`` maps a section's code to its ``(start, value, end)``: the positions
    of its descriptor, of its value and of the next section. ``body`` lists the body's sections as ``(code, start,
    value, end)``. Sections may be in any order: the Azure SDK for Python writes the delivery annotations last.
    """

    __slots__ = ("body", "payload", "spans")

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.spans: dict[int, tuple[int, int, int]] = {}
        self.body: list[tuple[int, int, int, int]] = []
        try:
            self._find(payload, len(payload))
        except IndexError as error:
            raise DecodeError("the message is cut off") from error

    def _find(self, payload: bytes, length: int) -> None:
        spans = self.spans
        count = 0
        start = 0
        while start < length:
            if payload[start] == 0x00 and payload[start + 1] == 0x53:
                code = payload[start + 2]
                value = start + 3
            else:
                code, value = _read_section_descriptor(payload, start)
            constructor = payload[value]
            if constructor < 0xA0:
                end = skip(payload, value)
            elif constructor & 0x10:
                size = (
                    payload[value + 1] << 24 | payload[value + 2] << 16 | payload[value + 3] << 8 | payload[value + 4]
                )
                end = value + 5 + size
            else:
                end = value + 2 + payload[value + 1]
            if end > length:
                raise DecodeError("the message is cut off")
            if code < HEADER or code > FOOTER:
                raise DecodeError(f"0x{code:02x} is not a section of a message")
            if DATA <= code <= AMQP_VALUE:
                self._add_to_body(code, start, value, end)
            else:
                spans[code] = (start, value, end)
            count += 1
            start = end
        if count != len(spans) + len(self.body):
            raise DecodeError("a section appears twice")

    def _add_to_body(self, code: int, start: int, value: int, end: int) -> None:
        if self.body and (self.body[0][0] != code or code == AMQP_VALUE):
            raise DecodeError("a body must be one value, data sections, or sequence sections")
        self.body.append((code, start, value, end))

    def raw(self, code: int) -> bytes:
        """Return the bytes of a section, including its descriptor; empty if the message lacks it."""
        span = self.spans.get(code)
        return b"" if span is None else self.payload[span[0] : span[2]]

    def header(self) -> Header:
        span = self.spans.get(HEADER)
        if span is None:
            return NO_HEADER
        values = decode_list(self.payload, span[1])
        _check_fields(HEADER, values, _HEADER_TYPES)
        for index in range(len(values)):
            if values[index] is None:
                values[index] = NO_HEADER[index]
        values.extend(NO_HEADER[len(values) :])
        return _new_tuple(Header, values)

    def properties(self) -> Properties:
        span = self.spans.get(PROPERTIES)
        if span is None:
            return NO_PROPERTIES
        values = decode_list(self.payload, span[1])
        _check_fields(PROPERTIES, values, _PROPERTIES_TYPES)
        values.extend(_PADDING[len(values)])
        return _new_tuple(Properties, values)

    def application_properties(self) -> dict[str, Any]:
        properties = self._map(APPLICATION_PROPERTIES)
        for key in properties:
            if type(key) is not str:
                raise InvalidFieldError(f"an application property has the name {key!r:.200}, which is not a string")
        return properties

    def message_annotations(self) -> dict[Any, Any]:
        return self._map(MESSAGE_ANNOTATIONS)

    def delivery_annotations(self) -> dict[Any, Any]:
        return self._map(DELIVERY_ANNOTATIONS)

    def footer(self) -> dict[Any, Any]:
        return self._map(FOOTER)

    def _map(self, code: int) -> dict[Any, Any]:
        span = self.spans.get(code)
        return {} if span is None else decode_map(self.payload, span[1])

    def data(self) -> bytes:
        """Return the body's bytes, if it consists of data sections."""
        if len(self.body) == 1:
            return self._datum(self.body[0])
        return b"".join([self._datum(section) for section in self.body])

    def _datum(self, section: tuple[int, int, int, int]) -> bytes:
        code, _, value, end = section
        if code != DATA:
            raise DecodeError("the body does not consist of data sections")
        constructor = self.payload[value]
        if constructor == 0xB0:
            return self.payload[value + 5 : end]
        if constructor == 0xA0:
            return self.payload[value + 2 : end]
        raise DecodeError("a data section is not binary")

    def decode_body(self) -> list[Any]:
        """Return the decoded values of the body's sections."""
        return [self._body_value(section) for section in self.body]

    def _body_value(self, section: tuple[int, int, int, int]) -> object:
        if section[0] == DATA:
            return self._datum(section)
        value, _ = decode_at(self.payload, section[2])
        if section[0] == AMQP_SEQUENCE and type(value) is not list:
            raise DecodeError("an amqp-sequence section is not a list")
        return value


def _check_fields(code: int, values: list[Any], types: list[frozenset[type]]) -> None:
    if len(values) > len(types):
        raise DecodeError(f"section 0x{code:02x} has {len(values)} fields, the standard knows {len(types)}")
    for index, value in enumerate(values):
        if value is not None and type(value) not in types[index]:
            raise InvalidFieldError(f"section 0x{code:02x}: field {index} cannot be {value!r:.200}")


def _read_section_descriptor(payload: bytes, position: int) -> tuple[int, int]:
    """Decode a section's descriptor; return the section's code and the position of its value."""
    if payload[position] != 0x00:
        raise DecodeError("a message is a sequence of described sections")
    descriptor, position = decode_at(payload, position + 1)
    return _section_code(descriptor), position


def _section_code(descriptor: object) -> int:
    if type(descriptor) is ULong:
        return int(descriptor)
    if type(descriptor) is Symbol:
        return SECTION_CODES.get(descriptor, 0)
    return 0


def check_values(payload: bytes, limit: int) -> None:
    """Raise ``PeerLimitError`` if the sections of a message hold more than ``limit`` values; decodes none of them."""
    position, left = 0, limit
    while position < len(payload):
        left -= count_values(payload, position, left)
        if left < 0:
            raise PeerLimitError(f"the message holds more than {limit} values, the maximum", "values")
        position = skip(payload, position)


def decode_message(payload: bytes) -> Message:
    """Decode every section of a message."""
    sections = Sections(payload)
    return Message(
        header=sections.header(),
        delivery_annotations=sections.delivery_annotations() or None,
        message_annotations=sections.message_annotations() or None,
        properties=sections.properties(),
        application_properties=sections.application_properties() or None,
        body=tuple(sections.decode_body()),
        body_kind=sections.body[0][0] if sections.body else DATA,
        footer=sections.footer() or None,
    )


def encode_message(message: Message) -> bytes:
    """Encode a message; empty sections are omitted."""
    _check_message(message)
    parts: list[bytes] = []
    if message.header != NO_HEADER:
        parts.append(encoder.encode(message.header))
    _append_map(parts, DELIVERY_ANNOTATIONS, _symbol_keys(message.delivery_annotations))
    _append_map(parts, MESSAGE_ANNOTATIONS, _symbol_keys(message.message_annotations))
    if message.properties != NO_PROPERTIES:
        parts.append(encoder.encode(message.properties))
    _append_map(parts, APPLICATION_PROPERTIES, message.application_properties)
    parts.extend(_encode_section(message.body_kind, value) for value in message.body)
    _append_map(parts, FOOTER, _symbol_keys(message.footer))
    return b"".join(parts)


def _check_message(message: Message) -> None:
    """Reject a message that could not be decoded again."""
    if not isinstance(message.body, tuple | list):
        raise EncodeError("a body is a tuple of sections, such as (b'one espresso',)")
    if message.body_kind == AMQP_VALUE:
        if len(message.body) != 1:
            raise EncodeError("an amqp-value body has exactly one value")
    elif message.body_kind == DATA:
        if not all(isinstance(datum, bytes | bytearray | memoryview) for datum in message.body):
            raise EncodeError("a body of data sections is made of bytes")
    elif message.body_kind == AMQP_SEQUENCE:
        if not all(isinstance(items, list | tuple) for items in message.body):
            raise EncodeError("a body of sequences is made of lists")
    else:
        raise EncodeError(f"0x{message.body_kind:02x} is not a kind of body")
    names: dict[Any, Any] = message.application_properties or {}
    if not all(_is_string(name) for name in names):
        raise EncodeError("the name of an application property is a string")
    for identity in (message.properties.message_id, message.properties.correlation_id):
        if not (identity is None or _is_string(identity) or type(identity) in _PROPERTIES_TYPES[0]):
            raise EncodeError(f"{identity!r:.200} is not a message id: a string, ULong, UUID or bytes")


def _is_string(value: object) -> bool:
    """Return True if a value is encoded as a string, as a subclass of ``str`` is."""
    return isinstance(value, str) and not isinstance(value, Symbol | Char)


def _append_map(parts: list[bytes], code: int, content: dict[Any, Any] | None) -> None:
    if content:
        parts.append(_encode_section(code, content))


def _encode_section(code: int, value: object) -> bytes:
    return bytes((0x00, 0x53, code)) + encoder.encode(value)


def _symbol_keys(annotations: dict[Any, Any] | None) -> dict[Any, Any] | None:
    """Convert the keys of annotations to symbols, as the standard requires."""
    if annotations is None:
        return None
    return {Symbol(key) if type(key) is str else key: value for key, value in annotations.items()}
