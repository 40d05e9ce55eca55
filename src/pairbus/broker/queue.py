"""Messages in the order of their sequence numbers, and who has which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from pairbus.broker.address import Address, Place
from pairbus.broker.chronicle import Moment
from pairbus.broker.context import Context
from pairbus.broker.deadlines import Deadlines
from pairbus.broker.lock import Lock
from pairbus.broker.message import NEVER, MessageState, Record, unreadable
from pairbus.broker.sequences import Sequences
from pairbus.broker.session import Session, Sessions

PARTITION_SHIFT: Final = 48
"""The upper 16 bits of a sequence number are the partition that gave it."""

_ACTIVE: Final = MessageState.ACTIVE
_DEFERRED: Final = MessageState.DEFERRED
_SCHEDULED: Final = MessageState.SCHEDULED


OnDue: TypeAlias = "Callable[[Queue, int, int], int]"
"""Does what is due in a queue at a time, at most so many things; says how many."""


class Usage:
    """How many bytes an entity holds, all its queues together."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class Queue:
    """One queue: of an entity, its dead letters, or its failed transfers.

    It keeps the books and writes the records; what should happen to a message is decided elsewhere. A message is
    *present* until it is removed, and while present it is exactly one of: ready, locked, deferred or scheduled.
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
        "lock_ends",
        "on_due",
        "place",
        "planned_ms",
        "present",
        "schedule",
        "scheduled",
        "sessions",
        "size_bytes",
        "usage",
    )

    def __init__(
        self,
        address: Address,
        place: Place,
        usage: Usage,
        context: Context,
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
        self._is_retired = False
        self._context = context
        self.present = Sequences()
        self.deferred: set[int] = set()
        self.scheduled: set[int] = set()
        self.sessions = Sessions() if has_sessions else None
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
        """How many messages ever came to lie here, or (of a topic) pass through: each was given a number."""
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
        """Whether messages wait that need no session; one that is in hand does not count."""
        return any(self._ready)

    @property
    def partitions(self) -> int:
        return len(self._ready)

    def next_ms(self) -> int | None:
        """When time changes something here."""
        if self._is_retired:
            return None
        times = [self.lock_ends.next_ms(), self.expiries.next_ms(), self.schedule.next_ms()]
        if self.sessions is not None:
            times.append(self.sessions.deadlines.next_ms())
        return min((time for time in times if time is not None), default=None)

    def run(self, at_ms: int, limit: int) -> int:
        return 0 if self._is_retired else self.on_due(self, at_ms, limit)

    def wake(self) -> None:
        """Say that there may be something to receive."""
        if self.ready_count:
            self._context.woken[self.address] = None
        for session in self.sessions or ():
            if session.token is not None and session.ready:
                self._context.woken_sessions[session.token] = None

    def retire(self) -> None:
        """The entity is gone: time has no business here any more."""
        self._is_retired = True
        self._context.agenda.drop(self)
        for partition in range(len(self._ready)):
            self._context.records.remove_last_sequence(self.place, partition)

    # Messages come and go

    def next_partition(self) -> int:
        """Partitions take turns with the messages that no key ties to one."""
        self._next_partition = (self._next_partition + 1) % len(self._ready)
        return self._next_partition

    def next_sequence(self, partition: int = 0) -> int:
        sequence = self._last_sequences[partition] + 1
        self._last_sequences[partition] = sequence
        return sequence

    @property
    def numbering(self) -> tuple[list[int], int]:
        """How far numbers were given; set it to take back those that were given since and not noted."""
        return self._last_sequences.copy(), self._next_partition

    @numbering.setter
    def numbering(self, numbering: tuple[list[int], int]) -> None:
        self._last_sequences, self._next_partition = numbering

    def note_sequence(self, sequence: int) -> None:
        """Have a number kept, so that neither it nor one before it is ever given again."""
        self._context.records.put_last_sequence(self.place, sequence >> PARTITION_SHIFT, sequence)

    def add(self, record: Record) -> None:
        """Take in a message; its number is the newest of its partition."""
        self._context.records.put_record(self.place, record)
        self.size_bytes += record.size
        self.usage.size_bytes += record.size
        self.index(record)

    def index(self, record: Record) -> None:
        """Enter a message into the books, in the state that its record says."""
        self.present.add(record.sequence)
        if self.sessions is not None and record.session_id is not None:
            self.sessions.open(record.session_id).present.add(record.sequence)
        if record.expires_ms != NEVER:
            self.expiries.add(record.expires_ms, record.sequence)
            self._context.agenda.plan(self, record.expires_ms)
        self.rest(record)

    def remove(self, record: Record) -> None:
        """Take a message out for good that was taken before. Its body is left to the caller."""
        self._context.records.remove_record(self.place, record.sequence)
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
        """Take a message out of service that cannot be read; what is left of it is kept for an operator to see."""
        self._context.records.set_aside(self.place, sequence)
        if self._context.chronicle is not None:
            self._context.chronicle.note(Moment.SET_ASIDE, self.address, record or unreadable(sequence))
        size = 0 if record is None else record.size
        self.size_bytes -= size
        self.usage.size_bytes -= size
        self.present.discard(sequence)
        self.deferred.discard(sequence)
        self.scheduled.discard(sequence)
        self._ready[sequence >> PARTITION_SHIFT].discard(sequence)
        for session in list(self.sessions or ()):
            if session.present.discard(sequence):
                session.ready.discard(sequence)
                self.sessions_of().settle(session)

    def put_back(self, record: Record) -> None:
        """Let a message rest again that was taken, with what has changed in its record."""
        self._context.records.put_record(self.place, record)
        self.rest(record)

    def rest(self, record: Record) -> None:
        """Let a message wait for what its state says: at once, after it was taken in or was given back unchanged."""
        sequence = record.sequence
        if record.state is _DEFERRED:
            self.deferred.add(sequence)
            return
        if record.state is _SCHEDULED:
            self.scheduled.add(sequence)
            due_ms = record.scheduled_ms or 0
            self.schedule.add(due_ms, sequence)
            self._context.agenda.plan(self, due_ms)
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

    # Receivers take and lock

    def next_ready(self, session: Session | None = None) -> int | None:
        """Take the number of the next message that no one has. Partitions take turns."""
        if session is not None:
            return session.ready.pop_first() if session.ready else None
        ready = self._ready
        for _ in ready:
            turn = self._turn
            self._turn = (turn + 1) % len(ready)
            if ready[turn]:
                return ready[turn].pop_first()
        return None

    def put_in_place(self, sequence: int, session: Session | None) -> None:
        """Undo ``next_ready``, if the message is still there and no one has it."""
        if sequence in self.present and sequence not in self._locked:
            (self._ready[sequence >> PARTITION_SHIFT] if session is None else session.ready).add(sequence)

    def take(self, record: Record) -> None:
        """Take a certain message that no one has, whatever it waits for."""
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

    def lock(self, record: Record, until_ms: int, session: Session | None = None) -> Lock:
        """Lock a message that was taken."""
        lock = Lock(self._context.fresh_token(), record, until_ms, session)
        self._locks[lock.token] = self._locked[record.sequence] = lock
        if session is None:
            self.lock_ends.add(until_ms, record.sequence)
            self._context.agenda.plan(self, until_ms)
        else:
            session.locked.add(record.sequence)
        return lock

    def renew(self, lock: Lock, until_ms: int) -> None:
        lock.until_ms = until_ms
        self.lock_ends.drop()
        self.lock_ends.add(until_ms, lock.record.sequence)
        self._context.agenda.plan(self, until_ms)

    def unlock(self, lock: Lock) -> None:
        """End a lock; the message is then to be removed or put back."""
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

    def locks_of(self, session: Session) -> list[Lock]:
        return [self._locked[sequence] for sequence in sorted(session.locked)]

    def hold(self, session: Session, until_ms: int) -> bytes:
        """Give a session to a receiver; the token that proves it."""
        token = self._context.fresh_token()
        self.sessions_of().hold(session, token, until_ms)
        if until_ms != NEVER:
            self._context.agenda.plan(self, until_ms)
        return token

    def extend(self, session: Session, until_ms: int) -> None:
        self.sessions_of().extend(session, until_ms)
        self._context.agenda.plan(self, until_ms)

    def let_go(self, session: Session) -> None:
        """Make a session available to the next receiver."""
        self.sessions_of().let_go(session)
        if session.ready:
            self._context.woken[self.address] = None

    def sessions_of(self) -> Sessions:
        assert self.sessions is not None  # noqa: S101 (asked for only where there are sessions)
        return self.sessions

    # Restart

    def restore_last_sequence(self, partition: int, sequence: int) -> None:
        self._last_sequences[partition] = max(self._last_sequences[partition], sequence)

    def restore(self, record: Record) -> None:
        self.size_bytes += record.size
        self.usage.size_bytes += record.size
        self.restore_last_sequence(record.sequence >> PARTITION_SHIFT, record.sequence)
        self.index(record)

    def _session_of(self, record: Record) -> Session | None:
        if self.sessions is None or record.session_id is None:
            return None
        return self.sessions.open(record.session_id)

    # Whether an entry of a timetable still holds

    def _is_locked_until(self, due_ms: int, sequence: int) -> bool:
        lock = self._locked.get(sequence)
        return lock is not None and lock.until_ms == due_ms

    def _is_scheduled(self, _due_ms: int, sequence: int) -> bool:
        return sequence in self.scheduled

    def _is_present(self, _due_ms: int, sequence: int) -> bool:
        return sequence in self.present
