"""The outage of the demo: the primary is killed while an application sends, restarts, and receives the backlog."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.cli.demo.application import PLACES, Application, MessageLog
from pairbus.cli.demo.namespace import DemoNamespace
from pairbus.cli.demo.screen import DemoReading, DemoTimeline, EntityReading, RateMeter, Screen
from pairbus.client import MessagingError, MessagingFactory, NamespaceManager
from pairbus.pairing import (
    EntityChanged,
    EntityState,
    MessageDeadLettered,
    NamespacePair,
    PairEvent,
    PingSent,
    SendAvailabilityPairedNamespaceOptions,
    SyphonEngine,
)

ENTITIES: Final = """
[[queues]]
name = "orders"
requires_duplicate_detection = true
lock_duration = "5s"

[[topics]]
name = "events"
requires_duplicate_detection = true

[[topics.subscriptions]]
name = "audit"
lock_duration = "5s"

[[topics.subscriptions]]
name = "billing"
lock_duration = "5s"
"""
"""The entities of the primary. Short locks: messages that were locked at the kill are soon delivered again."""

_BACKLOG_QUEUES: Final = 2
_FAILOVER: Final = timedelta(seconds=1)
_PING: Final = timedelta(seconds=1)
_CALM_S: Final = 4.0
_AFTER_S: Final = 3.0
_LAST_S: Final = 1.0
"""Time for messages whose completion was not confirmed before the kill to be delivered again."""

_PATIENCE_S: Final = 180.0
"""The timeout of each expected event; generous, because the machine may be busy."""

SETTLED_S: Final = 2.0
"""The time after which every operation is in the ledgers."""

_LOOK_S: Final = 0.25
_DEPTH_S: Final = 1.0


class DemoError(RuntimeError):
    """An expected event of the demo did not happen in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The options of the demo."""

    outage_s: float = 10.0
    rate: float = 200.0
    """Messages a second, over both entities."""

    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """The counts of the application and of the pair after the outage."""

    tally: MessageLog
    diverted: int
    pings: int
    syphoned: int
    killed_at: datetime


class Outage:
    """The steps of the demo between the first and the last message of the application."""

    def __init__(
        self,
        primary: DemoNamespace,
        secondary: DemoNamespace,
        screen: Screen,
        acts: DemoTimeline,
        plan: Plan,
        engine: str | SyphonEngine,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._screen = screen
        self._acts = acts
        self._plan = plan
        self._engine = engine
        self._began_s = time.monotonic()
        self._backlog = 0
        self._killed_at = datetime.now(UTC)
        self._unanswered: set[str] = set()
        """Entities for which an unanswered ping was reported."""

    async def run(self) -> Aftermath:
        """Run the steps that use the pair, and return the counts. Raise ``DemoError`` if a step times out."""
        async with (
            MessagingFactory.from_connection_string(self._secondary.connection_string) as backup,
            MessagingFactory.from_connection_string(self._primary.connection_string) as receiving,
            MessagingFactory.from_connection_string(self._primary.connection_string) as sending,
            NamespaceManager.from_connection_string(self._secondary.connection_string) as manager,
        ):
            pair = await self._pair(sending, backup, manager)
            async with self._working(Application(sending, receiving, self._plan.rate), pair) as application:
                with self._acts.act("Run with a healthy primary"):
                    await self._run_healthy(application, pair)
                with self._acts.act("Kill the primary"):
                    await self._kill_primary(application, pair)
                with self._acts.act("Restart the primary"):
                    await self._restart_primary(application, pair)
                with self._acts.act("Deliver the backlog"):
                    await self._deliver_backlog(application, pair)
                return self._aftermath(application.tally, pair)

    async def _pair(
        self, sending: MessagingFactory, backup: MessagingFactory, manager: NamespaceManager
    ) -> NamespacePair:
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            backup,
            _BACKLOG_QUEUES,
            _FAILOVER,
            enable_syphon=True,
            ping_interval=_PING,
            primary_name=self._primary.name,
            syphon_engine=self._engine,
        )
        pair = await sending.pair_namespace(options)
        pair.subscribe(self._report_event)
        pair.report("pairbus demo")
        names = f"{self._primary.name} is paired with {self._secondary.name}"
        self._screen.report(f"{names}, which has {options.backlog_queue_count} backlog queues.")
        return pair

    @asynccontextmanager
    async def _working(self, application: Application, pair: NamespacePair) -> AsyncIterator[Application]:
        application.start()
        watching = asyncio.create_task(self._watch(application.tally, pair))
        try:
            yield application
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await application.close()

    # Steps.

    async def _run_healthy(self, application: Application, pair: NamespacePair) -> None:
        """Send for a while; a drill meanwhile verifies the pair and warms up Spark."""
        entities = " and ".join(f"'{entity}'" for entity in PLACES)
        self._screen.report(f"An application sends {self._plan.rate:,.0f} messages a second to {entities}.")
        self._screen.report("Drill started: a marked message goes to the backlog, and the syphon delivers it.")
        connection = self._primary.connection_string
        async with NamespaceManager.from_connection_string(connection) as manager:
            drill = asyncio.create_task(pair.drill(manager, timedelta(seconds=_PATIENCE_S)))
            try:
                await self._wait(application, _CALM_S)
                await self._until(application, drill.done, "the delivery of the drill message")
                took_s = drill.result().delivered_in.total_seconds()
            finally:
                drill.cancel()
        self._screen.report(f"The syphon delivered the drill message in {took_s:.1f} s.")
        await self._wait(application, SETTLED_S)

    async def _kill_primary(self, application: Application, pair: NamespacePair) -> None:
        process = self._primary.process_id
        self._killed_at = datetime.now(UTC)
        began_s = time.monotonic()
        self._screen.report(f"{self._primary.name} is killed (kill -9 {process}); the application keeps sending.")
        await asyncio.to_thread(self._primary.kill)
        await self._until(application, lambda: _are(pair, EntityState.FAILED_OVER), "a failover")
        await self._until(application, lambda: all(one.diverted for one in pair.status().entities), "a diversion")
        await self._wait(application, self._plan.outage_s - (time.monotonic() - began_s))

    async def _restart_primary(self, application: Application, pair: NamespacePair) -> None:
        await asyncio.to_thread(self._primary.start)
        self._screen.report(f"{self._primary.name} is running again, from its data directory.")
        await self._until(application, lambda: _are(pair, EntityState.HEALTHY), "the return to the primary")

    async def _deliver_backlog(self, application: Application, pair: NamespacePair) -> None:
        """Send to the primary while the syphon delivers the backlog; then stop, and wait until all is received."""
        await self._wait(application, _AFTER_S)
        await application.stop_sending()
        tally = application.tally
        self._screen.report(f"The application stopped after sending {tally.sent:,} messages.")
        diverted = pair.status().diverted
        await self._until(
            application,
            lambda: tally.lost == 0 and self._backlog == 0,
            "the delivery of the backlog",
            lambda: (_syphoned(pair), diverted),
        )
        await self._wait(application, _LAST_S)
        await application.stop_receiving()
        self._screen.show(self._reading(tally, pair, RateMeter(), RateMeter(), RateMeter()))

    def _aftermath(self, tally: MessageLog, pair: NamespacePair) -> Aftermath:
        status = pair.status()
        return Aftermath(
            tally=tally,
            diverted=status.diverted,
            pings=status.pings,
            syphoned=_syphoned(pair),
            killed_at=self._killed_at,
        )

    # Waiting.

    async def _wait(self, application: Application, seconds: float) -> None:
        began_s = time.monotonic()
        while (passed_s := time.monotonic() - began_s) < seconds:
            application.check()
            self._screen.advance(passed_s, seconds)
            await asyncio.sleep(min(_LOOK_S, seconds - passed_s))

    async def _until(
        self,
        application: Application,
        condition: Callable[[], bool],
        what: str,
        progress: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not condition():
                    application.check()
                    if progress is not None:
                        self._screen.advance(*progress())
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise DemoError(f"timeout after {_PATIENCE_S:.0f} s waiting for {what}") from None

    # Watching.

    async def _watch(self, tally: MessageLog, pair: NamespacePair) -> None:
        rates = RateMeter(), RateMeter(), RateMeter()
        asked_s = 0.0
        while True:
            if time.monotonic() - asked_s >= _DEPTH_S:
                asked_s = time.monotonic()
                with suppress(MessagingError):  # the next poll asks again
                    self._backlog = sum((await pair.backlog_depth()).values())
            self._screen.show(self._reading(tally, pair, *rates))
            await asyncio.sleep(_LOOK_S)

    def _reading(
        self, tally: MessageLog, pair: NamespacePair, sent: RateMeter, received: RateMeter, syphoned: RateMeter
    ) -> DemoReading:
        now_s, status = time.monotonic() - self._began_s, pair.status()
        delivered = _syphoned(pair)
        return DemoReading(
            elapsed_s=now_s,
            entities=tuple(
                EntityReading(path=one.path, state=one.state, diverted=one.diverted, pings=one.pings)
                for one in status.entities
                if one.path in PLACES
            ),
            sent=tally.sent,
            sent_rate=sent.per_second(now_s, tally.sent),
            received=tally.received,
            received_rate=received.per_second(now_s, tally.received),
            backlog=self._backlog,
            syphoned=delivered,
            syphon_rate=syphoned.per_second(now_s, delivered),
        )

    def _report_event(self, event: PairEvent) -> None:
        match event:
            case EntityChanged(path=path) if path in PLACES:
                self._screen.report(self._change(event))
            case PingSent(path=path, cause=None):
                self._screen.report(f"A ping to '{path}' was answered.")
            case PingSent(path=path) if path not in self._unanswered:
                self._unanswered.add(path)
                self._screen.report(f"'{path}' is pinged every second; no answer so far.")
            case MessageDeadLettered(message_id=message_id, description=description):
                self._screen.report(f"The syphon dead-lettered {message_id}: {description}")

    def _change(self, event: EntityChanged) -> str:
        match event.state:
            case EntityState.FAILING:
                limit_s = _FAILOVER.total_seconds()
                return f"A send to '{event.path}' failed; it fails over after {limit_s:g} s without a success."
            case EntityState.HEALTHY:
                return f"'{event.path}' is healthy: its messages go to {self._primary.name} again."
            case _:
                return (
                    f"'{event.path}' is {event.state.value}: its messages go to the backlog in {self._secondary.name}."
                )


def _are(pair: NamespacePair, state: EntityState) -> bool:
    """Return whether all entities of the application are in a state."""
    return all(one.state is state for one in pair.status().entities if one.path in PLACES)


def _syphoned(pair: NamespacePair) -> int:
    syphon = pair.status().syphon
    return 0 if syphon is None else syphon.syphoned
