"""The load for the client of every broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

WINDOW: Final = 500
"""The number of messages in flight, and of prefetched messages."""

BATCH: Final = 100

SEND: Final = "send one by one"
SEND_BATCHES: Final = f"send in batches of {BATCH}"
COMPLETE: Final = "receive and complete one by one"
COMPLETE_BATCHES: Final = f"receive and complete {BATCH} at a time"
WORKLOADS: Final = (SEND, COMPLETE, SEND_BATCHES, COMPLETE_BATCHES)
"""In this order the queue is empty after every round."""

T = TypeVar("T")


class LoadedClient(Protocol):
    """A client under load. Each load returns when that many messages are confirmed.

    The module of every broker has a function ``make_client`` that returns one for an address.
    """

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def prepare(self, count: int, body: bytes) -> None:
        """Create the messages, which is not measured."""

    async def send_one(self, number: int) -> None:
        """Send one of the prepared messages."""

    async def send_each(self) -> None:
        """Send all prepared messages, ``WINDOW`` of them at a time."""

    async def send_batches(self) -> None: ...

    async def complete_each(self, count: int) -> None: ...

    async def complete_batches(self, count: int) -> None: ...


async def run_workload(client: LoadedClient, workload: str, count: int) -> None:
    """Run one of the workloads with ``count`` messages, which are prepared."""
    if workload == SEND:
        await client.send_each()
    elif workload == SEND_BATCHES:
        await client.send_batches()
    elif workload == COMPLETE:
        await client.complete_each(count)
    else:
        await client.complete_batches(count)


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
