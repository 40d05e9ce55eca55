"""The live values of a page as server-sent events: each event has the values that changed since the previous one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Final

from pairbus.broker import BrokerError
from pairbus.console.http import RequestContext
from pairbus.console.sampler import Sampler
from pairbus.server.errors import ServerError
from pairbus.store import StoreError

LiveValues = Callable[[RequestContext], dict[str, str]]

_KEEPALIVE_S: Final = 15.0
"""Maximum time without output: a write detects that the browser has disconnected."""

_KEEPALIVE: Final = ": keepalive\n\n"


def event(kind: str, data: str) -> str:
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {kind}\n{lines}\n"


async def stream(context: RequestContext, live_values: LiveValues, is_open: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield events until the session ends, the entity is deleted, or the server stops."""
    sampler = context.sampler
    sent: dict[str, str] = {}
    with sampler.viewing():
        while not sampler.services.is_draining:
            if not is_open():
                yield event("logout", "log in again")
                return
            try:
                values = live_values(context)
            except StoreError:  # the next sample reads the store again
                values = sent
            except (BrokerError, ServerError) as error:
                yield event("gone", f"Updates have stopped: {error}.")
                return
            changed = {key: text for key, text in values.items() if sent.get(key) != text}
            sent = values
            yield event("patch", json.dumps(changed)) if changed else _KEEPALIVE
            await _next(sampler)


async def _next(sampler: Sampler) -> None:
    try:
        async with asyncio.timeout(_KEEPALIVE_S):
            await sampler.changed()
    except TimeoutError:
        pass
