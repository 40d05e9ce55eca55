"""Empties a side buffer into the store: in order, lane by lane, for as long as the server runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.server.side_buffer.complaints import Complaints
from pairbus.server.side_buffer.intake import Intake
from pairbus.server.side_buffer.lane import BATCH_BYTES, BATCH_PARCELS, Lane, LaneState
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.store import Store
from pairbus.server.side_buffer.sweeper import Sweeper
from pairbus.server.side_buffer.tally import Tally
from pairbus.server.side_buffer.transfer import Obstacle, Transfer, outcome_of
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_ABOUT: Final = "the store"

_MOST_PASSES: Final = 100
"""After so many batches of each lane a round ends, though others may go on: those that could not have another try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """How long it rests when something could not be merged: twice as long each time, up to the longest."""

    first_s: float = 1.0
    longest_s: float = 60.0

    def after(self, pause_s: float) -> float:
        return min(max(2 * pause_s, self.first_s), self.longest_s)


class Merger:
    """One task. It goes through all lanes, in rounds."""

    def __init__(
        self,
        identity: bytes,
        store: Store,
        lanes: Lanes,
        intake: Intake,
        transfer: Transfer,
        sweeper: Sweeper,
        tally: Tally,
        complaints: Complaints,
        pauses: Pauses,
    ) -> None:
        self._identity = identity
        self._store = store
        self._lanes = lanes
        self._transfer = transfer
        self._sweeper = sweeper
        self._tally = tally
        self._complaints = complaints
        self._pauses = pauses
        self._rounds = 0
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
            for step in (self._round, self._sweeper.condense):
                try:
                    await step()
                except Exception:  # noqa: BLE001 (whatever it is: what is in the buffer has to come out)
                    _log.exception("the side buffer could not be merged")
            got_on = self._tally.merged > merged or not self._lanes
            pause_s = self._pauses.first_s if got_on else self._pauses.after(pause_s)

    async def _round(self) -> None:
        if await self._probe():
            await self._go_through()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    async def _probe(self) -> bool:
        """Whether the store can be written: else receivers would see messages that are taken back, each time anew."""
        return await outcome_of(self._store, lambda done: self._store.probe(self._identity, done), self._probed)

    def _probed(self, error: StoreError | None) -> None:
        if error is None:
            self._complaints.settle(_ABOUT)
        else:
            self._complaints.make(_ABOUT, f"what is in the side buffer cannot be merged: {error}")

    async def _go_through(self) -> None:
        """Merge a batch of each lane in turn, until nothing is left that can be merged.

        Another lane comes first each time: where there is little room, it does not always go to the same one.
        """
        self._rounds += 1
        blocked: set[Lane] = set()
        try:
            for _ in range(_MOST_PASSES):
                ready = [lane for lane in self._lanes.beginning_with(self._rounds) if _can_go_on(lane, blocked)]
                if not ready:
                    return
                for group in self._groups(ready):
                    if not await self._merge(group, blocked):
                        return
                    await self._sweeper.sweep()
        finally:
            for lane in self._lanes:
                self._transfer.refuse(lane)

    def _groups(self, lanes: Iterable[Lane]) -> Iterator[Sequence[Lane]]:
        """Lanes that are merged together: as many as make a batch; the last of them may be larger than that."""
        group: list[Lane] = []
        parcels = size = 0
        for lane in filter(self._lanes.is_current, lanes):
            parcels += len(lane.entries)
            size += sum(entry.size for entry in lane.first(BATCH_PARCELS, BATCH_BYTES))
            group.append(lane)
            if parcels >= BATCH_PARCELS or size >= BATCH_BYTES:
                yield group
                group, parcels, size = [], 0, 0
        if group:
            yield group

    async def _merge(self, group: Iterable[Lane], blocked: set[Lane]) -> bool:
        """Merge a batch of some lanes. Those that are closing come to their end before others have their turn.

        Sends wait for that. Tells whether the store goes on.
        """
        while lanes := [lane for lane in group if self._lanes.is_current(lane) and _can_go_on(lane, blocked)]:
            if all(lane.underway and not lane.entries for lane in lanes):
                await self._change()
                continue
            obstacles = await self._transfer.merge(lanes)
            if Obstacle.STORE in obstacles.values():
                return False
            blocked.update(obstacles)
            group = [lane for lane in lanes if lane.state is LaneState.CLOSING]
        return True


def _can_go_on(lane: Lane, blocked: set[Lane]) -> bool:
    return lane not in blocked and (bool(lane.entries) or lane.state is LaneState.CLOSING)
