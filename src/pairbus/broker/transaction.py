"""Several operations as one: all of them or none."""

from __future__ import annotations

from collections.abc import Sequence

from pairbus.broker.admission import check_message, check_send
from pairbus.broker.catalogue import Catalogue
from pairbus.broker.context import Context
from pairbus.broker.errors import InvalidRequestError, LockLostError
from pairbus.broker.kinds import check_list
from pairbus.broker.lookup import Lookup
from pairbus.broker.operations import Operation, Send, Settle
from pairbus.broker.router import Router
from pairbus.broker.settlement import Settlement, check_verdict


class Transaction:
    """Checks each operation before the first is done; what was checked cannot fail."""

    def __init__(
        self, context: Context, catalogue: Catalogue, lookup: Lookup, router: Router, settlement: Settlement
    ) -> None:
        self._context = context
        self._catalogue = catalogue
        self._lookup = lookup
        self._router = router
        self._settlement = settlement

    def check(self, operations: Sequence[Operation], now_ms: int) -> None:
        limits = self._context.limits
        check_list(operations, "operations")
        if not all(isinstance(operation, Send | Settle) for operation in operations):
            raise InvalidRequestError("a transaction is made of Send and Settle")
        sends = [operation for operation in operations if isinstance(operation, Send)]
        settles = [operation for operation in operations if isinstance(operation, Settle)]
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
        for send in sends:
            if send.via is None:
                self._router.screen(self._lookup.sendable(send.address), send.messages, now_ms)

    def perform(self, operation: Operation, now_ms: int) -> list[int | None]:
        if isinstance(operation, Settle):
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

    def _records_of(self, send: Send) -> int:
        entity = self._catalogue.find(send.address.entity)
        return len(send.messages) * (1 if entity is None else entity.copies)

    def _check_sends(self, sends: Sequence[Send]) -> None:
        pending: dict[int, int] = {}
        for send in sends:
            if send.via is not None:
                self._check_transfer(send)
                continue
            entity = self._lookup.sendable(send.address)
            before = pending.get(entity.id, 0)
            pending[entity.id] = before + check_send(entity, send.messages, self._context.limits, before)

    def _check_transfer(self, send: Send) -> None:
        """Only the messages themselves: whether the destination takes them shows when they get there."""
        if send.via is not None:
            self._catalogue.holder(send.via)
        entity = self._catalogue.find(send.address.entity)
        for message in send.messages:
            check_message(entity, message, self._context.limits)

    def _check_settles(self, settles: Sequence[Settle], now_ms: int) -> None:
        tokens: set[bytes] = set()
        for settle in settles:
            queue, lock = self._lookup.locked(settle.address, settle.lock_token, now_ms)
            check_verdict(queue, lock, settle.verdict, self._context.limits)
            if settle.lock_token in tokens:
                raise LockLostError("the transaction settles the same message twice", str(settle.address))
            tokens.add(settle.lock_token)
