"""A pair of namespaces: the state that the senders of a factory share, its status, and manual switches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from types import NoneType
from typing import Final

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_link import EntityLink
from pairbus.client.errors import EntityNotFoundError, MessagingError
from pairbus.client.factory import FactoryState, MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.message import BrokeredMessage
from pairbus.client.validation import check_type
from pairbus.dialect.paths import TRANSFER
from pairbus.pairing.backlog import Backlog, backlog_queues_of, in_groups
from pairbus.pairing.drill import (
    DrillOutage,
    DrillReport,
    await_drill,
    check_diverted,
    drill_message,
    drill_queue,
)
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.events import EntityChanged, EventStream, Listener, Listeners, PairEvent
from pairbus.pairing.policy import EntityState, FailureRules, Signal
from pairbus.pairing.primary_names import PrimaryNames, await_final_names, is_same_host, is_same_namespace
from pairbus.pairing.report import MOST_NAME
from pairbus.pairing.reporter import PairReporter, program_name
from pairbus.pairing.route import OrderedRoute, PairedRoute
from pairbus.pairing.session_order import SessionOrder
from pairbus.pairing.status import PairStatus
from pairbus.pairing.syphon import Held, Syphon, SyphonContext, SyphonEngine, SyphonSettings
from pairbus.pairing.syphon.interface import destination_key

LEAST_PING_INTERVAL: Final = timedelta(seconds=1)
MOST_PING_INTERVAL: Final = timedelta(minutes=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """The validated options of a pair."""

    failover_interval_s: float
    ping_interval_s: float
    failure_rules: FailureRules
    preserve_session_order: bool
    syphon: SyphonSettings


_log = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
"""The time for which one factory may be closed before the other one is faulted."""


async def end_together(first: MessagingFactory, second: MessagingFactory) -> None:
    """Wait until one factory has ended; fault the other one if it does not end within ``PATIENCE_S``."""
    ends = (first.ended(), second.ended())
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await asyncio.wait(ends, timeout=PATIENCE_S)
    for factory, partner in ((first, second), (second, first)):
        if factory.state is FactoryState.OPEN:
            _log.warning(
                "factory faulted endpoint=%s partner=%s partner_state=%s", factory, partner, partner.state.value
            )
            factory.fault(
                MessagingError(
                    f"the other namespace of its pair, {partner.endpoint}, was {partner.state.value} "
                    f"more than {PATIENCE_S:g} s before"
                )
            )


_RESTART_S: Final = 30.0


class NamespacePair:
    """A primary and a secondary namespace, as ``MessagingFactory.pair_namespace`` returns them.

    Shows the status of the pair and switches it manually. It is closed with the primary factory.
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
        """True while all messages are diverted manually."""

        self._order: SessionOrder | None = None
        if settings.preserve_session_order:
            self._order = SessionOrder(
                backlog.factory,
                backlog.paths,
                is_healthy=lambda path: not self._is_diverting(path),
                on_change=lambda path, more: self._entity(path).add_backlogged_sessions(more),
                on_scanned=self._backlog_scanned,
                on_missing=backlog.missing,
            )
        self._syphon: Syphon | None = None
        self._tasks = BackgroundTasks("the name of a primary", expected=MessagingError)
        self._reporter: PairReporter | None = None
        self._partnership = BackgroundTasks("partnership of two factories")
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<NamespacePair of {self._primary.endpoint} and {self._backlog.factory.endpoint}>"

    async def start(self, engine: SyphonEngine | None) -> None:
        """Connect to the backlog; start the syphon if there is an engine."""
        await self._backlog.connect()
        if self._order is not None:
            await self._order.start()
        if engine is None:
            return
        self._listeners.add(self._resume_syphon)
        queues = await self._queues_to_drain(self._names)
        await self._start_syphon(engine, queues)
        # The task outlives the pair, because the factories may be closed one after the other.
        self._partnership.start(end_together(self._primary, self._backlog.factory))
        if not self._names.is_final:
            self._tasks.start(self._follow_name(engine, queues))

    async def _start_syphon(self, engine: SyphonEngine, queues: tuple[str, ...]) -> None:
        context = SyphonContext(
            primary=self._primary,
            secondary=self._backlog.factory,
            backlog_queues=queues,
            settings=self._settings.syphon,
            is_held=self._is_diverting,
            held=self._held,
            publish=self._listeners.publish,
            missing=self._backlog.missing,
        )
        self._syphon = engine(context)
        await self._syphon.start()

    async def _queues_to_drain(self, names: PrimaryNames) -> tuple[str, ...]:
        """Return the backlog queues of this pair, and those of other names of the primary."""
        own = self.primary_name.lower()
        others = await backlog_queues_of(self._manager, [name for name in names.names if name.lower() != own])
        if others:
            _log.info("draining backlog queues of other names primary=%s queues=%s", own, ",".join(others))
        return (*self._backlog.paths, *others)

    async def _follow_name(self, engine: SyphonEngine, drained: tuple[str, ...]) -> None:
        """Drain the queues of the name that the primary announces as well, once it has done so.

        Nothing can be delivered before that, so restarting the syphon interrupts nothing.
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
                _log.warning('syphon not restarted, retrying primary=%s error="%s"', self.primary_name, error)
                await asyncio.sleep(_RESTART_S)
            else:
                return

    def _resume_syphon(self, event: PairEvent) -> None:
        if self._syphon is not None and isinstance(event, EntityChanged) and event.state is EntityState.HEALTHY:
            self._syphon.resume(event.path)

    # For senders.

    def route(self, entity_link: EntityLink) -> PairedRoute:
        """Return the route for the sender that sends to the primary over ``entity_link``."""
        entity, settings = self._entity(entity_link.path), self._primary.settings
        if self._order is None:
            return PairedRoute(entity_link, entity, self._backlog, settings)
        return OrderedRoute(entity_link, entity, self._backlog, settings, self._order)

    def _entity(self, path: str) -> PairedEntity:
        key = destination_key(path)
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
            if self._order is not None and self._order.is_scanning:
                entity.add_backlogged_sessions(+1)  # any of its sessions may have messages in the backlog
        return entity

    def _backlog_scanned(self) -> None:
        for entity in self._entities.values():
            entity.add_backlogged_sessions(-1)

    def _is_diverting(self, path: str) -> bool:
        entity = self._entities.get(destination_key(path))
        return self._is_held if entity is None else entity.is_diverting

    def _held(self) -> Held:
        return Held(known={key: one.is_diverting for key, one in self._entities.items()}, others=self._is_held)

    # Status.

    @property
    def primary_name(self) -> str:
        """The name of the primary in the paths of the backlog queues."""
        return self._backlog.paths[0].rpartition("/")[0][: -len(TRANSFER) - 1]

    def status(self) -> PairStatus:
        """Return the status of the pair, as this factory knows it."""
        return PairStatus(
            primary=str(self._primary.endpoint),
            secondary=str(self._backlog.factory.endpoint),
            entities=tuple(entity.status for entity in self._entities.values()),
            backlog_queues=self._backlog.status,
            syphon=None if self._syphon is None else self._syphon.status,
        )

    async def backlog_depth(self) -> dict[str, int]:
        """Request from the secondary how many messages are in each backlog queue; return the numbers by path.

        They include the messages of other senders. Raise ``MessagingError``.
        """
        depths = await in_groups(self._ask_depth, self._backlog.paths)
        return dict(zip(self._backlog.paths, depths, strict=True))

    async def _ask_depth(self, path: str) -> int:
        try:
            info = await self._manager.get_queue_runtime_info(path)
        except EntityNotFoundError as error:
            self._backlog.missing(path, error)
            raise
        return info.active_message_count + info.scheduled_message_count

    async def metrics(self) -> str:
        """Return the status in the text format of Prometheus, with the depth of the backlog if it can be read."""
        try:
            depth = await self.backlog_depth()
        except MessagingError as error:
            _log.warning('depth of the backlog unknown endpoint=%s error="%s"', self._backlog.factory.endpoint, error)
            depth = {}
        return self.status().metrics(depth)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` synchronously with each event; return the function that removes it. It must not block."""
        return self._listeners.add(listener)

    def events(self) -> AsyncIterator[PairEvent]:
        """Iterate over the events from now on, until the pair is closed. For a slow reader the oldest are dropped."""
        return EventStream(self._listeners, self._primary.ended())

    def report(self, application: str | None = None) -> None:
        """Report the status of this pair to the consoles of both namespaces, until the pair is closed.

        ``application`` is the name that the consoles show; by default the name of the program. Reports are sent in the
        background, and retried. Call this again to change the name.
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

    # Manual switches.

    def engage(self, path: str | None = None) -> None:
        """Divert the messages for an entity, or for all entities, until ``release``; the primary is not pinged."""
        self._switch(path, Signal.ENGAGED)

    def release(self, path: str | None = None) -> None:
        """Send to the primary again, after ``engage`` or after a failover."""
        self._switch(path, Signal.RELEASED)

    def _switch(self, path: str | None, signal: Signal) -> None:
        check_type("path", path, (str, NoneType))
        self._primary.check_open()
        if path is not None:
            if signal is Signal.ENGAGED or self._is_held or destination_key(path) in self._entities:
                self._entity(path.strip("/")).signal(signal)
            return
        self._is_held = signal is Signal.ENGAGED
        for entity in self._entities.values():
            entity.signal(signal)

    async def drill(
        self, primary_namespace_manager: NamespaceManager, max_wait_time: timedelta = timedelta(minutes=1)
    ) -> DrillReport:
        """Test the pair: divert a marked message, receive it from the primary, and return the times.

        The message goes to a temporary queue on the primary, so that no message of the application is touched. Raise
        ``MessagingTimeoutError`` if no syphon delivers it in time.
        """
        return await self._drill(primary_namespace_manager, max_wait_time, self._divert_marked)

    async def drill_outage(
        self,
        primary_namespace_manager: NamespaceManager,
        outage: DrillOutage,
        max_wait_time: timedelta = timedelta(minutes=1),
    ) -> DrillReport:
        """Test the pair in an outage: send a marked message during it, receive it afterwards, and return the times.

        ``outage`` is called with the path of a temporary queue on the primary. It returns a context manager, which
        makes sends to that queue fail while it is open. The pair fails over by itself, so its failover interval must be
        shorter than the operation timeout of the factory. Raise ``InternalServerError`` if the message was not
        diverted, and ``MessagingTimeoutError`` if no syphon delivers it in time.
        """
        return await self._drill(primary_namespace_manager, max_wait_time, partial(self._divert_in_outage, outage))

    async def _drill(
        self,
        primary_namespace_manager: NamespaceManager,
        max_wait_time: timedelta,
        divert: Callable[[str], Awaitable[tuple[BrokeredMessage, timedelta]]],
    ) -> DrillReport:
        check_type("primary_namespace_manager", primary_namespace_manager, (NamespaceManager,))
        check_type("max_wait_time", max_wait_time, (timedelta,))
        self._check_manager(primary_namespace_manager.endpoint)
        self._primary.check_open()
        path = (await primary_namespace_manager.create_queue(drill_queue())).path
        is_delivered = False
        try:
            message, diverted_in = await divert(path)
            delivered_in = await await_drill(self._primary, path, message, max_wait_time)
            is_delivered = True
        finally:
            diverted = await self._forget(path)
            if is_delivered or not diverted:  # else the message is in the backlog: its queue is needed for the delivery
                await _delete(primary_namespace_manager, path)
        return DrillReport(path=path, diverted_in=diverted_in, delivered_in=delivered_in)

    def _check_manager(self, endpoint: Endpoint) -> None:
        primary, secondary = self._primary.endpoint, self._backlog.factory.endpoint
        if not is_same_host(endpoint, primary) or is_same_namespace(endpoint, secondary):
            raise ValueError(f"primary_namespace_manager must be of the primary, {primary}, got {endpoint}")

    async def _divert_marked(self, path: str) -> tuple[BrokeredMessage, timedelta]:
        message, loop = drill_message(), asyncio.get_running_loop()
        self.engage(path)
        async with await self._primary.create_message_sender(path) as sender:
            began_s = loop.time()
            await sender.send(message)
            took_s = loop.time() - began_s
            self.release(path)
        return message, timedelta(seconds=took_s)

    async def _divert_in_outage(self, outage: DrillOutage, path: str) -> tuple[BrokeredMessage, timedelta]:
        message, loop = drill_message(), asyncio.get_running_loop()
        async with await self._primary.create_message_sender(path) as sender:
            async with outage(path):
                began_s = loop.time()
                await sender.send(message)
                took_s = loop.time() - began_s
            check_diverted(path, self._entity(path).diverted)
        return message, timedelta(seconds=took_s)

    async def _forget(self, path: str) -> int:
        """Forget an entity, and return how many of its messages were diverted."""
        entity = self._entities.pop(destination_key(path), None)
        if entity is None:
            return 0
        await entity.close()
        return entity.diverted

    # Close.

    async def abort(self) -> None:
        """Close a pair that could not be started; its factories are independent again."""
        await self._partnership.close()
        await self.close()

    async def close(self) -> None:
        """Stop everything that runs for the pair. The secondary factory stays open."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._tasks.close()
        closing = [entity.close() for entity in self._entities.values()]
        if self._reporter is not None:
            closing.append(self._reporter.close())
        if self._order is not None:
            closing.append(self._order.close())
        if self._syphon is not None:
            closing.append(self._syphon.close())
        for outcome in await asyncio.gather(*closing, self._backlog.close(), return_exceptions=True):
            if isinstance(outcome, Exception):
                _log.warning('close failed primary=%s error="%s"', self._primary.endpoint, outcome)
        self._backlog.factory.dismiss()


async def _delete(manager: NamespaceManager, path: str) -> None:
    """Delete the queue of a drill. If that fails, the namespace deletes the queue when it is idle."""
    try:
        await manager.delete_queue(path)
    except MessagingError as error:
        _log.warning('drill queue not deleted endpoint=%s entity=%s error="%s"', manager.endpoint, path, error)
