"""Serialization of the broker's records: the record format, version 1.

The first byte of every record is the version of its format, so that a later version can read what this one wrote. (The
bodies of messages are stored as they were sent.) Records of which there may be millions are packed; settings are JSON.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Final, cast
from uuid import UUID

from pairbus.broker.descriptions import (
    KIND_OF,
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    EntityRecord,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    Instant,
    Right,
    RuleDescription,
    Span,
    SqlActionDescription,
    SqlFilterDescription,
    TrueFilter,
    Value,
    ZonelessInstant,
)
from pairbus.broker.message import NEVER, Amendments, MessageState, Record, RecordBatch
from pairbus.broker.sql import MISSING, Missing

VERSION: Final = 1
_VERSION_BYTE: Final = bytes((VERSION,))

# version, state, hops, flags (shared, returned); delivery count, size; enqueued, expires, time to live, scheduled;
# body, original number; lengths of the texts and of the amendments behind it
_MESSAGE: Final = struct.Struct(">BBBBIIqqqqQQHHHHI")
_HEAD: Final = _MESSAGE.size
_NO_TIME: Final = -1
_NO_TEXT: Final = 0xFFFF
_NOTHING_ELSE: Final[tuple[tuple[int, ...], bytes]] = (_NO_TEXT, _NO_TEXT, _NO_TEXT, 0), b""
"""The lengths, and the encoded parts, of a message that has none of them but its id."""
_STATES: Final = tuple(MessageState)
_NUMBER: Final = struct.Struct(">BQ")

_pack = _MESSAGE.pack
_unpack_from = _MESSAGE.unpack_from

_INDEX: Final = struct.Struct(">2sxB4xI8xq16xQ8xHH8s")
"""The fields of a message that the index needs: version and state; flags; size; expiry; body; lengths of the id, of the
session, and of the rest."""
_ACTIVE: Final = bytes((VERSION, MessageState.ACTIVE))
_OTHERS: Final = struct.Struct(">HHI")
_NO_OTHERS: Final = _OTHERS.pack(_NO_TEXT, _NO_TEXT, 0)

_unpack_index = _INDEX.unpack_from
_new_tuple: Final = tuple.__new__  # calling the class would take twice as long, for each message


class RecordFormatError(ValueError):
    """The bytes are not a record of a known version."""


# Messages


def encode_record(record: Record) -> bytes:
    (
        _, enqueued_ms, expires_ms, size, body_id, message_id, session_id, partition_key, time_to_live_ms, scheduled_ms,
        original_sequence, state, delivery_count, hops, shared, source, amendments, returned,
    ) = record  # fmt: skip
    encoded_id = message_id.encode("utf-8", "surrogatepass")
    lengths, rest = _NOTHING_ELSE
    if session_id is not None or partition_key is not None or source is not None or amendments is not None:
        lengths, rest = _encode_rest((session_id, partition_key, source), amendments)
    head = _pack(
        VERSION,
        state,
        min(hops, 255),
        shared | returned << 1,
        delivery_count,
        size,
        enqueued_ms,
        expires_ms,
        _NO_TIME if time_to_live_ms is None else time_to_live_ms,
        _NO_TIME if scheduled_ms is None else scheduled_ms,
        body_id,
        original_sequence,
        len(encoded_id),
        *lengths,
    )
    return head + encoded_id + rest


def _encode_rest(texts: tuple[str | None, ...], amendments: Amendments | None) -> tuple[tuple[int, ...], bytes]:
    """Encode what most messages do not have; return the lengths of the parts, and the parts."""
    encoded = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
    changes = b"" if amendments is None else encode_amendments(amendments)
    lengths = (*(_NO_TEXT if text is None else len(text) for text in encoded), len(changes))
    return lengths, b"".join(text or b"" for text in encoded) + changes


def decode_record(sequence: int, data: bytes) -> Record:
    try:
        return _decode_record(sequence, data)
    except (struct.error, ValueError, IndexError, KeyError, TypeError) as error:
        raise RecordFormatError(f"not a record of a message: {error}") from error


def _decode_record(sequence: int, data: bytes) -> Record:
    (
        version, state, hops, flags, delivery_count, size, enqueued_ms, expires_ms, time_to_live_ms, scheduled_ms,
        body_id, original_sequence, id_length, session_length, partition_length, source_length, amendments_length,
    ) = _unpack_from(data)  # fmt: skip
    if version != VERSION:
        raise RecordFormatError(f"format version {version} is unknown")
    position = _HEAD + id_length
    message_id = data[_HEAD:position].decode("utf-8", "surrogatepass")
    session_id = partition_key = source = amendments = None
    if session_length != _NO_TEXT:
        session_id = data[position : position + session_length].decode("utf-8", "surrogatepass")
        position += session_length
    if partition_length != _NO_TEXT:
        partition_key = data[position : position + partition_length].decode("utf-8", "surrogatepass")
        position += partition_length
    if source_length != _NO_TEXT:
        source = data[position : position + source_length].decode("utf-8", "surrogatepass")
        position += source_length
    if amendments_length:
        amendments = decode_amendments(data[position : position + amendments_length])
    if position + amendments_length != len(data):
        raise RecordFormatError("the lengths do not add up")
    lives_ms = None if time_to_live_ms == _NO_TIME else time_to_live_ms
    due_ms = None if scheduled_ms == _NO_TIME else scheduled_ms
    return _new_tuple(
        Record,
        (
            sequence, enqueued_ms, expires_ms, size, body_id, message_id, session_id, partition_key, lives_ms, due_ms,
            original_sequence, _STATES[state], delivery_count, hops, bool(flags & 1), source, amendments,
            bool(flags & 2),
        ),
    )  # fmt: skip


def add_to_batch(batch: RecordBatch, sequence: int, data: bytes, needs_record: bool) -> None:
    """Add a record to a batch. Of a ready message only the numbers are decoded, unless its whole record is needed.

    The texts of its record are decoded when it is delivered, and a damaged one is quarantined then.
    """
    flags: int
    size: int
    expires_ms: int
    body_id: int
    id_length: int
    try:
        kind, flags, size, expires_ms, body_id, id_length, session_length, others = _unpack_index(data)
    except struct.error as error:
        raise RecordFormatError(f"not a record of a message: {error}") from error
    if needs_record or kind != _ACTIVE or session_length != _NO_TEXT:
        batch.others.append(decode_record(sequence, data))
    else:
        length = _HEAD + id_length
        if others != _NO_OTHERS:
            partition_length, source_length, amendments_length = _OTHERS.unpack(others)
            length += amendments_length + sum([each for each in (partition_length, source_length) if each != _NO_TEXT])
        if length != len(data):
            raise RecordFormatError("the lengths do not add up")
        batch.ready.append(sequence)
        if expires_ms != NEVER:
            batch.expiries.append((expires_ms, sequence))
    batch.sequences.append(sequence)
    batch.size_bytes += size
    batch.last_body_id = max(batch.last_body_id, body_id)
    if flags & 1:
        batch.shared_bodies.append(body_id)


def encode_amendments(amendments: Amendments) -> bytes:
    return _to_json({"user": _tag_all(amendments.user), "system": _tag_all(amendments.system)})


def decode_amendments(data: bytes) -> Amendments:
    found = json.loads(data)
    system = cast("Mapping[str, Value]", _untag_all(found["system"]))
    return Amendments(user=_untag_all(found["user"]), system=system)


# Values: JSON has no type for most of them, so each is written with its kind

_TAGS: Final[dict[type, str]] = {
    type(None): "null",
    bool: "bool",
    str: "str",
    Instant: "instant",
    ZonelessInstant: "zoneless-instant",
    Span: "span",
    bytes: "bytes",
    UUID: "uuid",
    Missing: "missing",
}


def _tag_all(values: Mapping[str, Value | Missing]) -> dict[str, list[object]]:
    return {name: _tag(value) for name, value in values.items()}


def _untag_all(values: Mapping[str, list[Any]]) -> dict[str, Value | Missing]:
    return {name: _untag(*value) for name, value in values.items()}


def _tag(value: Value | Missing) -> list[object]:
    tag = _TAGS.get(type(value))
    if tag is None:  # includes the numbers and texts of the wire, which are subclasses
        tag = "int" if isinstance(value, int) else "float" if isinstance(value, float) else "str"
    if isinstance(value, bytes):
        return [tag, base64.b64encode(value).decode()]
    if value is MISSING or value is None:
        return [tag, None]
    return [tag, str(value) if isinstance(value, UUID) else value]


def _untag(tag: str, value: Any) -> Value | Missing:
    match tag:
        case "missing":
            return MISSING
        case "instant":
            return Instant(value)
        case "zoneless-instant":
            return ZonelessInstant(value)
        case "span":
            return Span(value)
        case "bytes":
            return base64.b64decode(value)
        case "uuid":
            return UUID(value)
        case "null" | "bool" | "str" | "int" | "float":
            return cast("Value", value)
        case _:
            raise RecordFormatError(f"'{tag}' is not a kind of value")


# Entities

_KINDS: Final = {kind.value: description for description, kind in KIND_OF.items()}


def encode_entity(entity: EntityRecord) -> bytes:
    return _VERSION_BYTE + _to_json(
        {
            "kind": KIND_OF[type(entity.description)].value,
            "path": entity.path,
            "topic": entity.topic_id,
            "created": entity.created_ms,
            "updated": entity.updated_ms,
            "settings": asdict(entity.description),
        }
    )


def decode_entity(entity_id: int, data: bytes) -> EntityRecord:
    found = _from_json(data)
    try:
        return EntityRecord(
            entity_id=entity_id,
            path=found["path"],
            topic_id=found["topic"],
            description=_description(_KINDS[found["kind"]], found["settings"]),
            created_ms=found["created"],
            updated_ms=found["updated"],
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordFormatError(f"not a record of an entity: {error!r}") from error


def _description(kind: type[EntityDescription], settings: dict[str, Any]) -> EntityDescription:
    settings["status"] = EntityStatus(settings["status"])
    if "authorization_rules" in settings:
        settings["authorization_rules"] = _authorization_rules(settings["authorization_rules"])
    return kind(**settings)


# Access


def encode_access(rules: tuple[AuthorizationRule, ...]) -> bytes:
    return _VERSION_BYTE + _to_json({"rules": [asdict(rule) for rule in rules]})


def decode_access(data: bytes) -> tuple[AuthorizationRule, ...]:
    found = _from_json(data)
    try:
        return _authorization_rules(found["rules"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordFormatError(f"not a record of authorization rules: {error!r}") from error


def _authorization_rules(found: list[dict[str, Any]]) -> tuple[AuthorizationRule, ...]:
    return tuple(AuthorizationRule(**{**rule, "rights": tuple(map(Right, rule["rights"]))}) for rule in found)


# Rules


def encode_rule(rule: RuleDescription, created_ms: int) -> bytes:
    action = None
    if rule.action is not None:
        action = {"expression": rule.action.expression, "parameters": _tag_all(rule.action.parameters)}
    found = {"name": rule.name, "created": created_ms, "filter": _filter_to_json(rule.filter), "action": action}
    return _VERSION_BYTE + _to_json(found)


def decode_rule(data: bytes) -> tuple[RuleDescription, int]:
    found = _from_json(data)
    try:
        action = found["action"]
        rule = RuleDescription(
            name=found["name"],
            filter=_filter_from_json(found["filter"]),
            action=None
            if action is None
            else SqlActionDescription(action["expression"], _values(action["parameters"])),
        )
        return rule, int(found["created"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordFormatError(f"not a record of a rule: {error!r}") from error


def _filter_to_json(description: FilterDescription) -> dict[str, object]:
    match description:
        case TrueFilter():
            return {"kind": "true"}
        case FalseFilter():
            return {"kind": "false"}
        case SqlFilterDescription(expression, parameters):
            return {"kind": "sql", "expression": expression, "parameters": _tag_all(parameters)}
        case CorrelationFilter(properties=properties):
            texts = {
                field.name: getattr(description, field.name)
                for field in fields(description)
                if field.name != "properties"
            }
            return {"kind": "correlation", "properties": _tag_all(properties), **texts}


def _filter_from_json(found: dict[str, Any]) -> FilterDescription:
    match found.pop("kind"):
        case "true":
            return TrueFilter()
        case "false":
            return FalseFilter()
        case "sql":
            return SqlFilterDescription(found["expression"], _values(found["parameters"]))
        case "correlation":
            return CorrelationFilter(**{**found, "properties": _values(found["properties"])})
        case kind:
            raise RecordFormatError(f"'{kind}' is not a kind of filter")


def _values(tagged: Mapping[str, list[Any]]) -> Mapping[str, Value]:
    return cast("Mapping[str, Value]", _untag_all(tagged))


# Small records


def encode_number(number: int) -> bytes:
    return _NUMBER.pack(VERSION, number)


def decode_number(data: bytes) -> int:
    try:
        version, number = _NUMBER.unpack(data)
    except struct.error as error:
        raise RecordFormatError(f"not a number: {error}") from error
    if version != VERSION:
        raise RecordFormatError(f"format version {version} is unknown")
    return int(number)


def encode_stamped(time_ms: int, text: str, content: bytes = b"") -> bytes:
    """Encode a time, a text of which the key may only have the digest, and the content."""
    encoded = text.encode("utf-8", "surrogatepass")
    return b"".join((_NUMBER.pack(VERSION, time_ms), len(encoded).to_bytes(2, "big"), encoded, content))


def decode_stamped(data: bytes) -> tuple[int, str, bytes]:
    time_ms = decode_number(data[: _NUMBER.size])
    begin = _NUMBER.size + 2
    end = begin + int.from_bytes(data[_NUMBER.size : begin], "big")
    if end > len(data):
        raise RecordFormatError("the text is cut off")
    return time_ms, data[begin:end].decode("utf-8", "surrogatepass"), data[end:]


_write_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def _to_json(found: object) -> bytes:
    return _write_json(found).encode("ascii")


def _from_json(data: bytes) -> dict[str, Any]:
    if data[:1] != _VERSION_BYTE:
        raise RecordFormatError(f"format version {data[:1].hex() or 'none'} is unknown")
    try:
        found = json.loads(data[1:])
    except ValueError as error:
        raise RecordFormatError(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise RecordFormatError("not a JSON object")
    return found
