"""Brings what lies in a side buffer into the store: in order, and each parcel once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import repeat
from typing import Final, NamedTuple

from pairbus.broker import Address, BrokerError, EntityDisabledError, EntityNotFoundError, QuotaExceededError
from pairbus.server.side_buffer.archive import Archive
from pairbus.server.side_buffer.aside import Leftover
from pairbus.server.side_buffer.intake import Intake
from pairbus.server.side_buffer.lane import Entry, Lane, LaneState, Turn
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.parcel import Parcel
from pairbus.server.side_buffer.store import Store
from pairbus.server.side_buffer.tally import Tally
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

BATCH_PARCELS: Final = 500
"""How many sends are merged with one commit: more than come meanwhile, and others are served between two of them."""
BATCH_BYTES: Final = 4 * 1024 * 1024
LITTLE_PARCELS: Final = 2_000
"""What is merged so soon that new sends can wait for it."""

_WAITS: Final = (EntityDisabledError, QuotaExceededError)
"""What an operator or a receiver can change: then the parcel is merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """How long it rests when something could not be merged: twice as long each time, up to the longest."""

    first_s: float = 1.0
    longest_s: float = 60.0

    def after(self, pause_s: float) -> float:
        return min(max(2 * pause_s, self.first_s), self.longest_s)


class Obstacle(Enum):
    STORE = auto()
    """The store takes nothing: so it is with all lanes."""

    ENTITY = auto()
    """The entity takes nothing now; others may."""


class Handed(NamedTuple):
    """How far the broker has taken parcels."""

    number: int
    obstacle: Obstacle | None = None
    leftovers: Sequence[Leftover] = ()
    """Those behind them that can no longer be merged."""


class Merger:
    """One task, for as long as the server runs."""

    def __init__(
        self,
        identity: bytes,
        archive: Archive,
        store: Store,
        lanes: Lanes,
        intake: Intake,
        tally: Tally,
        pauses: Pauses,
    ) -> None:
        self._identity = identity
        self._archive = archive
        self._store = store
        self._lanes = lanes
        self._intake = intake
        self._tally = tally
        self._pauses = pauses
        self._changed = asyncio.Event()
        intake.changed = self._changed.set

    async def run(self) -> None:
        """Merge whenever there is something, and rest when that does not go."""
        pause_s = 0.0 if self._lanes else self._pauses.first_s  # what was found at the start has waited long enough
        while True:
            while not self._lanes:
                await self._change()
            await asyncio.sleep(pause_s)
            merged = self._tally.merged
            try:
                if await self._probe():
                    await self._go_through()
            except OSError as error:
                _log.error("the side buffer cannot be read, or nothing set aside: %s", error)
            except Exception:  # noqa: BLE001 (whatever it is: what is in the buffer has to come out)
                _log.exception("the side buffer could not be merged")
            got_on = self._tally.merged > merged or not self._lanes
            pause_s = self._pauses.first_s if got_on else self._pauses.after(pause_s)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _probe(self) -> bool:
        """Whether the store can be written: else receivers would see messages that are taken back, each time anew."""
        self._store.put_merged(self._identity, "", 0)
        return await self._outcome(lambda _error: None)

    async def _go_through(self) -> None:
        """Merge a batch of each lane in turn, until nothing is left that can be merged."""
        blocked: set[Lane] = set()
        try:
            while ready := [lane for lane in self._lanes if lane not in blocked and _has_work(lane)]:
                if all(lane.underway and not lane.entries for lane in ready):
                    await self._change()  # more is on its way to lanes that are closing
                for lane in filter(self._lanes.is_current, ready):
                    obstacle = await self._merge(lane)
                    if obstacle is Obstacle.STORE:
                        return
                    if obstacle is Obstacle.ENTITY:
                        blocked.add(lane)
                await self._clear_up()
        finally:
            for lane in self._lanes:
                self._refuse(lane)

    async def _merge(self, lane: Lane) -> Obstacle | None:
        """Merge a batch of a lane; what kept it from going on."""
        entries = lane.first(BATCH_PARCELS, BATCH_BYTES)
        if len(lane.entries) <= LITTLE_PARCELS:
            lane.turn(Turn.LITTLE_LEFT)
        handed = self._hand_over(lane, entries, await self._archive.read(entries))
        is_durable = self._take(lane, handed.number, is_merged=True)
        self._release(lane)
        if not await is_durable:
            return Obstacle.STORE
        if handed.leftovers and not await self._set_aside(lane, handed.leftovers):
            return Obstacle.STORE
        if handed.obstacle is not None:
            self._refuse(lane)
        return handed.obstacle

    def _hand_over(self, lane: Lane, entries: Sequence[Entry], parcels: Sequence[Parcel | Leftover]) -> Handed:
        """Send them as if they came now. Nothing comes in between: the next commit has all of it."""
        now_ms = self._store.now_ms()
        for count, parcel in enumerate(parcels):
            if isinstance(parcel, Leftover):
                return Handed(count, leftovers=[parcel])
            try:
                self._store.namespace.send(lane.address, parcel.messages, now_ms)
            except StoreError:
                return Handed(count, Obstacle.STORE)
            except _WAITS:
                return Handed(count, Obstacle.ENTITY)
            except BrokerError as error:
                # When the entity is gone, so it is with all of them.
                rest = slice(count, None if isinstance(error, EntityNotFoundError) else count + 1)
                return Handed(count, leftovers=[*map(_left_over, entries[rest], parcels[rest], repeat(str(error)))])
        return Handed(len(parcels))

    def _take(self, lane: Lane, count: int, *, is_merged: bool) -> asyncio.Future[bool]:
        """Have it noted in the same commit that these are done with; whether that is on disk."""
        entries = lane.take(count)
        if entries:
            self._store.put_merged(self._identity, lane.address.entity, entries[-1].position + 1)

        def done(error: StoreError | None) -> None:
            if error is None:
                self._done_with(entries, is_merged=is_merged)
            elif entries:
                self._take_back(lane.address, entries)

        return self._outcome(done)

    def _outcome(self, done: Callable[[StoreError | None], object]) -> asyncio.Future[bool]:
        """Whether all that was written until now is on disk; whoever is given is told before anything else is done."""
        is_durable: asyncio.Future[bool] = self._store.loop.create_future()

        def tell(error: StoreError | None) -> None:
            done(error)
            if not is_durable.done():  # else the task was cancelled
                is_durable.set_result(error is None)

        self._store.when_durable(tell)
        return is_durable

    def _done_with(self, entries: Sequence[Entry], *, is_merged: bool) -> None:
        self._lanes.done_with(entries)
        count = sum(entry.messages for entry in entries)
        self._tally.held -= count
        self._tally.merged += count if is_merged else 0

    def _take_back(self, address: Address, entries: Sequence[Entry]) -> None:
        """The commit has failed: they are in the buffer, and nowhere else."""
        lane = self._lanes.get(address)
        lane.put_back(entries)
        self._refuse(lane)

    async def _set_aside(self, lane: Lane, leftovers: Sequence[Leftover]) -> bool:
        """Put what can no longer be merged elsewhere; whether the store has noted that."""
        count = await self._archive.set_aside(leftovers)
        self._tally.set_aside += count
        _log.error(
            "%d messages for '%s' in the side buffer cannot be merged, and are set aside in %s: %s",
            count,
            lane.address,
            self._archive.aside_path,
            leftovers[0].reason,
        )
        is_durable = self._take(lane, len(leftovers), is_merged=False)
        self._release(lane)
        return await is_durable

    async def _clear_up(self) -> None:
        """Remove the files of which everything is in the store."""
        bases = self._archive.bases if self._intake.is_quiet() else self._archive.bases[:-1]
        unneeded = self._lanes.needed_nowhere(bases)
        if unneeded:
            await self._archive.remove(unneeded)

    # The states of lanes

    def _release(self, lane: Lane) -> None:
        if lane.state is LaneState.CLOSING and not lane.entries and not lane.underway:
            lane.turn(Turn.EMPTIED)
            self._intake.let_through(lane)

    def _refuse(self, lane: Lane) -> None:
        if lane.state is LaneState.CLOSING:
            lane.turn(Turn.REFUSED)
            self._intake.go_on(lane)


def _left_over(entry: Entry, parcel: Parcel | Leftover, reason: str) -> Leftover:
    return parcel if isinstance(parcel, Leftover) else Leftover(entry.position, reason, parcel)


def _has_work(lane: Lane) -> bool:
    return bool(lane.entries) or lane.state is LaneState.CLOSING
