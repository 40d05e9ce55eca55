"""Messages on their way out: handed to a receiver, looked at, or removed in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from pairbus.broker.chronicle import Moment
from pairbus.broker.context import Context
from pairbus.broker.entity import Holder
from pairbus.broker.message import Delivery, Record
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.queue import Queue
from pairbus.broker.session import Session
from pairbus.broker.settlement import Settlement

SKIPPED_AT_ONCE: Final = 10_000
"""How many expired messages one request removes on its way to those that it can give out."""

LOOKED_AT_ONCE: Final = 100_000
"""How many messages one request goes through in search of those that it may remove."""


class Receiving:
    """Takes messages out of a queue. What cannot be read is quarantined, and the next one is taken."""

    def __init__(self, context: Context, settlement: Settlement, quarantine: Quarantine) -> None:
        self._context = context
        self._records = context.records
        self._settlement = settlement
        self._quarantine = quarantine

    def next(
        self, holder: Holder, queue: Queue, session: Session | None, max_count: int, now_ms: int, *, delete: bool
    ) -> list[Delivery]:
        deliveries: list[Delivery] = []
        skipped = 0
        while len(deliveries) < max_count and skipped < SKIPPED_AT_ONCE:
            sequence = queue.next_ready(session)
            if sequence is None:
                break
            try:
                record = self._quarantine.read(queue, sequence, now_ms)
                found = None if record is None else self.deliver(holder, queue, record, session, now_ms, delete=delete)
            except BaseException as error:  # the store cannot be read now, or nobody wants to wait
                queue.put_in_place(sequence, session)
                if deliveries and isinstance(error, Exception):
                    queue.wake()
                    return deliveries  # these are out; whoever asks for the next one hears of it
                raise
            if found is None:
                skipped += 1
            else:
                deliveries.append(found)
        if skipped == SKIPPED_AT_ONCE:
            queue.wake()
        return deliveries

    def take(
        self, holder: Holder, queue: Queue, record: Record, session: Session | None, now_ms: int, *, delete: bool
    ) -> Delivery | None:
        """Hand out a certain message that no one has."""
        queue.take(record)
        try:
            return self.deliver(holder, queue, record, session, now_ms, delete=delete)
        except BaseException:  # the store cannot be read now
            queue.rest(record)
            raise

    def deliver(
        self, holder: Holder, queue: Queue, record: Record, session: Session | None, now_ms: int, *, delete: bool
    ) -> Delivery | None:
        """Hand out a message that was taken; ``None`` if it turns out that there is nothing to hand out."""
        if record.expires_ms <= now_ms:
            self._settlement.expire(queue, record, now_ms)
            return None
        body = self._quarantine.read_body(queue, record, now_ms)
        if body is None:
            return None
        if self._context.chronicle is not None:
            self._context.chronicle.note(Moment.RECEIVED, queue.address, record)
        if delete:
            self._settlement.discard(queue, record)
            return Delivery(record, body)
        until_ms = now_ms + holder.description.lock_duration_ms if session is None else session.until_ms
        lock = queue.lock(record, until_ms, session)
        return Delivery(record, body, lock.token, until_ms)

    def deferred(
        self, queue: Queue, sequences: Sequence[int], session: Session | None, now_ms: int
    ) -> Iterator[Record | None]:
        """The deferred messages with these numbers; ``None`` for a number that no one has.

        A deferred message outlives its time until someone asks for it, which is now.
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
    ) -> list[Delivery]:
        """Read messages without taking them: as many as have room, and at least one."""
        found: list[Delivery] = []
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
            found.append(Delivery(record, body))
        self._quarantine_all(queue, damaged, now_ms)
        return found

    def free(
        self,
        queue: Queue,
        sequences: Iterable[int],
        max_count: int,
        session: Session | None,
        before_ms: int | None,
        now_ms: int,
    ) -> list[Record]:
        """Read the records of messages that no one has, and whose session no other receiver holds."""
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
                if queue.partitions == 1:  # all that follow came later still
                    break
            elif _is_free(queue, record, session):
                found.append(record)
        self._quarantine_all(queue, damaged, now_ms)
        return found

    def _quarantine_all(self, queue: Queue, damaged: Iterable[tuple[int, Record | None]], now_ms: int) -> None:
        """Quarantine what was met on the way; a receiver that holds one of these has it complete in its hands."""
        for sequence, record in damaged:
            if queue.lock_of(sequence) is None:
                self._quarantine.add(queue, sequence, record, now_ms)


def _is_free(queue: Queue, record: Record, session: Session | None) -> bool:
    if queue.sessions is None or record.session_id is None or session is not None:
        return True
    owner = queue.sessions.get(record.session_id)
    return owner is None or owner.token is None
