"""A7: there are at most as many connections as are allowed, and one that goes makes room for another."""

from __future__ import annotations

import socket

import pytest

from pairbus.testing import running_namespace
from tests.server.amqp.wire_client import HungUpError, WireClient, connect, eventually


def test_one_too_many_is_hung_up_on() -> None:
    with running_namespace(queues=["orders"], max_connections=2) as contoso:
        with connect(contoso), socket.create_connection(("127.0.0.1", contoso.port)) as silent:
            silent.sendall(b"AM")  # which may become AMQP
            eventually(lambda: contoso._running._running.services.receptions)
            with WireClient(contoso.port) as refused, pytest.raises(HungUpError):
                refused.open()
        eventually(lambda: contoso._running._running.services.stream_count == 0)
        with connect(contoso) as client:
            client.sender("orders")
