"""Outgoing messages: what the sender wrote, with what the service adds for the receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from struct import Struct
from typing import Any, Final, NamedTuple

from pairbus.dialect.annotations import (
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_ID,
    SEQUENCE_NUMBER,
    TEXTS,
    text_of,
)
from pairbus.wire import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Sections,
    Short,
    Symbol,
    decode,
    encode,
)

_LONGEST_TTL_MS: Final = 0xFFFFFFFF
STAMPED: Final = frozenset(
    {
        DEAD_LETTER_SOURCE,
        ENQUEUE_SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        LOCKED_UNTIL,
        MESSAGE_STATE,
        PARTITION_ID,
        SEQUENCE_NUMBER,
    }
)
"""The annotations that only the service sets; those of a sender are dropped."""

PROPERTY_FIELDS: Final = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "ContentType": "content_type",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "ReplyToSessionId": "reply_to_group_id",
    "SessionId": "group_id",
}
"""The system properties that are fields of a message's properties."""


class DeliveredChanges(NamedTuple):
    """Properties that differ from what the sender wrote."""

    user: Mapping[str, Any]
    removed: frozenset[str]
    system: Mapping[str, Any]


class Stamp(NamedTuple):
    """The broker's data about a message."""

    sequence: int
    original_sequence: int | None
    """The sequence number in the entity that it was first sent to; ``None`` if that is this one."""

    enqueued_ms: int
    delivery_count: int
    state: int
    time_to_live_ms: int | None = None
    lock_token: bytes | None = None
    locked_until_ms: int | None = None
    dead_letter_source: str | None = None
    partition_id: int | None = None
    changes: DeliveredChanges | None = None
    message_id: str | None = None
    """The id that the service assigned to a message without one."""


def _key(name: str) -> bytes:
    return encode(Symbol(name))


# Written for every delivered message, so their bytes are laid out once: a long (0x81) or timestamp (0x83) of eight
# bytes after each name.
_ENQUEUED_KEY: Final = _key(ENQUEUED_TIME)
_SEQUENCE_KEY: Final = _key(SEQUENCE_NUMBER)
_ORIGINAL_KEY: Final = _key(ENQUEUE_SEQUENCE_NUMBER)
_STATE_KEY: Final = _key(MESSAGE_STATE)
_LOCKED_KEY: Final = _key(LOCKED_UNTIL)
_SOURCE_KEY: Final = _key(DEAD_LETTER_SOURCE)
_PARTITION_KEY: Final = _key(PARTITION_ID)
_FIXED: Final = Struct(f">{len(_ENQUEUED_KEY)}scq{len(_SEQUENCE_KEY)}scq")
_ORIGINAL: Final = Struct(f">{len(_ORIGINAL_KEY)}scq")
_STATE: Final = Struct(f">{len(_STATE_KEY)}scB")
_LOCKED: Final = Struct(f">{len(_LOCKED_KEY)}scq")
_UINT: Final = Struct(">BI")
_NULL: Final = b"\x40"
_ZERO: Final = b"\x43"
_HEADER_LIST: Final = bytes((0x00, 0x53, HEADER, 0xC0))
_MAP32: Final = Struct(">II")
_NO_LOCK: Final = bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xC1, 1, 0))
_LOCK_ALONE: Final = bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xC1, len(_key(LOCK_TOKEN)) + 18, 2)) + (
    _key(LOCK_TOKEN) + b"\x98"
)
_ANNOTATIONS: Final = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS, 0xD1))
_NO_BODY: Final = bytes((0x00, 0x53, AMQP_VALUE, 0x40))
_USUAL: Final = frozenset({HEADER, PROPERTIES, APPLICATION_PROPERTIES})
_FIRST_FIELD: Final = {0xC0: 3, 0xD0: 9}
"""The offset of the first field of a list, by the list's format code."""


def stamp(payload: bytes, facts: Stamp) -> bytes:
    """Return the message for a receiver. Unchanged sections stay as the sender encoded them."""
    sections = Sections(payload)
    assigned_id = None if has_message_id(sections) else facts.message_id
    added = _header(sections, facts) + _delivery_annotations(sections, facts.lock_token)
    added += _message_annotations(sections, facts)
    if assigned_id is None and facts.changes is None:
        rest = _unchanged_from(sections)
        if rest is not None:
            return added + payload[rest:]
    parts = [added]
    if facts.changes is None:
        parts += (_properties(sections, assigned_id), sections.raw(APPLICATION_PROPERTIES))
    else:
        parts += _changed_properties(sections, facts.changes, assigned_id)
    body = sections.body
    if body:  # the sections of a body are adjacent in all messages that occur in practice
        first, last = body[0][1], body[-1][3]
        if last - first == sum([end - start for _, start, _, end in body]):
            parts.append(payload[first:last])
        else:
            parts += [payload[start:end] for _, start, _, end in body]
    elif assigned_id is not None:  # an empty message; the standard requires a body
        parts.append(_NO_BODY)
    parts.append(sections.raw(FOOTER))
    return b"".join(parts)


def _unchanged_from(sections: Sections) -> int | None:
    """Return the position in a usual message from which the service changes nothing; ``None`` for other messages."""
    position = previous = 0
    for code, (start, _, end) in sections.spans.items():  # in the order in which they were sent
        if start != position or code < previous or code not in _USUAL:
            return None
        position, previous = end, code
    if not sections.body or sections.body[0][1] != position:
        return None
    header = sections.spans.get(HEADER)
    return 0 if header is None else header[2]


def has_message_id(sections: Sections) -> bool:
    """Return True if the first field of the properties is set, without decoding them, because this runs per message."""
    span = sections.spans.get(PROPERTIES)
    if span is None:
        return False
    _, start, end = span
    first = start + _FIRST_FIELD.get(sections.payload[start], end)
    return first < end and sections.payload[first] != _NULL[0]


def lock_token_uuid_bytes(token: bytes) -> bytes:
    """Return a lock token as the bytes of a UUID: .NET reverses the bytes of its first three groups."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


def _header(sections: Sections, facts: Stamp) -> bytes:
    """Return the header with only those fields of the sender that it set, as the service does."""
    return _written_header(sections.raw(HEADER), facts.time_to_live_ms, facts.delivery_count)


@lru_cache(maxsize=1_024)
def _written_header(sent: bytes, time_to_live_ms: int | None, count: int) -> bytes:
    ttl = _NULL if time_to_live_ms is None else _UINT.pack(0x70, min(time_to_live_ms, _LONGEST_TTL_MS))
    fields = (_sent_fields(sent) if sent else _NULL + _NULL) + ttl + _NULL
    fields += _UINT.pack(0x70, count) if count else _ZERO
    return _HEADER_LIST + bytes((len(fields) + 1, 5)) + fields


def _sent_fields(header: bytes) -> bytes:
    """Return durable and priority as the sender encoded them, null if it omitted them."""
    sent = Sections(header).header()
    written: Any = decode(header)
    durable, priority = [*written.value, None, None][:2]
    return (_NULL if durable is None else encode(sent.durable)) + (
        _NULL if priority is None else bytes((0x50, sent.priority))
    )


def _delivery_annotations(sections: Sections, lock_token: bytes | None) -> bytes:
    """Return the delivery annotations; the section is present even if it is empty."""
    if DELIVERY_ANNOTATIONS not in sections.spans:
        return _NO_LOCK if lock_token is None else _LOCK_ALONE + lock_token_uuid_bytes(lock_token)
    kept = {name: value for name, value in sections.delivery_annotations().items() if name != LOCK_TOKEN}
    pairs = [encode(name) + encode(value) for name, value in kept.items()]
    if lock_token is not None:
        pairs.append(_key(LOCK_TOKEN) + b"\x98" + lock_token_uuid_bytes(lock_token))
    body = b"".join(pairs)
    return bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xD1)) + _MAP32.pack(len(body) + 4, 2 * len(pairs)) + body


def _message_annotations(sections: Sections, facts: Stamp) -> bytes:
    count = 4
    body = _FIXED.pack(_ENQUEUED_KEY, b"\x83", facts.enqueued_ms, _SEQUENCE_KEY, b"\x81", facts.sequence)
    if facts.original_sequence is not None:
        body += _ORIGINAL.pack(_ORIGINAL_KEY, b"\x81", facts.original_sequence)
        count += 2
    if facts.state:  # without it a message is active
        body += _STATE.pack(_STATE_KEY, b"\x54", facts.state)
        count += 2
    if facts.locked_until_ms is not None:
        body += _LOCKED.pack(_LOCKED_KEY, b"\x83", facts.locked_until_ms)
        count += 2
    if facts.dead_letter_source is not None:
        body += _SOURCE_KEY + encode(facts.dead_letter_source)
        count += 2
    if facts.partition_id is not None:
        body += _PARTITION_KEY + encode(Short(facts.partition_id))
        count += 2
    if MESSAGE_ANNOTATIONS in sections.spans:
        for name, value in sections.message_annotations().items():
            if name not in STAMPED:
                body += encode(name) + encode(text_of(value) if name in TEXTS else value)
                count += 2
    return _ANNOTATIONS + _MAP32.pack(len(body) + 4, count) + body


def _properties(sections: Sections, assigned_id: str | None) -> bytes:
    if assigned_id is None:
        return sections.raw(PROPERTIES)
    return encode(sections.properties()._replace(message_id=assigned_id))


def _changed_properties(sections: Sections, changes: DeliveredChanges, assigned_id: str | None) -> tuple[bytes, bytes]:
    fields: dict[str, Any] = {} if assigned_id is None else {"message_id": assigned_id}
    fields |= {PROPERTY_FIELDS[name]: value for name, value in changes.system.items() if name in PROPERTY_FIELDS}
    if fields.get("content_type") is not None:
        fields["content_type"] = Symbol(fields["content_type"])
    replaced = {name.lower() for name in changes.user} | {name.lower() for name in changes.removed}
    sent = sections.application_properties()
    user = {name: value for name, value in sent.items() if name.lower() not in replaced} | dict(changes.user)
    application = bytes((0x00, 0x53, APPLICATION_PROPERTIES)) + encode(user) if user else b""
    return encode(sections.properties()._replace(**fields)), application


# The annotations of most delivered messages, so that they are recognised and removed without being decoded.
def _shapes() -> Iterator[tuple[int, tuple[Struct, tuple[bytes, ...]]]]:
    numbers = f">{12 + len(_ENQUEUED_KEY) + 1}s8x{len(_SEQUENCE_KEY) + 1}s8x"
    for original, state, locked in product((None, 0), (0, 1), (None, 0)):
        layout = numbers
        layout += "" if original is None else f"{len(_ORIGINAL_KEY) + 1}s8x"
        layout += f"{len(_STATE_KEY) + 1}sx" if state else ""
        layout += "" if locked is None else f"{len(_LOCKED_KEY) + 1}s8x"
        shape = Struct(layout)
        facts = Stamp(0, original, 0, 0, state, locked_until_ms=locked)
        yield shape.size, (shape, shape.unpack(_message_annotations(Sections(b""), facts)))


_STAMPS: Final = dict(_shapes())
"""The layout of a stamp and its constant bytes, by its length."""


def is_stamp_alone(annotations: bytes) -> bool:
    """Return True if a section of message annotations contains only what ``stamp`` adds."""
    found = _STAMPS.get(len(annotations))
    return found is not None and found[0].unpack(annotations) == found[1]


_NUMBERS: Final = Struct(f">{12 + len(_ENQUEUED_KEY) + 1}xq{len(_SEQUENCE_KEY) + 1}xq")
_LOCKED_END: Final = _LOCKED_KEY + b"\x83"
_TIME: Final = Struct(">q")


def read_stamp(annotations: bytes) -> tuple[int, int, int | None] | None:
    """Return the sequence number, the enqueued time and the end of the lock, if the message is locked.

    Returns ``None`` for a section of message annotations that contains more than what ``stamp`` adds.
    """
    if not is_stamp_alone(annotations):
        return None
    enqueued_ms, sequence = _NUMBERS.unpack_from(annotations)
    end = len(annotations) - _TIME.size
    if not annotations.endswith(_LOCKED_END, 0, end):
        return sequence, enqueued_ms, None
    return sequence, enqueued_ms, _TIME.unpack_from(annotations, end)[0]


def is_lock_alone(annotations: bytes) -> bool:
    """Return True if a section of delivery annotations contains only what ``stamp`` adds."""
    return annotations == _NO_LOCK or (
        len(annotations) == len(_LOCK_ALONE) + 16 and annotations.startswith(_LOCK_ALONE)
    )


_ADDED: Final = b"x-opt-"
"""The prefix of the names of all annotations that the service adds."""

_LOCK: Final = frozenset({LOCK_TOKEN})


def forwarded(payload: bytes, fresh_id: Callable[[], str]) -> bytes:
    """Return the message to send; the same bytes if nothing was added. Raises ``ProtocolError``.

    A message without an id gets one: the service would assign a different one each time that it is sent.
    """
    sections = Sections(payload)
    has_id = has_message_id(sections)
    if has_id and _ADDED not in payload:
        return payload
    parts = [
        _forwarded_header(sections.raw(HEADER)),
        _forwarded_delivery_annotations(sections),
        _forwarded_message_annotations(sections),
        sections.raw(PROPERTIES) if has_id else encode(sections.properties()._replace(message_id=fresh_id())),
        sections.raw(APPLICATION_PROPERTIES),
    ]
    parts += [payload[start:end] for _, start, _, end in sections.body]
    parts.append(sections.raw(FOOTER))
    return b"".join(parts)


@lru_cache(maxsize=256)
def _forwarded_header(raw: bytes) -> bytes:
    """Return a header without the fields of the service; cached, because most messages have one of a few."""
    sent = Sections(raw).header()._replace(first_acquirer=False, delivery_count=0)
    return b"" if sent == Header() else encode(sent)


def _forwarded_delivery_annotations(sections: Sections) -> bytes:
    raw = sections.raw(DELIVERY_ANNOTATIONS)
    if not raw or is_lock_alone(raw):
        return b""
    return _without(DELIVERY_ANNOTATIONS, raw, sections.delivery_annotations(), _LOCK)


def _forwarded_message_annotations(sections: Sections) -> bytes:
    raw = sections.raw(MESSAGE_ANNOTATIONS)
    if not raw or is_stamp_alone(raw):
        return b""
    return _without(MESSAGE_ANNOTATIONS, raw, sections.message_annotations(), STAMPED)


def _without(code: int, raw: bytes, annotations: dict[Any, Any], names: frozenset[str]) -> bytes:
    """Return a section of annotations without the given ones; unchanged if it has none of them."""
    kept = {name: value for name, value in annotations.items() if name not in names}
    if len(kept) == len(annotations):
        return raw
    return bytes((0x00, 0x53, code)) + encode(kept) if kept else b""
