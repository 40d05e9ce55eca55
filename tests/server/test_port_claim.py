"""A namespace that is stopped and started again finds its port free."""

from __future__ import annotations

import errno
import socket

import pytest

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.testing import running_namespace


def test_port_of_a_stopped_namespace_stays_reserved() -> None:
    with running_namespace(queues=["orders"]) as contoso:
        port, text = contoso.port, contoso.connection_string
        for _ in range(3):
            contoso.stop()
            with socket.socket() as other, pytest.raises(OSError, match="in use") as refused:
                other.bind(("127.0.0.1", port))
            assert refused.value.errno == errno.EADDRINUSE
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=10)
            contoso.start()
            assert contoso.port == port
        with MessagingFactory.from_connection_string(text) as factory:
            factory.create_message_sender("orders").send(BrokeredMessage("one espresso"))
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))  # it is released with the namespace
