"""A namespace server that is killed again and again under a client that goes on, and what is there afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pairbus.cli.demo.engines import say
from pairbus.cli.demo.server import serving
from pairbus.client import BrokeredMessage, MessageSender, MessagingFactory
from pairbus.dialect.connection_string import parse_connection_string

KILLS: Final = 3
CONFIRMED_EACH: Final = 2_000
WINDOW: Final = 100
_AT_ONCE: Final = 500
_SETTINGS: Final = """
name = "contoso"
log_level = "warning"

[[queues]]
name = "orders"
requires_duplicate_detection = true
"""


class Survivor:
    """Serves a namespace, kills it in the middle of its work, and serves it again from the same directory."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []
        self._enough = asyncio.Event()
        self._stop = False

    def run(self) -> bool:
        """Run the demo; return whether every message was confirmed, and is there once."""
        with TemporaryDirectory(prefix="pairbus-demo-") as directory:
            return asyncio.run(self.play(Path(directory) / "contoso"))

    async def play(self, path: Path) -> bool:
        port = 0
        senders: asyncio.Task[None] | None = None
        for number in range(KILLS):
            async with serving(path, _SETTINGS, port) as (process, connection_string):
                port = parse_connection_string(connection_string).port or 0
                if senders is None:
                    senders = asyncio.create_task(self.send(connection_string))
                await self.confirm((number + 1) * CONFIRMED_EACH, senders)
                process.kill()
                say("server", f"killed after {len(self.confirmed):,} messages were confirmed; the application goes on")
        async with serving(path, _SETTINGS, port) as (_, connection_string):
            self._stop = True
            if senders is not None:
                await senders
            return await self.report(connection_string)

    async def confirm(self, number: int, senders: asyncio.Task[None]) -> None:
        """Wait until so many messages are confirmed."""
        while len(self.confirmed) < number:
            self._enough.clear()
            waiter = asyncio.ensure_future(self._enough.wait())
            await asyncio.wait((senders, waiter), return_when=asyncio.FIRST_COMPLETED)
            waiter.cancel()
            if senders.done():
                await senders  # it ends before its time only with an error

    async def send(self, connection_string: str) -> None:
        """Send from a hundred tasks, as an application would that knows nothing of servers that die."""
        ids = (f"order-{each}" for each in count())
        async with MessagingFactory.from_connection_string(connection_string) as factory:
            sender = await factory.create_message_sender("orders")
            await asyncio.gather(*(self._order(sender, ids) for _ in range(WINDOW)))

    async def _order(self, sender: MessageSender, ids: Iterator[str]) -> None:
        while not self._stop:
            message = BrokeredMessage("one espresso", message_id=next(ids))
            await sender.send(message)
            self.confirmed.append(str(message.message_id))
            self._enough.set()

    async def report(self, connection_string: str) -> bool:
        started = time.perf_counter()
        found: Counter[str] = Counter()
        async with MessagingFactory.from_connection_string(connection_string) as factory:
            receiver = await factory.create_message_receiver("orders", prefetch_count=2 * _AT_ONCE)
            while messages := await receiver.receive(_AT_ONCE, timedelta(seconds=1)):
                found.update(str(message.message_id) for message in messages)
                await receiver.complete(messages)
        say("client", f"received and completed {found.total():,} messages in {time.perf_counter() - started:.2f} s")
        lost = sum(message_id not in found for message_id in self.confirmed)
        twice = sum(number > 1 for number in found.values())
        print(f"\nsent and confirmed {len(self.confirmed):,}, received {len(found):,}, lost {lost}, twice {twice}")
        return lost == 0 and twice == 0 and len(found) == len(self.confirmed)
