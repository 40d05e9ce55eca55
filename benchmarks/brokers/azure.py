"""The Azure SDK for Python with asyncio, for a namespace of ours.

A connection of the SDK does one thing at a time: a send holds it until the message is confirmed. So several clients,
each with a connection of its own, share the load.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from benchmarks.brokers.load import BATCH, WINDOW, batches_of, in_tasks

CONNECTIONS: Final = 20

_PATIENCE_S: Final = 30.0


def missing() -> str | None:
    """Return the reason why the client cannot be measured; ``None`` if it can."""
    if importlib.util.find_spec("azure.servicebus") is None:
        return "azure-servicebus is not installed"
    return None


def make_client(address: str) -> AzureSdk:
    """Return a client for the entity of a connection string."""
    return AzureSdk(address)


class AzureSdk:
    """Clients with one sender each. It waits until a completion is confirmed, and completes one message at a time."""

    def __init__(self, address: str) -> None:
        self._sdk: Any = importlib.import_module("azure.servicebus")
        self._aio: Any = importlib.import_module("azure.servicebus.aio")
        self._address = address
        self._path = address.partition("EntityPath=")[2].partition(";")[0]
        self._messages: list[Any] = []
        self._senders: asyncio.Queue[Any] = asyncio.Queue()
        self._receivers: list[Any] = []
        """They do not prefetch, so they can stay open while messages are sent."""
        self._opened = AsyncExitStack()

    async def open(self) -> None:
        """Open all links at once: each takes the SDK half a second, most of it sleep."""
        await asyncio.gather(*(self._open_links() for _ in range(CONNECTIONS)))

    async def _open_links(self) -> None:
        connect, enter = self._aio.ServiceBusClient.from_connection_string, self._opened.enter_async_context
        client = await enter(connect(self._address))
        self._senders.put_nowait(await enter(client.get_queue_sender(self._path)))
        self._receivers.append(await enter(client.get_queue_receiver(self._path)))

    async def close(self) -> None:
        await self._opened.aclose()

    async def prepare(self, count: int, body: bytes) -> None:
        self._messages = [
            self._sdk.ServiceBusMessage(
                body, message_id=f"message-{number:08}", application_properties={"kind": "order", "number": number}
            )
            for number in range(count)
        ]

    async def send_one(self, number: int) -> None:
        await self._send(self._messages[number])

    async def send_each(self) -> None:
        await in_tasks(CONNECTIONS, self._messages, self._send)

    async def send_batches(self) -> None:
        await in_tasks(min(CONNECTIONS, WINDOW // BATCH), batches_of(self._messages), self._send_batch)

    async def complete_each(self, count: int) -> None:
        await self._complete(count, 1)

    async def complete_batches(self, count: int) -> None:
        await self._complete(count, BATCH)

    @asynccontextmanager
    async def _sender(self) -> AsyncIterator[Any]:
        sender = await self._senders.get()
        try:
            yield sender
        finally:
            self._senders.put_nowait(sender)

    async def _send(self, message: Any) -> None:
        async with self._sender() as sender:
            await sender.send_messages(message)

    async def _send_batch(self, messages: Sequence[Any]) -> None:
        """Send messages in one batch, or in several if the SDK's limit for a batch requires it."""
        async with self._sender() as sender:
            batch = await sender.create_message_batch()
            for message in messages:
                try:
                    batch.add_message(message)
                except self._sdk.exceptions.MessageSizeExceededError:
                    await sender.send_messages(batch)
                    batch = await sender.create_message_batch()
                    batch.add_message(message)
            await sender.send_messages(batch)

    async def _complete(self, count: int, together: int) -> None:
        waiting = iter([min(together, count - first) for first in range(0, count, together)])

        async def complete_all(receiver: Any) -> None:
            for wanted in waiting:
                left = wanted
                while left:
                    received = await receiver.receive_messages(left, max_wait_time=_PATIENCE_S)
                    assert received, "the queue is empty before its time"
                    for message in received:
                        await receiver.complete_message(message)
                    left -= len(received)

        async with asyncio.TaskGroup() as group:
            for receiver in self._receivers:
                group.create_task(complete_all(receiver))
