"""Injects the faults of a plan, and repairs them when they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Final

from pairbus.broker import EntityNotFoundError, EntityStatus
from tests.faults.fault import Schedule, Way
from tests.faults.namespace import VirtualNamespace
from tests.faults.trouble import Trouble
from tests.simulation.journal import Journal
from tests.simulation.pair_world import NetworkPath, PairWorld
from tests.simulation.planned_fault import ENDLESS, ON_NETWORK, Kind, PlannedFault
from tests.simulation.process import Process

_RESET_S: Final = 1.7
_TROUBLES: Final = {Kind.DENY: Trouble.BUSY, Kind.LOSE: Trouble.LOST, Kind.UNCONFIRM: Trouble.UNCONFIRMED}
_STATUSES: Final = {
    Kind.DISABLE: EntityStatus.DISABLED,
    Kind.MUFFLE: EntityStatus.SEND_DISABLED,
    Kind.LOCK_UP: EntityStatus.RECEIVE_DISABLED,
}
_STALLS: Final = {Kind.HANG: Way.BOTH, Kind.DEAF: Way.UP, Kind.MUTE: Way.DOWN}


class FaultInjector:
    """Mishaps may overlap as they like; when one ends, what the others do goes on."""

    def __init__(self, world: PairWorld, journal: Journal, restart: Callable[[str], Awaitable[None]]) -> None:
        self.processes: dict[str, Process] = {}
        """Processes that run."""
        self.ending: list[asyncio.Task[None]] = []
        self.on_start: Callable[[VirtualNamespace], None] = lambda _: None
        """Told of each namespace that was started again."""
        self._world = world
        self._journal = journal
        self._restart = restart
        self._networks: list[tuple[str, str, NetworkPath]] = []
        self._active: list[PlannedFault] = []
        self._namespaces = {one.name: one for one in world.namespaces}
        self._is_down: dict[str, PlannedFault] = {}

    def add_network(self, process: str, namespace: str, network: NetworkPath) -> None:
        """From now on what happens on the way to a namespace happens there as well."""
        self._networks.append((process, namespace, network))
        for planned in self._active:
            if _concerns(planned, process, namespace):
                _disturb(network, planned)

    def remove_networks(self, networks: list[NetworkPath]) -> None:
        self._networks = [one for one in self._networks if one[2] not in networks]

    async def run(self, planned_faults: tuple[PlannedFault, ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for planned in planned_faults:
                group.create_task(self._play(planned))

    async def _play(self, planned: PlannedFault) -> None:
        loop = self._world.loop
        await asyncio.sleep(planned.at_s)
        self._journal.note(loop.time(), f"*** begins: {planned}")
        await self._begin(planned)
        if planned.kind in ENDLESS:
            return
        await asyncio.sleep(max(0.0, planned.end_s - loop.time()))
        self._journal.note(loop.time(), f"*** ends: {planned}")
        await self._end(planned)

    async def _begin(self, planned: PlannedFault) -> None:
        namespace = self._namespaces.get(planned.namespace)
        if planned.kind in ON_NETWORK:
            self._active.append(planned)
            for network in self._concerned(planned):
                _disturb(network, planned)
            if planned.kind is Kind.RESET:
                await self._reset(planned)
        elif planned.kind in {Kind.DIE, Kind.LEAVE}:
            self._lose(planned)
        elif planned.kind is Kind.ENGAGE:
            self._switch(planned, is_engaged=True)
        elif namespace is not None:
            await self._apply(namespace, planned)

    async def _end(self, planned: PlannedFault) -> None:
        namespace = self._namespaces.get(planned.namespace)
        if planned.kind in ON_NETWORK:
            self._active.remove(planned)
            self._repair_networks(planned)
        elif planned.kind in {Kind.DIE, Kind.LEAVE}:
            await self._restart(planned.process)
        elif planned.kind is Kind.ENGAGE:
            self._switch(planned, is_engaged=False)
        elif namespace is not None:
            await self._repair(namespace, planned)

    # On the networks.

    def _concerned(self, planned: PlannedFault) -> list[NetworkPath]:
        return [network for process, namespace, network in self._networks if _concerns(planned, process, namespace)]

    async def _reset(self, planned: PlannedFault) -> None:
        while self._world.loop.time() < planned.end_s:
            for network in self._concerned(planned):
                network.cut()
            await asyncio.sleep(_RESET_S)

    def _repair_networks(self, ended: PlannedFault) -> None:
        self._journal.healed_s.append(self._world.loop.time())
        for process, namespace, network in self._networks:
            if not _concerns(ended, process, namespace):
                continue
            if ended.is_lossy or ended.kind is Kind.FLAKY:  # else what has stalled would stay so
                network.cut()
            network.heal()
            for planned in self._active:
                if _concerns(planned, process, namespace):
                    _disturb(network, planned)

    # To namespaces and entities.

    async def _apply(self, namespace: VirtualNamespace, planned: PlannedFault) -> None:
        match planned.kind:
            case Kind.BUSY:
                namespace.busy_until_s = max(namespace.busy_until_s, planned.end_s)
            case Kind.KILL | Kind.STOP:
                if namespace.name not in self._is_down:
                    self._is_down[namespace.name] = planned
                    await _take_down(namespace, planned.kind)
            case Kind.LEAP:
                namespace.skew_s += planned.size
            case Kind.DISABLE | Kind.MUFFLE | Kind.LOCK_UP as kind:
                await self._is_up(namespace)
                _set_status(namespace, planned.path, _STATUSES[kind])
            case Kind.DELETE:
                await self._is_up(namespace)
                self._journal.deleted_s[planned.path] = self._world.loop.time()
                namespace.delete(planned.path)
            case kind:
                namespace.trouble_sends(planned.path, _TROUBLES[kind])

    async def _repair(self, namespace: VirtualNamespace, planned: PlannedFault) -> None:
        match planned.kind:
            case Kind.BUSY:
                pass
            case Kind.KILL | Kind.STOP:
                if self._is_down.get(namespace.name) is planned:
                    del self._is_down[namespace.name]
                    namespace.start()
                    self.on_start(namespace)
            case Kind.DISABLE | Kind.MUFFLE | Kind.LOCK_UP:
                await self._is_up(namespace)
                _set_status(namespace, planned.path, EntityStatus.ACTIVE)
            case _:
                namespace.take_sends(planned.path)

    async def _is_up(self, namespace: VirtualNamespace) -> None:
        """Wait until the namespace is up: a stopped one accepts no change."""
        while namespace.name in self._is_down:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.5)

    # To processes.

    def _lose(self, planned: PlannedFault) -> None:
        process = self.processes.pop(planned.process, None)
        if process is None:
            return
        if planned.kind is Kind.DIE:
            self.remove_networks([*process.networks.values()])
        work = process.kill() if planned.kind is Kind.DIE else process.leave()
        self.ending.append(self._world.loop.create_task(work))

    def _switch(self, planned: PlannedFault, *, is_engaged: bool) -> None:
        process = self.processes.get(planned.process)
        if process is not None and process.is_paired:
            pair = process.pair
            (pair.engage if is_engaged else pair.release)(planned.path or None)


def _concerns(planned: PlannedFault, process: str, namespace: str) -> bool:
    return planned.kind in ON_NETWORK and planned.namespace == namespace and planned.process in {"", process}


def _disturb(network: NetworkPath, planned: PlannedFault) -> None:
    match planned.kind:
        case Kind.REFUSE:
            network.refuse()
        case Kind.HIDE:
            network.cut()
            network.hide()
        case Kind.RESET:
            network.cut()
        case Kind.SLOW:
            network.slow(planned.size)
        case Kind.FLAKY:
            network.cut()
            network.misbehave(Schedule.seeded(Random(planned.size), connections=8))  # noqa: S311 (it has to be repeatable)
        case kind:
            network.stall(_STALLS[kind])


async def _take_down(namespace: VirtualNamespace, kind: Kind) -> None:
    if kind is Kind.KILL:
        namespace.kill()
    else:
        await namespace.stop()


def _set_status(namespace: VirtualNamespace, path: str, status: EntityStatus) -> None:
    with suppress(EntityNotFoundError):  # it was deleted meanwhile
        namespace.disable(path, status)
