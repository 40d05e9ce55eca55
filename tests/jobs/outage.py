"""A pair that lives through an outage with its ledgers open, and what the namespaces themselves have counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from pairbus import (
    BrokeredMessage,
    MessageReceiver,
    MessagingError,
    MessagingFactory,
    MessagingFactorySettings,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.testing import RunningNamespace, running_namespace

_PATIENCE_S = 400.0
_MOMENT = timedelta(seconds=1)


@dataclass(slots=True, kw_only=True)
class Outage:
    """Two namespaces: one of them is stopped while an application sends."""

    primary: RunningNamespace
    secondary: RunningNamespace
    ledgers: tuple[Path, Path]
    counted: dict[str, Counter[str]] = field(default_factory=dict)
    """The counts of each namespace, over all its starts."""

    received: Counter[str] = field(default_factory=Counter)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while messages are received and completed: the primary is not stopped in the middle of that."""

    diverted: int = 0

    def stop(self, namespace: RunningNamespace) -> None:
        """Stop it, and note what it has counted to the end: it counts from nothing when it is started again."""
        counters = namespace._running._running.services.counters
        namespace.stop()
        self.counted.setdefault(namespace.name, Counter()).update(
            {
                "send messages": counters.messages_sent,
                "send bytes": counters.bytes_sent,
                "receive messages": counters.messages_delivered,
                "receive bytes": counters.bytes_delivered,
                "settle messages": counters.settled.total(),
            }
        )

    async def live_through(self, messages: int) -> None:
        """Send a third, stop the primary, send a third, start it, send the rest, and wait until all was received."""
        patient = MessagingFactorySettings(operation_timeout=timedelta(seconds=60))
        async with (
            MessagingFactory.from_connection_string(self.primary.connection_string, patient) as factory,
            MessagingFactory.from_connection_string(self.secondary.connection_string) as backup,
            MessagingFactory.from_connection_string(self.primary.connection_string) as other,
        ):
            options = SendAvailabilityPairedNamespaceOptions(
                NamespaceManager.from_connection_string(self.secondary.connection_string),
                backup,
                3,
                timedelta(),
                ping_interval=timedelta(seconds=1),
                attempt_timeout=timedelta(seconds=30),  # a message that is late would be diverted, and come twice
                primary_name=self.primary.name,
                enable_syphon=True,
                syphon_engine="in-process",
            )
            pair = await factory.pair_namespace(options)
            receiving = asyncio.create_task(self._receive(await other.create_message_receiver("orders")))
            third = messages // 3
            await self._send(factory, range(third))
            async with self._turn:
                await asyncio.to_thread(self.stop, self.primary)
                await self._send(factory, range(third, 2 * third))
                await asyncio.to_thread(self.primary.start)
            await self._send(factory, range(2 * third, messages))
            await self._until_home(pair, messages)
            self.diverted = pair.status().diverted
            async with self._turn:  # what was received is completed
                receiving.cancel()
            await asyncio.wait((receiving,))
        for namespace in (self.primary, self.secondary):
            await asyncio.to_thread(self.stop, namespace)

    async def _send(self, factory: MessagingFactory, numbers: range) -> None:
        sender = await factory.create_message_sender("orders")
        for start in range(numbers.start, numbers.stop, 100):
            chosen = range(start, min(start + 100, numbers.stop))
            await sender.send([BrokeredMessage(b"x" * 200, message_id=str(number)) for number in chosen])

    async def _receive(self, receiver: MessageReceiver) -> None:
        while True:
            async with self._turn:
                try:
                    messages = await receiver.receive(500, _MOMENT)
                    self.received.update(str(message.message_id) for message in messages)
                    await receiver.complete(messages)
                except MessagingError:
                    continue  # what was not completed comes again

    async def _until_home(self, pair: NamespacePair, messages: int) -> None:
        async with asyncio.timeout(_PATIENCE_S):
            while len(self.received) < messages or any((await pair.backlog_depth()).values()):  # noqa: ASYNC110
                await asyncio.sleep(0.1)


@contextmanager
def outage(directory: Path) -> Iterator[Outage]:
    """A pair whose namespaces keep ledgers, with the lives of messages."""
    ledgers = directory / "contoso-ledger", directory / "fabrikam-ledger"
    with (
        running_namespace(
            "contoso",
            queues=["orders"],
            data=directory / "contoso",
            ledger=ledgers[0],
            ledger_lives=True,
        ) as primary,
        running_namespace("fabrikam", data=directory / "fabrikam", ledger=ledgers[1], ledger_lives=True) as secondary,
    ):
        yield Outage(primary=primary, secondary=secondary, ledgers=ledgers)
