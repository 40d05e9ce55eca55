"""Conversion of messages between the wire and the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID, uuid4

from pairbus.broker import (
    MISSING,
    NEVER,
    Address,
    Amendments,
    DeliveredMessage,
    Instant,
    Missing,
    NewMessage,
    QueuePart,
    Record,
    Span,
    Value,
)
from pairbus.dialect.annotations import TICKS_PER_MS, TIMESPAN, VIA_PARTITION_KEY, text_of
from pairbus.dialect.delivered import PROPERTY_FIELDS, DeliveredChanges, Stamp, stamp
from pairbus.dialect.paths import EntityPath, SubQueue
from pairbus.dialect.sent import read_sent
from pairbus.server.errors import BadRequestError
from pairbus.wire import DATA, Described, Sections, Symbol, Timestamp, encode

_PARTS: Final = {
    None: QueuePart.MAIN,
    SubQueue.DEAD_LETTER: QueuePart.DEAD_LETTER,
    SubQueue.TRANSFER_DEAD_LETTER: QueuePart.TRANSFER_DEAD_LETTER,
}


def address_of(path: EntityPath) -> Address:
    return Address.of(path.entity, path.subscription, _PARTS[path.sub_queue])


_PARTITION_SHIFT: Final = 48
_new_tuple: Final = tuple.__new__  # calling the class would take twice as long, for each message

STUB_BODY: Final = bytes((0x00, 0x53, DATA)) + encode(b"")
"""Replaces an unreadable message in a dead-letter queue: a message with an empty body."""


def received_message(payload: bytes) -> NewMessage:
    """Return a sender's message for the broker; raises ``ProtocolError``."""
    body, message_id, session_id, key, time_to_live_ms, scheduled_ms, header_bytes, is_ping = read_sent(
        payload, _fresh_id
    )
    return _new_tuple(
        NewMessage,
        (body, message_id, session_id, key, time_to_live_ms, scheduled_ms, header_bytes, is_ping, False),
    )


def _fresh_id() -> str:
    return uuid4().hex


def delivered_payload(delivery: DeliveredMessage, address: Address | None = None) -> bytes:
    """Return a message of the broker as its receiver gets it; ``address`` is its queue, by default the main one."""
    record = delivery.record
    expires_ms = record.expires_ms
    return stamp(
        delivery.body,
        Stamp(
            record.sequence,
            _original_sequence(record, address),
            record.enqueued_ms,
            record.delivery_count,
            record.state,
            record.time_to_live_ms if expires_ms == NEVER else max(0, expires_ms - record.enqueued_ms),
            delivery.lock_token,
            delivery.locked_until_ms,
            record.dead_letter_source,
            record.sequence >> _PARTITION_SHIFT or None,
            None if record.amendments is None else _changes(record.amendments),
            record.message_id or None,
        ),
    )


def _original_sequence(record: Record, address: Address | None) -> int | None:
    """Return the first number, if another entity assigned it; ``None`` for a message that was sent to this queue."""
    is_queue = address is None or (address.subscription is None and address.part is QueuePart.MAIN)
    if is_queue and not record.hops and record.original_sequence == record.sequence:
        return None
    return record.original_sequence


def _changes(amendments: Amendments) -> DeliveredChanges:
    user = {name: to_wire(value) for name, value in amendments.user.items() if not isinstance(value, Missing)}
    removed = frozenset(name for name, value in amendments.user.items() if isinstance(value, Missing))
    return DeliveredChanges(user, removed, {name: to_wire(value) for name, value in amendments.system.items()})


def to_wire(value: Value) -> Any:
    """Return a value of the broker as its AMQP type."""
    if isinstance(value, Instant):
        return Timestamp(value)
    if isinstance(value, Span):
        return Described(Symbol(TIMESPAN), int(value) * TICKS_PER_MS)
    return value


def from_wire(value: Any) -> Value | Missing:
    """Return a value from the wire as the broker's type; ``MISSING`` if there is none."""
    if isinstance(value, bool) or value is None or isinstance(value, UUID):
        return value
    if isinstance(value, Timestamp):
        return Instant(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Described) and value.descriptor == TIMESPAN and isinstance(value.value, int):
        return Span(value.value // TICKS_PER_MS)
    return MISSING


def values_from_wire(properties: object) -> dict[str, Value]:
    """Return a peer's properties; those of types that the broker does not store are left out."""
    if not isinstance(properties, Mapping):
        raise BadRequestError(f"properties must be a map, got {properties!r:.100}")
    values = {str(name): from_wire(value) for name, value in properties.items()}
    return {name: value for name, value in values.items() if not isinstance(value, Missing)}


class MessageView:
    """The properties inside an encoded message, decoded when a rule asks for them."""

    __slots__ = ("_sections", "_user")

    def __init__(self, payload: bytes) -> None:
        self._sections = Sections(payload)
        self._user: dict[str, Any] | None = None

    def user(self, name: str) -> Value | Missing:
        if self._user is None:
            self._user = {key.lower(): value for key, value in self._sections.application_properties().items()}
        return from_wire(self._user.get(name.lower(), MISSING))

    def system(self, name: str) -> Value:
        if name == "ViaPartitionKey":
            value = text_of(self._sections.message_annotations().get(VIA_PARTITION_KEY))
        elif name in PROPERTY_FIELDS:
            value = getattr(self._sections.properties(), PROPERTY_FIELDS[name])
        else:
            return None
        return None if value is None else str(value)
