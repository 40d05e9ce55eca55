"""The live numbers of a page, as server-sent events: each tells what has changed since the one before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from pairbus.broker import BrokerError
from pairbus.console.visit import Visit
from pairbus.console.watch import Watch
from pairbus.server.errors import ServerError
from pairbus.store import StoreError

Live = Callable[[Visit], dict[str, str]]

_SILENCE_S: Final = 15.0
"""So often something is sent, or nobody would notice that the other side is gone."""

_ALIVE: Final = ": alive\n\n"


def event(kind: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {kind}\n{lines}\n"


async def stream(visit: Visit, live: Live, is_allowed: Callable[[], bool]) -> AsyncIterator[str]:
    """Events until the session is over, the entity is gone, or the server stops."""
    watch = visit.watch
    told: dict[str, str] = {}
    with watch.watching():
        while not watch.services.is_draining:
            if not is_allowed():
                yield event("over", "log in again")
                return
            try:
                values = live(visit)
            except StoreError:  # it will be read again
                values = told
            except (BrokerError, ServerError) as error:
                yield event("gone", f"There is nothing more to tell: {error}.")
                return
            changed = {key: text for key, text in values.items() if told.get(key) != text}
            told = values
            yield event("patch", json.dumps(changed)) if changed else _ALIVE
            await _next(watch)


async def _next(watch: Watch) -> None:
    try:
        async with asyncio.timeout(_SILENCE_S):
            await watch.changed()
    except TimeoutError:
        pass
