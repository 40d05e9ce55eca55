"""Messages that are read in a thread of their own: who sends them can be stopped while none comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Thread
from typing import Final

from pairbus.cli.message_lines import Batch

_AHEAD: Final = 2
"""How many batches are read before they are wanted."""


async def fed(batches: Iterator[Batch]) -> AsyncIterator[Batch]:
    """The same batches. Raises what reading them raises."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(_AHEAD)

    def put(one: Batch | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(waiting.put(one), loop).result()

    def read() -> None:
        with suppress(CancelledError, RuntimeError):  # whoever wanted them has gone
            for one in _with_end(batches):
                put(one)

    # A thread of the loop's own would be waited for, and what is typed into a terminal may never come.
    Thread(target=read, name="pairbus-feed", daemon=True).start()
    while (one := await waiting.get()) is not None:
        if isinstance(one, Exception):
            raise one
        yield one


def _with_end(batches: Iterator[Batch]) -> Iterator[Batch | Exception | None]:
    try:
        yield from batches
    except (OSError, ValueError) as error:
        yield error
    yield None
