"""The values that tests send and expect, independent of any SDK."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

Value: TypeAlias = bool | int | float | str | bytes | datetime | UUID | None
"""The value of a property. Python's SDK returns text as bytes, so the suite's bytes are never UTF-8."""

Id: TypeAlias = str | int | bytes | UUID

NEVER: Final = timedelta(days=10_675_199)
"""The longest time of the management API; it is longer by less than a day."""


class Kind(StrEnum):
    """The three kinds of bodies that AMQP has."""

    DATA = "data"
    SEQUENCE = "sequence"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a message: sections of bytes, sections of lists, or one value."""

    kind: Kind
    content: Any


def data(*sections: bytes) -> Body:
    return Body(Kind.DATA, list(sections))


def sequence(*sections: list[Any]) -> Body:
    return Body(Kind.SEQUENCE, list(sections))


def value(content: Any) -> Body:
    return Body(Kind.VALUE, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amqp:
    """The parts of a message that only its AMQP view has."""

    durable: bool | None = None
    priority: int | None = None
    user_id: bytes | None = None
    content_encoding: str | None = None
    creation_time: datetime | None = None
    absolute_expiry_time: datetime | None = None
    group_sequence: int | None = None
    annotations: Mapping[str, Value] = field(default_factory=dict)
    """Without those that the service makes itself."""
    delivery_annotations: Mapping[str, Value] = field(default_factory=dict)
    footer: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message as an application makes it."""

    body: Body = field(default_factory=lambda: data(b""))
    message_id: Id | None = None
    correlation_id: Id | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    partition_key: str | None = None
    content_type: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    time_to_live: timedelta | None = None
    scheduled_enqueue_time: datetime | None = None
    application_properties: Mapping[str, Value] = field(default_factory=dict)
    amqp: Amqp | None = None
    """Makes the SDK's message for advanced uses of it."""

    def replace(self, **changes: Any) -> Message:
        return dataclasses.replace(self, **changes)


def text(content: str, **properties: Any) -> Message:
    """Make a message with a text in its body."""
    return Message(body=data(content.encode()), **properties)


class State(StrEnum):
    """The state of a peeked message."""

    ACTIVE = "active"
    DEFERRED = "deferred"
    SCHEDULED = "scheduled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as an SDK shows it to the application that receives it."""

    message: Message
    """With ``amqp`` filled in."""
    sequence_number: int
    enqueued_sequence_number: int | None
    enqueued_time: datetime
    delivery_count: int
    lock_token: str | None
    locked_until: datetime | None
    expires_at: datetime | None
    state: State
    dead_letter_reason: str | None
    dead_letter_description: str | None
    dead_letter_source: str | None
    original: Any = field(repr=False, compare=False)
    """The SDK's own object."""

    @property
    def text(self) -> str:
        """The body, where it is one of ``text``."""
        assert self.message.body.kind is Kind.DATA
        return b"".join(self.message.body.content).decode()


class Mode(StrEnum):
    """The receive modes."""

    PEEK_LOCK = "peek-lock"
    RECEIVE_AND_DELETE = "receive-and-delete"


class SubQueue(StrEnum):
    """The queues beside the queue."""

    DEAD_LETTER = "dead-letter"
    TRANSFER_DEAD_LETTER = "transfer-dead-letter"


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription, from which copies of messages are received."""

    topic: str
    name: str


Entity: TypeAlias = str | Subscription
"""A queue, or a subscription."""


class Reason(StrEnum):
    """The reason of an error, common to all SDKs."""

    ALREADY_EXISTS = "already exists"
    ALREADY_SETTLED = "already settled"
    BUSY = "server busy"
    CONNECTION = "connection"
    DISABLED = "entity disabled"
    GENERAL = "general"
    INVALID = "invalid"
    LOCK_LOST = "message lock lost"
    MESSAGE_NOT_FOUND = "message not found"
    NOT_FOUND = "not found"
    QUOTA_EXCEEDED = "quota exceeded"
    SESSION_CANNOT_BE_LOCKED = "session cannot be locked"
    SESSION_LOCK_LOST = "session lock lost"
    SIZE_EXCEEDED = "message size exceeded"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"


class SdkError(Exception):
    """An error of an SDK's; the SDK's own one is its cause, or in its text."""

    def __init__(self, reason: Reason, description: str) -> None:
        super().__init__(f"{reason.value}: {description}")
        self.reason = reason
        self.description = description
