"""A queue's messages in the order of their sequence numbers, and their locks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final, TypeAlias
from zlib import crc32

from pairbus.broker.context import BrokerContext, Deadlines
from pairbus.broker.message import NEVER, Address, MessageState, QueueId, Record, RecordBatch, unreadable
from pairbus.broker.ports import MessageEvent
from pairbus.broker.session import Lock, QueueSession, QueueSessions, Sequences

PARTITION_SHIFT: Final = 48
"""The upper 16 bits of a sequence number are the partition that assigned it."""


def partition_of(key: str, partitions: int) -> int:
    """Return the partition of the messages with a key."""
    return crc32(key.encode("utf-8", "surrogatepass")) % partitions


_ACTIVE: Final = MessageState.ACTIVE
_DEFERRED: Final = MessageState.DEFERRED
_SCHEDULED: Final = MessageState.SCHEDULED


OnDue: TypeAlias = "Callable[[Queue, int, int], int]"
"""Does what is due in a queue at a time, at most ``limit`` steps; returns the number of steps done."""


class Usage:
    """The bytes that an entity holds, all its queues together."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class Queue:
    """One queue: of an entity, its dead letters, or its failed transfers.

    It keeps the index and writes the records; what happens to a message is decided elsewhere. A message is *present*
    until it is removed, and while present it is exactly one of: ready, locked, deferred or scheduled.
    """

    __slots__ = (
        "_context",
        "_is_retired",
        "_last_sequences",
        "_locked",
        "_locks",
        "_next_partition",
        "_ready",
        "_turn",
        "address",
        "deferred",
        "expiries",
        "is_suspended",
        "is_touched",
        "lock_ends",
        "on_due",
        "place",
        "planned_ms",
        "present",
        "schedule",
        "scheduled",
        "sessions",
        "size_bytes",
        "stored_count",
        "usage",
    )

    def __init__(
        self,
        address: Address,
        place: QueueId,
        usage: Usage,
        context: BrokerContext,
        on_due: OnDue,
        *,
        partitions: int = 1,
        has_sessions: bool = False,
    ) -> None:
        self.planned_ms: int | None = None
        self.on_due = on_due
        self.address = address
        self.place = place
        self.usage = usage
        self.size_bytes = 0
        self.is_suspended = False
        """True if the index is being loaded again, or was given up: nothing can be taken, so the order is kept."""
        self.is_touched = False
        """True if messages were added, removed, taken or put back since an audit has reset it."""
        self.stored_count = 0
        """Records in the store, counted where they are written: an index of another length is inconsistent."""
        self._is_retired = False
        self._context = context
        self.present = Sequences()
        self.deferred: set[int] = set()
        self.scheduled: set[int] = set()
        self.sessions = QueueSessions() if has_sessions else None
        self._ready = [Sequences() for _ in range(partitions)]
        self._turn = 0
        self._next_partition = -1
        self._last_sequences = [partition << PARTITION_SHIFT for partition in range(partitions)]
        self._locks: dict[bytes, Lock] = {}
        self._locked: dict[int, Lock] = {}
        self.lock_ends = Deadlines(self._is_locked_until)
        self.expiries = Deadlines(self._is_present)
        self.schedule = Deadlines(self._is_scheduled)

    # Counts

    def __len__(self) -> int:
        return len(self.present)

    @property
    def arrived_count(self) -> int:
        """Return how many messages ever arrived here, or passed through a topic: each got a sequence number."""
        first_bit = PARTITION_SHIFT
        return sum(last - (partition << first_bit) for partition, last in enumerate(self._last_sequences))

    @property
    def locked_count(self) -> int:
        return len(self._locked)

    @property
    def ready_count(self) -> int:
        return len(self.present) - len(self._locked) - len(self.deferred) - len(self.scheduled)

    @property
    def has_waiting(self) -> bool:
        """Return whether messages wait that need no session; one that has been taken does not count."""
        return any(self._ready)

    @property
    def is_retired(self) -> bool:
        """Return whether the entity was deleted."""
        return self._is_retired

    @property
    def partitions(self) -> int:
        return len(self._ready)

    def next_ms(self) -> int | None:
        """Return when work becomes due here next, or ``None``."""
        if self._is_retired:
            return None
        times = [self.lock_ends.next_ms(), self.expiries.next_ms(), self.schedule.next_ms()]
        if self.sessions is not None:
            times.append(self.sessions.deadlines.next_ms())
        return min((time for time in times if time is not None), default=None)

    def run(self, at_ms: int, limit: int) -> int:
        return 0 if self._is_retired else self.on_due(self, at_ms, limit)

    def wake(self) -> None:
        """Report the queue, and its held sessions, as having something to receive."""
        if self.ready_count:
            self._context.woken[self.address] = None
        for session in self.sessions or ():
            if session.token is not None and session.ready:
                self._context.woken_sessions[session.token] = None

    def retire(self) -> None:
        """Stop all timers of the queue, because its entity was deleted."""
        self._is_retired = True
        self._context.timers.drop(self)
        for partition in range(len(self._ready)):
            self._context.records.remove_last_sequence(self.place, partition)

    # Adding and removing messages

    def next_partition(self) -> int:
        """Return the next partition, round-robin, for a message without a key that ties it to one."""
        self._next_partition = (self._next_partition + 1) % len(self._ready)
        return self._next_partition

    def next_sequence(self, partition: int = 0) -> int:
        sequence = self._last_sequences[partition] + 1
        self._last_sequences[partition] = sequence
        return sequence

    @property
    def numbering(self) -> tuple[list[int], int]:
        """The last sequence numbers and the next partition; set it to return numbers that were assigned but not
        persisted.
        """
        return self._last_sequences.copy(), self._next_partition

    @numbering.setter
    def numbering(self, numbering: tuple[list[int], int]) -> None:
        self._last_sequences, self._next_partition = numbering

    def note_sequence(self, sequence: int) -> None:
        """Persist a sequence number, so that neither it nor a lower one is ever assigned again."""
        self._context.records.put_last_sequence(self.place, sequence >> PARTITION_SHIFT, sequence)

    def add(self, record: Record) -> None:
        """Add a message; its sequence number is the newest of its partition."""
        self._context.records.put_record(self.place, record)
        self.stored_count += 1
        self.is_touched = True
        self.size_bytes += record.size
        self.usage.size_bytes += record.size
        self.index(record)

    def index(self, record: Record) -> None:
        """Index a message by the state in its record."""
        self.present.add(record.sequence)
        self._index_present(record)

    def _index_present(self, record: Record) -> None:
        if self.sessions is not None and record.session_id is not None:
            self.sessions.open(record.session_id).present.add(record.sequence)
        if record.expires_ms != NEVER:
            self.expiries.add(record.expires_ms, record.sequence)
            self._context.timers.plan(self, record.expires_ms)
        self.rest(record)

    def remove(self, record: Record) -> None:
        """Remove a message that was taken before. The caller releases its body."""
        self._context.records.remove_record(self.place, record.sequence)
        self.stored_count -= 1
        self.is_touched = True
        self.size_bytes -= record.size
        self.usage.size_bytes -= record.size
        self.present.discard(record.sequence)
        if record.expires_ms != NEVER:
            self.expiries.drop()
        session = self._session_of(record)
        if session is not None:
            session.present.discard(record.sequence)
            self.sessions_of().settle(session)

    def set_aside(self, sequence: int, record: Record | None = None) -> None:
        """Take an unreadable message out of service; what is left of it is kept for an operator to examine."""
        self._context.records.set_aside(self.place, sequence)
        if self._context.event_sink is not None:
            self._context.event_sink.note(MessageEvent.SET_ASIDE, self.address, record or unreadable(sequence))
        size = 0 if record is None else record.size
        self.size_bytes -= size
        self.usage.size_bytes -= size
        self.stored_count -= self.present.discard(sequence)
        self.is_touched = True
        self.deferred.discard(sequence)
        self.scheduled.discard(sequence)
        self._ready[sequence >> PARTITION_SHIFT].discard(sequence)
        for session in list(self.sessions or ()):
            if session.present.discard(sequence):
                session.ready.discard(sequence)
                self.sessions_of().settle(session)

    def put_back(self, record: Record) -> None:
        """Return a message that was taken to the queue, with the changes in its record."""
        self._context.records.put_record(self.place, record)
        self.is_touched = True
        self.rest(record)

    def rest(self, record: Record) -> None:
        """Make a message wait as its state requires: directly, after it was added or was returned unchanged."""
        sequence = record.sequence
        if record.state is _DEFERRED:
            self.deferred.add(sequence)
            return
        if record.state is _SCHEDULED:
            self.scheduled.add(sequence)
            due_ms = record.scheduled_ms or 0
            self.schedule.add(due_ms, sequence)
            self._context.timers.plan(self, due_ms)
            return
        session = self._session_of(record)
        if session is None:
            self._ready[sequence >> PARTITION_SHIFT].add(sequence)
        else:
            session.ready.add(sequence)
            self.sessions_of().settle(session)
            if session.token is not None:
                self._context.woken_sessions[session.token] = None
        self._context.woken[self.address] = None

    # Taking and locking

    def next_ready(self, session: QueueSession | None = None) -> int | None:
        """Take the next ready message and return its sequence number. Partitions are served round-robin."""
        if self.is_suspended:
            return None
        if session is not None:
            return session.ready.pop_first() if session.ready else None
        ready = self._ready
        for _ in ready:
            turn = self._turn
            self._turn = (turn + 1) % len(ready)
            if ready[turn]:
                return ready[turn].pop_first()
        return None

    def put_in_place(self, sequence: int, session: QueueSession | None) -> None:
        """Undo ``next_ready``, if the message is still present and no receiver holds it."""
        if sequence in self.present and sequence not in self._locked:
            (self._ready[sequence >> PARTITION_SHIFT] if session is None else session.ready).add(sequence)

    def take(self, record: Record) -> None:
        """Take a particular message that no receiver holds, in any state."""
        sequence = record.sequence
        if record.state is _DEFERRED:
            self.deferred.discard(sequence)
        elif record.state is _SCHEDULED:
            self.scheduled.discard(sequence)
            self.schedule.drop()
        elif (session := self._session_of(record)) is not None:
            session.ready.discard(sequence)
            self.sessions_of().settle(session)
        else:
            self._ready[sequence >> PARTITION_SHIFT].discard(sequence)

    def lock(self, record: Record, until_ms: int, session: QueueSession | None = None) -> Lock:
        """Lock a message that was taken."""
        self.is_touched = True
        lock = Lock(self._context.fresh_token(), record, until_ms, session)
        self._locks[lock.token] = self._locked[record.sequence] = lock
        if session is None:
            self.lock_ends.add(until_ms, record.sequence)
            self._context.timers.plan(self, until_ms)
        else:
            session.locked.add(record.sequence)
        return lock

    def renew(self, lock: Lock, until_ms: int) -> None:
        lock.until_ms = until_ms
        self.lock_ends.drop()
        self.lock_ends.add(until_ms, lock.record.sequence)
        self._context.timers.plan(self, until_ms)

    def unlock(self, lock: Lock) -> None:
        """End a lock; the caller then removes the message or puts it back."""
        del self._locks[lock.token]
        del self._locked[lock.record.sequence]
        if lock.session is None:
            self.lock_ends.drop()
        else:
            lock.session.locked.discard(lock.record.sequence)

    def lock_by_token(self, token: bytes) -> Lock | None:
        return self._locks.get(token)

    def lock_of(self, sequence: int) -> Lock | None:
        return self._locked.get(sequence)

    def is_ready(self, sequence: int) -> bool:
        return (
            sequence not in self._locked
            and sequence not in self.deferred
            and sequence not in self.scheduled
            and sequence in self.present
        )

    def locks_of(self, session: QueueSession) -> list[Lock]:
        return [self._locked[sequence] for sequence in sorted(session.locked)]

    def hold(self, session: QueueSession, until_ms: int) -> bytes:
        """Lock a session for a receiver; return the token of the lock."""
        token = self._context.fresh_token()
        self.sessions_of().hold(session, token, until_ms)
        if until_ms != NEVER:
            self._context.timers.plan(self, until_ms)
        return token

    def extend(self, session: QueueSession, until_ms: int) -> None:
        self.sessions_of().extend(session, until_ms)
        self._context.timers.plan(self, until_ms)

    def let_go(self, session: QueueSession) -> None:
        """Make a session available to the next receiver."""
        self.sessions_of().let_go(session)
        if session.ready:
            self._context.woken[self.address] = None

    def sessions_of(self) -> QueueSessions:
        assert self.sessions is not None  # noqa: S101 (only called where there are sessions)
        return self.sessions

    # Restart

    def restore_last_sequence(self, partition: int, sequence: int) -> None:
        self._last_sequences[partition] = max(self._last_sequences[partition], sequence)

    def restore(self, record: Record) -> None:
        self.stored_count += 1
        self.size_bytes += record.size
        self.usage.size_bytes += record.size
        self.restore_last_sequence(record.sequence >> PARTITION_SHIFT, record.sequence)
        self.index(record)

    def restore_all(self, batch: RecordBatch) -> None:
        """Restore messages whose sequence numbers are all higher than those of the messages here."""
        self.stored_count += len(batch.sequences)
        self.size_bytes += batch.size_bytes
        self.usage.size_bytes += batch.size_bytes
        self.present.extend(batch.sequences)
        for partition, sequences in self._by_partition(batch.sequences):
            self.restore_last_sequence(partition, sequences[-1])
        for partition, sequences in self._by_partition(batch.ready):
            self._ready[partition].extend(sequences)
            self._context.woken[self.address] = None
        if batch.expiries:
            self.expiries.extend(batch.expiries)
            self._context.timers.plan(self, min(batch.expiries)[0])
        for record in batch.others:
            self._index_present(record)

    def _by_partition(self, sequences: list[int]) -> Iterable[tuple[int, list[int]]]:
        """Split sequence numbers in ascending order by the partitions that assigned them."""
        if not sequences or sequences[0] >> PARTITION_SHIFT == sequences[-1] >> PARTITION_SHIFT:
            return [(sequences[0] >> PARTITION_SHIFT, sequences)] if sequences else []
        return [(partition, [*group]) for partition, group in groupby(sequences, lambda each: each >> PARTITION_SHIFT)]

    # Repair

    def count_problem(self, max_sessions: int) -> str | None:
        """Return which counts of the index disagree, with each other or with the number of records, or ``None``.

        It takes microseconds for any number of messages. With more than ``max_sessions`` sessions, those that are ready
        are not counted.
        """
        present = len(self.present)
        if present != self.stored_count:
            return f"the index has {present} messages, and the store {self.stored_count}"
        if len(self._locks) != len(self._locked):
            return f"{len(self._locks)} locks hold {len(self._locked)} messages"
        resting = sum(map(len, self._ready)) + len(self._locked) + len(self.deferred) + len(self.scheduled)
        if self.sessions is not None:
            if len(self.sessions) > max_sessions:
                return None
            resting += self.sessions.ready_count
        if resting != present:
            return f"{present} messages are present, but {resting} are ready, locked, deferred or scheduled"
        return None

    @property
    def sets(self) -> list[Sequences]:
        """Return the sets of sequence numbers that do not belong to a session."""
        return [self.present, *self._ready]

    def is_resting(self, sequence: int) -> bool:
        """Return whether a present message is exactly one of ready, locked, deferred or scheduled.

        A message of a session counts as ready unless it is one of the others.
        """
        is_ready = sequence in self._ready[sequence >> PARTITION_SHIFT]
        others = (sequence in self._locked) + (sequence in self.deferred) + (sequence in self.scheduled)
        return others + is_ready == 1 or (self.sessions is not None and others + is_ready == 0)

    def begin_reload(self) -> list[QueueSession]:
        """Discard the index, which the caller loads again, and all locks; return the sessions that were held.

        States of sessions are kept, and so are the last sequence numbers: none is assigned twice.
        """
        self.is_suspended = True
        self._context.timers.drop(self)
        self.usage.size_bytes -= self.size_bytes
        self.size_bytes = self.stored_count = 0
        self.present = Sequences()
        self._ready = [Sequences() for _ in self._ready]
        self.deferred, self.scheduled = set(), set()
        self._locks, self._locked = {}, {}
        self.lock_ends = Deadlines(self._is_locked_until)
        self.expiries = Deadlines(self._is_present)
        self.schedule = Deadlines(self._is_scheduled)
        before = list(self.sessions or ())
        if self.sessions is not None:
            self.sessions = QueueSessions()
            for session in before:
                if session.state_updated_ms is not None:
                    self.sessions.open(session.id).state_updated_ms = session.state_updated_ms
        return [session for session in before if session.token is not None]

    def end_reload(self) -> None:
        """Let receivers take messages again."""
        self.is_suspended = False
        self.wake()

    def _session_of(self, record: Record) -> QueueSession | None:
        if self.sessions is None or record.session_id is None:
            return None
        return self.sessions.open(record.session_id)

    # Validity of deadline entries

    def _is_locked_until(self, due_ms: int, sequence: int) -> bool:
        lock = self._locked.get(sequence)
        return lock is not None and lock.until_ms == due_ms

    def _is_scheduled(self, _due_ms: int, sequence: int) -> bool:
        return sequence in self.scheduled

    def _is_present(self, _due_ms: int, sequence: int) -> bool:
        return sequence in self.present
