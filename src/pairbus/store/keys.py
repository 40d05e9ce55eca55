"""The layout of the store's keys, by kind of record.

========  ==================================================  =====================================================
kind      then                                                holds
========  ==================================================  =====================================================
``M``     a name                                              a counter of the namespace
``K``     ``access``                                          the authorization rules of the namespace
``E``     entity id (4 bytes)                                 an entity: its path and its settings
``U``     entity id, position (4)                             a rule of a subscription
``C``     entity id, part (1), partition (1)                  the last assigned sequence number
``S``     entity id, session id                               the state of a session
``D``     entity id, message id (and partition key)           when the id was first seen
``R``     entity id, part, sequence number (8)                the metadata of a message, without its body
``B``     body id (8)                                         an encoded message
``O``     a number (8)                                        an outbox entry, until its consumer has stored it
``P``     identity of a side buffer (8), an entity's path     the position up to which it is merged
``T``     an epoch (8)                                        the number of its last commit
``X``     another key                                         the damaged bytes that were found under that key
``L``     the key of a message                                what a repair has left of it; it has no stub yet
``Z``     another key                                         the value that replaces that of a damaged page
``A``     another key                                         the same, if the pages of ``Z`` are damaged, too
========  ==================================================  =====================================================

Numbers are big-endian, so that keys sort as the numbers do.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import Final

from pairbus.broker.message import QueueId

COUNTER: Final = b"M"
ACCESS: Final = b"K"
ENTITY: Final = b"E"
RULE: Final = b"U"
SEQUENCE: Final = b"C"
SESSION: Final = b"S"
DUPLICATE: Final = b"D"
RECORD: Final = b"R"
BODY: Final = b"B"
OUTBOX: Final = b"O"
MERGED: Final = b"P"
EPOCH: Final = b"T"
ASIDE: Final = b"X"
LOST: Final = b"L"
MOVED: Final[bytes] = b"Z"
MOVED_AGAIN: Final[bytes] = b"A"

_KINDS: Final = {
    COUNTER: "counter of the namespace",
    ACCESS: "keys of the namespace",
    ENTITY: "entity",
    RULE: "rule",
    SEQUENCE: "counter of a queue",
    SESSION: "session state",
    DUPLICATE: "remembered message id",
    RECORD: "message",
    BODY: "body",
    OUTBOX: "outbox",
    MERGED: "merge position",
    EPOCH: "last commit of an epoch",
    ASIDE: "quarantined record",
    LOST: "lost message without a stub",
    MOVED: "moved record",
    MOVED_AGAIN: "moved record",
}

_OF_ENTITIES: Final = {ENTITY, RULE, SEQUENCE, SESSION, DUPLICATE, RECORD}

_LONGEST_TEXT: Final = 400

_ENTITY: Final = struct.Struct(">cI")
_RULE: Final = struct.Struct(">cII")
_SEQUENCE: Final = struct.Struct(">cIBB")
_RECORD: Final = struct.Struct(">cIBQ")
_BODY: Final = struct.Struct(">cQ")

_pack_record = _RECORD.pack
_pack_body = _BODY.pack


def entity_key(entity_id: int) -> bytes:
    return _ENTITY.pack(ENTITY, entity_id)


def rule_key(entity_id: int, position: int) -> bytes:
    return _RULE.pack(RULE, entity_id, position)


def sequence_key(entity_id: int, part: int, partition: int) -> bytes:
    return _SEQUENCE.pack(SEQUENCE, entity_id, part, partition)


def record_key(entity_id: int, part: int, sequence: int) -> bytes:
    return _pack_record(RECORD, entity_id, part, sequence)


def body_key(body_id: int) -> bytes:
    return _pack_body(BODY, body_id)


def outbox_key(number: int) -> bytes:
    return _BODY.pack(OUTBOX, number)


def epoch_key(epoch: int) -> bytes:
    return _BODY.pack(EPOCH, epoch)


def epoch_of(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")


def merged_key(identity: bytes, path: str) -> bytes:
    return MERGED + identity + _text(path)


def session_key(entity_id: int, session_id: str) -> bytes:
    return _ENTITY.pack(SESSION, entity_id) + _text(session_id)


def duplicate_key(entity_id: int, message_id: str) -> bytes:
    return _ENTITY.pack(DUPLICATE, entity_id) + _text(message_id)


def duplicates_between(entity_id: int) -> tuple[bytes, bytes]:
    """Return the first key of an entity's message ids, and the first key after them."""
    return _ENTITY.pack(DUPLICATE, entity_id), _ENTITY.pack(DUPLICATE, entity_id + 1)


def aside_key(key: bytes) -> bytes:
    return ASIDE + key


def lost_key(record: bytes) -> bytes:
    return LOST + record


def entity_of(key: bytes) -> int:
    """Return the entity that a key belongs to; not for bodies and counters."""
    return int.from_bytes(key[1:5], "big")


def only_entity(low: bytes, high: bytes | None) -> int | None:
    """Return the entity that all keys of a range belong to; ``None`` if they belong to several, or to none."""
    if high is None or low[:1] not in _OF_ENTITIES or low[:1] != high[:1] or len(low) < _ENTITY.size:
        return None
    return entity_of(low) if low[: _ENTITY.size] == high[: _ENTITY.size] else None


def split_rule(key: bytes) -> tuple[int, int]:
    _, entity_id, position = _RULE.unpack(key)
    return entity_id, position


def split_sequence(key: bytes) -> tuple[int, int, int]:
    _, entity_id, part, partition = _SEQUENCE.unpack(key)
    return entity_id, part, partition


def split_record(key: bytes) -> tuple[QueueId, int] | None:
    """Return the queue and sequence number of a message; ``None`` for a key of another kind, or a damaged key."""
    if len(key) != _RECORD.size or not key.startswith(RECORD):
        return None
    _, entity_id, part, sequence = _RECORD.unpack(key)
    return QueueId(entity_id, part), sequence


def sequence_of(record: bytes) -> int:
    """Return the sequence number in the key of a message."""
    return int.from_bytes(record[6:], "big")


def after_records(place: QueueId) -> bytes:
    """Return the first key after all messages of a queue."""
    return after(_SEQUENCE.pack(RECORD, place.entity_id, place.part, 0)[:6])


def describe(key: bytes) -> dict[str, str | int | None]:
    """Describe a key, as facts of a log line."""
    owner = entity_of(key) if key[:1] in _OF_ENTITIES else None
    return {"kind": _KINDS.get(key[:1], "unknown"), "entity_id": owner, "key": key.hex()}


_SIZES: Final = {
    ENTITY: _ENTITY.size,
    RULE: _RULE.size,
    SEQUENCE: _SEQUENCE.size,
    RECORD: _RECORD.size,
    BODY: _BODY.size,
    OUTBOX: _BODY.size,
    EPOCH: _BODY.size,
}


def is_plausible(key: bytes) -> bool:
    """Return whether a key that was found in a damaged place may be one of ours."""
    return key[:1] in _KINDS and _SIZES.get(key[:1], len(key)) == len(key) > 1


def split_body(key: bytes) -> int:
    """Return the body id in a key."""
    return int.from_bytes(key[1:], "big")


def split_outbox(key: bytes) -> int:
    return int.from_bytes(key[1:], "big")


def after(prefix: bytes) -> bytes:
    """Return the first key after all keys with a prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _text(text: str) -> bytes:
    """Return a text as the end of a key. A text that is too long becomes its digest; the value has it in full."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= _LONGEST_TEXT:
        return encoded
    return b"\xff" + blake2b(encoded, digest_size=32).digest()
