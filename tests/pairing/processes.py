"""Namespaces and applications in separate processes, which tests kill, and records of their messages.

``python -m tests.pairing.processes PRIMARY SECONDARY`` runs an application that sends at a steady rate, runs a syphon,
prints which messages were confirmed, and expects to be killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, Self
from uuid import uuid4

import pytest

from pairbus import (
    BrokeredMessage,
    MessageReceiver,
    MessageSender,
    MessagingError,
    MessagingFactory,
    MessagingFactorySettings,
    NamespaceManager,
    NamespacePair,
    QueueDescription,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.dialect.paths import backlog_path
from pairbus.pairing.backlog import backlog_description

QUEUE: Final = "orders"
BACKLOG_QUEUES: Final = 3
_DEADLINE_S: Final = 120.0
_ROOT: Final = Path(__file__).resolve().parents[2]
_ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
_READY: Final = "ready"
_EVERY_S: Final = 0.005
_PRIMARY_NAME: Final = "contoso"
_A_MOMENT: Final = timedelta(seconds=1)


async def drained(pair: NamespacePair) -> None:
    """Wait until the backlog is empty, so that nothing more can be delivered from it."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while any(depths := (await pair.backlog_depth()).values()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"after {_DEADLINE_S:.0f} s there are still {sum(depths)} messages in the backlog")
        await asyncio.sleep(0.05)


# Namespaces


class NamespaceProcess:
    """A process of ``pairbus serve``, which keeps its port and its data after a restart."""

    program: tuple[str, ...] = (sys.executable, "-m", "pairbus.cli.main")
    environment: Mapping[str, str] = MappingProxyType({})
    """Variables that it gets in addition."""

    def __init__(self, data: Path, *options: str) -> None:
        self.connection_string = ""
        self._data = data
        self._options = options
        self._port = 0
        self._claim: socket.socket | None = None
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        if sys.platform == "linux":
            self._claim = _claim_port()
            self._port = self._claim.getsockname()[1]
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._claim is not None:
            self._claim.close()

    def start(self) -> None:
        """Start the process; return when it has printed its connection string."""
        options = ("--data", self._data, "--name", self._data.name, "--port", self._port, "--log-level", "error")
        self._process = subprocess.Popen(
            [*self.program, "serve", *map(str, options), *self._options],
            stdout=subprocess.PIPE,
            text=True,
            env={**_ENVIRONMENT, **self.environment},
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("ports: "):
                self._port = int(line.removeprefix("ports: "))
            if line.startswith("Endpoint="):
                self.connection_string = line.strip()
                return
        raise RuntimeError("the namespace has not come up")

    def kill(self) -> None:
        """Kill the process with SIGKILL, so that it cannot write anything. Idempotent."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the process with SIGTERM, which lets it finish."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate()


def _claim_port() -> socket.socket:
    """Reserve a port, also while the namespace is down: no other process gets it when it asks for a free port."""
    claim = socket.socket()
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    claim.bind(("127.0.0.1", 0))
    return claim


@dataclass(frozen=True, slots=True)
class TwoNamespaces:
    """A primary with a queue, and a secondary."""

    primary: NamespaceProcess
    secondary: NamespaceProcess

    async def prepare(self, **queue: Any) -> None:
        """Create the queue, and backlog queues with short locks, which soon release messages of a killed process."""
        async with NamespaceManager.from_connection_string(self.primary.connection_string) as manager:
            await manager.create_queue(QueueDescription(QUEUE, **queue))
        async with NamespaceManager.from_connection_string(self.secondary.connection_string) as manager:
            for index in range(BACKLOG_QUEUES):
                description = backlog_description(backlog_path(_PRIMARY_NAME, index))
                await manager.create_queue(replace(description, lock_duration=timedelta(seconds=5)))

    def primary_factory(self, **settings: Any) -> MessagingFactory:
        return _factory(self.primary.connection_string, **settings)

    def pairing(self, factory: MessagingFactory, **options: Any) -> AbstractAsyncContextManager[NamespacePair]:
        return pairing(factory, self.secondary.connection_string, **options)


def _factory(connection_string: str, **settings: Any) -> MessagingFactory:
    return MessagingFactory.from_connection_string(connection_string, MessagingFactorySettings(**settings))


@asynccontextmanager
async def pairing(primary: MessagingFactory, secondary: str, **options: Any) -> AsyncIterator[NamespacePair]:
    """Create a pair that diverts at once and pings every second; close it with its factories at the end."""
    async with (
        NamespaceManager.from_connection_string(secondary) as manager,
        _factory(secondary) as backup,
        primary,
    ):
        yield await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager,
                backup,
                BACKLOG_QUEUES,
                timedelta(),
                ping_interval=timedelta(seconds=1),
                primary_name=_PRIMARY_NAME,
                **options,
            )
        )


# Senders, receivers, and the record of their messages


@dataclass(slots=True)
class Books:
    """A record of the messages that were sent and received."""

    sent: set[str] = field(default_factory=set)
    """The messages whose sends have returned."""

    failed: dict[str, MessagingError] = field(default_factory=dict)
    received: dict[str, set[int]] = field(default_factory=dict)
    """The received messages with their sequence numbers: a redelivery after a crash is not a duplicate."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while messages are received and completed. A message may be delivered before it is durable, and gets another
    number if the process is killed in between: a test that counts duplicates takes this lock for the kill."""

    @property
    def lost(self) -> set[str]:
        return self.sent - self.received.keys()

    @property
    def duplicated(self) -> set[str]:
        return {message_id for message_id, numbers in self.received.items() if len(numbers) > 1}

    def summary(self, diverted: int) -> str:
        counts = {
            "sent": len(self.sent),
            "failed": len(self.failed),
            "diverted": diverted,
            "received": len(self.received),
            "lost": len(self.lost),
            "duplicated": len(self.duplicated),
        }
        return ", ".join(f"{name} {count:,}" for name, count in counts.items())


class SteadySender:
    """Sends at a steady rate, regardless of unconfirmed messages."""

    def __init__(
        self, sender: MessageSender, books: Books, on_confirmed: Callable[[str], object] = lambda _: None
    ) -> None:
        self._sender = sender
        self._books = books
        self._on_confirmed = on_confirmed
        self._is_over = False

    async def run(self) -> None:
        """Send until stopped, and wait for pending sends."""
        async with asyncio.TaskGroup() as group:
            while not self._is_over:
                group.create_task(self._send(uuid4().hex))
                await asyncio.sleep(_EVERY_S)

    def stop(self) -> None:
        self._is_over = True

    async def _send(self, message_id: str) -> None:
        try:
            await self._sender.send(BrokeredMessage(message_id, message_id=message_id))
        except MessagingError as error:
            self._books.failed[message_id] = error
        else:
            self._books.sent.add(message_id)
            self._on_confirmed(message_id)


@asynccontextmanager
async def sending(sender: MessageSender, books: Books) -> AsyncIterator[None]:
    """Send during the block; at its end all sends have returned or failed."""
    steady = SteadySender(sender, books)
    async with asyncio.TaskGroup() as group:
        group.create_task(steady.run())
        try:
            yield
        finally:
            steady.stop()


@asynccontextmanager
async def receiving(factory: MessagingFactory, books: Books) -> AsyncIterator[None]:
    """Receive during the block, also after outages of the namespace."""
    async with factory, await factory.create_message_receiver(QUEUE) as receiver:
        task = asyncio.create_task(_receive(receiver, books))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait((task,))


async def _receive(receiver: MessageReceiver, books: Books) -> None:
    while True:
        async with books.turn:
            with suppress(MessagingError):  # an uncompleted message is delivered again
                messages = await receiver.receive(100, _A_MOMENT)
                for message in messages:
                    assert message.text() == message.message_id
                    books.received.setdefault(str(message.message_id), set()).add(message.sequence_number)
                if messages:
                    await receiver.complete(messages)


# The application to be killed


class ApplicationProcess:
    """Runs a sender and a syphon in a separate process, and records the messages that it reports as confirmed."""

    def __init__(self, process: asyncio.subprocess.Process, books: Books) -> None:
        self.said = 0
        """Number of its confirmed messages."""

        self._process = process
        self._books = books
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the kill may have truncated the line
                self._books.sent.add(line.decode().strip())
                self.said += 1

    async def kill(self) -> None:
        """Kill the process with SIGKILL, and read the rest of its output. Idempotent."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def application(namespaces: TwoNamespaces, books: Books) -> AsyncIterator[ApplicationProcess]:
    """Run a paired application; kill it at the end, if it was not killed before."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.pairing.processes",
        namespaces.primary.connection_string,
        namespaces.secondary.connection_string,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
        env=_ENVIRONMENT,
    )
    try:
        assert process.stdout is not None
        first = await process.stdout.readline()
        assert first.decode().strip() == _READY, "the application has not come up"
        running = ApplicationProcess(process, books)
        yield running
        await running.kill()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _be_application(primary: str, secondary: str) -> None:
    def say(word: str) -> None:
        print(word, flush=True)

    factory = _factory(primary)
    async with pairing(factory, secondary, enable_syphon=True):
        sender = await factory.create_message_sender(QUEUE)
        say(_READY)
        await SteadySender(sender, Books(), say).run()  # until the kill


def _end_with_parent() -> None:
    """End this process if its parent ends, which could not kill it any more."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_be_application(sys.argv[1], sys.argv[2]))
