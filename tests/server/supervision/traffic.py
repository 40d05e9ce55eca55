"""Traffic of an entity that nothing is wrong with, while another part of the server fails."""

from __future__ import annotations

import asyncio
from threading import Event, Thread
from typing import Final, Self

from pairbus import BrokeredMessage, MessagingFactory
from pairbus.testing import RunningNamespace
from tests.waiting import eventually

_PAUSE_S: Final = 0.005


class Traffic:
    """Sends to the queue ``other`` and receives from it with our client, one message after the other, until the end.

    ``longest_gap_s`` is the longest time between two messages that were confirmed, received and completed, by the clock
    of the client's event loop.
    """

    def __init__(self, namespace: RunningNamespace) -> None:
        self.count = 0
        self.longest_gap_s = 0.0
        self._last_s = 0.0
        self._error: BaseException | None = None
        self._connection_string = namespace.connection_string
        self._closing = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self.count or self._error)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def goes_on(self) -> None:
        """Wait for more messages."""
        before = self.count
        eventually(lambda: self.count > before + 1 or self._error)

    def _run(self) -> None:
        try:
            asyncio.run(self._exchange())
        except BaseException as error:  # noqa: BLE001 (raised at the end)
            self._error = error

    async def _exchange(self) -> None:
        async with MessagingFactory.from_connection_string(self._connection_string) as factory:
            queue = await factory.create_queue_client("other")
            while not self._closing.is_set():
                await queue.send(BrokeredMessage(f"{self.count}"))
                (message,) = await queue.receive()
                assert message.text() == f"{self.count}"
                await queue.complete(message)
                self._note()
                await asyncio.sleep(_PAUSE_S)

    def _note(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self.count:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.count += 1
