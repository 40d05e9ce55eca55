"""Receiving and settling: messages are locked, completed, abandoned, deferred or dead-lettered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from pairbus.broker import errors
from pairbus.broker.context import BrokerContext
from pairbus.broker.entity import ReceivableEntity
from pairbus.broker.errors import InvalidOperationError, InvalidRequestError
from pairbus.broker.limits import Limits
from pairbus.broker.message import DeliveredMessage, MessageState, QueuePart, Record
from pairbus.broker.ports import MessageEvent
from pairbus.broker.queue import Queue
from pairbus.broker.repair import Quarantine
from pairbus.broker.router import Failure, Router, amended, amendments_bytes
from pairbus.broker.session import Lock, QueueSession
from pairbus.broker.settlement_request import SettlementKind, SettlementRequest
from pairbus.broker.validation import Unchecked, check_text, check_values

_new_tuple: Final = tuple.__new__  # calling the class would take twice as long, for each message


class Settlement:
    """Ends locks: settled by a receiver, or expired."""

    def __init__(
        self,
        context: BrokerContext,
        router: Router,
        quarantine: Quarantine,
        holder: Callable[[Queue], ReceivableEntity],
    ) -> None:
        self._context = context
        self._router = router
        self._quarantine = quarantine
        self._holder = holder
        self._actions: dict[SettlementKind, Callable[[Queue, Record, SettlementRequest, int], None]] = {
            SettlementKind.COMPLETE: self._complete,
            SettlementKind.ABANDON: self._abandon,
            SettlementKind.DEFER: self._defer,
            SettlementKind.DEAD_LETTER: self._dead_letter,
            SettlementKind.RELEASE: self._release,
        }

    def settle(self, queue: Queue, lock: Lock, verdict: SettlementRequest, now_ms: int) -> None:
        queue.unlock(lock)
        self._actions[verdict.disposition](queue, lock.record, verdict, now_ms)

    def end(self, queue: Queue, lock: Lock, now_ms: int) -> None:
        """End an expired lock, as a failed delivery."""
        queue.unlock(lock)
        self._fail(queue, lock.record, now_ms)

    def discard(self, queue: Queue, record: Record, event: MessageEvent = MessageEvent.COMPLETED) -> None:
        """Remove a message that was taken, with its body."""
        self._note(event, queue, record)
        queue.remove(record)
        self._context.bodies.release(record)

    def expire(self, queue: Queue, record: Record, now_ms: int) -> None:
        """Remove or dead-letter an expired message that was taken."""
        holder = self._holder(queue)
        if holder.description.dead_letter_on_expiration:
            failure = Failure(errors.EXPIRED, "the message outlived its time to live")
            self._move_to_dead_letters(queue, record, failure, now_ms)
        else:
            self.discard(queue, record, MessageEvent.EXPIRED)

    def _complete(self, queue: Queue, record: Record, _verdict: SettlementRequest, _now_ms: int) -> None:
        self.discard(queue, record)

    def _abandon(self, queue: Queue, record: Record, verdict: SettlementRequest, now_ms: int) -> None:
        self._fail(queue, amended(record, verdict.properties), now_ms)

    def _release(self, queue: Queue, record: Record, _verdict: SettlementRequest, now_ms: int) -> None:
        self._note(MessageEvent.ABANDONED, queue, record)
        self._rest(queue, record, queue.rest, now_ms)

    def _defer(self, queue: Queue, record: Record, verdict: SettlementRequest, _now_ms: int) -> None:
        # Deferral is not a failure: the delivery count stays.
        self._note(MessageEvent.DEFERRED, queue, record)
        queue.put_back(amended(record, verdict.properties)._replace(state=MessageState.DEFERRED))

    def _dead_letter(self, queue: Queue, record: Record, verdict: SettlementRequest, now_ms: int) -> None:
        self._move_to_dead_letters(queue, amended(record, verdict.changes()), None, now_ms)

    def _move_to_dead_letters(self, queue: Queue, record: Record, failure: Failure | None, now_ms: int) -> None:
        holder = self._holder(queue)
        forwards = holder.description.forward_dead_letters_to is not None
        if not forwards or self._quarantine.read_body(queue, record, now_ms) is not None:
            self._router.dead_letter(holder, queue, record, failure, now_ms)

    def _forward(self, queue: Queue, record: Record, now_ms: int) -> bool:
        """Forward a message if its queue forwards; a damaged one is quarantined, since rules could not be evaluated for
        it.
        """
        holder = self._holder(queue)
        if not self._router.forwards_from(holder, queue):
            return False
        damaged = self._quarantine.read_body(queue, record, now_ms) is None
        return damaged or self._router.forward_waiting(holder, queue, record, now_ms)

    def _fail(self, queue: Queue, record: Record, now_ms: int) -> None:
        record = record._replace(delivery_count=record.delivery_count + 1)
        holder = self._holder(queue)
        max_deliveries = holder.description.max_delivery_count
        if queue.place.part == QueuePart.MAIN and record.delivery_count >= max_deliveries:
            failure = Failure(
                errors.MAX_DELIVERY_COUNT, f"the message could not be consumed in {max_deliveries} deliveries"
            )
            self._move_to_dead_letters(queue, record, failure, now_ms)
        else:
            self._note(MessageEvent.ABANDONED, queue, record)
            self._rest(queue, record, queue.put_back, now_ms)

    def _rest(self, queue: Queue, record: Record, put: Callable[[Record], None], now_ms: int) -> None:
        if record.state is MessageState.ACTIVE and record.expires_ms <= now_ms:
            self.expire(queue, record, now_ms)
        elif record.state is not MessageState.ACTIVE or not self._forward(queue, record, now_ms):
            put(record)

    def _note(self, event: MessageEvent, queue: Queue, record: Record) -> None:
        if self._context.event_sink is not None:
            self._context.event_sink.note(event, queue.address, record)


def check_verdict(queue: Queue, lock: Lock, verdict: Unchecked, limits: Limits) -> None:
    where = str(queue.address)
    if not _is_request(verdict):
        raise InvalidRequestError(f"expected a SettlementRequest with a SettlementKind, got {verdict!r}", where)
    check_values(verdict.properties, "the properties to change", where)
    check_text(verdict.reason, "the reason", where)
    check_text(verdict.description, "the description", where)
    changed = amended(lock.record, verdict.changes()).amendments
    if changed is not None and amendments_bytes(changed) > limits.header_bytes:
        raise InvalidRequestError(f"the changed properties have more than {limits.header_bytes} bytes", where)
    if verdict.disposition is SettlementKind.DEAD_LETTER and queue.place.part != QueuePart.MAIN:
        raise InvalidOperationError(
            f"'{queue.address}' holds dead letters: complete the message instead", str(queue.address)
        )


def _is_request(value: object) -> bool:
    """Return whether a value is a settlement, of which only the kind is checked."""
    return isinstance(value, SettlementRequest) and isinstance(value.disposition, SettlementKind)


SKIPPED_AT_ONCE: Final = 10_000
"""Most expired messages that one request removes while it looks for messages to deliver."""

LOOKED_AT_ONCE: Final = 100_000
"""Most messages that one request scans for messages that it may remove."""


class Receiving:
    """Delivers messages from a queue. An unreadable message is quarantined, and the next one is delivered instead."""

    def __init__(self, context: BrokerContext, settlement: Settlement, quarantine: Quarantine) -> None:
        self._context = context
        self._records = context.records
        self._settlement = settlement
        self._quarantine = quarantine

    def next(
        self,
        holder: ReceivableEntity,
        queue: Queue,
        session: QueueSession | None,
        max_count: int,
        now_ms: int,
        *,
        delete: bool,
    ) -> list[DeliveredMessage]:
        deliveries: list[DeliveredMessage] = []
        skipped = 0
        while len(deliveries) < max_count and skipped < SKIPPED_AT_ONCE:
            sequence = queue.next_ready(session)
            if sequence is None:
                break
            try:
                record = self._quarantine.read(queue, sequence, now_ms)
                found = None if record is None else self.deliver(holder, queue, record, session, now_ms, delete=delete)
            except BaseException as error:  # the store cannot be read now, or the wait was cancelled
                queue.put_in_place(sequence, session)
                if deliveries and isinstance(error, Exception):
                    queue.wake()
                    return deliveries  # these are locked already; the next request raises the error
                raise
            if found is None:
                skipped += 1
            else:
                deliveries.append(found)
        if skipped == SKIPPED_AT_ONCE:
            queue.wake()
        return deliveries

    def take(
        self,
        holder: ReceivableEntity,
        queue: Queue,
        record: Record,
        session: QueueSession | None,
        now_ms: int,
        *,
        delete: bool,
    ) -> DeliveredMessage | None:
        """Deliver a particular message that no receiver holds."""
        queue.take(record)
        try:
            return self.deliver(holder, queue, record, session, now_ms, delete=delete)
        except BaseException:  # the store cannot be read now
            queue.rest(record)
            raise

    def deliver(
        self,
        holder: ReceivableEntity,
        queue: Queue,
        record: Record,
        session: QueueSession | None,
        now_ms: int,
        *,
        delete: bool,
    ) -> DeliveredMessage | None:
        """Deliver a message that was taken; return ``None`` if it has expired or cannot be read."""
        if record.expires_ms <= now_ms:
            self._settlement.expire(queue, record, now_ms)
            return None
        body = self._quarantine.read_body(queue, record, now_ms)
        if body is None:
            return None
        if self._context.event_sink is not None:
            self._context.event_sink.note(MessageEvent.RECEIVED, queue.address, record)
        if delete:
            self._settlement.discard(queue, record)
            return DeliveredMessage(record, body)
        until_ms = now_ms + holder.description.lock_duration_ms if session is None else session.until_ms
        lock = queue.lock(record, until_ms, session)
        return _new_tuple(DeliveredMessage, (record, body, lock.token, until_ms))

    def deferred(
        self, queue: Queue, sequences: Sequence[int], session: QueueSession | None, now_ms: int
    ) -> Iterator[Record | None]:
        """Iterate over the deferred messages with these sequence numbers; ``None`` for one that is missing or held.

        An expired deferred message stays until a receiver asks for it: it is removed here.
        """
        for sequence in dict.fromkeys(sequences):
            is_there = sequence in queue.deferred and (session is None or sequence in session.present)
            record = self._quarantine.read(queue, sequence, now_ms) if is_there else None
            if record is not None and record.expires_ms <= now_ms:
                queue.take(record)
                self._settlement.expire(queue, record, now_ms)
                record = None
            yield record

    def look(
        self, queue: Queue, sequences: Iterable[int], max_count: int, max_bytes: int | None, now_ms: int
    ) -> list[DeliveredMessage]:
        """Read messages without taking them: as many as fit, and at least one."""
        found: list[DeliveredMessage] = []
        damaged: list[tuple[int, Record | None]] = []
        size = 0
        for sequence in sequences:
            if len(found) >= max_count:
                break
            record = self._records.record(queue.place, sequence)
            body = None if record is None else self._records.body(record.body_id)
            if record is None or body is None:
                damaged.append((sequence, record))
                continue
            size += len(body)
            if found and max_bytes is not None and size > max_bytes:
                break
            found.append(DeliveredMessage(record, body))
        self._quarantine_all(queue, damaged, now_ms)
        return found

    def free(
        self,
        queue: Queue,
        sequences: Iterable[int],
        max_count: int,
        session: QueueSession | None,
        before_ms: int | None,
        now_ms: int,
    ) -> list[Record]:
        """Return the records of messages that no receiver holds, in sessions that no other receiver holds."""
        found: list[Record] = []
        damaged: list[tuple[int, Record | None]] = []
        for sequence in islice(sequences, LOOKED_AT_ONCE):
            if len(found) >= max_count:
                break
            if not queue.is_ready(sequence):
                continue
            record = self._records.record(queue.place, sequence)
            if record is None:
                damaged.append((sequence, None))
            elif before_ms is not None and record.enqueued_ms >= before_ms:
                if queue.partitions == 1:  # all later ones were enqueued later still
                    break
            elif _is_free(queue, record, session):
                found.append(record)
        self._quarantine_all(queue, damaged, now_ms)
        return found

    def _quarantine_all(self, queue: Queue, damaged: Iterable[tuple[int, Record | None]], now_ms: int) -> None:
        """Quarantine the damaged messages that were found; a receiver that holds one of them already has all of it."""
        for sequence, record in damaged:
            if queue.lock_of(sequence) is None:
                self._quarantine.add(queue, sequence, record, now_ms)


def _is_free(queue: Queue, record: Record, session: QueueSession | None) -> bool:
    if queue.sessions is None or record.session_id is None or session is not None:
        return True
    owner = queue.sessions.get(record.session_id)
    return owner is None or owner.token is None
