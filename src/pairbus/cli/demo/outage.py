"""The primary of a pair is killed under an application, comes back, and gets what it has missed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.cli.demo.acts import Acts
from pairbus.cli.demo.application import PLACES, Application
from pairbus.cli.demo.namespace import Namespace
from pairbus.cli.demo.reading import EntityReading, Rate, Reading
from pairbus.cli.demo.screen import Screen
from pairbus.cli.demo.tally import Tally
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
"""What the primary holds. What a receiver had when its namespace was killed comes again soon."""

_BACKLOG_QUEUES: Final = 2
_FAILOVER: Final = timedelta(seconds=1)
_PING: Final = timedelta(seconds=1)
_CALM_S: Final = 4.0
_AFTER_S: Final = 3.0
_LAST_S: Final = 1.0
"""For what was delivered before the kill, and comes again because its completion was not confirmed."""

_PATIENCE_S: Final = 180.0
"""How long anything may take that has to come about; there may be much else to do on this machine."""

SETTLED_S: Final = 2.0
"""After so long everything that has happened is in the ledgers."""

_LOOK_S: Final = 0.25
_DEPTH_S: Final = 1.0


class DemoError(RuntimeError):
    """Something that the demo shows has not come about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a person can choose."""

    outage_s: float = 10.0
    rate: float = 200.0
    """Messages a second, over both entities."""

    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """What the application and the pair know when it is over."""

    tally: Tally
    diverted: int
    pings: int
    syphoned: int
    killed_at: datetime


class Outage:
    """Everything that happens between the application's first message and its last."""

    def __init__(
        self,
        primary: Namespace,
        secondary: Namespace,
        screen: Screen,
        acts: Acts,
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
        """Whose pings are known to have no answer."""

    async def live_through(self) -> Aftermath:
        """The acts with the pair in them. Raises ``DemoError`` if one does not come to its end."""
        async with (
            MessagingFactory.from_connection_string(self._secondary.connection_string) as backup,
            MessagingFactory.from_connection_string(self._primary.connection_string) as receiving,
            MessagingFactory.from_connection_string(self._primary.connection_string) as sending,
            NamespaceManager.from_connection_string(self._secondary.connection_string) as manager,
        ):
            pair = await self._pair(sending, backup, manager)
            async with self._working(Application(sending, receiving, self._plan.rate), pair) as application:
                with self._acts.act("All is well"):
                    await self._be_well(application, pair)
                with self._acts.act("The primary is killed"):
                    await self._do_without(application, pair)
                with self._acts.act("The primary is back"):
                    await self._come_back(application, pair)
                with self._acts.act("The backlog comes home"):
                    await self._bring_home(application, pair)
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
        pair.subscribe(self._tell)
        pair.report("pairbus demo")
        names = f"{self._primary.name} is paired with {self._secondary.name}"
        self._screen.tell(f"{names}, which has {options.backlog_queue_count} backlog queues for it.")
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

    # The acts.

    async def _be_well(self, application: Application, pair: NamespacePair) -> None:
        """Send for a while; meanwhile a drill shows that the pair works, and has Spark warm up."""
        entities = " and ".join(f"'{entity}'" for entity in PLACES)
        self._screen.tell(f"An application sends {self._plan.rate:,.0f} messages a second to {entities}.")
        self._screen.tell("A drill is under way: a marked message goes to the backlog, and comes home by the syphon.")
        connection = self._primary.connection_string
        async with NamespaceManager.from_connection_string(connection) as manager:
            drill = asyncio.create_task(pair.drill(manager, timedelta(seconds=_PATIENCE_S)))
            try:
                await self._wait(application, _CALM_S)
                await self._until(application, drill.done, "that the message of the drill comes home")
                took_s = drill.result().delivered_in.total_seconds()
            finally:
                drill.cancel()
        self._screen.tell(f"The message of the drill came home in {took_s:.1f} s.")
        await self._wait(application, SETTLED_S)

    async def _do_without(self, application: Application, pair: NamespacePair) -> None:
        process = self._primary.process_id
        self._killed_at = datetime.now(UTC)
        began_s = time.monotonic()
        self._screen.tell(f"{self._primary.name} is killed (kill -9 {process}); the application goes on sending.")
        await asyncio.to_thread(self._primary.kill)
        await self._until(application, lambda: _are(pair, EntityState.FAILED_OVER), "a failover")
        await self._until(application, lambda: all(one.diverted for one in pair.status().entities), "a diversion")
        await self._wait(application, self._plan.outage_s - (time.monotonic() - began_s))

    async def _come_back(self, application: Application, pair: NamespacePair) -> None:
        await asyncio.to_thread(self._primary.start)
        self._screen.tell(f"{self._primary.name} is served again, from what is on its disk.")
        await self._until(application, lambda: _are(pair, EntityState.HEALTHY), "the switch back")

    async def _bring_home(self, application: Application, pair: NamespacePair) -> None:
        """New messages go to the primary, while those of the outage are on their way."""
        await self._wait(application, _AFTER_S)
        await application.stop_sending()
        tally = application.tally
        self._screen.tell(f"The application has sent {tally.sent:,} messages, and sends no more.")
        diverted = pair.status().diverted
        await self._until(
            application,
            lambda: tally.lost == 0 and self._backlog == 0,
            "that everything comes home",
            lambda: (_syphoned(pair), diverted),
        )
        await self._wait(application, _LAST_S)
        await application.stop_receiving()
        self._screen.show(self._reading(tally, pair, Rate(), Rate(), Rate()))

    def _aftermath(self, tally: Tally, pair: NamespacePair) -> Aftermath:
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
        is_so: Callable[[], bool],
        what: str,
        progress: Callable[[], tuple[float, float]] | None = None,
    ) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                while not is_so():
                    application.check()
                    if progress is not None:
                        self._screen.advance(*progress())
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise DemoError(f"waited {_PATIENCE_S:.0f} s in vain for {what}") from None

    # Watching.

    async def _watch(self, tally: Tally, pair: NamespacePair) -> None:
        rates = Rate(), Rate(), Rate()
        asked_s = 0.0
        while True:
            if time.monotonic() - asked_s >= _DEPTH_S:
                asked_s = time.monotonic()
                with suppress(MessagingError):  # it is asked again
                    self._backlog = sum((await pair.backlog_depth()).values())
            self._screen.show(self._reading(tally, pair, *rates))
            await asyncio.sleep(_LOOK_S)

    def _reading(self, tally: Tally, pair: NamespacePair, sent: Rate, received: Rate, syphoned: Rate) -> Reading:
        now_s, status = time.monotonic() - self._began_s, pair.status()
        brought_home = _syphoned(pair)
        return Reading(
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
            syphoned=brought_home,
            syphon_rate=syphoned.per_second(now_s, brought_home),
        )

    def _tell(self, event: PairEvent) -> None:
        match event:
            case EntityChanged(path=path) if path in PLACES:
                self._screen.tell(self._change(event))
            case PingSent(path=path, cause=None):
                self._screen.tell(f"A ping to '{path}' was answered.")
            case PingSent(path=path) if path not in self._unanswered:
                self._unanswered.add(path)
                self._screen.tell(f"'{path}' is pinged every second; no answer so far.")
            case MessageDeadLettered(message_id=message_id, description=description):
                self._screen.tell(f"The syphon has dead-lettered {message_id}: {description}")

    def _change(self, event: EntityChanged) -> str:
        match event.state:
            case EntityState.FAILING:
                return f"A send to '{event.path}' has failed; it has {_FAILOVER.total_seconds():g} s to recover."
            case EntityState.HEALTHY:
                return f"'{event.path}' is healthy: its messages go to {self._primary.name} again."
            case _:
                return (
                    f"'{event.path}' is {event.state.value}: its messages go to the backlog in {self._secondary.name}."
                )


def _are(pair: NamespacePair, state: EntityState) -> bool:
    """Whether all entities of the application are in a state."""
    return all(one.state is state for one in pair.status().entities if one.path in PLACES)


def _syphoned(pair: NamespacePair) -> int:
    syphon = pair.status().syphon
    return 0 if syphon is None else syphon.syphoned
