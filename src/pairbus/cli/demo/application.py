"""The application of the demo: it sends at a constant rate, and receives and completes messages."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from types import MappingProxyType
from typing import Final

from pairbus.client import BrokeredMessage, MessageReceiver, MessageSender, MessagingError, MessagingFactory


class MessageLog:
    """A log of every message by its id: where it was sent to, and where it was received.

    ``places`` maps each destination to the queue or subscriptions at which its messages are received.
    """

    def __init__(self, places: Mapping[str, Sequence[str]]) -> None:
        self.failed = 0
        """Sends that raised an error."""

        self.longest_wait_s = 0.0
        """The longest duration of a send."""

        self.redelivered = 0
        """Deliveries of messages that had been delivered before."""

        self._places = places
        self._sent: dict[str, list[str]] = {entity: [] for entity in places}
        self._completed: dict[str, defaultdict[str, set[int]]] = {
            place: defaultdict(set) for group in places.values() for place in group
        }
        self._received: dict[str, set[str]] = {place: set() for place in self._completed}

    def note_sent(self, entity: str, message_id: str, wait_s: float) -> None:
        """Record a send that returned."""
        self._sent[entity].append(message_id)
        self.longest_wait_s = max(self.longest_wait_s, wait_s)

    def note_failed(self, wait_s: float) -> None:
        """Record a send that raised an error."""
        self.failed += 1
        self.longest_wait_s = max(self.longest_wait_s, wait_s)

    def note_received(self, place: str, message_id: str) -> None:
        """Record a delivery."""
        self.redelivered += message_id in self._received[place]
        self._received[place].add(message_id)

    def note_completed(self, place: str, message_id: str, number: int) -> None:
        """Record a confirmed completion; ``number`` is the sequence number of the message at that place."""
        self._completed[place][message_id].add(number)

    @property
    def sent(self) -> int:
        return sum(map(len, self._sent.values()))

    @property
    def received(self) -> int:
        """The number of messages received, counted at each place."""
        return sum(map(len, self._received.values()))

    @property
    def expected(self) -> int:
        """The number of messages to be received in total."""
        return sum(len(self._sent[entity]) * len(group) for entity, group in self._places.items())

    @property
    def lost(self) -> int:
        """The number of messages that were sent and not received at one of their places."""
        return sum(1 for _ in self._lost())

    @property
    def doubled(self) -> int:
        """The number of messages that were completed again under another sequence number.

        A message that is delivered again because its completion was not confirmed is not a duplicate.
        """
        return sum(len(numbers) - 1 for place in self._completed.values() for numbers in place.values())

    def problems(self) -> Iterator[str]:
        """Describe each lost or duplicated message."""
        for place, message_id in self._lost():
            yield f"{message_id} was not received from {place}"
        for place, messages in self._completed.items():
            for message_id, numbers in messages.items():
                if len(numbers) > 1:
                    yield f"{message_id} was completed at {place} under several sequence numbers: {sorted(numbers)}"

    def _lost(self) -> Iterator[tuple[str, str]]:
        for entity, group in self._places.items():
            for place in group:
                received = self._received[place]
                yield from ((place, message_id) for message_id in self._sent[entity] if message_id not in received)


PLACES: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {"orders": ("orders",), "events": ("events/subscriptions/audit", "events/subscriptions/billing")}
)
"""The destinations, each with the places at which its messages are received."""

_TICK_S: Final = 0.02
_AT_ONCE: Final = 200
_WAIT: Final = timedelta(seconds=0.5)
_PAUSE_S: Final = 0.2


class Application:
    """An application without any handling of outages: it sends and receives all the time."""

    def __init__(self, sending: MessagingFactory, receiving: MessagingFactory, rate: float) -> None:
        self.tally = MessageLog(PLACES)
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
        """Raise the error of a task that has failed."""
        for task in (*self._senders, *self._receivers):
            if task.done():
                task.result()

    async def stop_sending(self) -> None:
        """Stop sending, and wait for pending sends."""
        self._is_sending = False
        await asyncio.gather(*self._senders)

    async def stop_receiving(self) -> None:
        """Stop receiving once the received messages are completed."""
        self._is_receiving = False
        await asyncio.gather(*self._receivers)

    async def close(self) -> None:
        """Cancel all tasks."""
        tasks = [*self._senders, *self._receivers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Sending.

    async def _send(self) -> None:
        """Send to each entity in turn at the given rate, whether earlier sends are confirmed or not."""
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
            except MessagingError:  # messages that are not completed are delivered again
                await asyncio.sleep(_PAUSE_S)

    async def _receive_some(self, receiver: MessageReceiver, place: str) -> None:
        messages = await receiver.receive(_AT_ONCE, _WAIT)
        for message in messages:
            self.tally.note_received(place, str(message.message_id))
        if messages:
            await receiver.complete(messages)
        for message in messages:
            self.tally.note_completed(place, str(message.message_id), message.sequence_number or 0)
