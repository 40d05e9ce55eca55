"""Received messages and their settlement outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import AmqpView, BodyKind, BrokeredMessage, MessageId, amqp_values, python_value
from pairbus.client.validation import from_ms
from pairbus.dialect.annotations import (
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_ID,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.sent import read_enqueued
from pairbus.wire import ACCEPTED, Delivery, Error, Modified, ProtocolError, Rejected, Sections, Symbol

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"
_LOCK_TOKEN_BYTES: Final = 16
_ITS_OWN: Final = frozenset({"_payload", "delivery", "lock_token"})
_ENQUEUED: Final = frozenset({"enqueued_time", "sequence_number"})
_LONGEST_TTL_MS: Final = 0xFFFFFFFF
_ATTRIBUTES: Final = frozenset(
    {
        DEAD_LETTER_SOURCE,
        ENQUEUE_SEQUENCE_NUMBER,
        ENQUEUED_TIME,
        LOCKED_UNTIL,
        MESSAGE_STATE,
        PARTITION_ID,
        PARTITION_KEY,
        SCHEDULED_ENQUEUE_TIME,
        SEQUENCE_NUMBER,
        VIA_PARTITION_KEY,
    }
)
"""The annotations that are attributes of a message."""


class MessageState(Enum):
    """The state of a message in its entity."""

    ACTIVE = 0
    DEFERRED = 1
    SCHEDULED = 2


_STATES: Final = {state.value: state for state in MessageState}


class ReceivedMessage(BrokeredMessage):
    """A message received from a namespace. Its bytes are decoded on first access.

    It is settled through its receiver. If sent again, it is a new message with the same body, properties and id.
    """

    __slots__ = (
        "_payload",
        "dead_letter_source",
        "delivery",
        "delivery_count",
        "enqueued_sequence_number",
        "enqueued_time",
        "is_settled",
        "lock_token",
        "locked_until",
        "partition_id",
        "sequence_number",
        "state",
    )

    sequence_number: int
    """The sequence number in the entity that it was received from; 0 if the peer sent none."""
    enqueued_sequence_number: int
    """The sequence number in the entity that it was sent to."""
    enqueued_time: datetime
    delivery_count: int
    """The number of earlier deliveries."""
    locked_until: datetime | None
    lock_token: UUID | None
    """The token of the lock; ``None`` if the message is not locked."""
    state: MessageState
    partition_id: int | None
    dead_letter_source: str | None
    """The entity that dead-lettered it, if it was forwarded from there."""

    def __init__(self, payload: bytes, delivery: Delivery | None = None, lock_token: UUID | None = None) -> None:
        # Does not call the base: all other attributes are decoded from the bytes on first access.
        self._payload: Sections | bytes = payload
        self.delivery = delivery
        """The AMQP delivery, for the receiver."""
        self.is_settled = False
        if delivery is None or delivery.settled or lock_token is not None:  # a settled delivery is not locked
            self.lock_token = lock_token

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the message: another process can read it, and settle it through a receiver while the lock holds."""
        names = (*BrokeredMessage.__slots__, *ReceivedMessage.__slots__)
        state = {name: getattr(self, name) for name in names if name not in _ITS_OWN and _is_set(self, name)}
        return ReceivedMessage, (self.payload, None, self.lock_token), (None, state)

    def copy(self, message_id: MessageId | None = None) -> BrokeredMessage:
        """Return a new message with the same body and properties, and a new id unless one is given.

        Duplicate detection would discard a message with the original id. The properties that dead-lettering has added
        are removed.
        """
        properties = {
            name: value
            for name, value in self.application_properties.items()
            if name not in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)
        }
        return BrokeredMessage(
            self.body,
            message_id=message_id,
            session_id=self.session_id,
            partition_key=self.partition_key,
            via_partition_key=self.via_partition_key,
            label=self.label,
            content_type=self.content_type,
            correlation_id=self.correlation_id,
            to=self.to,
            reply_to=self.reply_to,
            reply_to_session_id=self.reply_to_session_id,
            time_to_live=self.time_to_live,
            application_properties=properties,
            body_kind=self.body_kind,
            amqp=self.amqp,
        )

    def __repr__(self) -> str:
        try:
            return f"<ReceivedMessage {self.message_id!r}, {self.sequence_number}>"
        except InvalidMessageError:
            return "<ReceivedMessage (unreadable)>"

    @property
    def payload(self) -> bytes:
        """The bytes of the complete message as received; changes to the attributes do not affect them."""
        return self._payload.payload if isinstance(self._payload, Sections) else self._payload

    @property
    def expires_at(self) -> datetime | None:
        """The end of the time to live, counted from the enqueued time; ``None`` if it never expires."""
        if self.time_to_live is None:
            return None
        try:
            return self.enqueued_time + self.time_to_live
        except OverflowError:
            return None

    @property
    def dead_letter_reason(self) -> str | None:
        return self.application_properties.get(DEAD_LETTER_REASON)

    @property
    def dead_letter_error_description(self) -> str | None:
        return self.application_properties.get(DEAD_LETTER_DESCRIPTION)

    def __getattr__(self, name: str) -> Any:
        """Decode an attribute on first access, together with the others of its section."""
        if name == "lock_token":  # does not depend on the content of the message
            self.lock_token = _lock_token(self.delivery)
            return self.lock_token
        if name in _ENQUEUED and self._read_enqueued(name):
            return getattr(self, name)
        read = _READERS.get(name)
        if read is None:
            raise AttributeError(f"a message has no {name!r}")
        try:
            found = read(self, self._sections())
        except (ProtocolError, TypeError, ValueError) as error:
            raise InvalidMessageError(f"the message cannot be read: {error}") from error
        for other, value in found.items():
            if other == name or not _is_set(self, other):  # the application may have set it
                setattr(self, other, value)
        return found[name]

    def _read_enqueued(self, name: str) -> bool:
        """Read the fields needed for moving a message; return True if ``name`` is set without decoding the rest."""
        enqueued = read_enqueued(self.payload)
        if enqueued.sequence_number is not None and not _is_set(self, "sequence_number"):
            self.sequence_number = enqueued.sequence_number
        if enqueued.time_ms is not None and not _is_set(self, "enqueued_time"):
            self.enqueued_time = from_ms(enqueued.time_ms)
        return _is_set(self, name)

    def _sections(self) -> Sections:
        if not isinstance(self._payload, Sections):
            self._payload = Sections(self._payload)
        return self._payload


def _is_set(message: ReceivedMessage, name: str) -> bool:
    try:
        object.__getattribute__(message, name)
    except AttributeError:
        return False
    return True


def _body(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    if not sections.body:
        return {"body_kind": BodyKind.DATA, "body": b""}
    kind = BodyKind(sections.body[0][0])
    if kind is BodyKind.DATA:
        body: Any = sections.data()
    elif kind is BodyKind.VALUE:
        body = python_value(sections.decode_body()[0])
    else:
        body = [python_value(item) for section in sections.decode_body() for item in section]
    return {"body_kind": kind, "body": body}


def _properties(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    properties = sections.properties()
    return {
        "message_id": "" if properties.message_id is None else properties.message_id,
        "to": properties.to,
        "label": properties.subject,
        "reply_to": properties.reply_to,
        "correlation_id": properties.correlation_id,
        "content_type": None if properties.content_type is None else str(properties.content_type),
        "session_id": properties.group_id,
        "reply_to_session_id": properties.reply_to_group_id,
    }


def _application_properties(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    return {"application_properties": python_value(sections.application_properties())}


def _header(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    header = sections.header()
    length_ms = header.ttl
    if length_ms == _LONGEST_TTL_MS:  # it may be longer than the header can hold
        properties = sections.properties()
        if properties.creation_time is not None and properties.absolute_expiry_time is not None:
            length_ms = max(length_ms, properties.absolute_expiry_time - properties.creation_time)
    return {
        "delivery_count": int(header.delivery_count),
        "time_to_live": None if length_ms is None else timedelta(milliseconds=int(length_ms)),
    }


def _annotations(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    found = sections.message_annotations()
    locked_until, scheduled = found.get(LOCKED_UNTIL), found.get(SCHEDULED_ENQUEUE_TIME)
    partition_id = found.get(PARTITION_ID)
    number = int(found.get(SEQUENCE_NUMBER) or 0)
    return {
        "sequence_number": number,
        "enqueued_sequence_number": int(found.get(ENQUEUE_SEQUENCE_NUMBER) or number),
        "enqueued_time": from_ms(found.get(ENQUEUED_TIME) or 0),
        "locked_until": None if locked_until is None else from_ms(locked_until),
        "state": _STATES.get(found.get(MESSAGE_STATE) or 0, MessageState.ACTIVE),
        "partition_key": found.get(PARTITION_KEY),
        "via_partition_key": found.get(VIA_PARTITION_KEY),
        "partition_id": None if partition_id is None else int(partition_id),
        "scheduled_enqueue_time": None if scheduled is None else from_ms(scheduled),
        "dead_letter_source": found.get(DEAD_LETTER_SOURCE),
    }


def _amqp(_message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    header, properties = sections.header(), sections.properties()
    created, expires = properties.creation_time, properties.absolute_expiry_time
    annotations = sections.message_annotations()
    return {
        "amqp": AmqpView(
            durable=header.durable,
            priority=int(header.priority),
            user_id=properties.user_id,
            content_encoding=None if properties.content_encoding is None else str(properties.content_encoding),
            creation_time=None if created is None else from_ms(created),
            absolute_expiry_time=None if expires is None else from_ms(expires),
            group_sequence=None if properties.group_sequence is None else int(properties.group_sequence),
            annotations={
                str(name): python_value(value) for name, value in annotations.items() if name not in _ATTRIBUTES
            },
            delivery_annotations={
                str(name): python_value(value)
                for name, value in sections.delivery_annotations().items()
                if name != LOCK_TOKEN
            },
            footer={str(name): python_value(value) for name, value in sections.footer().items()},
        )
    }


def _lock_token(delivery: Delivery | None) -> UUID | None:
    if delivery is None or len(delivery.delivery_tag) != _LOCK_TOKEN_BYTES:
        return None
    return UUID(bytes_le=delivery.delivery_tag)


_Reader = Callable[[ReceivedMessage, Sections], dict[str, Any]]
_READERS: Final[dict[str, _Reader]] = {
    **dict.fromkeys(("body", "body_kind"), _body),
    **dict.fromkeys(
        (
            "message_id",
            "to",
            "label",
            "reply_to",
            "correlation_id",
            "content_type",
            "session_id",
            "reply_to_session_id",
        ),
        _properties,
    ),
    "application_properties": _application_properties,
    **dict.fromkeys(("delivery_count", "time_to_live"), _header),
    **dict.fromkeys(
        (
            "sequence_number",
            "enqueued_sequence_number",
            "enqueued_time",
            "locked_until",
            "state",
            "partition_key",
            "via_partition_key",
            "partition_id",
            "scheduled_enqueue_time",
            "dead_letter_source",
        ),
        _annotations,
    ),
    "amqp": _amqp,
}
"""The reader of each attribute, which sets its neighbours too."""


Changes = Mapping[str, Any]
"""Application properties to set."""


@dataclass(frozen=True, slots=True)
class SettlementOutcome:
    """The outcome of settling a message."""

    state: object
    """The AMQP delivery state."""

    status: str
    """The disposition status for a management node."""

    details: Mapping[str, Any] = field(default_factory=dict)


COMPLETE = SettlementOutcome(ACCEPTED, "completed")


def abandon(changes: Changes | None) -> SettlementOutcome:
    return SettlementOutcome(
        Modified(delivery_failed=True, undeliverable_here=False, message_annotations=_changed_annotations(changes)),
        "abandoned",
        _changed_properties(changes),
    )


def defer(changes: Changes | None) -> SettlementOutcome:
    return SettlementOutcome(
        Modified(delivery_failed=True, undeliverable_here=True, message_annotations=_changed_annotations(changes)),
        "defered",  # the spelling of the service
        _changed_properties(changes),
    )


def dead_letter(reason: str | None, description: str | None, changes: Changes | None) -> SettlementOutcome:
    info: dict[Any, Any] = amqp_values(changes or {})
    details: dict[str, Any] = _changed_properties(changes)
    if reason is not None:
        info[DEAD_LETTER_REASON] = details["deadletter-reason"] = reason
    if description is not None:
        info[DEAD_LETTER_DESCRIPTION] = details["deadletter-description"] = description
    error = Error(ServiceBusCondition.DEAD_LETTER, None, {Symbol(name): value for name, value in info.items()} or None)
    return SettlementOutcome(Rejected(error), "suspended", details)


def _changed_annotations(changes: Changes | None) -> dict[Any, Any] | None:
    return {Symbol(name): value for name, value in amqp_values(changes).items()} if changes else None


def _changed_properties(changes: Changes | None) -> dict[str, Any]:
    return {"properties-to-modify": amqp_values(changes)} if changes else {}
