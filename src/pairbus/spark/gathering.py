"""Work on many entities at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

T = TypeVar("T")

_AT_ONCE: Final = 32
"""Maximum number of entities that are looked into at a time."""


async def of_each(paths: Iterable[str], find: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Return a value for each entity, in their order. The first error ends all searches, and is raised."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def found(path: str) -> T:
        async with slots:
            return await find(path)

    searches = {path: asyncio.ensure_future(found(path)) for path in paths}
    try:
        await asyncio.gather(*searches.values())
        return {path: search.result() for path, search in searches.items()}
    finally:
        for search in searches.values():
            search.cancel()
        await asyncio.gather(*searches.values(), return_exceptions=True)
