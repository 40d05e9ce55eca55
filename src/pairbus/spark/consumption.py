"""What a stream takes from its entities, and which of it each batch holds. It lives in the driver."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.spark.intake import Intake, IntakeSettings
from pairbus.spark.numbers import last_numbers_of
from pairbus.spark.offset import ConsumeOffset, Leftovers, Portion
from pairbus.spark.options import Settle, SourceOptions
from pairbus.spark.partition import MessagePartition, partitions

_log = logging.getLogger(__name__)

_AT_ONCE: Final = 1_000
"""What is asked for in one receive, at most."""

_LINGER_S: Final = 0.05
"""How long the first message waits for others to come along."""

_LONGEST_WAIT_S: Final = 5.0
"""How long Spark waits for an answer when there is nothing. A receive takes longer, and goes on meanwhile."""

_LOOK_S: Final = 10.0
_MOMENT_S: Final = 1.0
_PATIENCE_S: Final = 75.0
"""How long the end of a run waits for what is locked by somebody, a driver that was killed perhaps. What is not removed
then is in the checkpoint, and removed by the next run."""

_NOW: Final = timedelta(seconds=1)


class Consumption:
    """Plans batches of what its intakes have received, and sees to it that what was committed is removed."""

    def __init__(self, factory: MessagingFactory, entities: Iterable[str], options: SourceOptions) -> None:
        self._factory = factory
        self._entities = tuple(entities)
        self._options = options
        self._keeps = options.settle is Settle.COMMIT
        self._intakes: dict[str, Intake] = {}
        """By their paths in lower case: an entity is the same however its path is capitalised. One that a checkpoint
        knows already is called as it is there."""

        self._is_until_now = False
        self._committed: int | None = None
        self._changed = asyncio.Event()
        self._looked_s = 0.0
        self._is_finished = False

    async def start(self, known: ConsumeOffset, *, until_now: bool) -> None:
        """Begin to receive, for ever or ``until_now``: what has come by now. Raises ``MessagingError``.

        ``known`` is where the stream is, of which it has to know before anything comes: what is held by a batch that
        is read once more must not be planned again.
        """
        self._is_until_now = until_now
        try:
            await self._start(known)
        except BaseException:
            await self.close()
            raise

    async def _start(self, known: ConsumeOffset) -> None:
        until_now = self._is_until_now
        settings = IntakeSettings(
            long_poll=_NOW if until_now else self._options.long_poll,
            at_once=max(1, min(_AT_ONCE, self._options.max_messages_per_trigger // len(self._entities))),
            keeps=self._keeps,
        )
        spelled = {path.lower(): path for path in (*known.left, *known.held)}
        for given in self._entities:
            path = spelled.get(given.lower(), given)
            intake = self._intakes[path.lower()] = Intake(
                self._factory,
                path,
                settings,
                self._note_change,
                self._has_room,
                await last_numbers_of(self._factory, path) if until_now else None,
            )
            if self._keeps:
                intake.resume(known.held.get(path), known.left.get(path))
            await intake.start()

    # Batches.

    async def plan(self, start: ConsumeOffset, most: int) -> ConsumeOffset:
        """What the next batch holds; ``start`` itself if there is nothing for a while, or, until now, any more."""
        if self._is_finished:
            return start
        self._raise_errors()
        await self._look_now_and_then()
        self.committed(start)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + min(_LONGEST_WAIT_S, self._options.long_poll.total_seconds())
        while not any(intake.waiting for intake in self._intakes.values()):
            self._raise_errors()
            if self._is_until_now and all(intake.is_drained for intake in self._intakes.values()):
                await self._finish()
                return start
            if not self._is_until_now and loop.time() >= ends_s:
                await self._removed()
                return start
            await self._wait(_MOMENT_S)
        if self._has_room():
            await asyncio.sleep(_LINGER_S)
        return ConsumeOffset(batch=start.batch + 1, held=self._take(most), left=self._left())

    async def _wait(self, timeout_s: float) -> None:
        """Wait for messages."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            await self._look_now_and_then()

    def _note_change(self) -> None:
        """Something has come, or is gone, and then there is room for more: of any entity."""
        self._changed.set()
        for intake in self._intakes.values():
            intake.make_room()

    def _raise_errors(self) -> None:
        for intake in self._intakes.values():
            if intake.error is not None:
                raise intake.error

    def _take(self, most: int) -> dict[str, Portion]:
        """Everything if that is few enough; else of all entities as much, as far as they have it."""
        waiting = sorted((intake for intake in self._intakes.values() if intake.waiting), key=lambda one: one.waiting)
        found: dict[str, Portion] = {}
        room = most
        for index, intake in enumerate(waiting):
            portion = intake.take(min(room, max(1, room // (len(waiting) - index))))
            if portion:
                found[intake.path] = portion
                room -= len(portion.numbers)
        self._note_change()
        return found

    def _has_room(self) -> bool:
        """What the next batch may hold is received while the last one is worked on, and no more."""
        return sum(intake.waiting for intake in self._intakes.values()) < self._options.max_messages_per_trigger

    def _left(self) -> dict[str, Leftovers]:
        return {intake.path: intake.left for intake in self._intakes.values() if intake.left}

    def partitions(self, end: ConsumeOffset) -> list[MessagePartition]:
        """What the tasks of a batch read."""
        found: list[MessagePartition] = []
        for path, portion in end.held.items():
            intake = self._intakes.get(path.lower())
            tokens = {} if intake is None else intake.tokens(portion)
            # What a sink is to settle has to be locked for us; what is not comes again.
            readable = portion if self._keeps else portion.only(tokens)
            found += partitions(path, readable, self._options.partitions_per_queue, tokens)
        return found

    def report(self) -> dict[str, int]:
        """How often entities were asked for messages, and how many of these no batch holds yet."""
        intakes = self._intakes.values()
        return {"receives": sum(one.receives for one in intakes), "waiting": sum(one.waiting for one in intakes)}

    # Removal.

    def committed(self, offset: ConsumeOffset) -> None:
        """A batch is in the checkpoint: what it held is done with."""
        if offset.batch == self._committed:
            return
        self._committed = offset.batch
        for path, portion in offset.held.items():
            intake = self._intakes.get(path.lower())
            if intake is None:
                _log.warning("messages of '%s' are not removed: the stream does not read it any more", path)
            elif self._keeps:
                intake.remove(portion)
            else:
                intake.drop()

    async def _removed(self) -> None:
        await asyncio.gather(*(intake.removed() for intake in self._intakes.values()))

    async def _look_now_and_then(self) -> None:
        """See what has become of what was left: others may have had it, and then nobody tells."""
        now_s = asyncio.get_running_loop().time()
        if self._left() and now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            await self._look_for_left()

    async def _look_for_left(self) -> None:
        for intake in self._intakes.values():
            if intake.left:
                try:
                    await intake.look_for_left()
                except MessagingError as error:
                    _log.info("'%s' could not be looked at: %s", intake.path, error)

    async def _finish(self) -> None:
        """Once: Spark may ask again."""
        if not self._is_finished:
            self._is_finished = True
            await self._end()

    async def _end(self) -> None:
        """Wait until what was committed is removed, and give back what was received beyond the end."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _PATIENCE_S
        await self._removed()
        while self._left() and loop.time() < ends_s:
            await self._look_for_left()
            if self._left():
                await asyncio.sleep(_MOMENT_S)
        if left := sum(map(len, self._left().values())):
            _log.warning("%d messages that are done with are removed when the query runs again", left)
        await self.close()

    async def close(self) -> None:
        """Stop, and give back what no batch holds. To close twice is fine."""
        await asyncio.gather(*(intake.close() for intake in self._intakes.values()))
