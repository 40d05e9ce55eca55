"""What lies parked in the backlog while another engine brings the rest home."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.pairing.pump.backlog_reader import BacklogReader
from pairbus.pairing.pump.in_process_syphon import InProcessSyphon, check_looks

_log = logging.getLogger(__name__)

_FIRST_LOOK_S: Final = 10.0
_REST_S: Final = 0.1
_PATIENCE_S: Final = 30.0


class Stragglers(InProcessSyphon):
    """Receives nothing; delivers what it is told of, or finds parked, as soon as its destination takes it.

    Messages that are parked are few, or wait for few destinations. One process does for them, which knows them all and
    so can keep them in order.
    """

    async def start(self) -> None:
        """See that the queues can be read; raises if that is not allowed, or if there are none."""
        try:
            for path in self._context.backlog_queues:
                self._readers.append(await self._reader(path))
            touches = [asyncio.ensure_future(reader.touch()) for reader in self._readers]
            if touches:
                await asyncio.wait(touches, timeout=_FIRST_LOOK_S)
                check_looks(touches)
        except BaseException:
            await self.close()
            raise

    def adopt(self, queue: str, path: str, sequence: int, session_id: str | None) -> None:
        """Deliver a message that was parked."""
        reader = next(one for one in self._readers if one.path == queue)
        reader.adopt(path, sequence, session_id)

    @property
    def busy(self) -> frozenset[tuple[str, str]]:
        """The backlog queues and destinations between which something is parked: what comes later waits behind it."""
        return frozenset(
            (reader.path, key)
            for reader in self._readers
            for key, channel in reader.channels.items()
            if not channel.is_empty
        )

    async def look(self) -> None:
        """Look for what somebody else has parked, who may not be there any more. For when the queues are quiet."""
        await self._look(BacklogReader.look)

    async def look_ahead(self) -> None:
        """Look for what lies parked before all that can be received: what comes behind it has to wait."""
        await self._look(BacklogReader.look_ahead)

    async def _look(self, look: Callable[[BacklogReader], Awaitable[None]]) -> None:
        for reader in self._readers:
            try:
                await look(reader)
            except MessagingError as error:
                _log.info("'%s' could not be looked at: %s", reader.path, error)

    async def rest(self) -> None:
        """Wait until nothing can be delivered at the moment, or nothing has been for a while."""
        loop = asyncio.get_running_loop()
        done, since_s = self._done, loop.time()
        while self._is_working and loop.time() - since_s < _PATIENCE_S:
            await asyncio.sleep(_REST_S)
            if self._done != done:
                done, since_s = self._done, loop.time()

    @property
    def _done(self) -> int:
        return sum(reader.syphoned + reader.dead_lettered for reader in self._readers)

    @property
    def _is_working(self) -> bool:
        if self._contact.is_away:
            return False
        channels = (channel for reader in self._readers for channel in reader.channels.values())
        return any(channel.is_moving for channel in channels)

    async def wait_for_primary(self, path: str) -> None:
        """If the primary namespace is away, wait until it is there."""
        if await self._contact.doubt(path, asyncio.get_running_loop().time()):
            await self._contact.wait()
