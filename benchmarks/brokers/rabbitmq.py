"""aio-pika and RabbitMQ: a durable queue, persistent messages, publisher confirms."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from benchmarks.brokers.load import BATCH, WINDOW, batches_of, in_tasks
from tests.client import rabbitmq_server
from tests.client.rabbitmq_server import PASSWORD, USER


def missing() -> str | None:
    """Return the reason why the broker cannot be measured; ``None`` if it can."""
    if importlib.util.find_spec("aio_pika") is None:
        return "aio-pika is not installed"
    return rabbitmq_server.missing()


def make_client(address: str) -> AioPika:
    """Return a client for a port of this machine."""
    return AioPika(int(address))


class AioPika:
    """A connection with one channel. RabbitMQ does not confirm acknowledgements: a last question waits for them all."""

    def __init__(self, port: int) -> None:
        self._pika: Any = importlib.import_module("aio_pika")
        self._port = port
        self._messages: list[Any] = []

    async def open(self) -> None:
        self._connection = await self._pika.connect(f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self._port}/")
        self._channel = await self._connection.channel(publisher_confirms=True)
        await self._channel.set_qos(prefetch_count=WINDOW)
        self._queue = await self._channel.declare_queue("orders", durable=True)
        self._exchange = self._channel.default_exchange

    async def close(self) -> None:
        await self._connection.close()

    async def prepare(self, count: int, body: bytes) -> None:
        self._messages = [
            self._pika.Message(
                body,
                message_id=f"message-{number:08}",
                headers={"kind": "order", "number": number},
                delivery_mode=self._pika.DeliveryMode.PERSISTENT,
            )
            for number in range(count)
        ]

    async def send_one(self, number: int) -> None:
        await self._publish(self._messages[number])

    async def send_each(self) -> None:
        await in_tasks(WINDOW, self._messages, self._publish)

    async def send_batches(self) -> None:
        async def publish_all(batch: list[Any]) -> None:
            await asyncio.gather(*(self._publish(message) for message in batch))

        await in_tasks(WINDOW // BATCH, batches_of(self._messages), publish_all)

    async def complete_each(self, count: int) -> None:
        await self._consume(count, 1)

    async def complete_batches(self, count: int) -> None:
        await self._consume(count, BATCH)

    async def _publish(self, message: Any) -> None:
        await self._exchange.publish(message, "orders")

    async def _consume(self, count: int, together: int) -> None:
        everything = asyncio.Event()
        received = 0

        async def acknowledge(message: Any) -> None:
            nonlocal received
            received += 1
            if received % together == 0 or received == count:
                await message.ack(multiple=together > 1)
            if received == count:
                everything.set()

        tag = await self._queue.consume(acknowledge)
        await everything.wait()
        await self._queue.cancel(tag)
        await self._channel.declare_queue("orders", durable=True)
