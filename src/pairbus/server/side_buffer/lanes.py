"""The lanes of all entities that a side buffer holds something of, and which files that is in."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

from pairbus.broker import Address
from pairbus.server.side_buffer.lane import Entry, Lane


class Lanes:
    """Lanes by address. One that has nothing left is gone."""

    def __init__(self) -> None:
        self._lanes: dict[Address, Lane] = {}
        self._needed: Counter[int] = Counter()
        """How many bytes of a file are parcels that are not merged, by its base."""

    def __contains__(self, address: Address) -> bool:
        return address in self._lanes

    def __iter__(self) -> Iterator[Lane]:
        return iter([*self._lanes.values()])

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def beginning_with(self, number: int) -> list[Lane]:
        """All of them; another number lets another one be the first."""
        lanes = [*self._lanes.values()]
        first = number % max(1, len(lanes))
        return lanes[first:] + lanes[:first]

    def is_current(self, lane: Lane) -> bool:
        return self._lanes.get(lane.address) is lane

    def get(self, address: Address) -> Lane:
        """The lane of an entity; a new one if there is none."""
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = Lane(address)
        return lane

    def drop(self, address: Address) -> None:
        del self._lanes[address]

    def drop_if_vacant(self, lane: Lane) -> None:
        if lane.is_vacant and self.is_current(lane):
            del self._lanes[lane.address]

    def add(self, address: Address, entry: Entry) -> None:
        """A parcel is on disk."""
        self.get(address).entries.append(entry)
        self._count([entry])

    def done_with(self, entries: Iterable[Entry]) -> None:
        """They are in the store, or set aside."""
        for entry in entries:
            self._needed[entry.placed.base] -= entry.size

    # Files

    def needed_bytes(self, base: int) -> int:
        """How much of a file is not merged."""
        return self._needed[base]

    def in_file(self, base: int) -> list[Entry]:
        """What is not merged of a file."""
        return [entry for lane in self for entry in lane.entries if entry.placed.base == base]

    def move(self, moved: Mapping[Entry, Entry]) -> None:
        """These lie elsewhere now; each keeps its place in its lane."""
        for lane in self:
            if any(entry in moved for entry in lane.entries):
                lane.entries = deque(moved.get(entry, entry) for entry in lane.entries)
        self._count(moved.values())
        self.done_with(moved)

    def forget(self, base: int) -> None:
        """A file is gone."""
        del self._needed[base]

    def _count(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._needed[entry.placed.base] += entry.size
