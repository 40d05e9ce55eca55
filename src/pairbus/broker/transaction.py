"""Transactions: several operations, all of them or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from pairbus.broker.catalogue import Catalogue, Lookup
from pairbus.broker.context import BrokerContext
from pairbus.broker.entity import Destination, QueueEntity
from pairbus.broker.errors import (
    EntityDisabledError,
    HeaderSizeExceededError,
    InvalidMessageError,
    InvalidRequestError,
    LockLostError,
    MessageSizeExceededError,
    QuotaExceededError,
    SessionRequiredError,
)
from pairbus.broker.limits import Limits
from pairbus.broker.message import Address, NewMessage
from pairbus.broker.router import Router, capacity, fault_of, message_limit
from pairbus.broker.settlement import Settlement, check_verdict
from pairbus.broker.settlement_request import SettlementRequest
from pairbus.broker.validation import Unchecked, check_list, check_number


def check_send(entity: Destination, messages: Unchecked, limits: Limits, pending_bytes: int = 0) -> int:
    """Raise an error if an entity cannot accept these messages; return how many bytes they take."""
    if not entity.description.status.can_send:
        raise EntityDisabledError(
            f"'{entity.path}' is {entity.description.status}: messages cannot be sent to it", entity.path
        )
    check_list(messages, "messages")
    if isinstance(messages, NewMessage):
        raise InvalidMessageError("messages must be a list of messages, got a single message", entity.path)
    total = 0
    for message in messages:
        check_message(entity, message, limits)
        total += len(message.body)
    if len(messages) > 1:
        _check_batch(entity, len(messages), total, limits)
    maximum = capacity(entity, limits)
    if entity.usage.size_bytes + pending_bytes + total > maximum:
        raise QuotaExceededError(
            f"'{entity.path}' is full: it holds {entity.usage.size_bytes} of {maximum} bytes; receive messages,"
            " its dead letters too, or give it a larger size",
            entity.path,
        )
    return total


def _check_batch(entity: Destination, count: int, total: int, limits: Limits) -> None:
    if count > limits.messages_per_batch:
        raise MessageSizeExceededError(
            f"the batch has more than {limits.messages_per_batch} messages, the maximum for '{entity.path}': send"
            " fewer messages at once",
            entity.path,
        )
    if total > limits.batch_bytes:
        raise MessageSizeExceededError(
            f"the batch of {count} messages has {total} bytes; '{entity.path}' accepts batches of at most"
            f" {limits.batch_bytes} bytes: send fewer messages at once",
            entity.path,
        )


def check_message(entity: Destination | None, message: Unchecked, limits: Limits) -> None:
    """Raise an error if a message is invalid, for an entity or for one that does not exist (any more)."""
    path = None if entity is None else entity.path
    if not _is_message(message):
        raise InvalidMessageError(f"expected a NewMessage with a body of bytes, got {message!r:.200}", path)
    maximum = limits.message_bytes if entity is None else message_limit(entity, limits)
    if len(message.body) > maximum:
        where = "an entity" if entity is None else f"'{path}'"
        raise MessageSizeExceededError(
            f"the message has {len(message.body)} bytes; {where} accepts at most {maximum}", path
        )
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


def _is_message(value: object) -> bool:
    """Return whether a value is a message, whose fields are unchecked: compiled code would trust them after a check
    with ``isinstance`` in the same function.
    """
    return isinstance(value, NewMessage) and isinstance(value.body, bytes)


def _requires_session(entity: Destination | None) -> bool:
    return isinstance(entity, QueueEntity) and entity.description.requires_session


class SendOperation(NamedTuple):
    """Messages to send to a queue or a topic.

    With ``via``, a message that cannot reach its destination (which is missing, disabled or full) goes to the transfer
    dead-letter queue of the ``via`` entity. A message that no entity accepts is refused all the same.
    """

    address: Address
    messages: Sequence[NewMessage]
    via: Address | None = None


class SettleOperation(NamedTuple):
    """A settlement of a locked message."""

    address: Address
    lock_token: bytes
    verdict: SettlementRequest = SettlementRequest()


TransactionOperation: TypeAlias = SendOperation | SettleOperation


class Transaction:
    """Executes operations atomically: it checks all of them before the first, so that none can fail half-way."""

    def __init__(
        self, context: BrokerContext, catalogue: Catalogue, lookup: Lookup, router: Router, settlement: Settlement
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._lookup = lookup
        self._router = router
        self._settlement = settlement

    def check(self, operations: Unchecked, now_ms: int) -> int:
        """Raise an error if one of the operations cannot be executed; return the number of messages."""
        limits = self._context.limits
        check_list(operations, "operations")
        if not all(isinstance(operation, SendOperation | SettleOperation) for operation in operations):
            raise InvalidRequestError("a transaction takes SendOperation and SettleOperation")
        sends = [operation for operation in operations if isinstance(operation, SendOperation)]
        settles = [operation for operation in operations if isinstance(operation, SettleOperation)]
        count = sum(len(send.messages) for send in sends) + len(settles)
        if count > limits.messages_per_transaction:
            raise InvalidRequestError(
                f"the transaction has {count} messages; at most {limits.messages_per_transaction} are allowed"
            )
        self._check_sends(sends)
        self._check_settles(settles, now_ms)
        if sends:
            size = sum(len(message.body) for send in sends for message in send.messages)
            self._context.records.admit(size, sum(self._records_of(send) for send in sends))
        with self._router.bounded(count):
            for send in sends:
                if send.via is None:
                    self._router.screen(self._lookup.sendable(send.address), send.messages, now_ms)
        return count

    def perform(self, operation: TransactionOperation, now_ms: int) -> list[int | None]:
        if isinstance(operation, SettleOperation):
            queue, lock = self._lookup.locked(operation.address, operation.lock_token, now_ms)
            self._settlement.settle(queue, lock, operation.verdict, now_ms)
            return []
        if operation.via is not None:
            via = self._catalogue.holder(operation.via)
            destination = self._catalogue.find(operation.address.entity)
            return [self._router.transfer(via, destination, message, now_ms) for message in operation.messages]
        entity = self._lookup.sendable(operation.address)
        entity.touch(now_ms)
        return [self._router.accept(entity, message, now_ms) for message in operation.messages]

    def _records_of(self, send: SendOperation) -> int:
        entity = self._catalogue.find(send.address.entity)
        return len(send.messages) * (1 if entity is None else entity.copies)

    def _check_sends(self, sends: Sequence[SendOperation]) -> None:
        pending: dict[int, int] = {}
        for send in sends:
            if send.via is not None:
                self._check_transfer(send)
                continue
            entity = self._lookup.sendable(send.address)
            before = pending.get(entity.id, 0)
            pending[entity.id] = before + check_send(entity, send.messages, self._context.limits, before)

    def _check_transfer(self, send: SendOperation) -> None:
        """Check only the messages themselves: the destination is checked when they reach it."""
        if send.via is not None:
            self._catalogue.holder(send.via)
        entity = self._catalogue.find(send.address.entity)
        for message in send.messages:
            check_message(entity, message, self._context.limits)

    def _check_settles(self, settles: Sequence[SettleOperation], now_ms: int) -> None:
        tokens: set[bytes] = set()
        for settle in settles:
            queue, lock = self._lookup.locked(settle.address, settle.lock_token, now_ms)
            check_verdict(queue, lock, settle.verdict, self._context.limits)
            if settle.lock_token in tokens:
                raise LockLostError("the transaction settles the same message twice", str(settle.address))
            tokens.add(settle.lock_token)
