"""Messages on their way to their destination."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.parcel import batch_bytes
from pairbus.pairing.homecoming.contact import Contact
from pairbus.pairing.homecoming.delivery_rules import Fate, fate_of, is_silence
from pairbus.pairing.homecoming.destination import Destination, Waiter

C = TypeVar("C")
"""A message, as an engine has it in hand."""

_AT_ONCE_S: Final = 1.0
"""A connection that is lost so soon was lost before."""


class Desk(Protocol[C]):
    """Who is told what became of messages."""

    def restored(self, cargo: C) -> bytes | None:
        """The message as its destination gets it; ``None`` if there is none, and it is seen to."""

    def delivered(self, cargoes: list[C]) -> None: ...

    def refuse(self, cargoes: list[C], error: MessagingError) -> None:
        """They can never be delivered."""


class Delivery(Generic[C]):
    """Sends one batch after the other, so that a session stays in order when one of them fails."""

    def __init__(
        self,
        destination: Destination,
        contact: Contact,
        desk: Desk[C],
        waiter: Waiter,
        landed: Callable[[list[C]], None],
    ) -> None:
        self._destination = destination
        self._contact = contact
        self._desk = desk
        self._waiter = waiter
        self._landed = landed

    async def deliver(self, batch: list[C]) -> None:
        """Deliver messages until one has to wait; what is done with is told."""
        started_s = asyncio.get_running_loop().time()
        try:
            most_bytes = await self._destination.most_bytes()
        except MessagingError as error:
            await self._failed(batch, error, started_s)
            return
        while batch:
            cargoes, payloads, batch = self._packed(batch, most_bytes)
            if payloads and not await self._send(cargoes, payloads):
                return

    def _packed(self, batch: list[C], most_bytes: int) -> tuple[list[C], list[bytes], list[C]]:
        """What fits into one batch, and what is left."""
        cargoes: list[C] = []
        payloads: list[bytes] = []
        room = most_bytes
        for index, cargo in enumerate(batch):
            payload = self._desk.restored(cargo)
            if payload is None:
                self._landed([cargo])
                continue
            room -= batch_bytes([len(payload)])
            if payloads and room < 0:
                return cargoes, payloads, batch[index:]
            cargoes.append(cargo)
            payloads.append(payload)
        return cargoes, payloads, []

    async def _send(self, cargoes: list[C], payloads: list[bytes]) -> bool:
        """Whether the destination works; what it has refused for good is seen to."""
        started_s = asyncio.get_running_loop().time()
        try:
            await self._try(payloads)
        except MessagingError as error:
            if len(cargoes) > 1 and fate_of(error) is Fate.NEVER:  # which of them?
                for cargo, payload in zip(cargoes, payloads, strict=True):
                    if not await self._send([cargo], [payload]):
                        return False
                return True
            return await self._failed(cargoes, error, started_s)
        self._landed(cargoes)
        self._contact.delivered()
        self._destination.worked(self._waiter)
        self._desk.delivered(cargoes)
        return True

    async def _try(self, payloads: list[bytes]) -> None:
        """A connection that was lost is no reason to wait if there is another one at once."""
        started_s = asyncio.get_running_loop().time()
        try:
            await self._destination.send(payloads)
        except MessagingError as error:
            waited_s = asyncio.get_running_loop().time() - started_s
            if not is_silence(error) or isinstance(error, MessagingTimeoutError) or waited_s > _AT_ONCE_S:
                raise
            if await self._contact.doubt(self._destination.path, started_s):
                raise
            await self._destination.send(payloads)

    async def _failed(self, cargoes: list[C], error: MessagingError, started_s: float) -> bool:
        """Whether the destination works nevertheless."""
        if is_silence(error):
            if await self._contact.doubt(self._destination.path, started_s):
                return False
        else:
            self._contact.answered()
        if fate_of(error) is Fate.LATER:
            self._destination.failed(error, self._waiter)
            return False
        self._landed(cargoes)
        self._desk.refuse(cargoes, error)
        self._destination.worked(self._waiter)
        return True
