"""Our client, for a namespace of ours."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from typing import Final

from benchmarks.brokers.load import BATCH, WINDOW, batches_of, in_tasks
from pairbus import BrokeredMessage, Endpoint, MessageReceiver, MessageSender, MessagingFactory, TokenProvider
from pairbus.dialect.connection_string import ConnectionString, parse_connection_string

BODY: Final = os.urandom(1024)

_PATIENCE: Final = timedelta(seconds=30)


def make_client(address: str) -> Pairbus:
    """Return a client for the entity of a connection string."""
    parsed = parse_connection_string(address)
    assert parsed.entity_path is not None
    return Pairbus(parsed, parsed.entity_path)


class Pairbus:
    """A factory with one sender; a receiver is there only while something is received, or it would prefetch."""

    def __init__(self, address: ConnectionString, path: str) -> None:
        self._address = address
        self._path = path
        self._messages: list[BrokeredMessage] = []

    async def open(self) -> None:
        assert self._address.key_name is not None
        assert self._address.key is not None
        self._factory = MessagingFactory.create(
            Endpoint("127.0.0.1", self._address.port, tls=False),
            TokenProvider.from_key(self._address.key_name, self._address.key),
        )
        self.sender: MessageSender = await self._factory.create_message_sender(self._path)
        await self.sender.send(messages(1, b"the first one"))
        await self.complete_batches(1)

    async def close(self) -> None:
        await self._factory.close()

    async def receiver(self) -> MessageReceiver:
        return await self._factory.create_message_receiver(self._path, prefetch_count=WINDOW)

    async def prepare(self, count: int, body: bytes) -> None:
        self._messages = messages(count, body)

    async def send_one(self, number: int) -> None:
        await self.sender.send(self._messages[number])

    async def send_each(self) -> None:
        await in_tasks(WINDOW, self._messages, self.sender.send)

    async def send_batches(self) -> None:
        await in_tasks(WINDOW // BATCH, batches_of(self._messages), self.sender.send)

    async def complete_each(self, count: int) -> None:
        async with await self.receiver() as receiver:

            async def complete_one(_: int) -> None:
                (message,) = await receiver.receive(1, _PATIENCE)
                await receiver.complete(message)

            await in_tasks(WINDOW, range(count), complete_one)

    async def complete_batches(self, count: int) -> None:
        left = count

        async def complete_some() -> None:
            nonlocal left
            while left > 0:
                wanted = min(BATCH, left)
                left -= wanted
                received = await receiver.receive(wanted, _PATIENCE)
                assert received, "the queue is empty before its time"
                left += wanted - len(received)
                await receiver.complete(received)

        async with await self.receiver() as receiver, asyncio.TaskGroup() as group:
            for _ in range(WINDOW // BATCH):
                group.create_task(complete_some())


def messages(count: int, body: bytes = BODY) -> list[BrokeredMessage]:
    """Return typical messages of an application: a body, a message id and two properties of its own."""
    return [
        BrokeredMessage(
            body, message_id=f"message-{number:08}", application_properties={"kind": "order", "number": number}
        )
        for number in range(count)
    ]
