"""E3: peers with small limits, unusual requests or unread responses harm no other peer, and get errors."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.broker import Address, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dialect.management import Operation
from pairbus.server.amqp.services import BOUNDS, TOKEN_BYTES
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Array,
    Condition,
    Configuration,
    Described,
    Int,
    Modified,
    Rejected,
    Source,
    Symbol,
    Target,
    encode,
    plain,
)
from pairbus.wire.performatives import Transfer
from tests.server.amqp.wire_client import LinkRefusedError, Requests, WireClient, body_of, text_message
from tests.waiting import eventually

SMALL = Configuration(container_id="small", max_frame_size=512, strict=False)


@pytest.fixture
def namespace(caplog: pytest.LogCaptureFixture) -> Iterator[RunningNamespace]:
    """Yield a namespace that must not log an internal error."""
    with running_namespace() as served:
        served.call(
            lambda host: [
                host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()),
                host.use_namespace().create_queue("visits", QueueDescription(requires_session=True), host.now_ms()),
                host.use_namespace().create_topic("news", TopicDescription(), host.now_ms()),
                host.use_namespace().create_subscription("news", "all", SubscriptionDescription(), host.now_ms()),
            ]
        )
        yield served
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


def connect(namespace: RunningNamespace, **options: Any) -> WireClient:
    return WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key), **options).open()


def talkative(client: WireClient) -> None:
    """Let a client that accepts small frames write large ones: that is the server's limit, not the client's."""
    client.engine._writer.max_frame_size = 65_536


# Peers that accept only small messages.


def test_message_too_large_for_a_receiver_goes_to_another(namespace: RunningNamespace) -> None:
    with connect(namespace) as small, connect(namespace) as other:
        link = small.receiver("orders", max_message_size=10, credit=5)
        small.barrier()
        waiting = other.receiver("orders", credit=5)
        other.barrier()
        assert other.send(other.sender("orders"), text_message("x" * 100)) == ACCEPTED
        assert small.detached(link).condition == Condition.MESSAGE_SIZE_EXCEEDED
        assert body_of(other.receive(waiting)[0]) == b"x" * 100


def test_receiver_of_an_oversized_message_gets_an_error(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        assert client.send(client.sender("orders"), text_message("x" * 100)) == ACCEPTED
        link = client.receiver("orders", max_message_size=10, credit=5)
        assert client.detached(link).condition == Condition.MESSAGE_SIZE_EXCEEDED
        client.barrier()


@pytest.mark.parametrize("node", ["$cbs", "orders/$management"])
def test_response_too_large_for_the_client_harms_nothing(namespace: RunningNamespace, node: str) -> None:
    with connect(namespace) as client:
        replies = client.attach(
            RECEIVER, source=Source(address=node), target=Target(address="here"), max_message_size=1
        )
        asking = client.attach(SENDER, source=Source(address="here"), target=Target(address=node))
        client.until(lambda: asking.credit)
        body = {"from-sequence-number": 0, "message-count": Int(1)}
        Requests(client, asking, replies, "here").ask(Operation.PEEK_MESSAGE, body, message_id="one")
        namespace.call(lambda _host: None)
        client.barrier()


# Peers that accept only small frames.


def test_attach_that_does_not_fit_the_peers_frames_is_refused(namespace: RunningNamespace) -> None:
    with connect(namespace, configuration=SMALL) as client:
        talkative(client)
        source = Source(address="orders", filter={Symbol("other"): "x" * 1_000})
        link = client.begin_attach(RECEIVER, source=source, target=Target(address="here"))
        client.until(lambda: link.peer)
        client.barrier()


def test_grant_that_does_not_fit_the_peers_frames_leaves_the_session_to_another(namespace: RunningNamespace) -> None:
    with connect(namespace, configuration=SMALL) as small, connect(namespace) as other:
        talkative(small)
        source = Source(
            address="visits",
            filter={Symbol("com.microsoft:session-filter"): None},
            dynamic_node_properties={Symbol("other"): "x" * 1_000},
        )
        small.begin_attach(RECEIVER, source=source, target=Target(address="here"))
        small.barrier()
        waiting = other.begin_session_receiver("visits", None)
        other.barrier()
        assert other.send(other.sender("visits"), text_message("one", group_id="a")) == ACCEPTED
        assert other.attached(waiting).is_attached


def test_outcome_that_does_not_fit_the_peers_frames_is_sent_without_details(namespace: RunningNamespace) -> None:
    with connect(namespace, configuration=SMALL) as client:
        talkative(client)
        assert client.send(client.sender("orders"), text_message("one")) == ACCEPTED
        received = client.receive_one(client.receiver("orders"))
        state = client.settle(received, Modified(delivery_failed=True, message_annotations={Symbol("a"): "x" * 1_000}))
        assert isinstance(state, Modified)


def test_reason_that_does_not_fit_the_peers_frames_is_truncated(namespace: RunningNamespace) -> None:
    name = "a" * 250
    namespace.call(lambda host: host.use_namespace().create_queue(name, QueueDescription(), host.now_ms()))
    with connect(namespace, configuration=SMALL) as client:
        link = client.sender(name)
        namespace.call(lambda host: host.use_namespace().delete(Address.of(name), host.now_ms()))
        state = client.send(link, text_message("one"))
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == Condition.NOT_FOUND


# Peers with unusual requests.


@pytest.mark.parametrize(
    "session_id",
    [[], {}, [1], Array((1,)), True, 5, b"a", Described(Symbol("a"), 1), 1.5],
    ids=lambda value: type(value).__name__,
)
def test_session_id_of_another_type_is_refused(namespace: RunningNamespace, session_id: object) -> None:
    with connect(namespace) as client:
        link = client.session_receiver("visits", "a")
        node = client.requests("visits/$management")
        answer = node.call(Operation.GET_SESSION_STATE, {"session-id": session_id}, link=link.name)
        assert answer.status in {400, 410}


@pytest.mark.parametrize("properties", [[1], "x", 1, b"x"], ids=lambda value: type(value).__name__)
def test_filter_properties_of_another_type_are_refused(namespace: RunningNamespace, properties: object) -> None:
    with connect(namespace) as client:
        rule = {"rule-name": "odd", "rule-description": {"correlation-filter": {"properties": properties}}}
        answer = client.requests("news/Subscriptions/all/$management").call(Operation.ADD_RULE, rule)
        assert (answer.status, answer.condition) == (400, "com.microsoft:argument-error")


def test_unknown_operations_share_one_metric_label(namespace: RunningNamespace) -> None:
    """Check that a client with the Listen right cannot fill the memory with names."""
    with connect(namespace) as client:
        node = client.requests("orders/$management")
        for number in range(50):
            assert node.call(f"made-up-{number}").status == 501
    counters = namespace._running._running.services.counters
    assert len(counters.requests) <= 2


# Unproven peers.


def test_e5_peer_without_a_token_gets_no_transaction(namespace: RunningNamespace) -> None:
    with WireClient(namespace.port).open() as client, pytest.raises(LinkRefusedError, match="needs a token"):
        client.coordinator()


def test_e5_buffered_bytes_of_a_peer_without_a_token_are_bounded(namespace: RunningNamespace) -> None:
    with WireClient(namespace.port).open() as client:
        link = client.attach(SENDER, source=Source(address="here"), target=Target(address="$cbs"))
        assert link.remote_max_message_size == TOKEN_BYTES
        started = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"tag", message_format=0, more=True)
        session = client.first_session
        for _ in range(3):  # of an endless message
            client.engine._writer.write(session.channel, encode(started), bytes(65_000))
        client.barrier()
        services = namespace._running._running.services
        connection: Any = next(iter(services.connections))
        assert connection._engine.incomplete_bytes <= BOUNDS.incomplete_bytes
        assert services.unproven.held_bytes <= BOUNDS.incomplete_bytes + 65_536


# Peers that do not read.


@pytest.mark.slow
def test_peer_that_violates_the_protocol_and_does_not_read_is_dropped(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        link = client.sender("orders")
        sent = [client.begin_send(link, text_message(bytes(200_000))) for _ in range(100)]
        for delivery in sent:
            assert client.outcome(delivery) == ACCEPTED
    with WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key)) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.open().receiver("orders", credit=100)
        connection: Any = next(iter(namespace._running._running.services.connections))
        eventually(lambda: connection._transport.get_write_buffer_size() > 1 << 20)
        client.socket.sendall(b"\0\0\0\x01garbage")
        eventually(lambda: not namespace._running._running.services.connections)
