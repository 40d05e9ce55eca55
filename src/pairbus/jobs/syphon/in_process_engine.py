"""The syphon that needs no Spark, for those who want what is there brought home once."""

from __future__ import annotations

import asyncio
from typing import Final

from pairbus.jobs.syphon.remains import Stock
from pairbus.pairing.pump import InProcessSyphon
from pairbus.pairing.syphon import SyphonContext

_LOOK_S: Final = 0.25
_QUIET_S: Final = 7.0
"""After how long without a message nothing is to be expected: a destination that is silent is given five seconds."""


class DrainingSyphon(InProcessSyphon):
    """Ends when nothing more can be brought home."""

    def __init__(self, context: SyphonContext) -> None:
        super().__init__(context)
        self._secondary = context.secondary
        self._queues = context.backlog_queues

    @property
    def uncounted_batches(self) -> int:
        """It has no batches: each message is counted when it is settled."""
        return 0

    async def finish(self) -> None:
        """Nothing has to be waited for before ``close``, which settles what is under way."""

    async def drain(self) -> None:
        """Bring home what is there now, and end. What cannot be delivered at the moment stays parked."""
        stock = await Stock.take(self._secondary, self._queues)
        await self.start()
        loop = asyncio.get_running_loop()
        moved, moved_s = 0, loop.time()
        while not await stock.is_gone():
            status = self.status
            if moved != status.syphoned + status.dead_lettered:
                moved, moved_s = status.syphoned + status.dead_lettered, loop.time()
            elif loop.time() - moved_s >= _QUIET_S:
                return
            await asyncio.sleep(_LOOK_S)
