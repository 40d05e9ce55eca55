"""The messages of one backlog queue for one destination, delivered from the oldest on."""

from __future__ import annotations

import asyncio
import logging
from heapq import heappop, heappush
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.pairing.syphon.delivery import DeliveryEngine
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth
from pairbus.pairing.syphon.interface import TimeToLive
from pairbus.pairing.syphon.message import BacklogMessage, Line
from pairbus.pairing.syphon.source import BacklogSource

_log = logging.getLogger(__name__)

_MAX_BATCH: Final = 200
_MAX_FETCH: Final = 50
_RESTART_S: Final = 5.0
_SPARE: Final = 100


class DestinationChannel:
    """Delivers in the order of the sequence numbers, whether a message is locked or parked (deferred in the backlog).

    While the destination is down, all messages are parked. So are messages behind those of other receivers that have to
    be delivered first.
    """

    def __init__(
        self,
        source: BacklogSource,
        destination: DeliveryDestination,
        health: NamespaceHealth,
        time_to_live: TimeToLive,
    ) -> None:
        self.destination = destination
        self.is_closing = False
        self.parked: dict[int, Line | None] = {}
        """The deferred messages, by sequence number."""

        self.stuck: dict[Line, list[int]] = {}
        """The messages that wait for a message of another receiver."""

        self._source = source
        self._health = health
        self._engine = DeliveryEngine(source, destination, health, time_to_live)
        self._held: dict[int, BacklogMessage] = {}
        """The locked messages that wait for delivery."""

        self._order: list[int] = []
        """A heap of the sequence numbers of all messages that can be delivered, locked or parked."""

        self._under_way: list[BacklogMessage] = []
        """The locked messages that are being sent or parked."""

        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_empty(self) -> bool:
        return not self._held and not self.parked and not self._under_way

    @property
    def is_moving(self) -> bool:
        """True if messages can be delivered: they wait neither for the destination nor for other receivers."""
        has_some = bool(self._order or self._held or self._under_way)
        return has_some and (not self.destination.is_down or self.destination.is_tried)

    @property
    def is_resting(self) -> bool:
        """True if no message is locked, and none can be delivered at the moment."""
        return self.is_empty or not (self._held or self._under_way or self.is_moving)

    # Input.

    def hold(self, messages: list[BacklogMessage]) -> None:
        """Deliver locked messages."""
        for message in messages:
            if message.sequence not in self._held:
                heappush(self._order, message.sequence)
            self._held[message.sequence] = message
        self.wake()

    def adopt(self, sequence: int, line: Line | None) -> None:
        """Deliver a deferred message."""
        if sequence not in self.parked and sequence not in self._held:
            self.parked[sequence] = line
            heappush(self._order, sequence)
            self._tidy()
            self.wake()

    def _tidy(self) -> None:
        """Remove outdated entries: a message that is parked repeatedly is pushed repeatedly."""
        if len(self._order) > 2 * (len(self._held) + len(self.parked)) + _SPARE:
            stuck = {sequence for numbers in self.stuck.values() for sequence in numbers}
            self._order = sorted({*self._held, *self.parked} - stuck)  # a sorted list is a heap

    def free(self, line: Line) -> None:
        """Deliver the messages of a line: no other receiver has an earlier one any more."""
        for sequence in self.stuck.pop(line, ()):
            if sequence in self.parked:
                heappush(self._order, sequence)
        self.wake()

    def wake(self) -> None:
        self._woken.set()
        if self._task is None and not self.is_empty and not self.is_closing:
            self.destination.waiters.add(self)
            self._task = asyncio.get_running_loop().create_task(self._run())

    # The task.

    async def _run(self) -> None:
        """Deliver until there are no messages. An error is logged once, and does not end the task."""
        is_logged = False
        try:
            while not self.is_empty and not self.is_closing:
                try:
                    await self._turn()
                except MessagingError as error:
                    level = logging.DEBUG if is_logged else logging.WARNING
                    _log.log(level, 'delivery failed, retrying entity=%s error="%s"', self.destination.path, error)
                    is_logged = True
                except Exception:  # noqa: BLE001 (after any error the messages have to be delivered)
                    _log.exception("delivery failed unexpectedly, retrying entity=%s", self.destination.path)
                else:
                    is_logged = False
                    continue
                self._return()
                await asyncio.sleep(_RESTART_S)
        finally:
            self._ended()

    def _ended(self) -> None:
        self._task = None
        self._return()
        self._engine.leave()
        destination = self.destination
        destination.waiters.discard(self)
        if not destination.waiters and not self.is_closing and not self._health.is_away:
            destination.forget()

    async def _turn(self) -> None:
        self._woken.clear()
        if await self._engine.must_release():
            await self._release()
        elif not self._order:
            await self._sleep(None)
        elif limit := self._engine.claim():
            try:
                await self._deliver_next(min(limit, _MAX_BATCH))
            finally:
                self._engine.leave()
        else:
            await self._wait_for_destination()

    async def _release(self) -> None:
        """Give all messages back, and wait until the namespace is reachable."""
        cause = self._health.cause
        if cause is not None:
            self.destination.suspend(cause)
        held = self._take_held()
        received = [message for message in held if not message.is_deferred]
        await self._source.abandon(received)
        self._done(received)
        await self._park([message for message in held if message.is_deferred])
        if self._health.is_away:
            await self._sleep(None)

    async def _wait_for_destination(self) -> None:
        """Park all messages until the next retry; wait for the result of a retry that is under way."""
        if self.destination.is_tried:
            await self._sleep(None)
            return
        await self._park(self._take_held())
        await self._sleep(self.destination.wait_s)

    async def _sleep(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                await self._woken.wait()
        except TimeoutError:
            if not limit.expired():
                raise

    def _take_held(self) -> list[BacklogMessage]:
        held = sorted(self._held.values(), key=lambda message: message.sequence)
        self._under_way += held
        self._held.clear()
        return held

    async def _park(self, messages: list[BacklogMessage]) -> None:
        if messages:
            parked = await self._source.defer(messages)
            self._done(messages)
            for message in parked:
                self.adopt(message.sequence, message.line)

    def _done(self, messages: list[BacklogMessage]) -> None:
        done = {id(message) for message in messages}
        self._under_way = [message for message in self._under_way if id(message) not in done]

    def _return(self) -> None:
        """Keep the messages that were under way, and deliver them again."""
        under_way, self._under_way = self._under_way, []
        for message in under_way:
            if message.sequence not in self._held:  # else it was received again meanwhile
                heappush(self._order, message.sequence)
                self._held[message.sequence] = message

    # Delivery.

    async def _deliver_next(self, limit: int) -> None:
        """Deliver the oldest messages that can be delivered."""
        await self._fetch(limit)
        batch, stuck = self._pick(limit)
        self._under_way += [*batch, *stuck]
        await self._park(stuck)
        if batch:
            self._under_way = batch  # the engine removes what is done
            try:
                await self._engine.deliver(self._under_way, await self._source.start_send(batch))
            finally:
                self._source.end_send(self._under_way)
                self._return()

    async def _fetch(self, limit: int) -> None:
        """Lock the oldest messages, if they are parked."""
        wanted: list[int] = []
        lines: list[Line | None] = []
        while self._order and len(wanted) < min(limit, _MAX_FETCH):
            sequence = self._order[0]
            if sequence in self._held:
                break
            heappop(self._order)
            if sequence not in self.parked:
                continue  # an outdated entry
            line = self.parked[sequence]
            if self._source.order.is_clear(sequence, line):
                del self.parked[sequence]  # before it may be parked again
                wanted.append(sequence)
                lines.append(line)
            else:
                self._stick(sequence, line)
        if not wanted:
            return
        try:
            fetched = await self._source.fetch(wanted, lines)
        except BaseException:
            for sequence, line in zip(wanted, lines, strict=True):
                self.adopt(sequence, line)
            raise
        if fetched:
            self.hold(fetched)

    def _stick(self, sequence: int, line: Line | None) -> None:
        if line is not None:
            self.stuck.setdefault(line, []).append(sequence)
            self._source.on_blocked()

    def _pick(self, limit: int) -> tuple[list[BacklogMessage], list[BacklogMessage]]:
        """Take the oldest locked messages; return those to send, and those that must wait for other receivers."""
        batch: list[BacklogMessage] = []
        stuck: list[BacklogMessage] = []
        while self._order and len(batch) < limit:
            sequence = self._order[0]
            message = self._held.get(sequence)
            if message is None:
                if sequence in self.parked:
                    break
                heappop(self._order)
                continue
            heappop(self._order)
            del self._held[sequence]
            (batch if self._source.order.is_clear(sequence, message.line) else stuck).append(message)
        return batch, stuck

    # Close.

    async def close(self) -> None:
        """Stop at once; locked messages stay locked."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def finish(self) -> None:
        """Wait until no message is under way."""
        self._woken.set()
        if self._task is not None:
            await asyncio.wait((self._task,))
