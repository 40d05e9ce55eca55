"""Consumption of entities by a stream: receives messages, and plans batches of them. It runs in the driver."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.spark.gathering import of_each
from pairbus.spark.intake import LockedReceiver, LockedReceiverSettings
from pairbus.spark.offset import ConsumeOffset, Leftovers, Portion
from pairbus.spark.options import OnMissing, SettleAt, SourceOptions
from pairbus.spark.partition import MessagePartition, partitions
from pairbus.spark.sequences import NO_NUMBERS, SequenceMarks, SequenceRanges, last_numbers_of
from pairbus.spark.session_intake import LockedSessionsReceiver

_log = logging.getLogger(__name__)

_MAX_RECEIVE: Final = 1_000
"""Maximum number of messages requested by one receive."""

_LINGER_S: Final = 0.05
"""Time that the first message of a batch waits for others."""

_MAX_WAIT_S: Final = 5.0
"""Maximum time for which planning waits for messages. A receive takes longer, and continues meanwhile."""

_FEW_TASKS: Final = 16
"""Number of tasks over which the sessions of an entity are spread, unless an option asks for more."""

_REFRESH_S: Final = 10.0
_PAUSE_S: Final = 1.0
_END_TIMEOUT_S: Final = 75.0
"""Time that the end of a run waits for messages locked elsewhere, perhaps by a driver that was killed. Those not
removed by then are in the checkpoint, and removed by the next run."""

_NOW: Final = timedelta(seconds=1)


class Consumption:
    """Plans batches of the received messages, and removes the messages of committed batches."""

    def __init__(self, factory: MessagingFactory, entities: Iterable[str], options: SourceOptions) -> None:
        self._factory = factory
        self.entities = tuple(entities)
        self._options = options
        self._keeps = options.settle is SettleAt.COMMIT
        self._receivers: dict[str, LockedReceiver] = {}
        """By path in lower case, since entity paths are case-insensitive. An entity that a checkpoint knows keeps the
        spelling it has there."""

        self._is_until_now = False
        self._committed: int | None = None
        self._changed = asyncio.Event()
        self._refreshed_s = 0.0
        self._is_finished = False

    async def start(self, known: ConsumeOffset, *, until_now: bool) -> None:
        """Start receiving, endlessly or (``until_now``) up to the messages that exist now. Raise ``MessagingError``.

        ``known`` is the offset of the stream. It is needed before the first message arrives: messages of a batch that
        is run again must not be planned a second time.
        """
        self._is_until_now = until_now
        try:
            await self._start(known)
        except BaseException:
            await self.close()
            raise

    async def _start(self, known: ConsumeOffset) -> None:
        until_now = self._is_until_now
        settings = LockedReceiverSettings(
            long_poll=_NOW if until_now else self._options.long_poll,
            at_once=max(1, min(_MAX_RECEIVE, self._options.max_messages_per_trigger // len(self.entities))),
            keeps=self._keeps,
            sessions=self._options.sessions or 0,
            waits=self._options.on_missing is OnMissing.WAIT and not until_now,
        )
        spelled = {path.lower(): path for path in (*known.left, *known.held)}
        kind = LockedSessionsReceiver if self._options.sessions else LockedReceiver
        targets = await self._targets() if until_now else {}
        for given in self.entities:
            path = spelled.get(given.lower(), given)
            receiver = self._receivers[path.lower()] = kind(
                self._factory,
                path,
                settings,
                self._note_change,
                self._has_room,
                targets.get(given),
            )
            if self._keeps:
                receiver.resume(known.held.get(path), known.left.get(path))
            await receiver.start()

    async def _targets(self) -> dict[str, SequenceMarks]:
        """Return the last numbers of all entities."""

        async def find(path: str) -> SequenceMarks:
            return await last_numbers_of(self._factory, path)

        return await of_each(self.entities, find)

    # Batches.

    async def plan(self, start: ConsumeOffset, limit: int) -> ConsumeOffset:
        """Return the offset of the next batch, or ``start`` if no message arrives for a while or none is left."""
        if self._is_finished:
            return start
        self._raise_errors()
        await self._refresh_leftovers_if_due()
        self.committed(start)
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + min(_MAX_WAIT_S, self._options.long_poll.total_seconds())
        while not any(receiver.waiting for receiver in self._receivers.values()):
            self._raise_errors()
            if self._is_until_now and all(receiver.is_drained for receiver in self._receivers.values()):
                await self._finish()
                return start
            if not self._is_until_now and loop.time() >= ends_s:
                await self._wait_removed()
                return start
            await self._wait(_PAUSE_S)
        if self._has_room():
            await asyncio.sleep(_LINGER_S)
        return ConsumeOffset(batch=start.batch + 1, held=self._take(limit), left=self._left())

    async def _wait(self, timeout_s: float) -> None:
        """Wait for messages."""
        self._changed.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            await self._refresh_leftovers_if_due()

    def _note_change(self) -> None:
        """Wake the planner and the receivers: messages arrived or were removed, so there may be room for more."""
        self._changed.set()
        for receiver in self._receivers.values():
            receiver.make_room()

    def _raise_errors(self) -> None:
        for receiver in self._receivers.values():
            if receiver.error is not None:
                raise receiver.error

    def _take(self, limit: int) -> dict[str, Portion]:
        """Take all messages if they fit; otherwise an equal share of each entity, as far as it has them."""
        waiting = sorted(
            (receiver for receiver in self._receivers.values() if receiver.waiting), key=lambda one: one.waiting
        )
        found: dict[str, Portion] = {}
        room, room_bytes = limit, self._options.max_bytes_per_trigger
        for index, receiver in enumerate(waiting):
            if room_bytes is not None and room_bytes <= 0:
                break
            share_bytes = None if room_bytes is None else room_bytes // (len(waiting) - index)
            before_bytes = receiver.waiting_bytes if room_bytes is not None else 0
            portion = receiver.take(min(room, max(1, room // (len(waiting) - index))), share_bytes)
            if portion:
                found[receiver.path] = portion
                room -= len(portion.numbers)
            if room_bytes is not None:
                room_bytes -= before_bytes - receiver.waiting_bytes
        self._note_change()
        return found

    def _has_room(self) -> bool:
        """Return whether to receive more: only the next batch is prefetched while the last one is processed."""
        receivers, most_bytes = self._receivers.values(), self._options.max_bytes_per_trigger
        if most_bytes is not None and sum(receiver.waiting_bytes for receiver in receivers) >= most_bytes:
            return False
        return sum(receiver.waiting for receiver in receivers) < self._options.max_messages_per_trigger

    def _left(self) -> dict[str, Leftovers]:
        return {receiver.path: receiver.left for receiver in self._receivers.values() if receiver.left}

    def partitions(self, end: ConsumeOffset, *, with_tokens: bool = True) -> list[MessagePartition]:
        """Return the partitions of a batch, one for each task; with lock tokens if the rows have them."""
        found: list[MessagePartition] = []
        for path, portion in end.held.items():
            receiver = self._receivers.get(path.lower())
            tokens = {} if receiver is None else receiver.tokens(portion)
            # A sink can only settle messages that are locked here; the others are delivered again.
            readable = portion if self._keeps else portion.only(tokens)
            if portion.sessions:
                found += self._of_sessions(path, readable)
                continue
            expected = readable.numbers if self._options.fail_on_data_loss else NO_NUMBERS
            found += partitions(
                path, readable, self._options.partitions_per_queue, tokens if with_tokens else {}, expected=expected
            )
        return found

    def _of_sessions(self, path: str, portion: Portion) -> list[MessagePartition]:
        """Spread the sessions of an entity over some tasks, each session with all its messages."""
        options = self._options
        most = max(_FEW_TASKS, options.partitions_per_queue, options.min_partitions or 0)
        parts: list[SequenceRanges] = [NO_NUMBERS] * min(most, len(portion.chains))
        for chain in sorted(portion.chains, key=lambda chain: len(chain.numbers), reverse=True):
            smallest = min(range(len(parts)), key=lambda index: len(parts[index]))
            parts[smallest] |= chain.numbers
        return [
            MessagePartition(
                entity=path,
                portion=Portion(numbers=numbers, until_ms=portion.until_ms),
                expected=numbers if options.fail_on_data_loss else NO_NUMBERS,
                is_whole=True,
            )
            for numbers in parts
        ]

    def report(self) -> dict[str, Any]:
        """Return the number of receives and of messages that belong to no batch yet, and the missing entities."""
        receivers = self._receivers.values()
        return {
            "receives": sum(one.receives for one in receivers),
            "waiting": sum(one.waiting for one in receivers),
            "missing": [one.path for one in receivers if one.is_missing],
        }

    def locks(self) -> dict[str, int]:
        """Return the number of messages that are locked, and the age of the oldest one."""
        receivers = self._receivers.values()
        found = {"locked": sum(one.locked for one in receivers)}
        oldest_ms = min((ms for one in receivers if (ms := one.oldest_ms) is not None), default=None)
        if oldest_ms is not None:
            found["oldest_locked_age_s"] = max(0, round(time.time() - oldest_ms / 1_000))
        return found

    # Removal.

    def committed(self, offset: ConsumeOffset) -> None:
        """Remove the messages of a batch that is in the checkpoint."""
        if offset.batch == self._committed:
            return
        self._committed = offset.batch
        for path, portion in offset.held.items():
            receiver = self._receivers.get(path.lower())
            if receiver is None:
                _log.warning('messages not removed entity=%s reason="not read by the stream any more"', path)
            elif self._keeps:
                receiver.remove(portion)
            else:
                receiver.drop()

    async def _wait_removed(self) -> None:
        await asyncio.gather(*(receiver.wait_removed() for receiver in self._receivers.values()))

    async def _refresh_leftovers_if_due(self) -> None:
        """Check leftovers from time to time: another receiver may have removed them, without notice."""
        now_s = asyncio.get_running_loop().time()
        if self._left() and now_s - self._refreshed_s >= _REFRESH_S:
            self._refreshed_s = now_s
            await self._refresh_leftovers()

    async def _refresh_leftovers(self) -> None:
        for receiver in self._receivers.values():
            if receiver.left:
                try:
                    await receiver.refresh_leftovers()
                except MessagingError as error:
                    _log.info('peek for leftovers failed entity=%s error="%s"', receiver.path, error)

    async def _finish(self) -> None:
        """End the run once, even if Spark asks again."""
        if not self._is_finished:
            self._is_finished = True
            await self._end()

    async def _end(self) -> None:
        """Wait until committed messages are removed, and abandon those received after the end."""
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _END_TIMEOUT_S
        await self._wait_removed()
        while self._left() and loop.time() < ends_s:
            await self._refresh_leftovers()
            if self._left():
                await asyncio.sleep(_PAUSE_S)
        if left := sum(map(len, self._left().values())):
            _log.warning("processed messages not removed yet, the next run removes them messages=%d", left)
        await self.close()

    async def close(self) -> None:
        """Stop receiving, and abandon the messages that belong to no batch. Idempotent."""
        await asyncio.gather(*(receiver.close() for receiver in self._receivers.values()))
