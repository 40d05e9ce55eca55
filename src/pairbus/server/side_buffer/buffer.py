"""The side buffer: keeps sends on disk that the store cannot take, and has them merged when it can (B3)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Self

from pairbus.broker import Address
from pairbus.server.side_buffer.archive import Archive
from pairbus.server.side_buffer.complaints import Complaints
from pairbus.server.side_buffer.directory import BufferDirectory
from pairbus.server.side_buffer.intake import Intake
from pairbus.server.side_buffer.lanes import Lanes
from pairbus.server.side_buffer.merger import Merger, Pauses
from pairbus.server.side_buffer.store import Store
from pairbus.server.side_buffer.sweeper import Sweeper
from pairbus.server.side_buffer.tally import Tally
from pairbus.server.side_buffer.transfer import Transfer
from pairbus.store import StoreFailedError

_log = logging.getLogger(__name__)


def miss(store: Store) -> None:
    """Where no side buffer is set: say so if there was one, since nobody looks into it now."""
    if any(store.merged(b"").values()):
        _log.warning(
            "this namespace had a side buffer, and the setting 'side_buffer' is gone: unless it was empty, messages"
            " that were confirmed lie there; set it to that directory again until pairbus_side_buffer_messages is 0"
        )


class SideBuffer:
    """Its parts, put together. All of it belongs to the loop; a thread waits for the disk."""

    def __init__(self, directory: BufferDirectory, store: Store, max_bytes: int, pauses: Pauses) -> None:
        self.tally = Tally()
        self._directory = directory
        self._lanes = Lanes()
        identity = directory.identity
        self._archive = Archive(directory.path, identity, store.merged(identity), max_bytes)
        complaints = Complaints()
        self._sweeper = Sweeper(self._archive, self._lanes, complaints)
        self.intake = Intake(
            self._archive, self._sweeper, store, self._lanes, self.tally, str(directory.path), max_bytes
        )
        transfer = Transfer(identity, self._archive, store, self._lanes, self.intake, self.tally, complaints)
        self._merger = Merger(
            identity, store, self._lanes, self.intake, transfer, self._sweeper, self.tally, complaints, pauses
        )
        self._merging: asyncio.Task[None] | None = None
        self._find()
        self._sweeper.sweep_now()

    @classmethod
    def open(cls, path: Path, name: str, store: Store, max_bytes: int, pauses: Pauses | None = None) -> Self:
        """Take the directory of a namespace, and what lies in it. Raises ``StoreError`` or ``SettingsError``."""
        directory = BufferDirectory.open(path, name)
        try:
            return cls(directory, store, max_bytes, pauses or Pauses())
        except OSError as error:
            directory.close()
            raise StoreFailedError(str(path), str(error)) from error
        except BaseException:
            directory.close()
            raise

    def _find(self) -> None:
        found, self.tally.set_aside = self._archive.find()
        for address, entry in found:
            self._lanes.add(address, entry)
            self.tally.held += entry.messages
        if self.tally.set_aside:
            _log.error(
                "%d places in the side buffer are damaged, may have been confirmed, and are set aside in %s",
                self.tally.set_aside,
                self._archive.aside_path,
            )
        if self._lanes:
            _log.warning("%d messages lie in the side buffer, and are merged now", self.tally.held)

    def start(self) -> None:
        """Merge, from now on."""
        self._merging = asyncio.create_task(self._merger.run(), name="pairbus-side-buffer")

    def holds(self, address: Address) -> bool:
        """Whether sends to an entity have to go into the buffer, behind what is there."""
        return address in self._lanes

    def is_quiet(self) -> bool:
        """Whether nothing is on its way into the buffer."""
        return self.intake.is_quiet()

    @property
    def used_bytes(self) -> int:
        return self._archive.used_bytes

    async def close(self) -> None:
        """Wait for what is on its way to the disk; what is in the buffer stays there."""
        if self._merging is not None:
            self._merging.cancel()
            with suppress(asyncio.CancelledError):
                await self._merging
        await self.intake.close()
        await self._sweeper.close()
        self._archive.close()
        self._directory.close()
