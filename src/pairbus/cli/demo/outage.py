"""The primary namespace of a pair is killed while an application sends, and what has become of its messages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pairbus.cli.demo.engines import say
from pairbus.cli.demo.server import serving
from pairbus.client import BrokeredMessage, MessageSender, MessagingError, MessagingFactory, NamespaceManager
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.pairing import (
    EntityChanged,
    EntityState,
    NamespacePair,
    PairEvent,
    PingSent,
    SendAvailabilityPairedNamespaceOptions,
)

A_SECOND: Final = 200
"""How many messages the application sends."""

_CALM_S: Final = 1.0
_OUTAGE_S: Final = 2.5
_AT_ONCE: Final = 500
_PRIMARY: Final = """
name = "contoso"
log_level = "warning"

[[queues]]
name = "orders"
requires_duplicate_detection = true
"""
_SECONDARY: Final = """
name = "fabrikam"
log_level = "warning"
"""


class Outage:
    """Two namespaces as processes, and an application that sends to one of them at a steady rate."""

    def __init__(self) -> None:
        self.sent = 0
        self.failed = 0
        self.longest_s = 0.0
        self._stop = False

    def run(self) -> bool:
        """Run the demo; return whether every send succeeded, and every message is there once."""
        with TemporaryDirectory(prefix="pairbus-demo-") as directory:
            return asyncio.run(self.play(Path(directory)))

    async def play(self, path: Path) -> bool:
        async with AsyncExitStack() as stack:
            _, secondary = await stack.enter_async_context(serving(path / "fabrikam", _SECONDARY))
            async with serving(path / "contoso", _PRIMARY) as (process, primary):
                factory, pair = await self._pair(stack, primary, secondary)
                sending = asyncio.create_task(self._send(factory))
                await asyncio.sleep(_CALM_S)
                process.kill()
                say("contoso", f"killed after {self.sent:,} messages; the application goes on")
            await asyncio.sleep(_OUTAGE_S)
            port = parse_connection_string(primary).port or 0
            async with serving(path / "contoso", _PRIMARY, port):
                say("contoso", "serves again")
                await self._come_home(pair, sending)
                return await self._report(factory, pair)

    async def _pair(
        self, stack: AsyncExitStack, primary: str, secondary: str
    ) -> tuple[MessagingFactory, NamespacePair]:
        backup = await stack.enter_async_context(MessagingFactory.from_connection_string(secondary))
        factory = await stack.enter_async_context(MessagingFactory.from_connection_string(primary))
        options = SendAvailabilityPairedNamespaceOptions(
            NamespaceManager.from_connection_string(secondary),
            backup,
            failover_interval=timedelta(),
            ping_interval=timedelta(seconds=1),
            primary_name="contoso",
            enable_syphon=True,
        )
        pair = await factory.pair_namespace(options)
        pair.subscribe(_show)
        say("pair", f"contoso and fabrikam, with {options.backlog_queue_count} backlog queues")
        return factory, pair

    async def _send(self, factory: MessagingFactory) -> None:
        sender = await factory.create_message_sender("orders")
        async with asyncio.TaskGroup() as sends:
            while not self._stop:
                sends.create_task(self._send_one(sender, f"order-{self.sent}"))
                self.sent += 1
                await asyncio.sleep(1 / A_SECOND)

    async def _send_one(self, sender: MessageSender, message_id: str) -> None:
        started_s = time.perf_counter()
        try:
            await sender.send(BrokeredMessage("one espresso", message_id=message_id))
        except MessagingError as error:
            say("application", f"{message_id} failed: {error}")
            self.failed += 1
        self.longest_s = max(self.longest_s, time.perf_counter() - started_s)

    async def _come_home(self, pair: NamespacePair, sending: asyncio.Task[None]) -> None:
        """Wait until everything is as before, and the backlog is empty."""
        while pair.status().entities[0].state is not EntityState.HEALTHY:  # noqa: ASYNC110 (as an operator looks)
            await asyncio.sleep(0.1)
        await asyncio.sleep(_CALM_S / 2)
        self._stop = True
        await sending
        while sum((await pair.backlog_depth()).values()):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        status = pair.status()
        say("syphon", f"has brought {0 if status.syphon is None else status.syphon.syphoned:,} messages home")

    async def _report(self, factory: MessagingFactory, pair: NamespacePair) -> bool:
        found: Counter[str] = Counter()
        receiver = await factory.create_message_receiver("orders", prefetch_count=2 * _AT_ONCE)
        while messages := await receiver.receive(_AT_ONCE, timedelta(seconds=1)):
            found.update(str(message.message_id) for message in messages)
            await receiver.complete(messages)
        status = pair.status()
        lost = sum(f"order-{number}" not in found for number in range(self.sent))
        twice = sum(number > 1 for number in found.values())
        print(
            f"\nsent {self.sent:,}, failed {self.failed}, diverted {status.diverted:,}, pings {status.pings}, "
            f"received {len(found):,}, lost {lost}, twice {twice}, the longest wait {self.longest_s:.2f} s"
        )
        return lost == twice == self.failed == 0


def _show(event: PairEvent) -> None:
    if isinstance(event, EntityChanged):
        say("pair", f"'{event.path}' is {event.state.value}")
    elif isinstance(event, PingSent):
        say("pair", f"pinged '{event.path}': {'no answer' if event.cause is not None else 'answered'}")
