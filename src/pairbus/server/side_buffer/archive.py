"""The files of a side buffer, for the event loop: a thread of its own waits for the disk, one thing after the other."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from pairbus.broker import Address
from pairbus.server.side_buffer.aside import Aside, Leftover
from pairbus.server.side_buffer.lane import Entry
from pairbus.server.side_buffer.parcel import Parcel, ParcelFormatError, mark_of, pack_parcel, unpack_parcel
from pairbus.server.side_buffer.segment import HEAD_BYTES, Damage
from pairbus.server.side_buffer.shelf import SEGMENT_BYTES, Placed, Shelf

_MOST_SEGMENTS: Final = 8
_DAMAGED: Final = "damaged"

T = TypeVar("T")

Found: TypeAlias = Parcel | Leftover | OSError
"""A parcel; or something to be set aside in its place, if that is damaged; or why the disk does not give it."""


class Archive:
    """Packs parcels, and keeps them. What it raises, ``OSError``, is the disk's."""

    def __init__(self, directory: Path, identity: bytes, marks: Mapping[str, int], max_bytes: int) -> None:
        """``marks`` says up to where parcels are in the store, by entity."""
        self._mark = mark_of(identity)
        self._marks = marks
        self._aside = Aside(directory)
        first = max([self._aside.end, *marks.values()])
        self._segment_bytes = min(SEGMENT_BYTES, max_bytes // _MOST_SEGMENTS)
        self._shelf = Shelf(directory, first, self._segment_bytes)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="pairbus-side-buffer")
        self._appending = 0
        self.sizes = self._shelf.sizes
        """Of all files by their bases, as far as the loop knows; the last one is written to."""

    @property
    def aside_path(self) -> Path:
        return self._aside.path

    @property
    def used_bytes(self) -> int:
        return sum(self.sizes.values())

    def at_rest(self) -> list[int]:
        """The files that nothing is being written to now."""
        bases = [*self.sizes]
        return bases[:-1] if self._appending else bases

    def finished(self) -> list[int]:
        """The files that nothing will be written to any more."""
        last = next(reversed(self.sizes), None)
        return [base for base in self.at_rest() if base != last or self.sizes[base] >= self._segment_bytes]

    def pack(self, parcel: Parcel) -> bytes:
        return pack_parcel(parcel, self._mark)

    def find(self) -> tuple[list[tuple[Address, Entry]], int]:
        """At the start, and on the caller's thread: what is to be merged, and how much of it was set aside."""
        found: dict[int, tuple[Address, Entry]] = {}
        leftovers: list[Leftover] = []
        for each in self._shelf.scan(self._mark):
            if isinstance(each, Damage):
                leftovers.append(Leftover(each.position, _DAMAGED, each.raw))
                continue
            placed, content = each
            parcel = self._unpacked(placed.position, content)
            if isinstance(parcel, Leftover):
                leftovers.append(parcel)
                continue
            position = placed.position if parcel.position is None else parcel.position
            if position >= self._marks.get(parcel.entity, 0):
                # One that was moved comes in the place of the first, should that be there still.
                found[position] = Address.of(parcel.entity), Entry(position, placed, len(content), len(parcel.messages))
        set_aside = self._aside.add(leftovers)
        self.sizes = self._shelf.sizes
        return [found[position] for position in sorted(found)], set_aside

    async def append(self, contents: Sequence[bytes], counts: Sequence[int]) -> list[Entry]:
        placed = await self._append(contents)
        return [
            Entry(place.position, place, len(content), count)
            for place, content, count in zip(placed, contents, counts, strict=True)
        ]

    async def read(self, entries: Sequence[Entry]) -> list[Found]:
        positions = [entry.placed.position for entry in entries]
        return await self._do(lambda: [*map(self._read, positions)])

    async def move(self, entries: Sequence[Entry]) -> dict[Entry, Entry]:
        """Put parcels behind all others, and tell where they lie now. What cannot be read stays where it is."""
        found = zip(entries, await self.read(entries), strict=True)
        parcels = {entry: parcel for entry, parcel in found if isinstance(parcel, Parcel)}
        contents = [self.pack(parcel._replace(position=entry.position)) for entry, parcel in parcels.items()]
        placed = await self._append(contents) if contents else []
        return {
            entry: entry._replace(placed=place, size=len(content))
            for entry, place, content in zip(parcels, placed, contents, strict=True)
        }

    async def set_aside(self, leftovers: Sequence[Leftover]) -> int:
        """How many messages, or damaged places, that were not there before."""
        return await self._do(lambda: self._aside.add(leftovers))

    async def remove(self, base: int) -> None:
        await self._do(lambda: self._shelf.remove(base))
        self.sizes.pop(base, None)

    def remove_now(self, base: int) -> None:
        """At the start, and on the caller's thread."""
        self._shelf.remove(base)
        self.sizes.pop(base, None)

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()
        self._shelf.close()

    async def _do(self, work: Callable[[], T]) -> T:
        return await get_running_loop().run_in_executor(self._thread, work)

    async def _append(self, contents: Sequence[bytes]) -> list[Placed]:
        self._appending += 1
        try:
            placed = await self._do(lambda: self._shelf.append(contents))
        finally:
            self._appending -= 1
        base = placed[0].base
        self.sizes[base] = self.sizes.get(base, 0) + size_of(contents)
        return placed

    def _read(self, position: int) -> Found:
        try:
            return self._unpacked(position, self._shelf.read(position, self._mark))
        except OSError as error:
            return error

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
