"""Sending to a queue or a topic."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import overload

from pairbus.client.errors import MessagingError
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage, encode_brokered, messages_of
from pairbus.client.node import ManagementNode, sequence_numbers
from pairbus.client.paired_namespace import Pairing
from pairbus.client.parcel import Parcel
from pairbus.client.part import Maker, Part


class MessageSender(Part):
    """Sends messages; each is confirmed when it is on the namespace's disk.

    Sends that are made at the same time go out one after the other without waiting for one another's confirmation, in
    the order in which they were made.
    """

    def __init__(self, maker: Maker, path: str) -> None:
        super().__init__(maker, path)
        self._lane = Lane(maker, path)
        self._node = ManagementNode(maker, path)
        self._route = None if maker.pairing is None else maker.pairing.route(self._lane)

    def pair(self, pairing: Pairing) -> None:
        """From now on, send as a sender of a pair does."""
        self._route = pairing.route(self._lane)

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several; returns when the namespace has confirmed all of them.

        Several are packed into as few batches as the entity's limit allows. Each batch arrives whole or not at all.
        If one of them fails for good the error is raised, and what comes of the others is not told.
        """
        self._check_open()
        if not isinstance(message, BrokeredMessage):
            await self._send_parcel(Parcel([self._encoded(one) for one in messages_of(message)]))
            return
        payload = self._encoded(message)
        link, route = self._lane.ready, self._route
        if link is None or (route is not None and not route.is_direct):
            await self._send_parcel(Parcel([payload]))
            return
        started_s = link.connection.loop.time()  # most sends come this way, which is why it is kept short
        link.check_size(len(payload))
        try:
            await link.send(payload)
        except MessagingError as error:
            await self._send_parcel(Parcel([payload]), error, started_s)
        else:
            if route is not None:
                route.confirmed()

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch: all of them arrive, or none.

        Raises ``MessageSizeExceededError`` if they do not fit into one.
        """
        self._check_open()
        payloads = [self._encoded(one) for one in messages_of(messages)]
        if self._route is not None:
            self._route.check_batch(payloads)
        await self._send_parcel(Parcel(payloads, whole=True))

    def _encoded(self, message: BrokeredMessage) -> bytes:
        payload = encode_brokered(message)
        if self._route is not None:
            self._route.check(message, payload)
        return payload

    async def _send_parcel(
        self, parcel: Parcel, failure: MessagingError | None = None, started_s: float | None = None
    ) -> None:
        with self._explaining():
            await (self._route or self._lane).send(parcel, failure, started_s)

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time. Gives the sequence numbers by which that can be cancelled until then."""
        self._check_open()
        messages = [message] if isinstance(message, BrokeredMessage) else messages_of(message)
        if self._route is not None:
            for one in messages:
                self._encoded(one)
            self._route.check_schedule()
        numbers = await self._node.schedule(messages, at) if messages else []
        return numbers[0] if isinstance(message, BrokeredMessage) else numbers

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled; raises ``MessageNotFoundError`` if one of them is not, any more."""
        self._check_open()
        numbers = sequence_numbers(sequence_number)
        if numbers:
            await self._node.cancel_scheduled(numbers)

    async def _let_go(self) -> None:
        await self._lane.close()
        await self._node.close()
