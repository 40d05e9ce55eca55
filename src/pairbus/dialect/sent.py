"""Incoming messages: the fields that the service reads from what a sender sent."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.dialect.annotations import (
    ENQUEUED_TIME,
    MESSAGE_STATE,
    PARTITION_KEY,
    PING_CONTENT_TYPE,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from pairbus.wire import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    DecodeError,
    InvalidFieldError,
    ProtocolError,
    Sections,
    Symbol,
    encode,
)
from pairbus.wire.decoder import decode_at, skip

BATCH_FORMAT: Final = 0x80013700
MAX_BATCH_MESSAGES: Final = 4_500
"""The largest number of messages that the service takes in one batch."""
"""The message format of a batch, whose data sections are encoded messages."""


def split_batch(payload: bytes) -> list[bytes]:
    """Return the messages of a batch. Other sections of its envelope repeat the first message and are ignored."""
    sections = Sections(payload)
    if not sections.body or sections.body[0][0] != DATA:
        raise DecodeError("a batch must consist of data sections, at least one")
    return sections.decode_body()


def join_batch(messages: Iterable[bytes]) -> bytes:
    """Return the batch of these messages; each becomes a data section as it is."""
    parts: list[bytes] = []
    for message in messages:
        parts.append(data_head(len(message)))
        parts.append(message)
    return b"".join(parts)


def data_head(size: int) -> bytes:
    """Return what precedes this many bytes in a data section."""
    return _SHORT_DATA + size.to_bytes(1, "big") if size < 256 else _LONG_DATA + size.to_bytes(4, "big")


_SHORT_DATA: Final = bytes((0x00, 0x53, DATA, 0xA0))
_LONG_DATA: Final = bytes((0x00, 0x53, DATA, 0xB0))
_NO_ANNOTATIONS: Final[dict[Any, Any]] = {}


_new_tuple: Final = tuple.__new__  # calling the class would take twice as long, for each message


class SentMessage(NamedTuple):
    """The fields set by the sender; ``payload`` is the complete encoded message."""

    payload: bytes
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    header_bytes: int
    """The number of bytes of the payload that are not body."""

    is_ping: bool


def read_sent(payload: bytes, fresh_id: Callable[[], str]) -> SentMessage:
    """Decode every part of a message that a receiver would read; raises ``ProtocolError``.

    A message without an id gets one, because the SDK for JavaScript cannot settle without it. The payload is unchanged,
    so that its size is the one that the sender counted; ``stamp`` writes the id into the delivered message.
    """
    sections = Sections(payload)
    check_sections(sections)
    properties = sections.properties()
    annotations = _NO_ANNOTATIONS
    if MESSAGE_ANNOTATIONS in sections.spans:
        annotations = sections.message_annotations()
        _text_annotation(annotations, VIA_PARTITION_KEY)
    body = sections.body
    return _new_tuple(
        SentMessage,
        (
            payload,
            fresh_id() if properties.message_id is None else _text(properties.message_id),
            properties.group_id,
            _text_annotation(annotations, PARTITION_KEY),
            sections.header().ttl,
            _time_annotation(annotations, SCHEDULED_ENQUEUE_TIME),
            len(payload) - sum([end - start for _, start, _, end in body]),
            properties.content_type == PING_CONTENT_TYPE,
        ),
    )


def check_sections(sections: Sections) -> None:
    """Reject now what every receiver would fail to decode later."""
    spans = sections.spans
    if APPLICATION_PROPERTIES in spans:
        sections.application_properties()
    if DELIVERY_ANNOTATIONS in spans:
        sections.delivery_annotations()
    if FOOTER in spans:
        sections.footer()
    check_body(sections)


def check_body(sections: Sections) -> None:
    """Reject a body that no receiver could decode."""
    body = sections.body
    if len(body) != 1 or body[0][0] != DATA:
        sections.decode_body()
    elif sections.payload[body[0][2]] not in {0xA0, 0xB0}:
        raise InvalidFieldError("a data section is not binary")


def _text(identity: object) -> str:
    """Return a message id as text for duplicate detection; in the message it keeps its own type."""
    if type(identity) is str:
        return identity
    if isinstance(identity, bytes):
        return identity.hex()
    return str(identity) if isinstance(identity, UUID) else str(int(identity))  # type: ignore[call-overload]


def _text_annotation(annotations: dict[Any, Any], name: str) -> str | None:
    value = annotations.get(name)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidFieldError(f"{name} must be text in UTF-8, got {value!r:.100}") from error
    if value is None or isinstance(value, str):
        return value
    raise InvalidFieldError(f"{name} must be a string or binary, got {value!r:.100}")


def _time_annotation(annotations: dict[Any, Any], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    number = whole_number(value)
    if number is None:
        raise InvalidFieldError(f"{name} must be a timestamp, got {value!r:.100}")
    return number


_TIME: Final = encode(Symbol(ENQUEUED_TIME))
_NUMBER: Final = encode(Symbol(SEQUENCE_NUMBER))
_STATE: Final = encode(Symbol(MESSAGE_STATE))
_DEFERRED: Final = 1
_SCHEDULED: Final = 2
_NEAR: Final = 4_096
"""The service's annotations are within this many bytes, before everything that an application writes."""

_LONG: Final = struct.Struct(">q")
_LONGS: Final = frozenset({0x81, 0x83})
"""The format codes of a long and a timestamp, each with eight bytes."""

_MAP_HEAD_BYTES: Final = {0xC1: 3, 0xD1: 9}


class Enqueued(NamedTuple):
    """The identity of a message within its entity; a field is ``None`` if it is missing or cannot be read."""

    sequence_number: int | None = None
    time_ms: int | None = None


def is_deferred(payload: bytes) -> bool:
    """Return True if a peeked message is deferred; False if its state cannot be read."""
    return _state(payload) == _DEFERRED


def is_scheduled(payload: bytes) -> bool:
    """Return True if a peeked message waits for its scheduled time; False if its state cannot be read."""
    return _state(payload) == _SCHEDULED


def _state(payload: bytes) -> object:
    start = payload.find(_STATE, 0, _NEAR)
    if start < 0:
        return None
    try:
        return decode_at(payload, start + len(_STATE))[0]
    except (ProtocolError, LookupError, struct.error):
        return None


def read_enqueued(payload: bytes) -> Enqueued:
    """Read both fields. Nothing after them is read, so they are available even for an otherwise unreadable message."""
    found: dict[str, int | None] = {}
    try:
        position, end = _annotations(payload)
        while position < end and len(found) < 2:
            name, value = _key(payload, position)
            if name is not None:
                found[name] = _whole(payload, value)
            position = skip(payload, value)
    except (ProtocolError, LookupError, struct.error):
        pass  # the fields found before are valid
    return Enqueued(found.get(SEQUENCE_NUMBER), found.get(ENQUEUED_TIME))


def _annotations(payload: bytes) -> tuple[int, int]:
    """Return the start and the end of the message annotations; raises ``LookupError`` if there are none."""
    start = _section(payload)
    return start + _MAP_HEAD_BYTES[payload[start]], skip(payload, start)


def _section(payload: bytes) -> int:
    position = 0
    while payload[position] == 0x00 and payload[position + 1] == 0x53:
        if payload[position + 2] == MESSAGE_ANNOTATIONS:
            return position + 3
        position = skip(payload, position + 3)
    return Sections(payload).spans[MESSAGE_ANNOTATIONS][1]  # a descriptor in its long form


def _key(payload: bytes, position: int) -> tuple[str | None, int]:
    """Return which of the two names is at ``position``, if any, and the position of its value.

    Names are compared in the encoding that services use; only a key in another encoding is decoded.
    """
    if payload.startswith(_NUMBER, position):
        return SEQUENCE_NUMBER, position + len(_NUMBER)
    if payload.startswith(_TIME, position):
        return ENQUEUED_TIME, position + len(_TIME)
    key, value = decode_at(payload, position)
    if key == SEQUENCE_NUMBER:
        return SEQUENCE_NUMBER, value
    return (ENQUEUED_TIME if key == ENQUEUED_TIME else None), value


def _whole(payload: bytes, position: int) -> int | None:
    if payload[position] in _LONGS:
        number: int = _LONG.unpack_from(payload, position + 1)[0]
        return number
    value, _ = decode_at(payload, position)
    return whole_number(value)


def whole_number(value: Any) -> int | None:
    """Return an integer of any AMQP type as a plain one; ``None`` for other values."""
    # Compiled code loses the class of what ``isinstance`` has narrowed to an integer, so that is checked last.
    is_number = not isinstance(value, bool) and isinstance(value, int)
    return int(value) if is_number else None
