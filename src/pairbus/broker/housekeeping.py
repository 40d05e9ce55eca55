"""Work that follows from a change and is too much for one go."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from pairbus.broker.address import Place
from pairbus.broker.context import Context
from pairbus.broker.entity import Holder
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.queue import Queue
from pairbus.broker.router import Router
from pairbus.broker.sequences import Sequences


class Chore(Protocol):
    """Something that is done step by step."""

    def step(self, now_ms: int, /) -> bool:
        """Do a little; whether there is more to do."""


class Housekeeping:
    """Does chores in the order they came up."""

    def __init__(self) -> None:
        self._chores: deque[Chore] = deque()

    def add(self, chore: Chore) -> None:
        self._chores.append(chore)

    def run(self, now_ms: int, steps: int) -> bool:
        """Do that many steps; whether there is more to do."""
        while self._chores and steps > 0:
            steps -= 1
            if not self._chores[0].step(now_ms):
                self._chores.popleft()
        return bool(self._chores)


class Grave:
    """The messages of a deleted entity. After a restart, whatever no entity claims is a grave again."""

    def __init__(self, context: Context, place: Place, sequences: Sequences) -> None:
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


class Pump:
    """The messages that waited in a queue when it was told to forward."""

    def __init__(
        self, router: Router, quarantine: Quarantine, holder: Holder, queue: Queue, is_alive: Callable[[Holder], bool]
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
