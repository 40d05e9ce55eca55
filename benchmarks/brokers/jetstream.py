"""nats-py and NATS JetStream: a stream in files, publishing with acknowledgement, a pull consumer.

JetStream acknowledges what it has written. It has it synced to disk later: strace sees no fsync before the answer.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.brokers.load import BATCH, WINDOW, batches_of, in_tasks
from tests.client.rabbitmq_server import free_port

_SUBJECT: Final = "orders.new"
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.05


def missing() -> str | None:
    """Return the reason why the broker cannot be measured; ``None`` if it can."""
    if importlib.util.find_spec("nats") is None:
        return "nats-py is not installed"
    if shutil.which("nats-server") is None:
        return "nats-server is not installed (Debian: nats-server)"
    return None


@contextmanager
def jetstream_server(directory: Path) -> Iterator[tuple[int, int]]:
    """Start a server with JetStream on a free port; yield the port and the process id."""
    port = free_port()
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(directory)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(process, port)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_TIMEOUT_S)


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("nats-server has not come up") from None
            time.sleep(_PAUSE_S)
        else:
            return


def make_client(address: str) -> NatsPy:
    """Return a client for a port of this machine."""
    return NatsPy(int(address))


class NatsPy:
    """A connection. Acknowledgements of received messages are not confirmed: a last question waits for them all."""

    def __init__(self, port: int) -> None:
        self._nats: Any = importlib.import_module("nats")
        self._api: Any = importlib.import_module("nats.js.api")
        self._port = port
        self._messages: list[dict[str, str]] = []
        self._body = b""

    async def open(self) -> None:
        self._connection = await self._nats.connect(f"nats://127.0.0.1:{self._port}", allow_reconnect=False)
        self._stream = self._connection.jetstream(timeout=_TIMEOUT_S, publish_async_max_pending=WINDOW)
        await self._stream.add_stream(
            name="orders",
            subjects=["orders.>"],
            storage=self._api.StorageType.FILE,
            retention=self._api.RetentionPolicy.WORK_QUEUE,
        )
        self._consumer = await self._stream.pull_subscribe(
            _SUBJECT, durable="reader", config=self._api.ConsumerConfig(ack_policy=self._api.AckPolicy.EXPLICIT)
        )

    async def close(self) -> None:
        await self._connection.close()

    async def prepare(self, count: int, body: bytes) -> None:
        self._body = body
        self._messages = [
            {"id": f"message-{number:08}", "kind": "order", "number": str(number)} for number in range(count)
        ]

    async def send_one(self, number: int) -> None:
        await self._publish(self._messages[number])

    async def send_each(self) -> None:
        await in_tasks(WINDOW, self._messages, self._publish)

    async def send_batches(self) -> None:
        async def publish_all(batch: list[dict[str, str]]) -> None:
            await asyncio.gather(*(self._publish(headers) for headers in batch))

        await in_tasks(WINDOW // BATCH, batches_of(self._messages), publish_all)

    async def complete_each(self, count: int) -> None:
        await self._fetch(count, WINDOW)

    async def complete_batches(self, count: int) -> None:
        await self._fetch(count, BATCH)

    async def _publish(self, headers: dict[str, str]) -> None:
        await self._stream.publish(_SUBJECT, self._body, headers=headers)

    async def _fetch(self, count: int, together: int) -> None:
        received = 0
        while received < count:
            for message in await self._consumer.fetch(min(together, count - received), timeout=_TIMEOUT_S):
                await message.ack()
                received += 1
        await self._consumer.consumer_info()
