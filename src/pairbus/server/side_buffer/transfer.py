"""Brings parcels from a side buffer into the store: those of several lanes with one commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

from pairbus.broker import Address, BrokerError, EntityDisabledError, EntityNotFoundError, QuotaExceededError
from pairbus.server.side_buffer.archive import Archive, Found
from pairbus.server.side_buffer.aside import Leftover
from pairbus.server.side_buffer.complaints import Complaints
from pairbus.server.side_buffer.intake import Intake
from pairbus.server.side_buffer.lane import BATCH_BYTES, BATCH_PARCELS, Entry, Lane, LaneState, Turn
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.store import Store
from pairbus.server.side_buffer.tally import Tally
from pairbus.store import StoreError, StoreFullError

_log = logging.getLogger(__name__)

LITTLE_PARCELS: Final = 2_000
"""What is merged so soon that new sends can wait for it."""

_WAITS: Final = (EntityDisabledError, QuotaExceededError, StoreFullError)
"""What an operator or a receiver can change: then the parcel is merged. What is smaller may find room all the same."""


class Obstacle(Enum):
    STORE = auto()
    """The store takes nothing: so it is with all lanes."""

    LANE = auto()
    """The lane cannot go on now; others may."""


class Handed(NamedTuple):
    """How far the broker has taken parcels of a lane."""

    number: int
    obstacle: Obstacle | None = None
    leftovers: Sequence[Leftover] = ()
    """Those behind them that can no longer be merged."""


class Transfer:
    """What was sent is taken from its lane in the same step, and put back if the commit fails."""

    def __init__(
        self,
        identity: bytes,
        archive: Archive,
        store: Store,
        lanes: Lanes,
        intake: Intake,
        tally: Tally,
        complaints: Complaints,
    ) -> None:
        self._identity = identity
        self._archive = archive
        self._store = store
        self._lanes = lanes
        self._intake = intake
        self._tally = tally
        self._complaints = complaints

    async def merge(self, lanes: Sequence[Lane]) -> Mapping[Lane, Obstacle]:
        """Merge a batch of each lane, with one commit; what kept which of them from going on."""
        batches = [(lane, lane.first(BATCH_PARCELS, BATCH_BYTES)) for lane in lanes]
        for lane in lanes:
            if len(lane.entries) <= LITTLE_PARCELS:
                lane.turn(Turn.LITTLE_LEFT)
        found = iter(await self._archive.read([entry for _, entries in batches for entry in entries]))
        # From here on nothing comes in between: the next commit has all of it.
        handed: dict[Lane, Handed] = {}
        outcomes: list[asyncio.Future[bool]] = []
        for lane, entries in batches:
            handed[lane] = self._hand_over(lane, entries, [*islice(found, len(entries))])
            outcomes.append(self._take(lane, handed[lane].number, is_merged=True))
            self._move_on(lane, handed[lane])
            if handed[lane].obstacle is Obstacle.STORE:
                break
        are_durable = [await outcome for outcome in outcomes]
        if not all(are_durable):
            return dict.fromkeys(lanes, Obstacle.STORE)
        obstacles = {lane: each.obstacle for lane, each in handed.items() if each.obstacle is not None}
        return obstacles | await self._set_aside(
            {lane: each.leftovers for lane, each in handed.items() if each.leftovers}
        )

    def refuse(self, lane: Lane) -> None:
        """It does not go on now: what has waited goes into the buffer."""
        if lane.state is LaneState.CLOSING:
            lane.turn(Turn.REFUSED)
            self._intake.go_on(lane)

    # To the broker

    def _hand_over(self, lane: Lane, entries: Sequence[Entry], found: Sequence[Found]) -> Handed:
        """Send them as if they came now. Whatever happens, it tells how many were sent: they must not come twice."""
        now_ms = self._store.now_ms()
        for count, parcel in enumerate(found):
            if isinstance(parcel, OSError):
                return self._cannot(lane, count, f"a parcel cannot be read: {parcel}")
            if isinstance(parcel, Leftover):
                return Handed(count, leftovers=[parcel])
            try:
                self._store.namespace.send(lane.address, parcel.messages, now_ms)
            except _WAITS:
                return Handed(count, Obstacle.LANE)
            except StoreError:
                return Handed(count, Obstacle.STORE)
            except BrokerError as error:
                # When the entity is gone, so it is with all of them.
                rest = slice(count, None if isinstance(error, EntityNotFoundError) else count + 1)
                return Handed(count, leftovers=_leftovers(entries[rest], found[rest], str(error)))
            except Exception as error:  # noqa: BLE001 (a defect: the others have to come out all the same)
                return self._cannot(lane, count, f"a parcel cannot be merged: {error!r}", error)
        self._complaints.settle(_about(lane))
        return Handed(len(found))

    def _cannot(self, lane: Lane, count: int, complaint: str, cause: Exception | None = None) -> Handed:
        self._complaints.make(_about(lane), complaint, cause)
        return Handed(count, Obstacle.LANE)

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

        return outcome_of(self._store, self._store.when_durable, done)

    def _done_with(self, entries: Sequence[Entry], *, is_merged: bool) -> None:
        self._lanes.done_with(entries)
        count = sum(entry.messages for entry in entries)
        self._tally.held -= count
        self._tally.merged += count if is_merged else 0

    def _take_back(self, address: Address, entries: Sequence[Entry]) -> None:
        """The commit has failed: they are in the buffer, and nowhere else."""
        lane = self._lanes.get(address)
        lane.put_back(entries)
        self.refuse(lane)

    def _move_on(self, lane: Lane, handed: Handed) -> None:
        if handed.obstacle is not None:
            self.refuse(lane)
        elif not handed.leftovers:
            self._release(lane)

    def _release(self, lane: Lane) -> None:
        if lane.state is LaneState.CLOSING and not lane.entries and not lane.underway:
            lane.turn(Turn.EMPTIED)
            self._intake.let_through(lane)

    # Elsewhere

    async def _set_aside(self, leftovers: Mapping[Lane, Sequence[Leftover]]) -> dict[Lane, Obstacle]:
        """Put what can no longer be merged elsewhere."""
        if not leftovers:
            return {}
        try:
            self._tally.set_aside += await self._archive.set_aside(
                [each for some in leftovers.values() for each in some]
            )
        except OSError as error:
            for lane in leftovers:
                self._cannot(lane, 0, f"nothing can be set aside: {error}")
                self.refuse(lane)
            return dict.fromkeys(leftovers, Obstacle.LANE)
        outcomes: list[asyncio.Future[bool]] = []
        for lane, some in leftovers.items():
            self._tell(lane, some)
            outcomes.append(self._take(lane, len(some), is_merged=False))
            self._release(lane)
        are_durable = [await outcome for outcome in outcomes]
        return {} if all(are_durable) else dict.fromkeys(leftovers, Obstacle.STORE)

    def _tell(self, lane: Lane, leftovers: Sequence[Leftover]) -> None:
        self._complaints.settle(_about(lane))
        _log.error(
            "%d messages for '%s' in the side buffer cannot be merged, and are set aside in %s: %s",
            sum(leftover.number for leftover in leftovers),
            lane.address,
            self._archive.aside_path,
            leftovers[0].reason,
        )


def outcome_of(
    store: Store,
    ask: Callable[[Callable[[StoreError | None], object]], object],
    done: Callable[[StoreError | None], object],
) -> asyncio.Future[bool]:
    """Whether something goes well; whoever is given is told before anything else is done."""
    went_well: asyncio.Future[bool] = store.loop.create_future()

    def tell(error: StoreError | None) -> None:
        done(error)
        if not went_well.done():  # else the task was cancelled
            went_well.set_result(error is None)

    ask(tell)
    return went_well


def _about(lane: Lane) -> str:
    return f"the side buffer, and what it holds for '{lane.address}'"


def _leftovers(entries: Sequence[Entry], found: Sequence[Found], reason: str) -> list[Leftover]:
    """All of them, up to one that cannot be read now."""
    leftovers: list[Leftover] = []
    for entry, parcel in zip(entries, found, strict=True):
        if isinstance(parcel, OSError):
            break
        leftovers.append(parcel if isinstance(parcel, Leftover) else Leftover(entry.position, reason, parcel))
    return leftovers
