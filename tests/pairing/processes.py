"""Namespaces and applications in processes of their own, that can be killed; and the books that are kept of them.

Run as ``python -m tests.pairing.processes PRIMARY SECONDARY`` it is an application that sends at a steady rate, hosts a
syphon, says what was confirmed, and expects to be killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
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
from pairbus.dialect.backlog_path import backlog_path
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


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until something is so, in a bounded time."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"still not so after {_DEADLINE_S:.0f} s", pytrace=True)
        await asyncio.sleep(0.005)


async def drained(pair: NamespacePair) -> None:
    """Wait until nothing is left in the backlog, so that nothing more can come from there."""
    deadline_s = time.monotonic() + _DEADLINE_S
    while any(depths := (await pair.backlog_depth()).values()):
        if time.monotonic() > deadline_s:
            pytest.fail(f"after {_DEADLINE_S:.0f} s there are still {sum(depths)} messages in the backlog")
        await asyncio.sleep(0.05)


# Namespaces


class NamespaceProcess:
    """``pairbus serve``; it has the same port and the same data whenever it is started."""

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
        """Returns when it has said where it is."""
        options = ("--data", self._data, "--name", self._data.name, "--port", self._port, "--log-level", "error")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pairbus.cli.main", "serve", *map(str, options), *self._options],
            stdout=subprocess.PIPE,
            text=True,
            env=_ENVIRONMENT,
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
        """SIGKILL: it has no time to say or to write anything. To kill it twice is fine."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: it puts its things in order first."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.communicate()


def _claim_port() -> socket.socket:
    """Have a port that nobody is given, also while the namespace is away; who asks for it by its number gets it."""
    claim = socket.socket()
    claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    claim.bind(("127.0.0.1", 0))
    return claim


@dataclass(frozen=True, slots=True)
class TwoNamespaces:
    """A primary, with a queue, and a secondary."""

    primary: NamespaceProcess
    secondary: NamespaceProcess

    async def prepare(self, **queue: Any) -> None:
        """Make the queue, and backlog queues that soon give back what a process held that was killed."""
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
    """A pair that diverts at once and pings every second; it ends with its factories."""
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


# What goes on, and the books of it


@dataclass(slots=True)
class Books:
    """Which messages were sent, and which have come."""

    sent: set[str] = field(default_factory=set)
    """Those whose send has returned."""

    failed: dict[str, MessagingError] = field(default_factory=dict)
    received: dict[str, set[int]] = field(default_factory=dict)
    """With their sequence numbers: what is delivered again after a crash is still one message."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while messages are received and completed. A message may be delivered before it is on disk, and is another
    one then if a kill comes between: whoever counts duplicates takes the turn for the kill."""

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
    """Sends at a steady rate, whether or not what was sent before is confirmed."""

    def __init__(
        self, sender: MessageSender, books: Books, on_confirmed: Callable[[str], object] = lambda _: None
    ) -> None:
        self._sender = sender
        self._books = books
        self._on_confirmed = on_confirmed
        self._is_over = False

    async def run(self) -> None:
        """Send until told to stop, and wait for what is under way."""
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
    """Send meanwhile; at the end all sends have returned or failed."""
    steady = SteadySender(sender, books)
    async with asyncio.TaskGroup() as group:
        group.create_task(steady.run())
        try:
            yield
        finally:
            steady.stop()


@asynccontextmanager
async def receiving(factory: MessagingFactory, books: Books) -> AsyncIterator[None]:
    """Receive meanwhile, whatever happens to the namespace."""
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
            with suppress(MessagingError):  # what was not completed comes again
                messages = await receiver.receive(100, _A_MOMENT)
                for message in messages:
                    assert message.text() == message.message_id
                    books.received.setdefault(str(message.message_id), set()).add(message.sequence_number)
                if messages:
                    await receiver.complete(messages)


# The application that is killed


class ApplicationProcess:
    """Sends and syphons in a process of its own; what it says goes into the books."""

    def __init__(self, process: asyncio.subprocess.Process, books: Books) -> None:
        self.said = 0
        """How many of its messages were confirmed."""

        self._process = process
        self._books = books
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if line.endswith(b"\n"):  # the kill may have come in the middle
                self._books.sent.add(line.decode().strip())
                self.said += 1

    async def kill(self) -> None:
        """SIGKILL, and read the rest of what it said. To kill it twice is fine."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading


@asynccontextmanager
async def application(namespaces: TwoNamespaces, books: Books) -> AsyncIterator[ApplicationProcess]:
    """An application that is paired; it is killed at the end, if not before."""
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
    """Whoever was to kill us may be gone."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    asyncio.run(_be_application(sys.argv[1], sys.argv[2]))
