"""Sending to a queue or a topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, overload

from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.amqp.slot import Slot
from pairbus.client.errors import MessageSizeExceededError, MessagingError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.node import ManagementNode
from pairbus.client.part import Maker, Part
from pairbus.client.retrying import retrying
from pairbus.dialect.batch import BATCH_FORMAT, join_batch

_SECTION_BYTES: Final = 8
"""What a message takes in a batch beside its own bytes."""


class MessageSender(Part):
    """Sends messages; each is confirmed when it is on the namespace's disk.

    Sends that are made at the same time go out one after the other without waiting for one another's confirmation, in
    the order in which they were made.
    """

    def __init__(self, maker: Maker, path: str) -> None:
        super().__init__(maker, path)
        self._slot = Slot(lambda: maker.open_sending_link(path))
        self._node = ManagementNode(maker, path)

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several; returns when the namespace has confirmed all of them.

        Several are packed into as few batches as the entity's limit allows. Each batch arrives whole or not at all.
        If one of them fails for good the error is raised, and what comes of the others is not told.
        """
        self._check_open()
        if not isinstance(message, BrokeredMessage):
            await self._send_many([encode_brokered(one) for one in message])
            return
        payload = encode_brokered(message)
        link = self._slot.ready
        failure: MessagingError | None = None
        started_s = None
        if link is not None:  # most sends end here, which is why it is kept short
            started_s = link.connection.loop.time()
            link.check_size(len(payload))
            try:
                await link.send(payload)
            except MessagingError as error:
                failure = error
            else:
                return
        await retrying(
            lambda: self._send(payload),
            settings=self._maker.settings,
            entity=self._path,
            failure=failure,
            started_s=started_s,
        )

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch: all of them arrive, or none.

        Raises ``MessageSizeExceededError`` if they do not fit into one.
        """
        self._check_open()
        payloads = [encode_brokered(one) for one in messages]
        if payloads:
            parcel = _Parcel(payloads, whole=True)
            await retrying(lambda: self._send_parcel(parcel), settings=self._maker.settings, entity=self._path)

    async def _send(self, payload: bytes) -> None:
        self._check_open()
        link = await self._slot.get()
        link.check_size(len(payload))
        await link.send(payload)

    async def _send_many(self, payloads: Sequence[bytes]) -> None:
        if payloads:
            parcel = _Parcel(payloads)
            await retrying(lambda: self._send_parcel(parcel), settings=self._maker.settings, entity=self._path)

    async def _send_parcel(self, parcel: _Parcel) -> None:
        self._check_open()
        await parcel.send(await self._slot.get())

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time. Gives the sequence numbers by which that can be cancelled until then."""
        self._check_open()
        if isinstance(message, BrokeredMessage):
            return (await self._node.schedule([message], at))[0]
        messages = [*message]
        return await self._node.schedule(messages, at) if messages else []

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled; raises ``MessageNotFoundError`` if one of them is not, any more."""
        self._check_open()
        numbers = [sequence_number] if isinstance(sequence_number, int) else [*sequence_number]
        if numbers:
            await self._node.cancel_scheduled(numbers)

    async def _let_go(self) -> None:
        link = await self._slot.clear()
        if link is not None:
            await link.close()
        await self._node.close()


class _Parcel:
    """Messages that are sent together, in batches; what has been confirmed is not sent again."""

    def __init__(self, payloads: Sequence[bytes], *, whole: bool = False) -> None:
        self._payloads = list(payloads)
        self._whole = whole
        self._batches: list[tuple[bytes, int]] | None = None

    async def send(self, link: SendingLink) -> None:
        if self._batches is None:
            batches = _pack(self._payloads, link)
            if self._whole and len(batches) > 1:
                raise MessageSizeExceededError(
                    f"{len(self._payloads)} messages do not fit into one batch of {link.max_batch_bytes:,} bytes",
                    entity=link.entity,
                )
            self._batches = batches
            self._payloads.clear()
        futures = [link.send(payload, message_format) for payload, message_format in self._batches]
        try:
            await asyncio.wait(futures)
        finally:
            unsure = [
                (batch, future)
                for batch, future in zip(self._batches, futures, strict=True)
                if not future.done() or future.cancelled() or future.exception() is not None
            ]
            self._batches = [batch for batch, _ in unsure]
            for _, future in unsure:
                future.cancel()
        errors = [future.exception() for _, future in unsure if not future.cancelled()]
        failures = [error for error in errors if isinstance(error, MessagingError)]
        if failures:
            raise min(failures, key=lambda error: error.is_transient)  # what is for good goes first


def _pack(payloads: Sequence[bytes], link: SendingLink) -> list[tuple[bytes, int]]:
    """Batches in the order of the messages; one that is alone goes as it is. Raises before anything is sent."""
    batches: list[tuple[bytes, int]] = []
    waiting: list[bytes] = []
    waiting_bytes = 0
    for payload in payloads:
        link.check_size(len(payload))
        size = len(payload) + _SECTION_BYTES
        if waiting and waiting_bytes + size > link.max_batch_bytes:
            batches.append(_batch(waiting))
            waiting, waiting_bytes = [], 0
        waiting.append(payload)
        waiting_bytes += size
    batches.append(_batch(waiting))
    return batches


def _batch(payloads: list[bytes]) -> tuple[bytes, int]:
    return (payloads[0], 0) if len(payloads) == 1 else (join_batch(payloads), BATCH_FORMAT)
