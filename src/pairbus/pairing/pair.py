"""Two namespaces that are a pair: what a factory's senders share, and what can be watched and switched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from types import NoneType
from typing import Final

from pairbus.client.chores import Chores
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.lane import Lane
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.message import BrokeredMessage
from pairbus.client.validation import check_type
from pairbus.dialect.backlog_path import TRANSFER
from pairbus.pairing.addresses import is_same_host, is_same_namespace
from pairbus.pairing.backlog import Backlog, backlog_queues_of, in_groups
from pairbus.pairing.drill import DrillReport, await_drill, drill_message, drill_queue
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.events import EntityChanged, EventStream, Listener, Listeners, PairEvent
from pairbus.pairing.homecoming.bound import key_of
from pairbus.pairing.ordered_route import OrderedRoute
from pairbus.pairing.partnership import share_fate
from pairbus.pairing.policy import EntityState, Signal
from pairbus.pairing.primary_names import PrimaryNames, await_final_names
from pairbus.pairing.report import MOST_NAME
from pairbus.pairing.reporter import PairReporter, program_name
from pairbus.pairing.route import PairedRoute
from pairbus.pairing.session_order import SessionOrder
from pairbus.pairing.settings import PairSettings
from pairbus.pairing.status import PairStatus
from pairbus.pairing.syphon import Held, Syphon, SyphonContext, SyphonEngine

_log = logging.getLogger(__name__)

_RESTART_S: Final = 30.0


class NamespacePair:
    """What ``MessagingFactory.pair_namespace`` gives: the pair, to be watched and switched.

    It ends with the primary factory.
    """

    def __init__(
        self,
        primary: MessagingFactory,
        manager: NamespaceManager,
        backlog: Backlog,
        settings: PairSettings,
        listeners: Listeners,
        names: PrimaryNames,
    ) -> None:
        self._primary = primary
        self._manager = manager
        self._backlog = backlog
        self._settings = settings
        self._listeners = listeners
        self._names = names
        self._entities: dict[str, PairedEntity] = {}
        self._is_held = False
        """Whether everything goes to the backlog, by hand."""

        self._order: SessionOrder | None = None
        if settings.preserve_session_order:
            self._order = SessionOrder(
                backlog.factory,
                backlog.paths,
                is_healthy=lambda path: not self._is_diverting(path),
                on_change=lambda path, more: self._entity(path).straggle(more),
                on_seen=self._seen,
            )
        self._syphon: Syphon | None = None
        self._chores = Chores("the name of a primary")
        self._reporter: PairReporter | None = None
        self._partnership: asyncio.Task[None] | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<NamespacePair of {self._primary.endpoint} and {self._backlog.factory.endpoint}>"

    async def start(self, engine: SyphonEngine | None) -> None:
        """Reach the backlog, and start the syphon if there is to be one."""
        await self._backlog.connect()
        if self._order is not None:
            await self._order.start()
        if engine is None:
            return
        self._listeners.add(self._resume_syphon)
        queues = await self._queues_to_drain(self._names)
        await self._start_syphon(engine, queues)
        # It outlives the pair: the factories may be closed one after the other.
        self._partnership = asyncio.get_running_loop().create_task(share_fate(self._primary, self._backlog.factory))
        if not self._names.is_final:
            self._chores.start(self._follow_name(engine, queues))

    async def _start_syphon(self, engine: SyphonEngine, queues: tuple[str, ...]) -> None:
        context = SyphonContext(
            primary=self._primary,
            secondary=self._backlog.factory,
            backlog_queues=queues,
            settings=self._settings.syphon,
            is_held=self._is_diverting,
            held=self._held,
            tell=self._listeners.tell,
        )
        self._syphon = engine(context)
        await self._syphon.start()

    async def _queues_to_drain(self, names: PrimaryNames) -> tuple[str, ...]:
        """Return our backlog queues, and those that the primary has under its other names."""
        own = self.primary_name.lower()
        others = await backlog_queues_of(self._manager, [name for name in names.names if name.lower() != own])
        if others:
            _log.info("draining backlog queues of other names primary=%s queues=%s", own, ",".join(others))
        return (*self._backlog.paths, *others)

    async def _follow_name(self, engine: SyphonEngine, drained: tuple[str, ...]) -> None:
        """Drain the queues of the primary's own name as well, once it has announced that.

        Until then nothing can be delivered, so a syphon that is started anew has nothing to lose.
        """
        names = await await_final_names(self._primary)
        while True:
            try:
                queues = await self._queues_to_drain(names)
                if set(queues) <= set(drained):
                    return
                if self._syphon is not None:
                    await self._syphon.close()
                await self._start_syphon(engine, queues)
            except MessagingError as error:
                _log.warning("syphon not restarted, retrying primary=%s error=%s", self.primary_name, error)
                await asyncio.sleep(_RESTART_S)
            else:
                return

    def _resume_syphon(self, event: PairEvent) -> None:
        if self._syphon is not None and isinstance(event, EntityChanged) and event.state is EntityState.HEALTHY:
            self._syphon.resume(event.path)

    # What senders share.

    def route(self, lane: Lane) -> PairedRoute:
        """The way for a sender whose own is this lane."""
        entity, settings = self._entity(lane.path), self._primary.settings
        if self._order is None:
            return PairedRoute(lane, entity, self._backlog, settings)
        return OrderedRoute(lane, entity, self._backlog, settings, self._order)

    def _entity(self, path: str) -> PairedEntity:
        key = key_of(path)
        entity = self._entities.get(key)
        if entity is None:
            entity = self._entities[key] = PairedEntity(
                path,
                self._primary,
                failover_interval_s=self._settings.failover_interval_s,
                ping_interval_s=self._settings.ping_interval_s,
                rules=self._settings.failure_rules,
                listeners=self._listeners,
            )
            if self._is_held:
                entity.signal(Signal.ENGAGED)
            if self._order is not None and self._order.is_looking:
                entity.straggle(+1)  # any of its sessions may have messages in the backlog
        return entity

    def _seen(self) -> None:
        for entity in self._entities.values():
            entity.straggle(-1)

    def _is_diverting(self, path: str) -> bool:
        entity = self._entities.get(key_of(path))
        return self._is_held if entity is None else entity.is_diverting

    def _held(self) -> Held:
        return Held(known={key: one.is_diverting for key, one in self._entities.items()}, others=self._is_held)

    # Watching.

    @property
    def primary_name(self) -> str:
        """What the backlog queues of this pair are named after."""
        return self._backlog.paths[0].rpartition("/")[0][: -len(TRANSFER) - 1]

    def status(self) -> PairStatus:
        """How the pair is doing, as this factory knows it."""
        return PairStatus(
            primary=str(self._primary.endpoint),
            secondary=str(self._backlog.factory.endpoint),
            entities=tuple(entity.status for entity in self._entities.values()),
            backlog_queues=self._backlog.status,
            syphon=None if self._syphon is None else self._syphon.status,
        )

    async def backlog_depth(self) -> dict[str, int]:
        """How many messages lie in each backlog queue, whoever has put them there; asks the secondary namespace."""
        infos = await in_groups(self._manager.get_queue_runtime_info, self._backlog.paths)
        return {
            path: info.active_message_count + info.scheduled_message_count
            for path, info in zip(self._backlog.paths, infos, strict=True)
        }

    async def metrics(self) -> str:
        """The status in the text format of Prometheus, with the depth of the backlog if the secondary tells it."""
        try:
            depth = await self.backlog_depth()
        except MessagingError as error:
            _log.warning("the depth of the backlog is not known: %s", error)
            depth = {}
        return self.status().metrics(depth)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Have a function called with each event, at once; gives what ends that. It must not take long."""
        return self._listeners.add(listener)

    def events(self) -> AsyncIterator[PairEvent]:
        """The events from now on, until the pair is closed; of those who are slow, the oldest are dropped."""
        return EventStream(self._listeners, self._primary.ended())

    def report(self, application: str | None = None) -> None:
        """Have both namespaces told how this pair is doing, for their consoles, until it is closed.

        ``application`` is what it is called there: the name of the program, if nothing is said. A namespace that cannot
        be told is tried again; nobody waits for that. To be told again under another name, say it again.
        """
        check_type("application", application, (str, NoneType))
        name = program_name() if application is None else application.strip()
        if not 1 <= len(name) <= MOST_NAME:
            raise ValueError(f"application has {len(name)} characters; it must have 1 to {MOST_NAME}")
        self._primary.check_open()
        if self._reporter is not None:
            self._reporter.application = name
            return
        entities = self._entities.values()
        self._reporter = PairReporter(
            name, self.primary_name, self._primary, self._backlog.factory, lambda: [one.status for one in entities]
        )
        self._listeners.add(self._reporter.note)
        self._reporter.start()

    # Switching by hand.

    def engage(self, path: str | None = None) -> None:
        """Divert the messages for an entity, or for all, until ``release``; the primary is not pinged meanwhile."""
        self._switch(path, Signal.ENGAGED)

    def release(self, path: str | None = None) -> None:
        """Send to the primary again, whatever has led to the backlog."""
        self._switch(path, Signal.RELEASED)

    def _switch(self, path: str | None, signal: Signal) -> None:
        check_type("path", path, (str, NoneType))
        self._primary.check_open()
        if path is not None:
            if signal is Signal.ENGAGED or self._is_held or key_of(path) in self._entities:
                self._entity(path.strip("/")).signal(signal)
            return
        self._is_held = signal is Signal.ENGAGED
        for entity in self._entities.values():
            entity.signal(signal)

    async def drill(
        self, primary_namespace_manager: NamespaceManager, max_wait_time: timedelta = timedelta(minutes=1)
    ) -> DrillReport:
        """Prove that the pair works: divert a marked message, have it brought home, receive it, and tell the times.

        It goes to a queue that is made for it on the primary, so that no message of the application is touched. Raises
        ``MessagingTimeoutError`` if no syphon brings it home in time.
        """
        check_type("primary_namespace_manager", primary_namespace_manager, (NamespaceManager,))
        check_type("max_wait_time", max_wait_time, (timedelta,))
        self._check_manager(primary_namespace_manager.endpoint)
        self._primary.check_open()
        path = (await primary_namespace_manager.create_queue(drill_queue())).path
        is_diverted = False
        try:
            message, diverted_in = await self._divert_marked(path)
            is_diverted = True
            delivered_in = await await_drill(self._primary, path, message, max_wait_time)
            is_diverted = False
        finally:
            await self._forget(path)
            if not is_diverted:  # else the message lies in the backlog, and needs its queue when it comes home
                await _delete(primary_namespace_manager, path)
        return DrillReport(path=path, diverted_in=diverted_in, delivered_in=delivered_in)

    def _check_manager(self, endpoint: Endpoint) -> None:
        primary, secondary = self._primary.endpoint, self._backlog.factory.endpoint
        if not is_same_host(endpoint, primary) or is_same_namespace(endpoint, secondary):
            raise ValueError(f"primary_namespace_manager is of {endpoint}, and the primary is {primary}")

    async def _divert_marked(self, path: str) -> tuple[BrokeredMessage, timedelta]:
        message, loop = drill_message(), asyncio.get_running_loop()
        self.engage(path)
        async with await self._primary.create_message_sender(path) as sender:
            began_s = loop.time()
            await sender.send(message)
            took_s = loop.time() - began_s
            self.release(path)
        return message, timedelta(seconds=took_s)

    async def _forget(self, path: str) -> None:
        entity = self._entities.pop(key_of(path), None)
        if entity is not None:
            await entity.close()

    # Its end.

    async def abort(self) -> None:
        """It does not come about: nothing is to be left of it."""
        if self._partnership is not None:
            self._partnership.cancel()
        await self.close()

    async def close(self) -> None:
        """Stop everything that runs for the pair. The secondary factory stays open."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._chores.close()
        closing = [entity.close() for entity in self._entities.values()]
        if self._reporter is not None:
            closing.append(self._reporter.close())
        if self._order is not None:
            closing.append(self._order.close())
        if self._syphon is not None:
            closing.append(self._syphon.close())
        for outcome in await asyncio.gather(*closing, self._backlog.close(), return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning("something of %r could not be closed: %s", self, outcome)
        self._backlog.factory.dismiss()


async def _delete(manager: NamespaceManager, path: str) -> None:
    """If that fails, the queue goes by itself when nobody has used it for a while."""
    try:
        await manager.delete_queue(path)
    except MessagingError as error:
        _log.warning("the queue of the drill could not be deleted: %s", error)
