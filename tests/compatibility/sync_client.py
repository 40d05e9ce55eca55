"""The synchronous half of azure-servicebus: its calls run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from azure.servicebus import AutoLockRenewer, ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.compatibility.administration import Administration
from tests.compatibility.client import Adapter, Client, Endpoint, Transport
from tests.compatibility.python_administration import PythonAdministration
from tests.compatibility.python_client import ABILITIES, Half, PythonClient, translated


class SyncHalf(Half):
    """Functions that block."""

    client = staticmethod(ServiceBusClient.from_connection_string)
    administration = staticmethod(ServiceBusAdministrationClient.from_connection_string)
    renewer = AutoLockRenewer

    async def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *args, **options)

    async def open(self, receiver: Any) -> None:
        await asyncio.to_thread(receiver.__enter__)

    async def collect(self, pages: Any) -> list[Any]:
        with translated():
            return await asyncio.to_thread(list, pages)

    async def stream(self, receiver: Any, count: int) -> list[Any]:
        return await asyncio.to_thread(self._stream, receiver, count)

    @staticmethod
    def _stream(receiver: Any, count: int) -> list[Any]:
        received: list[Any] = []
        for message in receiver:
            receiver.complete_message(message)
            received.append(message)
            if len(received) == count:
                break
        return received


class SyncAdapter(Adapter):
    """azure-servicebus."""

    id = "python-sync"
    title = "Python, `azure.servicebus`"
    abilities = ABILITIES

    def check_presence(self) -> None:
        """Its import has shown it."""

    def client(self, endpoint: Endpoint, transport: Transport, *, retries: int = 0) -> Client:
        return PythonClient(SyncHalf(), endpoint, transport, retries)

    def administration(self, endpoint: Endpoint) -> Administration:
        return PythonAdministration(SyncHalf(), endpoint)
