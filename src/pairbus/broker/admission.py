"""Whether an entity takes messages: everything that can be wrong with a send, before anything happens."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.broker.entity import Destination, QueueEntity
from pairbus.broker.errors import (
    EntityDisabledError,
    HeaderSizeExceededError,
    InvalidMessageError,
    MessageSizeExceededError,
    QuotaExceededError,
    SessionRequiredError,
)
from pairbus.broker.kinds import check_list, check_number
from pairbus.broker.limits import Limits
from pairbus.broker.message import Message
from pairbus.broker.router import capacity, fault_of, message_limit


def check_send(entity: Destination, messages: Sequence[Message], limits: Limits, pending_bytes: int = 0) -> int:
    """Raise what is wrong with sending these; how many bytes they take."""
    if not entity.description.status.can_send:
        raise EntityDisabledError(f"'{entity.path}' is {entity.description.status}: it takes no messages", entity.path)
    check_list(messages, "messages")
    if isinstance(messages, Message):
        raise InvalidMessageError("a send takes a list of messages; this is one message", entity.path)
    total = 0
    for message in messages:
        check_message(entity, message, limits)
        total += len(message.body)
    if len(messages) > 1:
        _check_batch(entity, len(messages), total, limits)
    most = capacity(entity, limits)
    if entity.usage.size_bytes + pending_bytes + total > most:
        raise QuotaExceededError(
            f"'{entity.path}' is full: it holds {entity.usage.size_bytes} of {most} bytes; receive messages,"
            " its dead letters too, or give it a larger size",
            entity.path,
        )
    return total


def _check_batch(entity: Destination, count: int, total: int, limits: Limits) -> None:
    if total > limits.batch_bytes:
        raise MessageSizeExceededError(
            f"the batch of {count} messages has {total} bytes; '{entity.path}' takes batches of at most"
            f" {limits.batch_bytes} bytes: send fewer messages at once",
            entity.path,
        )


def check_message(entity: Destination | None, message: Message, limits: Limits) -> None:
    """Raise what is wrong with a message, for an entity or for one that is not there (any more)."""
    path = None if entity is None else entity.path
    if not isinstance(message, Message) or not isinstance(message.body, bytes):
        raise InvalidMessageError(f"{message!r:.200} is no Message with a body of bytes", path)
    most = limits.message_bytes if entity is None else message_limit(entity, limits)
    if len(message.body) > most:
        where = "an entity" if entity is None else f"'{path}'"
        raise MessageSizeExceededError(f"the message has {len(message.body)} bytes; {where} takes at most {most}", path)
    check_number(message.header_bytes, "header_bytes")
    if message.header_bytes > limits.header_bytes:
        raise HeaderSizeExceededError(
            f"the message has {message.header_bytes} bytes of properties; at most {limits.header_bytes} are allowed",
            path,
        )
    if message.session_id is None and not message.ping and _requires_session(entity):
        raise SessionRequiredError(f"'{path}' requires sessions: the message needs a session id", path)
    fault = fault_of(message, limits)
    if fault is not None:
        raise InvalidMessageError(fault, path)


def _requires_session(entity: Destination | None) -> bool:
    return isinstance(entity, QueueEntity) and entity.description.requires_session
