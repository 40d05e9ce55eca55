"""A process of the application: a pair of factories with ways of their own to the namespaces."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

from pairbus.client.factory import MessagingFactory
from pairbus.pairing import NamespacePair, PairEvent, SendAvailabilityPairedNamespaceOptions, SyphonSettings
from pairbus.pairing.status import PairStatus
from tests.simulation.pair_world import PRIMARY, SECONDARY, NetworkPath, PairWorld
from tests.simulation.plan import ProcessPlan

_PATIENCE_S: Final = 5.0
_CLOSE_S: Final = 30.0


class Process:
    """Runs until it is killed: then nothing that it does has an effect, and no error is reported."""

    def __init__(self, world: PairWorld, plan: ProcessPlan, name: str, networks: dict[str, NetworkPath]) -> None:
        self.plan = plan
        self.name = name
        self.networks = networks
        self.is_dead = False
        self.events: list[tuple[float, PairEvent]] = []
        self.died_s: float | None = None
        self.tasks: set[asyncio.Task[Any]] = set()
        """The tasks of the application."""
        self._world = world
        self._factories: list[MessagingFactory] = []
        self._pair: NamespacePair | None = None
        self._last: PairStatus | None = None

    @classmethod
    async def create(cls, world: PairWorld, plan: ProcessPlan, name: str = "") -> Process:
        name = name or plan.name
        networks = {
            namespace.name: await world.another_network(namespace, f"{name}.example")
            for namespace in (world.primary, world.secondary)
        }
        return cls(world, plan, name, networks)

    @property
    def pair(self) -> NamespacePair:
        assert self._pair is not None
        return self._pair

    @property
    def is_paired(self) -> bool:
        return self._pair is not None

    @property
    def primary(self) -> MessagingFactory:
        return self._factories[0]

    @property
    def status(self) -> PairStatus | None:
        if self._last is None and self._pair is not None:
            return self._pair.status()
        return self._last

    async def start(self, *, keeps_order: bool = False) -> None:
        """Pair the namespaces; raises what that raises."""
        plan, world = self.plan, self._world
        settings = {"operation_timeout": _seconds(plan.operation_s)}
        primary, secondary = (
            world.factory_at(self.networks[name].endpoint, **settings) for name in (PRIMARY, SECONDARY)
        )
        self._factories += [primary, secondary]
        options = SendAvailabilityPairedNamespaceOptions(
            world.manager_at(self.networks[SECONDARY].endpoint, **settings),
            secondary,
            plan.queue_count,
            _seconds(plan.failover_s),
            plan.enable_syphon,
            ping_interval=_seconds(plan.ping_s),
            attempt_timeout=_seconds(plan.attempt_s),
            preserve_session_order=keeps_order,
            syphon=SyphonSettings(long_poll=_seconds(plan.long_poll_s), max_messages=plan.max_messages),
        )
        try:
            self._pair = await primary.pair_namespace(options)
        except BaseException:
            self._factories.clear()
            if not self.is_dead:
                await primary.close()
                await secondary.close()
            raise
        self._pair.subscribe(self._note)

    def _note(self, event: PairEvent) -> None:
        if not self.is_dead:
            self.events.append((self._world.loop.time(), event))

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Do something that ends with the process."""
        task = self._world.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def kill(self) -> None:
        """End it; what is left of it cannot do anything, and is tidied up."""
        if self._pair is not None:
            self._last = self._pair.status()
        self.is_dead = True
        self.died_s = self._world.loop.time()
        for network in self.networks.values():
            network.block()
        for task in self.tasks:
            task.cancel()
        await asyncio.sleep(_PATIENCE_S)
        await self.close()

    async def leave(self) -> None:
        """End it as an application does that closes what it has opened, whatever is on its way."""
        await self.close()
        for task in self.tasks:
            task.cancel()
        self.is_dead = True
        self.died_s = self._world.loop.time()

    async def close(self) -> None:
        """Close what it has opened, which does not take long whatever the namespaces do."""
        closing = [self._world.timed("close", factory.close(), _CLOSE_S) for factory in self._factories]
        await asyncio.gather(*closing)


def _seconds(value: float) -> timedelta:
    return timedelta(seconds=value)
