"""Connections between two engines in memory."""

from __future__ import annotations

from pairbus.wire import ACCEPTED, SENDER, ConnectionClosed, Delivery, DispositionReceived, anonymous
from pairbus.wire.sasl import SaslServer
from tests.wire.pair import ConnectionPair


def test_a_message_goes_from_one_engine_to_the_other_and_is_settled() -> None:
    pair = ConnectionPair(sasl_client=anonymous(), sasl_server=SaslServer())
    session = pair.open()
    sender, receiver = pair.attach(session, "orders", SENDER)
    delivery = sender.send(b"one espresso", tag=b"1")
    pair.exchange()
    arrived = pair.server_events[-1]
    assert isinstance(arrived, Delivery)
    assert arrived.payload == b"one espresso"
    receiver.settle(arrived, ACCEPTED)
    pair.exchange()
    assert isinstance(pair.client_events[-1], DispositionReceived)
    assert delivery.settled
    assert delivery.state == ACCEPTED
    pair.client.close()
    pair.exchange()
    assert pair.server_events[-1] == ConnectionClosed(None)
    assert pair.client.is_closed
    assert pair.server.is_closed
