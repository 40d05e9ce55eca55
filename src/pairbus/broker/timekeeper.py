"""What happens because time passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pairbus.broker.context import Context
from pairbus.broker.deadlines import Deadlines
from pairbus.broker.entity import Destination
from pairbus.broker.notices import SessionLost
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.queue import Queue
from pairbus.broker.router import Router
from pairbus.broker.session import Session
from pairbus.broker.settlement import Settlement


class Timekeeper:
    """Ends locks, opens sessions, activates what was scheduled, removes what has expired."""

    def __init__(
        self,
        context: Context,
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
        """Do what is due in a queue; how many things were done."""
        done = 0
        for _ in self._steps(queue, at_ms):
            done += 1
            if done >= limit:
                break
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
            with _or_again(queue.schedule, at_ms, sequence):
                self._activate(queue, sequence, at_ms)
            yield
        while (sequence := queue.expiries.pop(at_ms)) is not None:
            with _or_again(queue.expiries, at_ms, sequence):
                self._expire(queue, sequence, at_ms)
            yield

    def end_session(self, queue: Queue, session: Session, at_ms: int) -> None:
        """The lock on a session has run out: what was delivered under it has failed."""
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
        # A locked message is looked at again when its lock ends, a deferred one when someone asks for it.
        if queue.is_ready(sequence) and (record := self._quarantine.read(queue, sequence, at_ms)) is not None:
            queue.take(record)
            self._settlement.expire(queue, record, at_ms)


@contextmanager
def _or_again(deadlines: Deadlines, at_ms: int, sequence: int) -> Iterator[None]:
    """What fails because the store cannot be read now stays due."""
    try:
        yield
    except BaseException:
        deadlines.add(at_ms, sequence)
        raise
