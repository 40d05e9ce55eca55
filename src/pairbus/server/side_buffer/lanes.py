"""The lanes of all entities that a side buffer holds something of, and which files that is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pairbus.broker import Address
from pairbus.server.side_buffer.lane import Entry, Lane


class Lanes:
    """Lanes by address. One that has nothing left is gone."""

    def __init__(self) -> None:
        self._lanes: dict[Address, Lane] = {}
        self._open: Counter[int] = Counter()
        """How many parcels of a file are not merged, by its base."""

    def __contains__(self, address: Address) -> bool:
        return address in self._lanes

    def __iter__(self) -> Iterator[Lane]:
        return iter([*self._lanes.values()])

    def __bool__(self) -> bool:
        return bool(self._lanes)

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
        self._open[entry.base] += 1

    def done_with(self, entries: Sequence[Entry]) -> None:
        """They are in the store, or set aside."""
        for entry in entries:
            self._open[entry.base] -= 1

    def needed_nowhere(self, bases: Iterable[int]) -> list[int]:
        """Those of these files that hold nothing that is not merged."""
        return [base for base in bases if self._open[base] <= 0]
