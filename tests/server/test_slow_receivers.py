"""Peers that do not read: buffers for them are bounded, and no other peer waits for them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest

from pairbus.broker import Address, EntityInfo, QueueDescription
from pairbus.broker import NewMessage as BrokerMessage
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, Configuration, Link, plain
from tests.server.amqp.wire_client import WireClient, text_message
from tests.waiting import eventually

LARGE_BYTES: Final = 200_000
MANY: Final = 300
"""More large messages than may be in flight to one receiver."""

BOUND_BYTES: Final = 24 * 1024 * 1024
"""Bytes that may be in flight to one receiver: in the server, and in the system's buffers of both ends of a socket."""

LOCK_MS: Final = 2_000
CREDIT: Final = 10_000


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(tier="relaxed") as running:
        for name in ("large", "other"):
            create(running, name)
        yield running


def create(namespace: RunningNamespace, name: str, **settings: Any) -> None:
    description = QueueDescription(**settings)
    namespace.call(lambda host: host.use_namespace().create_queue(name, description, host.now_ms()))


def fill(namespace: RunningNamespace, name: str = "large", number: int = MANY) -> None:
    """Put large messages into a queue, a few at a time."""
    payload = text_message(bytes(LARGE_BYTES), message_id="large")

    def put(host: NamespaceHost) -> None:
        host.use_namespace().send(Address.of(name), [BrokerMessage(payload, "large")] * 10, host.now_ms())

    for _ in range(0, number, 10):
        namespace.call(put)


def info(namespace: RunningNamespace, name: str = "large") -> EntityInfo:
    return namespace.call(lambda host: host.use_namespace().entity(Address.of(name), host.now_ms()))


def connect(namespace: RunningNamespace, **settings: Any) -> WireClient:
    configuration = Configuration(container_id="client", **settings)
    key = plain("RootManageSharedAccessKey", namespace.key)
    return WireClient(namespace.port, sasl=key, configuration=configuration).open()


def stuck_receiver(
    namespace: RunningNamespace, name: str = "large", *, deletes: bool = False, **settings: Any
) -> WireClient:
    """Return a receiver that has granted credit, and reads nothing."""
    client = connect(namespace, **settings)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.receiver(name, credit=CREDIT, deletes=deletes)
    return client


def until_still(namespace: RunningNamespace, name: str = "large") -> int:
    """Wait until the server delivers no more messages of a queue; return how many are left."""
    seen: list[int] = []

    def is_still() -> bool:
        seen.append(info(namespace, name).ready_count)
        return len(seen) > 50 and len(set(seen[-50:])) == 1

    eventually(is_still)
    return seen[-1]


def complete(client: WireClient, link: Link, number: int) -> None:
    """Receive and complete that many messages."""
    for delivery in client.receive(link, number):
        client.settle(delivery, ACCEPTED)


def connection_count(namespace: RunningNamespace) -> int:
    server = namespace._server
    assert server is not None
    return len(server._running.services.connections)


# Receivers


@pytest.mark.parametrize("deletes", [False, True], ids=["lock", "delete"])
def test_bytes_buffered_for_a_receiver_that_does_not_read_are_bounded(
    namespace: RunningNamespace, deletes: bool
) -> None:
    fill(namespace)
    with stuck_receiver(namespace, deletes=deletes):
        eventually(lambda: info(namespace).ready_count < MANY)
        assert (MANY - until_still(namespace)) * LARGE_BYTES < BOUND_BYTES


def test_bytes_buffered_behind_a_narrow_window_are_bounded(namespace: RunningNamespace) -> None:
    fill(namespace)
    with stuck_receiver(namespace, incoming_window=1):
        eventually(lambda: info(namespace).ready_count < MANY)
        assert (MANY - until_still(namespace)) * LARGE_BYTES < BOUND_BYTES


def test_others_receive_from_the_same_queue_beside_one_that_does_not_read(namespace: RunningNamespace) -> None:
    fill(namespace)
    with stuck_receiver(namespace), connect(namespace) as healthy:
        left = until_still(namespace)
        complete(healthy, healthy.receiver("large", credit=MANY), left)
        assert info(namespace).ready_count == 0


def test_others_receive_from_other_queues_beside_one_that_does_not_read(namespace: RunningNamespace) -> None:
    fill(namespace)
    with stuck_receiver(namespace), connect(namespace) as healthy:
        until_still(namespace)
        sender, receiver = healthy.sender("other"), healthy.receiver("other", credit=200)
        for _ in range(100):
            assert healthy.send(sender, text_message(message_id="1")) == ACCEPTED
        complete(healthy, receiver, 100)
        assert info(namespace, "other").message_count == 0


def test_sender_to_the_queue_is_confirmed_while_its_receiver_does_not_read(namespace: RunningNamespace) -> None:
    fill(namespace)
    with stuck_receiver(namespace), connect(namespace) as healthy:
        until_still(namespace)
        sender = healthy.sender("large")
        for _ in range(50):
            assert healthy.send(sender, text_message(message_id="1")) == ACCEPTED


def test_receiver_that_reads_again_gets_everything(namespace: RunningNamespace) -> None:
    fill(namespace)
    with stuck_receiver(namespace) as client:
        until_still(namespace)
        (link,) = client.first_session.links.values()
        complete(client, link, MANY)
        assert info(namespace).message_count == 0


def test_messages_of_an_aborted_receiver_are_redelivered_when_their_locks_end(namespace: RunningNamespace) -> None:
    create(namespace, "brief", lock_duration_ms=LOCK_MS)
    fill(namespace, "brief", 100)
    with stuck_receiver(namespace, "brief") as stuck:
        eventually(lambda: info(namespace, "brief").locked_count)
        stuck.hang_up()
    eventually(lambda: not connection_count(namespace))
    eventually(lambda: info(namespace, "brief").ready_count == 100)
    with connect(namespace) as healthy:
        complete(healthy, healthy.receiver("brief", credit=100), 100)


@pytest.mark.slow
def test_receiver_that_closes_without_reading_is_disconnected_in_time() -> None:
    """Check that unread deliveries do not keep the connection for ever."""
    with running_namespace(tier="relaxed", idle_timeout_s=1) as namespace:
        create(namespace, "large")
        fill(namespace, number=100)
        with stuck_receiver(namespace) as stuck:
            until_still(namespace)
            stuck.engine.close()
            stuck.flush()
            eventually(lambda: not connection_count(namespace))


def test_oversized_message_does_not_end_the_receivers_connection(namespace: RunningNamespace) -> None:
    with connect(namespace, max_message_size=1_000) as client, connect(namespace) as sender:
        link = client.receiver("large", credit=10)
        target = sender.sender("large")
        assert sender.send(target, text_message(bytes(LARGE_BYTES), message_id="1")) == ACCEPTED
        client.barrier()
        assert client.closed is None
        assert client.detached(link).condition == Condition.MESSAGE_SIZE_EXCEEDED


# Senders


def test_sender_that_reads_no_confirmations_delays_no_other_and_loses_nothing(namespace: RunningNamespace) -> None:
    with connect(namespace) as deaf, connect(namespace) as healthy:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        link, sender = deaf.sender("other"), healthy.sender("other")
        deliveries = [deaf.begin_send(link, text_message(message_id=str(number))) for number in range(1_500)]
        for _ in range(20):
            assert healthy.send(sender, text_message(message_id="1")) == ACCEPTED
        assert {deaf.outcome(delivery) for delivery in deliveries} == {ACCEPTED}
        assert info(namespace, "other").message_count == 1_520


def test_everything_sent_between_two_commits_fits(namespace: RunningNamespace) -> None:
    """Send more than the store allocates ahead."""
    payload = text_message(bytes(900_000), message_id="large")

    def put(host: NamespaceHost) -> None:
        for _ in range(150):
            host.use_namespace().send(Address.of("large"), [BrokerMessage(payload, "large")], host.now_ms())

    namespace.call(put)
    assert info(namespace).message_count == 150


def test_largest_message_of_the_tier_fits(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        outcome = client.send(client.sender("large"), text_message(bytes(90 * 1024 * 1024), message_id="1"))
    assert outcome == ACCEPTED
