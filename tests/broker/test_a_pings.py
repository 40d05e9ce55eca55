"""C13: a ping is answered like a send, and is never delivered or counted."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker.descriptions import EntityStatus
from pairbus.broker.errors import (
    BrokerError,
    EntityDisabledError,
    EntityNotFoundError,
    HeaderSizeExceededError,
    InvalidMessageError,
    InvalidOperationError,
    MessageSizeExceededError,
    QuotaExceededError,
)
from pairbus.broker.limits import RELAXED
from pairbus.broker.message import Address, NewMessage
from pairbus.broker.transaction import SendOperation
from tests.broker.broker import MINUTE, START, Broker, blob, dead, letter, ping, sql, texts

MEGABYTE = 1024 * 1024


@pytest.mark.parametrize(
    "settings",
    [{}, {"requires_session": True}, {"requires_duplicate_detection": True}, {"partitioned": True}],
    ids=["plain", "sessions", "duplicate detection", "partitioned"],
)
def test_c13_ping_to_a_queue_is_accepted_and_leaves_nothing(settings: dict[str, Any]) -> None:
    broker = Broker()
    queue = broker.queue(dead_letter_on_expiration=True, **settings)
    before = broker.info(queue)
    for _ in range(3):
        assert broker.send(queue, ping(message_id="m", session_id="random")) == [None]
    assert broker.info(queue) == before
    broker.wait(MINUTE)
    assert broker.info(queue) == before
    assert broker.peek(queue) == broker.peek(dead(queue)) == []


def test_c13_ping_needs_no_session_id() -> None:
    broker = Broker()
    queue = broker.queue(requires_session=True)
    assert broker.send(queue, ping()) == [None]
    assert broker.namespace.sessions(queue, START) == []
    assert broker.namespace.accept_session(queue, None, START) is None


def test_c13_ping_to_a_topic_makes_no_copy_and_no_dead_letter() -> None:
    broker = Broker()
    topic = broker.topic()
    plain = broker.subscription("plain")
    sessions = broker.subscription("sessions", requires_session=True)
    failing = broker.subscription("failing", rule=sql("1 / 0 = 1"))
    acting = broker.subscription("acting", rule=sql("1=1", action="SET x = 1"))
    assert broker.send(topic, ping()) == [None]
    for subscription in (plain, sessions, failing, acting):
        assert broker.info(subscription).message_count == 0
    assert broker.info(topic).size_bytes == 0


def test_c13_ping_is_not_forwarded() -> None:
    broker = Broker()
    target = broker.queue("target")
    source = broker.queue("source", forward_to="target")
    broker.delete(target)
    assert broker.send(source, ping()) == [None]
    assert broker.info(source).message_count == 0


def test_c13_ping_uses_no_sequence_number_and_no_message_id() -> None:
    broker = Broker()
    queue = broker.queue(requires_duplicate_detection=True)
    broker.send(queue, ping(message_id="m"))
    assert broker.send(queue, letter("x", message_id="m")) == [1]
    assert broker.send(queue, ping(message_id="m"), letter("y", message_id="n")) == [None, 2]
    assert texts(broker.peek(queue)) == ["x", "y"]


def test_c13_scheduled_ping_is_not_delivered_later() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.send(queue, ping(scheduled_ms=START + MINUTE)) == [None]
    assert broker.info(queue).scheduled_count == 0


def test_c13_ping_wakes_no_receiver_and_writes_nothing() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.commit()
    kept = list(broker.store.scan(b"\0", b"\xff"))
    broker.send(queue, ping())
    assert broker.namespace.take_woken() == []
    broker.commit()
    assert list(broker.store.scan(b"\0", b"\xff")) == kept


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_c13_ping_to_a_disabled_entity_raises_its_error(status: EntityStatus) -> None:
    broker = Broker()
    queue, topic = broker.queue(status=status), broker.topic(status=status)
    for address in (queue, topic):
        with pytest.raises(EntityDisabledError):
            broker.send(address, ping())


def test_c13_ping_to_a_full_entity_raises_its_error() -> None:
    broker = Broker(RELAXED)
    queue = broker.queue(max_size_megabytes=1)
    broker.send(queue, blob(MEGABYTE))
    with pytest.raises(QuotaExceededError):
        broker.send(queue, ping())


def test_c13_ping_to_an_entity_that_cannot_be_sent_to_raises_its_error() -> None:
    broker = Broker()
    queue = broker.queue()
    with pytest.raises(EntityNotFoundError):
        broker.send(Address.of("nowhere"), ping())
    with pytest.raises(InvalidOperationError):
        broker.send(dead(queue), ping())


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (ping()._replace(body=bytes(256 * 1024 + 1)), MessageSizeExceededError),
        (ping()._replace(header_bytes=64 * 1024 + 1), HeaderSizeExceededError),
        (ping(session_id="s" * 129), InvalidMessageError),
    ],
)
def test_c13_ping_is_validated_like_a_message(bad: NewMessage, expected: type[BrokerError]) -> None:
    broker = Broker()
    queue = broker.queue()
    with pytest.raises(expected):
        broker.send(queue, bad)


def test_c13_ping_in_a_transaction_leaves_nothing() -> None:
    broker = Broker()
    queue = broker.queue()
    assert broker.namespace.transact([SendOperation(queue, [ping(), letter("x")])], START) == [[None, 1]]
    assert broker.take(queue) == ["x"]


@pytest.mark.parametrize("exists", [True, False])
def test_c13_ping_sent_via_an_entity_is_no_failed_transfer(exists: bool) -> None:
    broker = Broker()
    via = broker.queue("via")
    if exists:
        broker.queue("target")
    broker.namespace.transact([SendOperation(Address.of("target"), [ping()], via=via)], START)
    assert broker.info(via).message_count == 0
