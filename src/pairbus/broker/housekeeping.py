"""Background work of the broker: expiry, scheduled messages, deleted entities."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pairbus.broker.context import BrokerContext, Deadlines
from pairbus.broker.entity import Destination, ReceivableEntity
from pairbus.broker.message import QueueId
from pairbus.broker.ports import SessionLost
from pairbus.broker.queue import Queue
from pairbus.broker.repair import Quarantine
from pairbus.broker.router import Router
from pairbus.broker.session import QueueSession, Sequences
from pairbus.broker.settlement import Settlement


class BackgroundJob(Protocol):
    """Work that is done in small steps."""

    def step(self, now_ms: int, /) -> bool:
        """Do one step; return whether there is more to do."""


class Housekeeping:
    """A queue of background jobs, run in the order in which they were added."""

    def __init__(self) -> None:
        self._jobs: deque[BackgroundJob] = deque()

    def add(self, job: BackgroundJob) -> None:
        self._jobs.append(job)

    def add_first(self, job: BackgroundJob) -> None:
        """Add a job that runs before all others."""
        self._jobs.appendleft(job)

    def run(self, now_ms: int, steps: int, is_enough: Callable[[], bool]) -> bool:
        """Run up to ``steps`` steps, or fewer if their work is enough; return whether there is more to do."""
        while self._jobs and steps > 0 and not is_enough():
            steps -= 1
            if not self._jobs[0].step(now_ms):
                self._jobs.popleft()
        return bool(self._jobs)


class DeletedEntity:
    """Removes the messages of a deleted entity. After a restart, messages that no entity claims are removed the same
    way.
    """

    def __init__(self, context: BrokerContext, place: QueueId, sequences: Sequences) -> None:
        self._context = context
        self._place = place
        self._sequences = sequences

    def step(self, _now_ms: int) -> bool:
        if self._sequences:
            sequence = self._sequences.pop_first()
            record = self._context.records.record(self._place, sequence)
            self._context.records.remove_record(self._place, sequence)
            if record is not None:
                self._context.bodies.release(record)
        return bool(self._sequences)


class ForwardingJob:
    """Forwards the messages that wait in a queue: since before its forwarding was enabled, or for lack of budget."""

    def __init__(
        self,
        router: Router,
        quarantine: Quarantine,
        holder: ReceivableEntity,
        queue: Queue,
        is_alive: Callable[[ReceivableEntity], bool],
    ) -> None:
        self._router = router
        self._quarantine = quarantine
        self._holder = holder
        self._queue = queue
        self._is_alive = is_alive

    def step(self, now_ms: int) -> bool:
        sequence = self._queue.next_ready() if self._is_alive(self._holder) else None
        if sequence is None:
            return False
        try:
            record = self._quarantine.read(self._queue, sequence, now_ms)
            body = None if record is None else self._quarantine.read_body(self._queue, record, now_ms)
        except BaseException:  # the store cannot be read now
            self._queue.put_in_place(sequence, None)
            raise
        if record is None or body is None:
            return True
        if self._router.forward_waiting(self._holder, self._queue, record, now_ms):
            return True
        self._queue.rest(record)
        return False


class Timekeeper:
    """Ends expired locks, releases expired sessions, activates scheduled messages and removes expired ones."""

    def __init__(
        self,
        context: BrokerContext,
        router: Router,
        settlement: Settlement,
        quarantine: Quarantine,
        destination: Callable[[Queue], Destination],
    ) -> None:
        self._context = context
        self._router = router
        self._settlement = settlement
        self._quarantine = quarantine
        self._destination = destination

    def run(self, queue: Queue, at_ms: int, limit: int) -> int:
        """Do what is due in a queue; return the number of steps done, or ``limit`` if rules have worked enough."""
        done = 0
        enough = self._router.work + self._context.limits.rule_units
        for _ in self._steps(queue, at_ms):
            done += 1
            if done >= limit:
                break
            if self._router.work > enough:
                return limit
        return done

    def _steps(self, queue: Queue, at_ms: int) -> Iterator[None]:
        while (sequence := queue.lock_ends.pop(at_ms)) is not None:
            lock = queue.lock_of(sequence)
            if lock is not None:
                self._settlement.end(queue, lock, at_ms)
            yield
        while queue.sessions is not None and (number := queue.sessions.deadlines.pop(at_ms)) is not None:
            self.end_session(queue, queue.sessions.numbered(number), at_ms)
            yield
        while (sequence := queue.schedule.pop(at_ms)) is not None:
            with _due_again_on_error(queue.schedule, at_ms, sequence):
                self._activate(queue, sequence, at_ms)
            yield
        while (sequence := queue.expiries.pop(at_ms)) is not None:
            with _due_again_on_error(queue.expiries, at_ms, sequence):
                self._expire(queue, sequence, at_ms)
            yield

    def end_session(self, queue: Queue, session: QueueSession, at_ms: int) -> None:
        """End the expired lock on a session: every delivery under it has failed."""
        token = session.token
        for lock in queue.locks_of(session):
            self._settlement.end(queue, lock, at_ms)
        queue.let_go(session)
        if token is not None:
            self._context.notices.append(SessionLost(queue.address, session.id, token))

    def _activate(self, queue: Queue, sequence: int, at_ms: int) -> None:
        record = self._quarantine.read(queue, sequence, at_ms)
        if record is not None and self._quarantine.read_body(queue, record, at_ms) is not None:
            queue.take(record)
            self._router.activate(self._destination(queue), record, at_ms)

    def _expire(self, queue: Queue, sequence: int, at_ms: int) -> None:
        # A locked message is checked again when its lock ends, a deferred one when a receiver asks for it.
        if queue.is_ready(sequence) and (record := self._quarantine.read(queue, sequence, at_ms)) is not None:
            queue.take(record)
            self._settlement.expire(queue, record, at_ms)


@contextmanager
def _due_again_on_error(deadlines: Deadlines, at_ms: int, sequence: int) -> Iterator[None]:
    """Keep a deadline due if its work fails because the store cannot be read now."""
    try:
        yield
    except BaseException:
        deadlines.add(at_ms, sequence)
        raise
