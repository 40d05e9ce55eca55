"""The asynchronous half of azure-servicebus."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from azure.servicebus.aio import AutoLockRenewer, ServiceBusClient
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tests.compatibility.administration import Administration
from tests.compatibility.client import Ability, Adapter, Client, Endpoint, Transport
from tests.compatibility.python_administration import PythonAdministration
from tests.compatibility.python_client import ABILITIES, Half, PythonClient, translated


class AioHalf(Half):
    """Functions that are awaited."""

    client = staticmethod(ServiceBusClient.from_connection_string)
    administration = staticmethod(ServiceBusAdministrationClient.from_connection_string)
    renewer = AutoLockRenewer

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        return await result if inspect.isawaitable(result) else result

    async def open(self, receiver: Any) -> None:
        await receiver.__aenter__()

    async def collect(self, pages: Any) -> list[Any]:
        with translated():
            return [found async for found in pages]

    async def stream(self, receiver: Any, count: int) -> list[Any]:
        received: list[Any] = []
        async for message in receiver:
            await receiver.complete_message(message)
            received.append(message)
            if len(received) == count:
                break
        return received


class AioAdapter(Adapter):
    """azure-servicebus with asyncio."""

    id = "python-aio"
    title = "Python, `azure.servicebus.aio`"
    abilities = ABILITIES | {Ability.CONCURRENT_CALLS}

    def check_presence(self) -> None:
        """Its import has shown it."""

    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client:
        return PythonClient(AioHalf(), endpoint, transport, retries)

    def administration(self, endpoint: Endpoint) -> Administration:
        return PythonAdministration(AioHalf(), endpoint)
