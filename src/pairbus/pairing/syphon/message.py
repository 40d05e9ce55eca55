"""A message of the backlog: its destination, its restored form, and why it may be undeliverable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from typing import Final, TypeAlias

from pairbus.client.errors import (
    EntityNotFoundError,
    InvalidMessageError,
    InvalidRequestError,
    MessageSizeExceededError,
    MessagingError,
)
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.validation import to_ms
from pairbus.dialect.delivered import read_stamp
from pairbus.dialect.paths import takes_messages
from pairbus.dialect.sent import read_enqueued
from pairbus.dialect.transfer import DivertedMessage, TransferError, find_sections, read_sections, restore
from pairbus.pairing.syphon.interface import TimeToLive, destination_key
from pairbus.wire import MESSAGE_ANNOTATIONS, Sections

Line: TypeAlias = tuple[str, str]
"""The key of a destination and a session id: messages of one line are delivered in order."""

_MAX_DESCRIPTION: Final = 2_000
_MAX_KNOWN_PATHS: Final = 1_024


class InvalidDestinationError(TransferError):
    """The destination of a message cannot be the path of a queue or topic."""


class DeadLetterReason(Enum):
    """The reason of a dead letter in a backlog queue."""

    NO_DESTINATION = "PairbusNoDestination"
    """The message has no destination."""
    UNREADABLE = "PairbusUnreadable"
    """A property of the diverted form cannot be read, or has the wrong type."""
    INVALID_DESTINATION = "PairbusInvalidDestination"
    """The destination cannot be the path of an entity."""
    ENTITY_NOT_FOUND = "PairbusEntityNotFound"
    MESSAGE_SIZE_EXCEEDED = "PairbusMessageSizeExceeded"
    INVALID_MESSAGE = "PairbusInvalidMessage"
    EXPIRED = "TTLExpiredException"
    """The message expired in the backlog; the service uses the same name."""
    REFUSED = "PairbusRefused"


def reason_of(error: MessagingError | TransferError) -> DeadLetterReason:
    match error:
        case InvalidDestinationError():
            return DeadLetterReason.INVALID_DESTINATION
        case TransferError(path=None):
            return DeadLetterReason.NO_DESTINATION
        case TransferError():
            return DeadLetterReason.UNREADABLE
        case EntityNotFoundError():
            return DeadLetterReason.ENTITY_NOT_FOUND
        case MessageSizeExceededError():
            return DeadLetterReason.MESSAGE_SIZE_EXCEEDED
        case InvalidMessageError() | InvalidRequestError():
            return DeadLetterReason.INVALID_MESSAGE
    return DeadLetterReason.REFUSED


def one_line(text: str) -> str:
    """Return a text without control characters and of limited length: errors may quote parts of a message."""
    return "".join(one if one.isprintable() else " " for one in text)[:_MAX_DESCRIPTION]


def read_diverted(payload: bytes) -> DivertedMessage:
    """Read the diverted form of a message. Raise ``TransferError`` if it has no valid destination."""
    return _read(find_sections(payload))


def _read(sections: Sections) -> DivertedMessage:
    transfer = read_sections(sections)
    if not _is_destination(transfer.path):
        raise InvalidDestinationError("not the path of a queue or topic", transfer.path)
    return transfer


@lru_cache(maxsize=_MAX_KNOWN_PATHS)
def _is_destination(path: str) -> bool:
    return takes_messages(path.strip("/"))


def line_of(transfer: DivertedMessage) -> Line | None:
    """Return the line of a message; ``None`` if it has no session."""
    return None if transfer.session_id is None else (destination_key(transfer.path), transfer.session_id)


class BacklogMessage:
    """A message of a backlog queue that is locked for this process.

    Thousands of them wait for delivery at a time, so it keeps few objects: each one costs the garbage collector time.
    """

    __slots__ = (
        "_scheduled_ms",
        "enqueued_ms",
        "group",
        "is_deferred",
        "is_dropped",
        "is_sent",
        "line",
        "locked_until_ms",
        "message",
        "path",
        "sequence",
        "session_id",
        "time_to_live_ms",
    )

    def __init__(self, message: ReceivedMessage, *, is_deferred: bool = False) -> None:
        """Raise ``TransferError`` or ``InvalidMessageError`` if the message has no valid destination."""
        sections = find_sections(message.payload)
        transfer = _read(sections)
        stamp = read_stamp(sections.raw(MESSAGE_ANNOTATIONS)) or _decode_stamp(message)
        self.message = message
        self.path, self.session_id, self.time_to_live_ms, self._scheduled_ms = transfer
        self.sequence, self.enqueued_ms, self.locked_until_ms = stamp
        self.line = line_of(transfer)
        self.is_deferred = is_deferred
        """True if the message was deferred, and is deferred again when it is given back."""

        self.is_dropped = False
        """True once its lock is not needed any longer, although the message is not settled."""

        self.is_sent = False
        """True while it counts for the limit of messages that are sent and not removed."""

        self.group: LockedGroup | None = None
        """The messages that were locked together with it, if they are known."""

    @property
    def transfer(self) -> DivertedMessage:
        return DivertedMessage(self.path, self.session_id, self.time_to_live_ms, self._scheduled_ms)

    @property
    def payload(self) -> bytes:
        return self.message.payload

    @property
    def is_settled(self) -> bool:
        return self.is_dropped or self.message.is_settled


def _decode_stamp(message: ReceivedMessage) -> tuple[int, int, int | None]:
    until = message.locked_until
    return message.sequence_number, to_ms(message.enqueued_time), None if until is None else to_ms(until)


class LockedGroup:
    """Messages that were locked together: their locks are renewed together, and they are settled together."""

    __slots__ = ("_messages", "undelivered")

    def __init__(self, messages: list[BacklogMessage]) -> None:
        self._messages = messages
        self.undelivered = len(messages)
        """Number of messages that their destinations have not confirmed."""

        for message in messages:
            message.group = self

    @property
    def locked(self) -> list[BacklogMessage]:
        """The messages whose locks are needed."""
        self._messages = [message for message in self._messages if not message.is_settled]
        return self._messages

    @property
    def is_settled(self) -> bool:
        return not self.locked

    @property
    def locked_until(self) -> None:
        """Locks are renewed by the lock duration of the queue, not by this."""

    def lose(self, message: BacklogMessage) -> None:
        """Do not renew the lock of a message any longer."""
        self._messages = [one for one in self._messages if one is not message]


def note_delivered(messages: list[BacklogMessage]) -> bool:
    """Note that messages are delivered; return whether all of a group are, or of some the group is not known."""
    has_whole = False
    for message in messages:
        group = message.group
        if group is None:
            has_whole = True
        else:
            group.undelivered -= 1
            has_whole = has_whole or not group.undelivered
    return has_whole


def by_path(messages: list[BacklogMessage]) -> dict[str, list[BacklogMessage]]:
    """Return messages by destination, in order."""
    groups: dict[str, list[BacklogMessage]] = {}
    for message in messages:
        group = groups.get(message.path)
        if group is None:
            groups[message.path] = [message]
        else:
            group.append(message)
    return groups


def sequence_of(message: BacklogMessage) -> int:
    return message.sequence


def youngest(messages: list[BacklogMessage]) -> BacklogMessage:
    """Return the message that was enqueued last."""
    return max(messages, key=_enqueued_ms)


def _enqueued_ms(message: BacklogMessage) -> int:
    return message.enqueued_ms


@dataclass(frozen=True, slots=True, eq=False)
class UndeliverableMessage:
    """A locked message that can never be delivered."""

    message: ReceivedMessage
    path: str | None
    """The destination, if there is one."""

    reason: DeadLetterReason
    description: str
    is_deferred: bool = False

    @property
    def sequence(self) -> int:
        return read_enqueued(self.message.payload).sequence_number or 0

    @classmethod
    def because(
        cls, message: ReceivedMessage, error: TransferError | InvalidMessageError, *, is_deferred: bool = False
    ) -> UndeliverableMessage:
        path = error.path if isinstance(error, TransferError) else None
        reason = reason_of(error) if isinstance(error, TransferError) else DeadLetterReason.UNREADABLE
        where = "" if path is None else f"the message for '{path}': "
        return cls(message, path, reason, one_line(f"{where}{error}"), is_deferred)


def read_locked(
    messages: list[ReceivedMessage], refuse: Callable[[UndeliverableMessage], None], *, is_deferred: bool
) -> list[BacklogMessage]:
    """Return messages that were just locked; ``refuse`` is called with those that can never be delivered."""
    found: list[BacklogMessage] = []
    for received in messages:
        try:
            found.append(BacklogMessage(received, is_deferred=is_deferred))
        except (TransferError, InvalidMessageError) as error:
            refuse(UndeliverableMessage.because(received, error, is_deferred=is_deferred))
    return found


def restore_message(message: BacklogMessage, time_to_live: TimeToLive, age: timedelta) -> bytes | UndeliverableMessage:
    """Return the message as it was before it was diverted, or why it cannot be delivered.

    ``age`` is the time that it has spent in the backlog, which counts with ``TimeToLive.REMAINING``.
    """
    left_ms = message.time_to_live_ms
    if left_ms is not None and time_to_live is TimeToLive.REMAINING:
        left_ms -= int(age.total_seconds() * 1_000)
        if left_ms <= 0:
            text = f"the message for '{message.path}' expired in the backlog"
            return UndeliverableMessage(message.message, message.path, DeadLetterReason.EXPIRED, one_line(text))
    try:
        return restore(message.payload, message.transfer, time_to_live_ms=left_ms)
    except TransferError as error:
        return UndeliverableMessage.because(message.message, error)
