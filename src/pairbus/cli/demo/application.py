"""The application of the demo: it sends at a steady rate, and receives and completes what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain
from types import MappingProxyType
from typing import Final

from pairbus.cli.demo.tally import Tally
from pairbus.client import BrokeredMessage, MessageReceiver, MessageSender, MessagingError, MessagingFactory

PLACES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {"orders": ("orders",), "events": ("events/subscriptions/audit", "events/subscriptions/billing")}
)
"""What is sent to, each with where its messages come out."""

_TICK_S: Final = 0.02
_AT_ONCE: Final = 200
_WAIT: Final = timedelta(seconds=0.5)
_PAUSE_S: Final = 0.2


class Application:
    """Knows nothing of outages: whatever happens, it sends and receives as before."""

    def __init__(self, sending: MessagingFactory, receiving: MessagingFactory, rate: float) -> None:
        self.tally = Tally(PLACES)
        self._sending = sending
        self._receiving = receiving
        self._rate = rate
        self._is_sending = True
        self._is_receiving = True
        self._senders: list[asyncio.Task[None]] = []
        self._receivers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._senders = [asyncio.create_task(self._send())]
        self._receivers = [asyncio.create_task(self._receive(place)) for place in chain(*PLACES.values())]

    def check(self) -> None:
        """Raise what one of its tasks has ended with, if that was an error."""
        for task in (*self._senders, *self._receivers):
            if task.done():
                task.result()

    async def stop_sending(self) -> None:
        """Send nothing new, and wait for what is under way."""
        self._is_sending = False
        await asyncio.gather(*self._senders)

    async def stop_receiving(self) -> None:
        """Complete what was received."""
        self._is_receiving = False
        await asyncio.gather(*self._receivers)

    async def close(self) -> None:
        """Stop everything as it is."""
        tasks = [*self._senders, *self._receivers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Sending.

    async def _send(self) -> None:
        """Send to each entity in turn, so many a second, whether earlier ones were confirmed or not."""
        senders = [(entity, await self._sending.create_message_sender(entity)) for entity in PLACES]
        loop = asyncio.get_running_loop()
        began_s, number = loop.time(), 0
        async with asyncio.TaskGroup() as sends:
            while self._is_sending:
                while number < (loop.time() - began_s) * self._rate:
                    entity, sender = senders[number % len(senders)]
                    sends.create_task(self._send_one(sender, entity, f"{entity}-{number}"))
                    number += 1
                await asyncio.sleep(_TICK_S)

    async def _send_one(self, sender: MessageSender, entity: str, message_id: str) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            await sender.send(BrokeredMessage("one espresso", message_id=message_id))
        except MessagingError:
            self.tally.note_failed(loop.time() - began_s)
        else:
            self.tally.note_sent(entity, message_id, loop.time() - began_s)

    # Receiving.

    async def _receive(self, place: str) -> None:
        receiver = await self._receiving.create_message_receiver(place, prefetch_count=_AT_ONCE)
        while self._is_receiving:
            try:
                await self._receive_some(receiver, place)
            except MessagingError:  # what was not completed comes again
                await asyncio.sleep(_PAUSE_S)

    async def _receive_some(self, receiver: MessageReceiver, place: str) -> None:
        messages = await receiver.receive(_AT_ONCE, _WAIT)
        for message in messages:
            self.tally.note_received(place, str(message.message_id))
        if messages:
            await receiver.complete(messages)
        for message in messages:
            self.tally.note_completed(place, str(message.message_id), message.sequence_number or 0)
