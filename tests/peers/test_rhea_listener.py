"""Our engine as the client of a rhea listener."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.wire import (
    ACCEPTED,
    RELEASED,
    Authenticated,
    Condition,
    Configuration,
    ConnectionClosed,
    Delivery,
    Error,
    LinkDetached,
    LinkDrained,
    anonymous,
    decode_message,
    plain,
)
from pairbus.wire.errors import AuthenticationError
from tests.peers.node_server import MODIFIED, PASSWORD, REJECTED, USER
from tests.peers.payload import message, pattern
from tests.peers.rhea_container import RheaListener, buffer, data
from tests.peers.socket_client import SocketClient

SIZES = (1, 1024, 1024 * 1024)

REASON = {"condition": "test:no-good", "description": "not good enough", "info": {"line": 7}}
CHANGES = {"delivery_failed": True, "undeliverable_here": True, "message_annotations": {"x-opt-reason": "bruised"}}

OUTCOMES: list[tuple[str, Any, object]] = [
    ("accept", None, ACCEPTED),
    ("reject", REASON, REJECTED),
    ("release", None, RELEASED),
    ("modified", CHANGES, MODIFIED),
]
"""The settlements that rhea is asked for, and the states that arrive."""


@pytest.fixture
def listener() -> Iterator[RheaListener]:
    options = {"receiver_options": {"autoaccept": False}}
    with RheaListener(user=USER, password=PASSWORD, **options) as listener:
        yield listener


@pytest.fixture
def client(listener: RheaListener) -> Iterator[SocketClient]:
    with connect(listener) as client:
        yield client.opened()


def connect(listener: RheaListener, **options: Any) -> SocketClient:
    return SocketClient(listener.port, listener.step, **{"sasl": plain(USER, PASSWORD), **options})


def test_we_connect_with_the_right_password(client: SocketClient) -> None:
    assert [event.mechanism for event in client.seen(Authenticated)] == ["PLAIN"]
    assert client.engine.peer is not None
    assert client.engine.peer.container_id == "rhea"
    client.close()
    assert client.seen(ConnectionClosed) == [ConnectionClosed(None)]


def test_we_are_turned_away_with_a_wrong_password(listener: RheaListener) -> None:
    with connect(listener, sasl=plain(USER, "wrong")) as client:
        client.engine.open()
        (failure,) = client.until(lambda: client.failures)
        assert isinstance(failure, AuthenticationError)
        assert "PLAIN with AUTH" in failure.description
        client.failures.clear()
        assert not client.engine.is_open


@pytest.mark.parametrize("sasl", [anonymous(), None], ids=["anonymous", "without-sasl"])
def test_we_connect_without_a_password(sasl: Any) -> None:
    with RheaListener() as listener, connect(listener, sasl=sasl) as client:
        client.opened().close()


def test_messages_of_any_size_go_there_and_come_back_byte_for_byte(listener: RheaListener) -> None:
    configuration = Configuration(container_id="c", max_frame_size=4096)
    with connect(listener, configuration=configuration) as client:
        session = client.opened().session()
        sender = client.sender(session, "queue", name="out")
        client.receiver(session, "queue", name="in").flow(len(SIZES))
        client.until(lambda: listener.all("sendable", link="in"))
        for size in SIZES:
            sender.send(message(size), tag=b"tag")
            listener.do("send", link="in", message={"body": data(pattern(size))})
        client.until(lambda: len(listener.all("message")) == len(SIZES))
        bodies = [reported["message"]["body"] for reported in listener.all("message")]
        assert bodies == [{"$": "data", "v": buffer(pattern(size))} for size in SIZES]
        deliveries = client.receive(len(SIZES))
        assert [decode_message(delivery.payload).body for delivery in deliveries] == [
            (pattern(size),) for size in SIZES
        ]


@pytest.mark.parametrize(("how", "details", "state"), OUTCOMES, ids=[how for how, _, _ in OUTCOMES])
def test_we_as_sender_see_what_rhea_makes_of_a_message(
    client: SocketClient, listener: RheaListener, how: str, details: Any, state: object
) -> None:
    delivery = client.sender(client.session(), "queue", name="out").send(message(), tag=b"tag")
    client.until(lambda: listener.all("message"))
    listener.do("settle", link="out", id=0, how=how, details=details)
    client.until(lambda: delivery.settled)
    assert delivery.state == state


@pytest.mark.parametrize("state", [ACCEPTED, REJECTED, RELEASED, MODIFIED], ids=lambda state: type(state).__name__)
def test_rhea_as_sender_sees_what_we_make_of_a_message(
    client: SocketClient, listener: RheaListener, state: object
) -> None:
    receiver = client.receiver(client.session(), "queue", name="in")
    receiver.flow(1)
    client.until(lambda: listener.all("sendable", link="in"))
    listener.do("send", link="in", message={"body": "x"})
    (delivery,) = client.receive()
    receiver.settle(delivery, state)
    (reported,) = client.until(lambda: listener.all("settled"))
    assert reported["outcome"] == type(state).__name__.lower()
    assert reported["error"] == (REASON if state is REJECTED else None)
    for name, value in CHANGES.items():
        assert reported[name] == (value if state is MODIFIED else None)


def test_we_drain_a_link_of_rheas(client: SocketClient, listener: RheaListener) -> None:
    receiver = client.receiver(client.session(), "queue", name="in")
    receiver.flow(10, drain=True)
    client.until(lambda: listener.all("sender_draining"))
    listener.do("send", link="in", message={"body": "x"})
    client.receive()
    listener.do("drained", link="in")
    client.until(lambda: client.seen(LinkDrained))
    assert receiver.credit == 0
    assert len(client.seen(Delivery)) == 1


def test_link_that_rhea_detaches_can_be_attached_again(client: SocketClient, listener: RheaListener) -> None:
    session = client.session()
    client.sender(session, "queue", name="out")
    listener.do("close_link", link="out")
    (detached,) = client.until(lambda: client.seen(LinkDetached))
    assert (detached.closed, detached.error) == (True, None)
    client.until(lambda: listener.all("receiver_close"))
    client.sender(session, "queue", name="out")


def test_close_of_rhea_has_a_reason(client: SocketClient, listener: RheaListener) -> None:
    listener.do("close", error={"condition": "amqp:connection:forced", "description": "maintenance"})
    (closed,) = client.until(lambda: client.seen(ConnectionClosed))
    assert closed.error == Error(Condition.CONNECTION_FORCED, "maintenance")
    client.until(lambda: client.hung_up)
