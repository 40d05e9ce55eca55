"""Both event loops, and every way to connect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.server.process import new_event_loop
from pairbus.testing import RunningNamespace, running_namespace


@pytest.fixture(scope="module", params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "best"])
def contoso(request: pytest.FixtureRequest) -> Iterator[RunningNamespace]:
    with running_namespace(new_loop=request.param) as namespace:
        with ServiceBusAdministrationClient.from_connection_string(
            namespace.connection_string, connection_verify=str(namespace.ca_file)
        ) as admin:
            admin.create_queue("orders")
        yield namespace


def plain(contoso: RunningNamespace) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(contoso.connection_string, retry_total=0)


def secure(contoso: RunningNamespace, **options: Any) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        contoso.tls_connection_string,
        retry_total=0,
        custom_endpoint_address=f"sb://127.0.0.1:{contoso.port}",
        connection_verify=str(contoso.ca_file),
        **options,
    )


def tls(contoso: RunningNamespace) -> ServiceBusClient:
    return secure(contoso, transport_type=TransportType.Amqp)


def websocket(contoso: RunningNamespace) -> ServiceBusClient:
    return secure(contoso, transport_type=TransportType.AmqpOverWebsocket)


@pytest.mark.parametrize("connect", [plain, tls, websocket], ids=["plain", "tls", "websocket"])
def test_message_is_delivered(
    contoso: RunningNamespace, connect: Callable[[RunningNamespace], ServiceBusClient]
) -> None:
    body = bytes(range(256)) * 800
    with connect(contoso) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(body))
        with client.get_queue_receiver("orders", max_wait_time=60) as receiver:
            (message,) = receiver.receive_messages(1)
            assert b"".join(message.body) == body
            receiver.complete_message(message)
