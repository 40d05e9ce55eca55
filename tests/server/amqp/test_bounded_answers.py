"""E3: responses that a peer does not read are buffered within bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from pairbus.broker import Address, NewMessage
from pairbus.dialect.management import Operation
from pairbus.server.messages import received_message
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Condition, Configuration, Int, Properties, Rejected, encode_message, plain
from pairbus.wire import Message as WireMessage
from tests.server.amqp.wire_client import WireClient, connect, text_message
from tests.waiting import eventually

LARGE = 240_000
ORDERS = Address.of("orders")
ROOT = "RootManageSharedAccessKey"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"]) as served:
        messages = [[received_message(text_message(bytes(LARGE)))] for _ in range(30)]
        served.call(lambda host: [host.use_namespace().send(ORDERS, each, host.now_ms()) for each in messages])
        yield served


def test_responses_behind_a_closed_window_end_their_link(namespace: RunningNamespace) -> None:
    """A window of one frame that is never opened again."""
    narrow = Configuration(container_id="narrow", incoming_window=1, strict=False)
    with WireClient(namespace.port, sasl=plain(ROOT, namespace.key), configuration=narrow).open() as client:
        asking = client.sender("$cbs")
        client.receiver("$cbs")
        client.first_session._incoming_window = -(10**9)  # it counts down, and never grows
        words = {"operation": "put-token", "name": "orders"}
        long_id = Properties(message_id="x" * 30_000)  # which is returned with the response
        payload = encode_message(WireMessage(properties=long_id, application_properties=words, body=(b"",)))
        for _ in range(400):
            client.begin_send(asking, payload)
        counted = namespace._running._running.services.counters.limits
        eventually(lambda: counted["waiting_response_bytes"] == 1)
        eventually(lambda: queued_in(namespace) == 0)


def queued_in(namespace: RunningNamespace) -> int:
    server = namespace._running
    connections: Any = server._running.services.connections
    return max((session.queued for each in connections for session in each._engine.sessions.values()), default=0)


def test_peek_of_many_large_messages_returns_as_many_as_fit(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        node = client.requests("orders/$management")
        body = {"from-sequence-number": 0, "message-count": Int(10_000)}
        found = node.call(Operation.PEEK_MESSAGE, body).body["messages"]
        assert 1 <= len(found) <= 5


def test_peek_of_one_message_returns_it_at_any_size(namespace: RunningNamespace) -> None:
    seen = namespace.call(lambda host: host.use_namespace().peek(ORDERS, 0, 10, host.now_ms(), max_bytes=1))
    assert len(seen) == 1
    assert len(seen[0].body) > LARGE


def test_invalid_request_is_rejected(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        for node in ("$cbs", "orders/$management"):
            client.receiver(node)
            asking = client.sender(node)
            for payload in (text_message("no operation"), b"garbage"):
                state = client.send(asking, payload)
                assert isinstance(state, Rejected)
                assert state.error is not None
                assert state.error.condition in {Condition.INVALID_FIELD, Condition.DECODE_ERROR}


def test_deferred_messages_beyond_the_limit_are_requested_in_parts(namespace: RunningNamespace) -> None:
    def too_many(host: object) -> str:
        from pairbus.broker import InvalidRequestError, QueueDescription, SettlementKind, SettlementRequest

        broker, now_ms = host.use_namespace(), host.now_ms()  # type: ignore[attr-defined]
        where = Address.of("put-off")
        broker.create_queue("put-off", QueueDescription(), now_ms)
        numbers = [broker.send(where, [NewMessage(bytes(1_000))], now_ms)[0] for _ in range(3)]
        for delivery in broker.receive(where, 3, now_ms):
            broker.settle(where, delivery.lock_token, now_ms, SettlementRequest(disposition=SettlementKind.DEFER))
        with pytest.raises(InvalidRequestError) as refused:
            broker.receive_deferred(where, numbers, now_ms, max_bytes=2_500)
        assert len(broker.receive_deferred(where, numbers[:1], now_ms, max_bytes=1)) == 1
        assert len(broker.receive_deferred(where, numbers[1:], now_ms, max_bytes=2_500)) == 2
        return str(refused.value)

    assert "ask for fewer" in namespace.call(too_many)


def test_simultaneous_requests_are_all_answered_however_short_the_turns(namespace: RunningNamespace) -> None:
    namespace._running._running.services.stopwatch = count(0.0, 1.0).__next__  # every look says that the turn is over
    with connect(namespace) as client:
        node = client.requests("orders/$management")
        sent = client.flush
        client.flush = lambda: None  # type: ignore[method-assign]
        for number in range(60):
            padding = {"padding": "x" * 40_000}
            node.ask(Operation.PEEK_MESSAGE, {"from-sequence-number": 0}, message_id=f"{number}", properties=padding)
        client.flush = sent  # type: ignore[method-assign]
        for number in range(60):
            assert client.until(partial(node.answer_to, f"{number}")) is not None
