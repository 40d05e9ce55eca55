"""An application with a paired sender, which runs in a thread."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from threading import Event, Thread
from typing import Any, Final, Self

from pairbus import (
    BrokeredMessage,
    MessagingError,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)

_EVERY_S: Final = 0.05
_PATIENCE_S: Final = 60


class Application:
    """Sends twenty messages per second to a queue of the primary, and can run a syphon."""

    def __init__(self, primary: str, secondary: str, queue: str) -> None:
        self._primary = primary
        self._secondary = secondary
        self._queue = queue
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_until_complete, args=[self._run()], daemon=True)
        self._ready = Event()
        self._stopped = asyncio.Event()
        self._resources = AsyncExitStack()
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def start_syphon(self) -> None:
        """Start a syphon that restores messages."""
        self._await(self._pair(enable_syphon=True))

    async def _run(self) -> None:
        async with self._resources:
            factory, pair = await self._pair(enable_syphon=False)
            pair.report("checkout")
            sender = await factory.create_message_sender(self._queue)
            self._ready.set()
            while not self._stopped.is_set():
                with suppress(MessagingError):  # the tests check the pages, not the sends
                    await sender.send(BrokeredMessage(f'{{"drink": "espresso", "number": {self.sent}}}'))
                    self.sent += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopped.wait(), _EVERY_S)

    async def _pair(self, *, enable_syphon: bool) -> tuple[MessagingFactory, NamespacePair]:
        enter = self._resources.enter_async_context
        manager = await enter(NamespaceManager.from_connection_string(self._secondary))
        secondary = await enter(MessagingFactory.from_connection_string(self._secondary))
        primary = await enter(MessagingFactory.from_connection_string(self._primary))
        options = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            2,
            timedelta(0),
            enable_syphon=enable_syphon,
            ping_interval=timedelta(seconds=1),
            attempt_timeout=timedelta(seconds=20),  # a slow namespace must not count as failed
            primary_name="contoso",
        )
        return primary, await primary.pair_namespace(options)

    def _await(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)
