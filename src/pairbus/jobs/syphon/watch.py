"""Looks after a syphon while it runs, and says how far it has come."""

from __future__ import annotations

import asyncio
from typing import Final

from pairbus.client.errors import MessagingError
from pairbus.jobs.lines import Fact, Line, Progress, Teller
from pairbus.jobs.syphon.backlog_queues import BacklogDepth
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon import Syphon

_LOOK_S: Final = 5.0
_LINE_S: Final = 10.0
"""How often there is a line, while something happens."""


class Watch:
    """Asks for the depth of the backlog only when something has happened: an idle syphon costs nothing more."""

    def __init__(self, teller: Teller, depth: BacklogDepth) -> None:
        self._teller = teller
        self._depth = depth

    async def follow(self, syphon: Syphon) -> None:
        """Show how it is doing, until cancelled."""
        loop = asyncio.get_running_loop()
        shown: tuple[object, ...] | None = None
        told, told_s = (0, 0), loop.time()
        while True:
            status = syphon.status
            moved = (status.syphoned, status.dead_lettered)
            if (seen := (*moved, *sorted(status.waiting))) != shown:
                shown = seen
                progress = Progress(brought_home=moved[0], dead_lettered=moved[1], depth=await self._ask())
                self._teller.show(progress)
                if moved != told and loop.time() - told_s >= _LINE_S:
                    told, told_s = moved, loop.time()
                    self._teller.tell(_progress_line(progress))
            await asyncio.sleep(_LOOK_S)

    async def _ask(self) -> int | None:
        try:
            return await self._depth.ask()
        except MessagingError:
            return None  # the next look may know

    def end(self, status: SyphonStatus, uncounted_batches: int) -> None:
        """Tell the totals. They are a minimum if batches were cut short."""
        text = f"{status.syphoned:,} messages were brought home, {status.dead_lettered:,} dead-lettered"
        facts: dict[str, Fact] = {"brought_home": status.syphoned, "dead_lettered": status.dead_lettered}
        if uncounted_batches:
            text += f"; {uncounted_batches:,} batches were cut short, and their messages are not counted"
            facts["uncounted_batches"] = uncounted_batches
        self._teller.tell(Line(event="ended", text=text, facts=facts, is_warning=uncounted_batches > 0))


def _progress_line(progress: Progress) -> Line:
    depth = "" if progress.depth is None else f", {progress.depth:,} in the backlog"
    return Line(
        event="progress",
        text=f"{progress.brought_home:,} brought home{depth}",
        facts={
            "brought_home": progress.brought_home,
            "dead_lettered": progress.dead_lettered,
            "backlog": progress.depth,
        },
    )
