"""The load for the client of every broker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

WINDOW: Final = 500
"""The number of messages in flight, and of prefetched messages."""

BATCH: Final = 100
BODY: Final = os.urandom(1024)

T = TypeVar("T")


class LoadedClient(Protocol):
    """A client under load. Each of the four returns when that many messages are confirmed."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def prepare(self, count: int) -> None:
        """Make the messages, which is not measured."""

    async def send_each(self) -> None: ...

    async def send_batches(self) -> None: ...

    async def complete_each(self, count: int) -> None: ...

    async def complete_batches(self, count: int) -> None: ...


async def in_tasks(tasks: int, items: Iterable[T], work: Callable[[T], Awaitable[Any]]) -> None:
    """Do the work for every item, by so many tasks, each of which waits for one item at a time."""
    waiting = iter(items)

    async def one_after_another() -> None:
        for item in waiting:
            await work(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(one_after_another())


def batches_of(items: list[T]) -> list[list[T]]:
    return [items[first : first + BATCH] for first in range(0, len(items), BATCH)]
