"""The blocking half of our own client: its calls run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pairbus import ReceivedMessage
from pairbus.blocking import MessagingFactory, NamespaceManager
from tests.compatibility.administration import Administration
from tests.compatibility.client import Adapter, Client, Endpoint, Transport
from tests.compatibility.pairbus_administration import PairbusAdministration
from tests.compatibility.pairbus_client import ABILITIES, Half, PairbusClient


class BlockingHalf(Half):
    """Functions that block."""

    factory = staticmethod(MessagingFactory.from_connection_string)
    manager = staticmethod(NamespaceManager.from_connection_string)

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *args, **options)

    async def stream(self, receiver: Any, count: int) -> list[ReceivedMessage]:
        return await asyncio.to_thread(self._stream, receiver, count)

    @staticmethod
    def _stream(receiver: Any, count: int) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        for message in receiver:
            receiver.complete(message)
            received.append(message)
            if len(received) == count:
                break
        return received


class PairbusBlockingAdapter(Adapter):
    """pairbus without asyncio."""

    id = "pairbus-blocking"
    is_facade = True
    title = "Python, `pairbus.blocking`"
    abilities = ABILITIES

    def check_presence(self) -> None:
        """It is ours."""

    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client:
        return PairbusClient(BlockingHalf(), endpoint, transport, retries)

    def administration(self, endpoint: Endpoint) -> Administration:
        return PairbusAdministration(BlockingHalf(), endpoint)
