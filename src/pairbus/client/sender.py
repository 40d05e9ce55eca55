"""Sending to a queue or a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime
from typing import overload

from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import MessagingError
from pairbus.client.message import BrokeredMessage, encode_brokered, messages_of
from pairbus.client.node import ManagementNode, sequence_numbers
from pairbus.client.parcel import Parcel
from pairbus.client.part import Maker, Part
from pairbus.client.retrying import retrying


class MessageSender(Part):
    """Sends messages; each is confirmed when it is on the namespace's disk.

    Sends that are made at the same time go out one after the other without waiting for one another's confirmation, in
    the order in which they were made.
    """

    def __init__(self, maker: Maker, path: str) -> None:
        super().__init__(maker, path)
        self._slot = Slot(lambda: maker.open_sending_link(path))
        self._node = ManagementNode(maker, path)
        self._line = asyncio.Lock()
        self._lined_up = 0
        """How many wait for a link in the line; whoever comes then lines up too, so that the order is kept."""

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several; returns when the namespace has confirmed all of them.

        Several are packed into as few batches as the entity's limit allows. Each batch arrives whole or not at all.
        If one of them fails for good the error is raised, and what comes of the others is not told.
        """
        self._check_open()
        if not isinstance(message, BrokeredMessage):
            await self._send_parcel(Parcel([encode_brokered(one) for one in messages_of(message)]))
            return
        payload = encode_brokered(message)
        link = self._slot.ready
        if link is None or self._lined_up:
            await self._send_parcel(Parcel([payload]))
            return
        started_s = link.connection.loop.time()  # most sends come this way, which is why it is kept short
        link.check_size(len(payload))
        try:
            await link.send(payload)
        except MessagingError as error:
            await self._send_parcel(Parcel([payload]), error, started_s)

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch: all of them arrive, or none.

        Raises ``MessageSizeExceededError`` if they do not fit into one.
        """
        self._check_open()
        await self._send_parcel(Parcel([encode_brokered(one) for one in messages_of(messages)], whole=True))

    async def _send_parcel(
        self, parcel: Parcel, failure: MessagingError | None = None, started_s: float | None = None
    ) -> None:
        with self._explaining():
            await retrying(
                lambda: self._try(parcel),
                settings=self._maker.settings,
                entity=self._path,
                failure=failure,
                started_s=started_s,
                limits_itself=True,
                hurry=self._maker.reached,
            )

    async def _try(self, parcel: Parcel) -> None:
        self._check_open()
        self._lined_up += 1
        try:
            async with self._line:
                self._check_open()  # it may have been closed while we stood in line
                futures = parcel.hand_over(await self._slot.get())
        finally:
            self._lined_up -= 1
        if futures:
            await parcel.confirmed(futures)

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time. Gives the sequence numbers by which that can be cancelled until then."""
        self._check_open()
        if isinstance(message, BrokeredMessage):
            return (await self._node.schedule([message], at))[0]
        messages = messages_of(message)
        return await self._node.schedule(messages, at) if messages else []

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled; raises ``MessageNotFoundError`` if one of them is not, any more."""
        self._check_open()
        numbers = sequence_numbers(sequence_number)
        if numbers:
            await self._node.cancel_scheduled(numbers)

    async def _let_go(self) -> None:
        link = await self._slot.clear()
        if link is not None:
            await link.close()
        await self._node.close()
