"""The asynchronous half of our own client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairbus import MessagingFactory, NamespaceManager, ReceivedMessage
from tests.compatibility.administration import Administration
from tests.compatibility.client import Adapter, Client, Endpoint, Transport
from tests.compatibility.pairbus_administration import PairbusAdministration
from tests.compatibility.pairbus_client import ABILITIES, Half, PairbusClient


class AsyncHalf(Half):
    """Functions that are awaited."""

    factory = staticmethod(MessagingFactory.from_connection_string)
    manager = staticmethod(NamespaceManager.from_connection_string)

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await function(*args, **options)

    async def stream(self, receiver: Any, count: int) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        async for message in receiver:
            await receiver.complete(message)
            received.append(message)
            if len(received) == count:
                break
        return received


class PairbusAdapter(Adapter):
    """pairbus with asyncio."""

    id = "pairbus"
    title = "Python, `pairbus`"
    abilities = ABILITIES

    def check_presence(self) -> None:
        """It is ours."""

    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client:
        return PairbusClient(AsyncHalf(), endpoint, transport, retries)

    def administration(self, endpoint: Endpoint) -> Administration:
        return PairbusAdministration(AsyncHalf(), endpoint)
