"""The syphon that runs in the process of an application: one runner for each backlog queue.

A runner receives from its source and passes each message to the channel of its destination, which delivers it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon.channel import DestinationChannel
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth
from pairbus.pairing.syphon.guarantees import GuaranteeLookup
from pairbus.pairing.syphon.interface import IDLE_POLLS_PER_PEEK, IN_PROCESS, SyphonContext, destination_key
from pairbus.pairing.syphon.message import BacklogMessage, Line, by_path
from pairbus.pairing.syphon.send_limit import SendLimit
from pairbus.pairing.syphon.source import BacklogSource, OutcomeKind, SettlementReport, publish_dead_letters

_log = logging.getLogger(__name__)

_BACKOFF: Final = Backoff(1.0, 30.0)
_HELD_BACKOFF: Final = Backoff(0.1, 2.0)
_HELD_MESSAGES: Final = 200
"""Maximum number of messages that are received at a time while the pair holds all destinations."""

_START_TIMEOUT_S: Final = 10.0
"""The time that the start waits for a namespace that does not respond."""

_FINISH_S: Final = 5.0
_SETTLE_S: Final = 4.0
_SWEEP_S: Final = 30.0
_UNUSED_S: Final = 600.0
"""The time for which a destination without messages is kept."""

_REST_S: Final = 0.1
_PATIENCE_S: Final = 30.0


class QueueRunner:
    """Receives the messages of one backlog queue while there is room, and passes them to the channels."""

    def __init__(
        self,
        receiver: MessageReceiver,
        context: SyphonContext,
        health: NamespaceHealth,
        find_destination: Callable[[str], DeliveryDestination],
        limit: SendLimit | None = None,
    ) -> None:
        self.source = BacklogSource(receiver, self._settled, self._adopt, self._free, self._blocked, limit)
        self.path = self.source.path
        self.channels: dict[str, DestinationChannel] = {}
        self.is_closing = False
        self._settings = context.settings
        self._publish = context.publish
        self._reached = context.secondary.reached
        self._on_missing = context.missing
        self._health = health
        self._find_destination = find_destination
        self._is_missing = False
        self._running: asyncio.Task[None] | None = None
        self._held_pause_s = _HELD_BACKOFF.first_s
        self._is_watching = False
        self._empty_polls = 0
        self._is_behind = False
        """True if messages may have been deferred by others since the last scan."""

    # Start.

    def start(self) -> asyncio.Task[None]:
        """Start to receive; return the first scan, which fails if the queue cannot be read."""
        scanning = self.source.tasks.start(self._first_scan())
        self._running = asyncio.get_running_loop().create_task(self._run())
        return scanning

    async def _first_scan(self) -> None:
        try:
            await self.source.scanner.scan()
        except MessagingError as error:
            self.note_failure(error)
            self._is_behind = True
            self.source.tasks.start(self._scan_when_quiet())
            raise

    def note_failure(self, error: MessagingError) -> None:
        """Request the re-creation of the queue if it was deleted."""
        if isinstance(error, EntityNotFoundError):
            self._is_missing = True
            self._on_missing(self.path, error)

    # Receiving.

    async def _run(self) -> None:
        """Receive until cancelled; an outage is logged once."""
        pause_s = _BACKOFF.first_s
        is_logged = False
        while True:
            try:
                await (self._find() if self._is_missing else self._turn())
            except MessagingError as error:
                self.note_failure(error)
                level = logging.DEBUG if is_logged else logging.WARNING
                _log.log(level, 'receive failed, retrying entity=%s error="%s"', self.path, error)
                is_logged = True
            except Exception:  # noqa: BLE001 (after any error the queue has to be read)
                _log.exception("receive failed unexpectedly, retrying entity=%s", self.path)
            else:
                pause_s, is_logged = _BACKOFF.first_s, False
                continue
            await asyncio.wait((self._reached(),), timeout=pause_s)
            pause_s = _BACKOFF.after(pause_s)

    async def _find(self) -> None:
        """Check that a missing queue exists again: a receive would notice only with the first message."""
        await self.source.check()
        self._is_missing = False
        self.source.forget_order()

    async def _turn(self) -> None:
        """Receive once, and pass the messages to their channels."""
        is_held = self._held_pause_s > _HELD_BACKOFF.first_s
        most = self._settings.max_messages
        count = await self.source.wait_for_room(min(most, _HELD_MESSAGES) if is_held else most)
        await self._health.wait()
        scanning = self.source.tasks.start(self._scan_when_quiet()) if self._is_behind else None
        try:
            messages = await self.source.receive(count, self._settings.long_poll)
        finally:
            if scanning is not None:
                scanning.cancel()
        self._empty_polls = 0 if messages else self._empty_polls + 1
        if messages or self._empty_polls % IDLE_POLLS_PER_PEEK == 0:  # others may have deferred messages and ended
            self._is_behind = True
        if messages:
            await self._slow_down(await self._admit(messages))

    async def _scan_when_quiet(self) -> None:
        await self.source.scanner.scan_when_quiet()
        self._is_behind = False

    async def _admit(self, received: list[ReceivedMessage]) -> Collection[str]:
        """Pass messages to their channels, and return the destinations.

        Of those with sessions, what lies before them has to be known first.
        """
        source = self.source
        messages = source.lock(received)
        try:
            last = max((message.sequence for message in messages if message.line is not None), default=0)
            if last and source.order.first_unknown(last) is not None:
                await source.scanner.scan(last)
        except BaseException:
            source.abandon_later(messages)
            raise
        groups = by_path(messages)
        for path, group in groups.items():
            self._hold(path, group)
        for message in messages:
            source.received(message.sequence)  # messages that wait for this one must not overtake it
        return groups.keys()

    def _hold(self, path: str, messages: list[BacklogMessage]) -> None:
        self._channel(path).hold(messages)

    def _settled(self, settlement: SettlementReport) -> None:
        if settlement.kind is OutcomeKind.DEAD_LETTERED:
            publish_dead_letters(self.path, settlement, self._publish)

    async def _slow_down(self, paths: Collection[str]) -> None:
        """Pause if the pair holds all destinations: there is no hurry to park the whole queue."""
        if paths and all(self._channel(path).destination.is_held for path in paths):
            await asyncio.sleep(self._held_pause_s)
            self._held_pause_s = _HELD_BACKOFF.after(self._held_pause_s)
        else:
            self._held_pause_s = _HELD_BACKOFF.first_s

    # Channels.

    def _channel(self, path: str) -> DestinationChannel:
        key = destination_key(path)
        channel = self.channels.get(key)
        destination = self._find_destination(path)
        if channel is None or channel.destination is not destination:
            channel = DestinationChannel(self.source, destination, self._health, self._settings.time_to_live)
            channel.is_closing = self.is_closing
            self.channels[key] = channel
        return channel

    def adopt(self, path: str, sequence: int, session_id: str | None) -> None:
        """Deliver a message that another process has deferred."""
        self._adopt(path, sequence, None if session_id is None else (destination_key(path), session_id))

    def _adopt(self, path: str, sequence: int, line: Line | None) -> None:
        self._channel(path).adopt(sequence, line)

    def _free(self, line: Line) -> None:
        channel = self.channels.get(line[0])
        if channel is not None:
            channel.free(line)

    def _blocked(self) -> None:
        """Watch the messages of other receivers while messages wait for them."""
        if not self._is_watching and not self.is_closing:
            self._is_watching = True
            self.source.tasks.start(self._watch())

    async def _watch(self) -> None:
        try:
            await self.source.scanner.watch(self._is_blocked)
        finally:
            self._is_watching = False

    def _is_blocked(self) -> bool:
        taken = self.source.taken_by_others
        taken &= self.source.order.others.keys()
        return bool(taken) or any(channel.stuck for channel in self.channels.values())

    # Close.

    async def stop(self, timeout_s: float) -> None:
        """Stop receiving, and let the channels finish what is under way."""
        self.is_closing = True
        for channel in self.channels.values():
            channel.is_closing = True
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,), timeout=timeout_s)
        finishing = [asyncio.ensure_future(channel.finish()) for channel in self.channels.values()]
        if finishing:
            await asyncio.wait(finishing, timeout=timeout_s)
        for task in finishing:
            task.cancel()
        await asyncio.gather(*(channel.close() for channel in self.channels.values()))


class InProcessSyphon:
    """Reads all backlog queues at once, and delivers to all destinations at once."""

    def __init__(self, context: SyphonContext, limit: SendLimit | None = None) -> None:
        """``limit`` is that of the messages that are sent and not yet removed."""
        self._context = context
        self._limit = limit
        self._health = NamespaceHealth(context.primary, self._wake)
        self._guarantees = GuaranteeLookup(context.primary, self._health.wait)
        self._destinations: dict[str, DeliveryDestination] = {}
        self._runners: list[QueueRunner] = []
        self._tasks = BackgroundTasks("syphon", expected=MessagingError)
        self._sweeping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def status(self) -> SyphonStatus:
        sources = [runner.source for runner in self._runners]
        return SyphonStatus(
            engine=IN_PROCESS,
            receives=sum(source.receives for source in sources),
            syphoned=sum(source.syphoned for source in sources),
            dead_lettered=sum(source.dead_lettered for source in sources),
            waiting={one.path: one.cause for one in self._destinations.values() if one.cause is not None},
            guarantees=self._guarantees.found,
        )

    async def start(self) -> None:
        """Start to receive. Raise ``MessagingError`` if a backlog queue does not exist or must not be read."""
        await self._start(QueueRunner.start)

    async def _start(self, check: Callable[[QueueRunner], asyncio.Future[None]]) -> None:
        """Create the runners; ``check`` starts the first request of each, which shows whether its queue can be read."""
        context = self._context
        try:
            for path in context.backlog_queues:
                receiver = await context.secondary.create_message_receiver(path)
                self._runners.append(QueueRunner(receiver, context, self._health, self._find_destination, self._limit))
            checks = {runner.path: check(runner) for runner in self._runners}
            if checks:
                await asyncio.wait(checks.values(), timeout=_START_TIMEOUT_S)
                _raise_permanent(checks)
        except BaseException:
            await self.close()
            raise

    # Destinations.

    def _find_destination(self, path: str) -> DeliveryDestination:
        key = destination_key(path)
        found = self._destinations.get(key)
        if found is None:
            context = self._context
            found = DeliveryDestination(
                path.strip("/"),
                context.primary,
                context.is_held,
                context.publish,
                on_delivered=self._guarantees.note_delivery,
            )
            self._destinations[key] = found
            if self._sweeping is None or self._sweeping.done():
                self._sweeping = self._tasks.keep_running(self._sweep)
        found.used_s = asyncio.get_running_loop().time()
        return found

    def _wake(self) -> None:
        for destination in self._destinations.values():
            destination.wake()

    async def _sweep(self) -> None:
        """Close destinations that have had no messages for a while, until none is left."""
        while self._destinations:
            await asyncio.sleep(_SWEEP_S)
            await self._close_idle()

    async def _close_idle(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for key, destination in [*self._destinations.items()]:
            if destination.waiters:
                continue
            if not self._health.is_away:
                destination.forget()  # another syphon has delivered what was given back
            if destination.used_s + _UNUSED_S <= now_s:
                del self._destinations[key]
                for runner in self._runners:
                    runner.channels.pop(key, None)
                await destination.close()

    def resume(self, path: str) -> None:
        """Deliver the messages of an entity that was held, and that the pair sends to again."""
        destination = self._destinations.get(destination_key(path))
        if destination is not None:
            destination.resume()

    # Close.

    async def close(self) -> None:
        """Stop, after the messages being delivered are settled or given back. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await asyncio.gather(*(runner.stop(_FINISH_S) for runner in self._runners))
        await self._health.close()
        await self._guarantees.close()
        await self._tasks.close()
        await asyncio.gather(*(runner.source.close(_SETTLE_S) for runner in self._runners))
        await asyncio.gather(*(destination.close() for destination in self._destinations.values()))


def _raise_permanent(checks: Mapping[str, asyncio.Future[None]]) -> None:
    """Raise the error of a queue that cannot be read, unless a retry may succeed."""
    for path, check in checks.items():
        error = check.exception() if check.done() and not check.cancelled() else None
        if isinstance(error, UnauthorizedError | EntityNotFoundError):
            raise error
        if isinstance(error, MessagingError):
            _log.warning('backlog queue not readable yet, retrying entity=%s error="%s"', path, error)


class DeferredDrainer(InProcessSyphon):
    """Receives nothing; delivers deferred messages that it adopts or finds, as soon as their destinations work.

    The Spark syphon leaves them to it: they are few, or are for few destinations, and one process that knows all of
    them can keep them in order.
    """

    async def start(self) -> None:
        """Check that the queues can be read. Raise ``MessagingError`` if one does not exist or must not be read."""
        await self._start(lambda runner: asyncio.ensure_future(runner.source.check()))

    def adopt(self, queue: str, path: str, sequence: int, session_id: str | None) -> None:
        """Deliver a message that was deferred."""
        self._runner_of(queue).adopt(path, sequence, session_id)

    def note_delivery(self, path: str) -> None:
        """Note that a destination has confirmed a message of a batch, so that the status has its guarantee."""
        self._guarantees.note_delivery(path)

    def _runner_of(self, queue: str) -> QueueRunner:
        return next(one for one in self._runners if one.path.lower() == queue.lower())

    @property
    def busy(self) -> frozenset[tuple[str, str]]:
        """The backlog queues and destinations with deferred messages, which later messages must not overtake."""
        return frozenset(
            (runner.path, key)
            for runner in self._runners
            for key, channel in runner.channels.items()
            if not channel.is_empty
        )

    async def scan(self) -> None:
        """Find messages that other syphons have deferred, which may have ended. For when the queues are idle."""
        await self._for_all(lambda runner: runner.source.scan())

    async def scan_front(self) -> None:
        """Find the deferred messages before all available ones: the messages behind them have to wait."""
        await self._for_all(lambda runner: runner.source.scan_front())

    async def check(self, queue: str) -> None:
        """Check that a backlog queue exists; a missing one is created again, where that is possible."""
        await self._try(lambda runner: runner.source.check(), self._runner_of(queue))

    async def _for_all(self, request: Callable[[QueueRunner], Awaitable[None]]) -> None:
        for runner in self._runners:
            await self._try(request, runner)

    async def _try(self, request: Callable[[QueueRunner], Awaitable[None]], runner: QueueRunner) -> None:
        try:
            await request(runner)
        except MessagingError as error:
            runner.note_failure(error)
            _log.info('peek failed entity=%s error="%s"', runner.path, error)

    async def rest(self) -> None:
        """Wait until no message can be delivered at the moment, or none has been for a while."""
        loop = asyncio.get_running_loop()
        done, since_s = self._done, loop.time()
        while self._is_working and loop.time() - since_s < _PATIENCE_S:
            await asyncio.sleep(_REST_S)
            if self._done != done:
                done, since_s = self._done, loop.time()
        await self._guarantees.settle()

    @property
    def _done(self) -> int:
        status = self.status
        return status.syphoned + status.dead_lettered

    @property
    def _is_working(self) -> bool:
        if self._health.is_away:
            return False
        channels = (channel for runner in self._runners for channel in runner.channels.values())
        return any(channel.is_moving for channel in channels)

    async def wait_for_primary(self, path: str) -> None:
        """Wait until the primary namespace is reachable."""
        if await self._health.doubt(path, asyncio.get_running_loop().time()):
            await self._health.wait()
