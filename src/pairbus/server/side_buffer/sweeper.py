"""Gives back the room that a side buffer takes on its disk for what is merged."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pairbus.server.side_buffer.archive import Archive
from pairbus.server.side_buffer.complaints import Complaints
from pairbus.server.side_buffer.lane import BATCH_BYTES, BATCH_PARCELS, first_of
from pairbus.server.side_buffer.lanes import Lanes

_LITTLE: Final = 4
"""A file is emptied when a fourth of it is needed, or less: to move that costs little, and gives much."""

_REMOVING: Final = "the files of the side buffer that are merged"
_MOVING: Final = "the files of the side buffer that are mostly merged"


class Sweeper:
    """Removes the files that no lane needs, and empties those of which little is needed."""

    def __init__(self, archive: Archive, lanes: Lanes, complaints: Complaints) -> None:
        self._archive = archive
        self._lanes = lanes
        self._complaints = complaints
        self._sweeping: asyncio.Task[None] | None = None

    @property
    def unneeded_bytes(self) -> int:
        """What the files take that are to be removed."""
        return sum(self._archive.sizes[base] for base in self._unneeded())

    def sweep_now(self) -> None:
        """At the start: a kill may have come between a commit and the removal of a file."""
        try:
            for base in self._unneeded():
                self._archive.remove_now(base)
        except OSError as error:
            self._complain(error)

    def sweep_soon(self) -> None:
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.create_task(self.sweep(), name="pairbus-side-buffer-sweeping")

    async def sweep(self) -> None:
        try:
            # Looked for anew each time: while one is being removed, something may come into the next one.
            while unneeded := self._unneeded():
                await self._archive.remove(unneeded[0])
                self._lanes.forget(unneeded[0])
        except OSError as error:
            self._complain(error)
        else:
            self._complaints.settle(_REMOVING)

    async def condense(self) -> None:
        """Put what little is needed of a file behind everything else, and remove the file.

        A kill between the two leaves both: a parcel that was moved says where it lay, and is known by that.
        """
        await self.sweep()
        try:
            for base in self._mostly_merged():
                await self._empty(base)
        except OSError as error:
            self._complaints.make(_MOVING, f"what is left of them cannot be moved: {error}")
        else:
            self._complaints.settle(_MOVING)
        await self.sweep()

    async def close(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeping

    def _unneeded(self) -> list[int]:
        return [base for base in self._archive.at_rest() if self._lanes.needed_bytes(base) <= 0]

    def _mostly_merged(self) -> list[int]:
        sizes = self._archive.sizes
        return [
            base for base in self._archive.finished() if 0 < self._lanes.needed_bytes(base) * _LITTLE <= sizes[base]
        ]

    async def _empty(self, base: int) -> None:
        entries = self._lanes.in_file(base)
        while entries:
            some = first_of(entries, BATCH_PARCELS, BATCH_BYTES)
            self._lanes.move(await self._archive.move(some))
            entries = entries[len(some) :]

    def _complain(self, error: OSError) -> None:
        self._complaints.make(_REMOVING, f"they cannot be removed: {error}")
