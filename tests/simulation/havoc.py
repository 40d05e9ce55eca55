"""Lets everything go wrong that a plan wants to go wrong, and mends it again."""

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
from tests.simulation.mishap import ENDLESS, ON_ROADS, Kind, Mishap
from tests.simulation.pair_world import PairWorld, Road
from tests.simulation.process import Process

_RESET_S: Final = 1.7
_TROUBLES: Final = {Kind.DENY: Trouble.BUSY, Kind.LOSE: Trouble.LOST, Kind.UNCONFIRM: Trouble.UNCONFIRMED}
_STATUSES: Final = {
    Kind.DISABLE: EntityStatus.DISABLED,
    Kind.MUFFLE: EntityStatus.SEND_DISABLED,
    Kind.LOCK_UP: EntityStatus.RECEIVE_DISABLED,
}
_STALLS: Final = {Kind.HANG: Way.BOTH, Kind.DEAF: Way.UP, Kind.MUTE: Way.DOWN}


class Havoc:
    """Mishaps may overlap as they like; when one ends, what the others do goes on."""

    def __init__(self, world: PairWorld, journal: Journal, restart: Callable[[str], Awaitable[None]]) -> None:
        self.processes: dict[str, Process] = {}
        """Those that live."""
        self.ending: list[asyncio.Task[None]] = []
        self.on_start: Callable[[VirtualNamespace], None] = lambda _: None
        """Told of each namespace that was started again."""
        self._world = world
        self._journal = journal
        self._restart = restart
        self._roads: list[tuple[str, str, Road]] = []
        self._active: list[Mishap] = []
        self._namespaces = {one.name: one for one in world.namespaces}
        self._is_down: dict[str, Mishap] = {}

    def add_road(self, process: str, namespace: str, road: Road) -> None:
        """From now on what happens on the way to a namespace happens there as well."""
        self._roads.append((process, namespace, road))
        for mishap in self._active:
            if _concerns(mishap, process, namespace):
                _spoil(road, mishap)

    def remove_roads(self, roads: list[Road]) -> None:
        self._roads = [one for one in self._roads if one[2] not in roads]

    async def run(self, mishaps: tuple[Mishap, ...]) -> None:
        async with asyncio.TaskGroup() as group:
            for mishap in mishaps:
                group.create_task(self._play(mishap))

    async def _play(self, mishap: Mishap) -> None:
        loop = self._world.loop
        await asyncio.sleep(mishap.at_s)
        self._journal.note(loop.time(), f"*** begins: {mishap}")
        await self._begin(mishap)
        if mishap.kind in ENDLESS:
            return
        await asyncio.sleep(max(0.0, mishap.end_s - loop.time()))
        self._journal.note(loop.time(), f"*** ends: {mishap}")
        await self._end(mishap)

    async def _begin(self, mishap: Mishap) -> None:
        namespace = self._namespaces.get(mishap.namespace)
        if mishap.kind in ON_ROADS:
            self._active.append(mishap)
            for road in self._concerned(mishap):
                _spoil(road, mishap)
            if mishap.kind is Kind.RESET:
                await self._reset(mishap)
        elif mishap.kind in {Kind.DIE, Kind.LEAVE}:
            self._lose(mishap)
        elif mishap.kind is Kind.ENGAGE:
            self._switch(mishap, is_engaged=True)
        elif namespace is not None:
            await self._harm(namespace, mishap)

    async def _end(self, mishap: Mishap) -> None:
        namespace = self._namespaces.get(mishap.namespace)
        if mishap.kind in ON_ROADS:
            self._active.remove(mishap)
            self._mend_roads(mishap)
        elif mishap.kind in {Kind.DIE, Kind.LEAVE}:
            await self._restart(mishap.process)
        elif mishap.kind is Kind.ENGAGE:
            self._switch(mishap, is_engaged=False)
        elif namespace is not None:
            await self._mend(namespace, mishap)

    # On the roads.

    def _concerned(self, mishap: Mishap) -> list[Road]:
        return [road for process, namespace, road in self._roads if _concerns(mishap, process, namespace)]

    async def _reset(self, mishap: Mishap) -> None:
        while self._world.loop.time() < mishap.end_s:
            for road in self._concerned(mishap):
                road.cut()
            await asyncio.sleep(_RESET_S)

    def _mend_roads(self, ended: Mishap) -> None:
        self._journal.healed_s.append(self._world.loop.time())
        for process, namespace, road in self._roads:
            if not _concerns(ended, process, namespace):
                continue
            if ended.is_lossy or ended.kind is Kind.FLAKY:  # else what has stalled would stay so
                road.cut()
            road.heal()
            for mishap in self._active:
                if _concerns(mishap, process, namespace):
                    _spoil(road, mishap)

    # To namespaces and entities.

    async def _harm(self, namespace: VirtualNamespace, mishap: Mishap) -> None:
        match mishap.kind:
            case Kind.BUSY:
                namespace.busy_until_s = max(namespace.busy_until_s, mishap.end_s)
            case Kind.KILL | Kind.STOP:
                if namespace.name not in self._is_down:
                    self._is_down[namespace.name] = mishap
                    await _take_down(namespace, mishap.kind)
            case Kind.LEAP:
                namespace.skew_s += mishap.size
            case Kind.DISABLE | Kind.MUFFLE | Kind.LOCK_UP as kind:
                await self._is_up(namespace)
                _set_status(namespace, mishap.path, _STATUSES[kind])
            case Kind.DELETE:
                await self._is_up(namespace)
                self._journal.deleted_s[mishap.path] = self._world.loop.time()
                namespace.delete(mishap.path)
            case kind:
                namespace.trouble_sends(mishap.path, _TROUBLES[kind])

    async def _mend(self, namespace: VirtualNamespace, mishap: Mishap) -> None:
        match mishap.kind:
            case Kind.BUSY:
                pass
            case Kind.KILL | Kind.STOP:
                if self._is_down.get(namespace.name) is mishap:
                    del self._is_down[namespace.name]
                    namespace.start()
                    self.on_start(namespace)
            case Kind.DISABLE | Kind.MUFFLE | Kind.LOCK_UP:
                await self._is_up(namespace)
                _set_status(namespace, mishap.path, EntityStatus.ACTIVE)
            case _:
                namespace.take_sends(mishap.path)

    async def _is_up(self, namespace: VirtualNamespace) -> None:
        """Wait until the namespace is up: a stopped one accepts no change."""
        while namespace.name in self._is_down:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.5)

    # To processes.

    def _lose(self, mishap: Mishap) -> None:
        process = self.processes.pop(mishap.process, None)
        if process is None:
            return
        if mishap.kind is Kind.DIE:
            self.remove_roads([*process.roads.values()])
        work = process.kill() if mishap.kind is Kind.DIE else process.leave()
        self.ending.append(self._world.loop.create_task(work))

    def _switch(self, mishap: Mishap, *, is_engaged: bool) -> None:
        process = self.processes.get(mishap.process)
        if process is not None and process.is_paired:
            pair = process.pair
            (pair.engage if is_engaged else pair.release)(mishap.path or None)


def _concerns(mishap: Mishap, process: str, namespace: str) -> bool:
    return mishap.kind in ON_ROADS and mishap.namespace == namespace and mishap.process in {"", process}


def _spoil(road: Road, mishap: Mishap) -> None:
    match mishap.kind:
        case Kind.REFUSE:
            road.refuse()
        case Kind.HIDE:
            road.cut()
            road.hide()
        case Kind.RESET:
            road.cut()
        case Kind.SLOW:
            road.slow(mishap.size)
        case Kind.FLAKY:
            road.cut()
            road.misbehave(Schedule.seeded(Random(mishap.size), connections=8))  # noqa: S311 (it has to be repeatable)
        case kind:
            road.stall(_STALLS[kind])


async def _take_down(namespace: VirtualNamespace, kind: Kind) -> None:
    if kind is Kind.KILL:
        namespace.kill()
    else:
        await namespace.stop()


def _set_status(namespace: VirtualNamespace, path: str, status: EntityStatus) -> None:
    with suppress(EntityNotFoundError):  # it was deleted meanwhile
        namespace.disable(path, status)
