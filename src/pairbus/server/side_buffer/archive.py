"""The files of a side buffer, for the event loop: a thread of its own waits for the disk, one thing after the other."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from pairbus.broker import Address
from pairbus.server.side_buffer.aside import Aside, Leftover
from pairbus.server.side_buffer.lane import Entry
from pairbus.server.side_buffer.parcel import Parcel, ParcelFormatError, mark_of, pack_parcel, unpack_parcel
from pairbus.server.side_buffer.segment import HEAD_BYTES, Damage
from pairbus.server.side_buffer.shelf import SEGMENT_BYTES, Placed, Shelf

_MOST_SEGMENTS: Final = 8
_DAMAGED: Final = "damaged"

T = TypeVar("T")


class Archive:
    """Packs parcels, and keeps them. What it raises, ``OSError``, is the disk's."""

    def __init__(self, directory: Path, identity: bytes, marks: Mapping[str, int], max_bytes: int) -> None:
        """``marks`` says up to where parcels are in the store, by entity."""
        self._mark = mark_of(identity)
        self._marks = marks
        self._aside = Aside(directory)
        first = max([self._aside.end, *marks.values()])
        self._shelf = Shelf(directory, first, min(SEGMENT_BYTES, max_bytes // _MOST_SEGMENTS))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pairbus-side-buffer")
        self.used_bytes = self._shelf.size_bytes
        self.bases = self._shelf.bases
        """Of all files, as far as the loop knows; the last one is written to."""

    @property
    def aside_path(self) -> Path:
        return self._aside.path

    def pack(self, parcel: Parcel) -> bytes:
        return pack_parcel(parcel, self._mark)

    def find(self) -> tuple[list[tuple[Address, Entry]], int]:
        """At the start, and on the caller's thread: what is to be merged, and how much of it was set aside."""
        found: list[tuple[Address, Entry]] = []
        leftovers: list[Leftover] = []
        for each in self._shelf.scan(self._mark):
            if isinstance(each, Damage):
                leftovers.append(Leftover(each.position, _DAMAGED, each.raw))
                continue
            placed, content = each
            parcel = self._unpacked(placed.position, content)
            if isinstance(parcel, Leftover):
                leftovers.append(parcel)
            elif placed.position >= self._marks.get(parcel.entity, 0):
                found.append((Address.of(parcel.entity), _entry(placed, content, len(parcel.messages))))
        set_aside = self._aside.add(leftovers)
        self.used_bytes = self._shelf.size_bytes
        return found, set_aside

    async def append(self, contents: Sequence[bytes], counts: Sequence[int]) -> list[Entry]:
        placed = await self._do(lambda: self._shelf.append(contents))
        self.used_bytes += size_of(contents)
        if placed and placed[0].base not in self.bases:
            self.bases.append(placed[0].base)
        return [*map(_entry, placed, contents, counts)]

    async def read(self, entries: Sequence[Entry]) -> list[Parcel | Leftover]:
        """The parcels; something to be set aside in place of one that is damaged."""
        positions = [entry.position for entry in entries]
        found = await self._do(lambda: [self._shelf.read(position, self._mark) for position in positions])
        return [*map(self._unpacked, positions, found)]

    async def set_aside(self, leftovers: Sequence[Leftover]) -> int:
        """How many messages, or damaged places, that were not there before."""
        return await self._do(lambda: self._aside.add(leftovers))

    async def remove(self, bases: Sequence[int]) -> None:
        freed = await self._do(lambda: self._shelf.remove(bases))
        self.used_bytes -= freed
        self.bases = [base for base in self.bases if base not in bases]

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()
        self._shelf.close()

    async def _do(self, work: Callable[[], T]) -> T:
        return await get_running_loop().run_in_executor(self._thread, work)

    def _unpacked(self, position: int, found: bytes | Damage) -> Parcel | Leftover:
        if isinstance(found, Damage):
            return Leftover(position, _DAMAGED, found.raw)
        try:
            return unpack_parcel(found, self._mark)
        except ParcelFormatError as error:
            return Leftover(position, str(error), found)


def size_of(contents: Sequence[bytes]) -> int:
    """What parcels take on disk."""
    return sum(map(len, contents)) + HEAD_BYTES * len(contents)


def _entry(placed: Placed, content: bytes, messages: int) -> Entry:
    return Entry(placed.position, placed.base, len(content), messages)
