"""A message as a receiver gets it: what the sender wrote, with what the service adds."""

from __future__ import annotations

from collections.abc import Mapping
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
)
from pairbus.wire import (
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
"""What only the service says; a sender's own are dropped."""

_SYSTEM: Final = {
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


class Changes(NamedTuple):
    """Properties that are no longer what the sender wrote."""

    user: Mapping[str, Any]
    removed: frozenset[str]
    system: Mapping[str, Any]


class Stamp(NamedTuple):
    """What the service knows of a message."""

    sequence: int
    original_sequence: int
    enqueued_ms: int
    delivery_count: int
    state: int
    time_to_live_ms: int | None = None
    lock_token: bytes | None = None
    locked_until_ms: int | None = None
    dead_letter_source: str | None = None
    partition_id: int | None = None
    changes: Changes | None = None


def _key(name: str) -> bytes:
    return encode(Symbol(name))


# Written for every message that is delivered, so their bytes are laid out once: a long (0x81) or timestamp (0x83) of
# eight bytes after each name.
_FIXED: Final = Struct(
    f">{len(_key(ENQUEUED_TIME))}scq{len(_key(SEQUENCE_NUMBER))}scq"
    f"{len(_key(ENQUEUE_SEQUENCE_NUMBER))}scq{len(_key(MESSAGE_STATE))}scB"
)
_LOCKED: Final = Struct(f">{len(_key(LOCKED_UNTIL))}scq")
_ENQUEUED_KEY: Final = _key(ENQUEUED_TIME)
_SEQUENCE_KEY: Final = _key(SEQUENCE_NUMBER)
_ORIGINAL_KEY: Final = _key(ENQUEUE_SEQUENCE_NUMBER)
_STATE_KEY: Final = _key(MESSAGE_STATE)
_LOCKED_KEY: Final = _key(LOCKED_UNTIL)
_SOURCE_KEY: Final = _key(DEAD_LETTER_SOURCE)
_PARTITION_KEY: Final = _key(PARTITION_ID)
_UINT: Final = Struct(">BI")
_NULL: Final = b"\x40"
_TRUE: Final = b"\x41"
_FALSE: Final = b"\x42"
_ZERO: Final = b"\x43"
_NO_HEADER: Final = Header()
_HEADER_LIST: Final = bytes((0x00, 0x53, HEADER, 0xC0))
_MAP32: Final = Struct(">II")
_LOCK_ALONE: Final = bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xC1, len(_key(LOCK_TOKEN)) + 18, 2)) + (
    _key(LOCK_TOKEN) + b"\x98"
)
_ANNOTATIONS: Final = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS, 0xD1))


def stamp(payload: bytes, facts: Stamp) -> bytes:
    """The message for a receiver. Its sections are as the sender wrote them where nothing has to change."""
    sections = Sections(payload)
    parts = [_header(sections, facts)]
    if facts.lock_token is not None or DELIVERY_ANNOTATIONS in sections.spans:
        parts.append(_delivery_annotations(sections, facts.lock_token))
    parts.append(_message_annotations(sections, facts))
    if facts.changes is None:
        parts += (sections.raw(PROPERTIES), sections.raw(APPLICATION_PROPERTIES))
    else:
        parts += _changed_properties(sections, facts.changes)
    body = sections.body
    if body:  # the sections of a body stand together, except in messages that nobody writes
        first, last = body[0][1], body[-1][3]
        if last - first == sum([end - start for _, start, _, end in body]):
            parts.append(payload[first:last])
        else:
            parts += [payload[start:end] for _, start, _, end in body]
    parts.append(sections.raw(FOOTER))
    return b"".join(parts)


def lock_token_uuid_bytes(token: bytes) -> bytes:
    """A lock token as the bytes of a UUID: .NET has its first three groups the other way round."""
    return token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]


def _header(sections: Sections, facts: Stamp) -> bytes:
    """All fields are written, with default values too: the SDK for Python takes what is left out for nothing."""
    sent = sections.header() if HEADER in sections.spans else _NO_HEADER
    ttl = _NULL if facts.time_to_live_ms is None else _UINT.pack(0x70, min(facts.time_to_live_ms, _LONGEST_TTL_MS))
    count = facts.delivery_count
    fields = (
        (_TRUE if sent.durable else _FALSE)
        + bytes((0x50, sent.priority))
        + ttl
        + (_FALSE if count else _TRUE)
        + (_UINT.pack(0x70, count) if count else _ZERO)
    )
    return _HEADER_LIST + bytes((len(fields) + 1, 5)) + fields


def _delivery_annotations(sections: Sections, lock_token: bytes | None) -> bytes:
    if DELIVERY_ANNOTATIONS not in sections.spans and lock_token is not None:
        return _LOCK_ALONE + lock_token_uuid_bytes(lock_token)
    kept = {name: value for name, value in sections.delivery_annotations().items() if name != LOCK_TOKEN}
    pairs = [encode(name) + encode(value) for name, value in kept.items()]
    if lock_token is not None:
        pairs.append(_key(LOCK_TOKEN) + b"\x98" + lock_token_uuid_bytes(lock_token))
    body = b"".join(pairs)
    return bytes((0x00, 0x53, DELIVERY_ANNOTATIONS, 0xD1)) + _MAP32.pack(len(body) + 4, 2 * len(pairs)) + body


def _message_annotations(sections: Sections, facts: Stamp) -> bytes:
    count = 8
    body = _FIXED.pack(
        _ENQUEUED_KEY,
        b"\x83",
        facts.enqueued_ms,
        _SEQUENCE_KEY,
        b"\x81",
        facts.sequence,
        _ORIGINAL_KEY,
        b"\x81",
        facts.original_sequence,
        _STATE_KEY,
        b"\x54",
        facts.state,
    )
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
                body += encode(name) + encode(value)
                count += 2
    return _ANNOTATIONS + _MAP32.pack(len(body) + 4, count) + body


def _changed_properties(sections: Sections, changes: Changes) -> tuple[bytes, bytes]:
    fields = {_SYSTEM[name]: value for name, value in changes.system.items() if name in _SYSTEM}
    if fields.get("content_type") is not None:
        fields["content_type"] = Symbol(fields["content_type"])
    replaced = {name.lower() for name in changes.user} | {name.lower() for name in changes.removed}
    sent = sections.application_properties()
    user = {name: value for name, value in sent.items() if name.lower() not in replaced} | dict(changes.user)
    application = bytes((0x00, 0x53, APPLICATION_PROPERTIES)) + encode(user) if user else b""
    return encode(sections.properties()._replace(**fields)), application


# What most messages are delivered with, so that it can be told, and taken off, without being read.
_STAMP: Final = Struct(
    f">{12 + len(_ENQUEUED_KEY) + 1}s8x{len(_SEQUENCE_KEY) + 1}s8x{len(_ORIGINAL_KEY) + 1}s8x{len(_STATE_KEY) + 1}sx"
)
_LOCKED_STAMP: Final = Struct(f"{_STAMP.format}{len(_LOCKED_KEY) + 1}s8x")
_STAMPS: Final = {
    shape.size: (shape, shape.unpack(_message_annotations(Sections(b""), facts)))
    for shape, facts in (
        (_STAMP, Stamp(0, 0, 0, 0, 0)),
        (_LOCKED_STAMP, Stamp(0, 0, 0, 0, 0, locked_until_ms=0)),
    )
}
"""By its length, a stamp: how it is laid out, and what of it is the same in all."""


def is_stamp_alone(annotations: bytes) -> bool:
    """Whether a section of message annotations is as ``stamp`` makes it where the sender has written none."""
    found = _STAMPS.get(len(annotations))
    return found is not None and found[0].unpack(annotations) == found[1]


def is_lock_alone(annotations: bytes) -> bool:
    """Whether a section of delivery annotations is as ``stamp`` makes it where the sender has written none."""
    return len(annotations) == len(_LOCK_ALONE) + 16 and annotations.startswith(_LOCK_ALONE)
