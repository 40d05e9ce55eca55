"""E3: peers that give several deliveries the same number, as the SDK for Python does with simultaneous sends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from pairbus.broker import Address
from pairbus.dialect.management import Operation
from pairbus.server.messages import received_message
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Condition, Configuration, DispositionReceived, Int, LinkDetached, SessionEnded, plain
from tests.server.amqp.wire_client import WireClient, connect, text_message

ORDERS = Address.of("orders")


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"]) as served:
        yield served


def test_outcome_is_never_sent_for_another_message(namespace: RunningNamespace) -> None:
    """Check that a refused and an accepted message with the same number get separate outcomes."""
    refusals = iter(["busy"])
    deny = lambda operation, _address: next(refusals, None) if operation == "send" else None  # noqa: E731
    namespace.call(lambda host: setattr(host, "deny", deny))
    with connect(namespace) as client:
        sender = client.sender("orders")
        sender.send(text_message("A"), tag=b"A")
        client.first_session._next_delivery_id -= 1
        sender.send(text_message("B"), tag=b"B")
        client.flush()
        (ended,) = client.until(lambda: client.seen(SessionEnded))
        assert ended.error is not None
        assert ended.error.condition == Condition.INVALID_FIELD
        assert client.seen(DispositionReceived) == []


def test_requests_with_the_same_id_are_all_answered(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        node = client.requests("orders/$management")
        before = client.first_session._next_delivery_id
        names = [f"request {number}" for number in range(10)]
        for name in names:
            client.first_session._next_delivery_id = before
            node.ask(Operation.PEEK_MESSAGE, {"from-sequence-number": 0, "message-count": Int(1)}, message_id=name)
        for name in names:
            assert client.until(partial(node.answer_to, name)).status == 204


def test_peer_with_a_narrow_window_gets_one_response_after_another(namespace: RunningNamespace) -> None:
    """Check that sent responses do not count against the limit, however many there are in total."""
    message = received_message(text_message(bytes(200_000)))
    namespace.call(lambda host: host.use_namespace().send(ORDERS, [message], host.now_ms()))
    narrow = Configuration(container_id="narrow", incoming_window=4, strict=False)
    key = plain("RootManageSharedAccessKey", namespace.key)
    with WireClient(namespace.port, configuration=narrow, sasl=key).open() as client:
        node = client.requests("orders/$management")
        for number in range(60):
            if number < 56:
                body = {"from-sequence-number": 0, "message-count": Int(1)}
                node.ask(Operation.PEEK_MESSAGE, body, message_id=f"m{number}")
            if number >= 4:
                client.until(partial(node.answer_to, f"m{number - 4}"))
                assert client.seen(LinkDetached) == []
