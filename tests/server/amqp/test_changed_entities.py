"""E3: entities that are deleted, disabled or changed to forward while links are attached."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairbus.broker import (
    Address,
    EntityDescription,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.server.host import NamespaceHost
from pairbus.wire import ACCEPTED, Condition, Rejected
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import (
    LinkRefusedError,
    WireClient,
    body_of,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)


@pytest.fixture(scope="module")
def namespace() -> Iterator[ClockedNamespace]:
    with clocked_namespace() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


@pytest.fixture
def queue(namespace: ClockedNamespace) -> str:
    return fresh_queue(namespace)


def change(namespace: ClockedNamespace, name: str, description: EntityDescription) -> None:
    namespace.call(lambda host: host.use_namespace().update(Address.of(name), description, host.now_ms()))


def delete(namespace: ClockedNamespace, name: str, subscription: str | None = None) -> None:
    namespace.call(lambda host: host.use_namespace().delete(Address.of(name, subscription), host.now_ms()))


def condition_of(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


# Deleted entities.


@pytest.mark.parametrize("part", ["", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue"])
def test_receivers_of_a_deleted_queue_are_detached(
    namespace: ClockedNamespace, client: WireClient, queue: str, part: str
) -> None:
    links = [client.receiver(queue + part, credit=5), client.receiver(queue + part)]
    delete(namespace, queue)
    for link in links:
        error = client.detached(link)
        assert error.condition == Condition.NOT_FOUND
        assert "could not be found" in (error.description or "")
    client.barrier()


def test_deleting_a_topic_detaches_receivers_of_its_subscriptions(
    namespace: ClockedNamespace, client: WireClient
) -> None:
    for name in ("gone", "stays"):
        namespace.call(
            lambda host, name=name: [  # type: ignore[misc]
                host.use_namespace().create_topic(name, TopicDescription(), host.now_ms()),
                host.use_namespace().create_subscription(name, "a", SubscriptionDescription(), host.now_ms()),
                host.use_namespace().create_subscription(name, "b", SubscriptionDescription(), host.now_ms()),
            ]
        )
    gone = [client.receiver(f"gone/Subscriptions/{name}", credit=1) for name in "ab"]
    left, right = [client.receiver(f"stays/Subscriptions/{name}", credit=1) for name in "ab"]
    delete(namespace, "gone")
    assert {client.detached(link).condition for link in gone} == {Condition.NOT_FOUND}
    delete(namespace, "stays", "a")
    assert client.detached(left).condition == Condition.NOT_FOUND
    assert client.send(client.sender("stays"), text_message("one")) == ACCEPTED
    assert body_of(client.receive(right)[0]) == b"one"


def test_send_to_a_deleted_queue_is_rejected(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    delete(namespace, queue)
    assert condition_of(client.send(link, text_message("one"))) == Condition.NOT_FOUND
    # A new entity of the same name is unrelated to the old one, but the link leads there.
    namespace.call(lambda host: host.use_namespace().create_queue(queue, QueueDescription(), host.now_ms()))
    assert client.send(link, text_message("two")) == ACCEPTED
    assert messages_in(namespace, Address.of(queue)) == [(b"two", 0)]


def test_settlement_after_the_queue_was_deleted_detaches_the_link(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    link = client.receiver(queue)
    delivery = client.receive_one(link)
    delete(namespace, queue)
    delivery.link.update(delivery, ACCEPTED)
    assert client.detached(link).condition == Condition.NOT_FOUND
    client.barrier()
    if delivery.settled:
        assert isinstance(delivery.state, Rejected)


def test_receiver_of_a_deleted_queue_does_not_get_the_messages_of_the_next(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    link = client.receiver(queue, credit=5)

    def replace(host: NamespaceHost) -> None:
        host.use_namespace().delete(Address.of(queue), host.now_ms())
        host.use_namespace().create_queue(queue, QueueDescription(), host.now_ms())

    namespace.call(replace)
    assert client.detached(link).condition == Condition.NOT_FOUND
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    assert client.deliveries(link) == []
    assert body_of(client.receive_one(client.receiver(queue))) == b"one"


# Disabled entities.


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.SEND_DISABLED])
def test_send_to_a_send_disabled_queue_is_rejected(
    namespace: ClockedNamespace, client: WireClient, queue: str, status: EntityStatus
) -> None:
    link = client.sender(queue)
    change(namespace, queue, QueueDescription(status=status))
    assert condition_of(client.send(link, text_message("one"))) == ServiceBusCondition.ENTITY_DISABLED
    change(namespace, queue, QueueDescription())
    assert client.send(link, text_message("two")) == ACCEPTED
    assert messages_in(namespace, Address.of(queue)) == [(b"two", 0)]


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
def test_receivers_of_a_receive_disabled_queue_get_nothing(
    namespace: ClockedNamespace, client: WireClient, queue: str, status: EntityStatus
) -> None:
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    link = client.receiver(queue)
    change(namespace, queue, QueueDescription(status=status))
    link.flow(5)
    assert client.detached(link).condition == ServiceBusCondition.ENTITY_DISABLED
    with pytest.raises(LinkRefusedError) as caught:
        client.receiver(queue)
    assert caught.value.error.condition == ServiceBusCondition.ENTITY_DISABLED
    change(namespace, queue, QueueDescription())
    assert body_of(client.receive_one(client.receiver(queue))) == b"one"


def test_waiting_receiver_gets_an_error_when_a_message_of_a_disabled_queue_arrives(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    link = client.receiver(queue, credit=5)
    client.barrier()
    change(namespace, queue, QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    assert client.detached(link).condition == ServiceBusCondition.ENTITY_DISABLED
    assert client.deliveries(link) == []
    change(namespace, queue, QueueDescription())
    assert body_of(client.receive_one(client.receiver(queue))) == b"one"


def test_all_waiting_receivers_get_an_error_when_a_message_of_a_disabled_queue_arrives(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    links = [client.receiver(queue, credit=5) for _ in range(3)]
    client.barrier()
    change(namespace, queue, QueueDescription(status=EntityStatus.RECEIVE_DISABLED))
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    assert {client.detached(link).condition for link in links} == {ServiceBusCondition.ENTITY_DISABLED}


@pytest.mark.parametrize("status", [EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED])
def test_message_can_be_settled_while_the_queue_is_disabled(
    namespace: ClockedNamespace, client: WireClient, queue: str, status: EntityStatus
) -> None:
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    delivery = client.receive_one(client.receiver(queue))
    change(namespace, queue, QueueDescription(status=status))
    assert client.settle(delivery, ACCEPTED) == ACCEPTED
    assert messages_in(namespace, Address.of(queue)) == []


# Forwarding entities.


def test_enabling_forwarding_detaches_receivers(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    target = fresh_queue(namespace)
    assert client.send(client.sender(queue), text_message("one")) == ACCEPTED
    link = client.receiver(queue)
    there = client.receiver(target, credit=5)
    change(namespace, queue, QueueDescription(forward_to=target))
    assert body_of(client.receive(there)[0]) == b"one"
    link.flow(5)
    assert client.detached(link).condition == Condition.NOT_ALLOWED
    assert client.send(client.sender(queue), text_message("two")) == ACCEPTED
    assert body_of(client.receive(there, 2)[1]) == b"two"


def test_session_waiter_gets_an_error_when_a_session_of_a_disabled_queue_arrives(
    namespace: ClockedNamespace, client: WireClient
) -> None:
    queue = fresh_queue(namespace, requires_session=True)
    waiting = client.begin_session_receiver(queue, None)
    client.barrier()
    change(namespace, queue, QueueDescription(requires_session=True, status=EntityStatus.RECEIVE_DISABLED))
    assert client.send(client.sender(queue), text_message("one", group_id="a")) == ACCEPTED
    with pytest.raises(LinkRefusedError) as caught:
        client.attached(waiting)
    assert caught.value.error.condition == ServiceBusCondition.ENTITY_DISABLED
    change(namespace, queue, QueueDescription(requires_session=True))
    assert body_of(client.receive_one(client.session_receiver(queue, None))) == b"one"


# Idle entities.


def test_entity_with_links_is_not_idle(namespace: ClockedNamespace, client: WireClient) -> None:
    """Check that an attached link counts as use of its entity, with or without messages."""
    queue = fresh_queue(namespace, auto_delete_on_idle_ms=300_000)
    link = client.receiver(queue, credit=1)
    for leap_ms in (100_000, 100_000, 400_000, 86_400_000):  # the last two are those of a machine that was asleep
        namespace.clock.advance(leap_ms)
        client.barrier()
        assert link.is_attached
    client.detach(link)
    namespace.clock.advance(300_001)
    namespace.call(lambda host: host.use_namespace().next_due_ms())
    with pytest.raises(LinkRefusedError) as caught:
        client.receiver(queue)
    assert caught.value.error.condition == Condition.NOT_FOUND


def test_management_node_of_a_deleted_entity_responds(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    node = client.requests(f"{queue}/$management")
    delete(namespace, queue)
    for operation in (Operation.PEEK_MESSAGE, Operation.GET_MESSAGE_SESSIONS):
        assert node.call(operation).status == 404
