"""Both ends of a queue."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import overload

from pairbus.client.entity_client import EntityClient, SessionMaker
from pairbus.client.message import BrokeredMessage
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.sender import MessageSender

_NO_TIME = timedelta()


class QueueClient(EntityClient):
    """Sends to a queue and receives from it."""

    def __init__(
        self,
        maker: SessionMaker,
        path: str,
        receive_mode: ReceiveMode,
        *,
        prefetch_count: int = 0,
        max_auto_lock_renewal: timedelta = _NO_TIME,
    ) -> None:
        super().__init__(
            maker, path, receive_mode, prefetch_count=prefetch_count, max_auto_lock_renewal=max_auto_lock_renewal
        )
        self._sender = MessageSender(maker, path)

    async def send(self, message: BrokeredMessage | Iterable[BrokeredMessage]) -> None:
        """Send one message, or several, as ``MessageSender.send`` does."""
        self._check_open()
        await self._sender.send(message)

    async def send_batch(self, messages: Iterable[BrokeredMessage]) -> None:
        """Send messages as one batch, as ``MessageSender.send_batch`` does."""
        self._check_open()
        await self._sender.send_batch(messages)

    @overload
    async def schedule(self, message: BrokeredMessage, at: datetime) -> int: ...

    @overload
    async def schedule(self, message: Iterable[BrokeredMessage], at: datetime) -> list[int]: ...

    async def schedule(self, message: BrokeredMessage | Iterable[BrokeredMessage], at: datetime) -> int | list[int]:
        """Have messages enqueued at a time, as ``MessageSender.schedule`` does."""
        self._check_open()
        return await self._sender.schedule(message, at)

    async def cancel_scheduled(self, sequence_number: int | Iterable[int]) -> None:
        """Take back messages that are scheduled."""
        self._check_open()
        await self._sender.cancel_scheduled(sequence_number)

    async def _let_go(self) -> None:
        await self._sender.close()
        await super()._let_go()
