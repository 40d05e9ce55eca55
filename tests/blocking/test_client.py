"""Every operation of the blocking client, on a real namespace."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import assert_type

import pytest

from pairbus.blocking import (
    BrokeredMessage,
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    FactoryFaultedError,
    FactoryState,
    MessageNotFoundError,
    MessageReceiver,
    MessageSender,
    MessageSession,
    MessagingFactory,
    MessagingFactorySettings,
    NamespaceManager,
    QueueClient,
    QueueDescription,
    ReceivedMessage,
    ReceiveMode,
    RuleDescription,
    SqlFilter,
    SubscriptionClient,
    TokenProvider,
    TopicClient,
)
from pairbus.testing import RunningNamespace, running_namespace
from tests.waiting import eventually

NUMBERS = count()
AT_ONCE = timedelta()
SOON = timedelta(seconds=30)
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as running:
        yield running


@pytest.fixture
def factory(namespace: RunningNamespace) -> Iterator[MessagingFactory]:
    with MessagingFactory.from_connection_string(namespace.connection_string) as factory:
        yield factory


@pytest.fixture
def manager(namespace: RunningNamespace) -> Iterator[NamespaceManager]:
    with NamespaceManager.from_connection_string(namespace.connection_string) as manager:
        yield manager


@pytest.fixture
def queue(manager: NamespaceManager) -> str:
    return manager.create_queue(f"queue{next(NUMBERS)}").path


@pytest.fixture
def session_queue(manager: NamespaceManager) -> str:
    return manager.create_queue(QueueDescription(f"sessions{next(NUMBERS)}", requires_session=True)).path


def bodies(messages: list[ReceivedMessage]) -> list[object]:
    return [message.body for message in messages]


def receive_all(receiver: MessageReceiver, how_many: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < how_many:
        received = receiver.receive(how_many - len(found), SOON)
        assert received, f"{len(found)} of {how_many} messages have come"
        found += received
    return found


# Senders and receivers


def test_sent_message_is_received(factory: MessagingFactory, queue: str) -> None:
    with factory.create_message_sender(queue) as sender, factory.create_message_receiver(queue) as receiver:
        assert (sender.path, receiver.path) == (queue, queue)
        assert (receiver.receive_mode, receiver.prefetch_count) == (ReceiveMode.PEEK_LOCK, 0)
        sender.send(BrokeredMessage(b"one"))
        sender.send([BrokeredMessage(b"two"), BrokeredMessage(b"three")])
        sender.send_batch([BrokeredMessage(b"four"), BrokeredMessage(b"five")])
        received = receive_all(receiver, 5)
        assert bodies(received) == [b"one", b"two", b"three", b"four", b"five"]
        receiver.complete(received[0])
        receiver.complete(received[1:])
        assert receiver.receive(1, AT_ONCE) == []


def test_message_generator_runs_in_caller_and_may_call_client(factory: MessagingFactory, queue: str) -> None:
    threads = set()

    def made() -> Iterator[BrokeredMessage]:
        threads.add(threading.current_thread())
        for body in (b"one", b"two"):
            assert factory.create_message_receiver(queue).peek() == []
            yield BrokeredMessage(body)

    sender, receiver = factory.create_message_sender(queue), factory.create_message_receiver(queue)
    sender.send(made())
    received = receive_all(receiver, 2)
    assert bodies(received) == [b"one", b"two"]
    receiver.complete(message for message in received)
    assert threads == {threading.current_thread()}


def test_messages_support_every_settlement(factory: MessagingFactory, queue: str) -> None:
    sender, receiver = factory.create_message_sender(queue), factory.create_message_receiver(queue)
    sender.send(BrokeredMessage(b"order"))
    (message,) = receiver.receive(1, SOON)
    receiver.abandon(message, {"tries": 1})
    (message,) = receiver.receive(1, SOON)
    assert (message.delivery_count, message.application_properties) == (1, {"tries": 1})
    assert receiver.renew_lock(message) == message.locked_until
    receiver.defer(message, {"deferred": True})
    (message,) = receiver.receive_deferred(message.sequence_number)
    assert message.application_properties == {"tries": 1, "deferred": True}
    receiver.dead_letter(message, "spoilt", "it was cold", {"cold": True})
    dead = factory.create_message_receiver(f"{queue}/$DeadLetterQueue", ReceiveMode.RECEIVE_AND_DELETE)
    (message,) = dead.receive(1, SOON)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("spoilt", "it was cold")


def test_messages_are_peeked(factory: MessagingFactory, queue: str) -> None:
    sender, receiver = factory.create_message_sender(queue), factory.create_message_receiver(queue)
    sender.send([BrokeredMessage(b"one"), BrokeredMessage(b"two"), BrokeredMessage(b"three")])
    assert bodies(receiver.peek(2)) == [b"one", b"two"]
    assert bodies(receiver.peek(2)) == [b"three"]
    assert bodies(receiver.peek(from_sequence_number=0)) == [b"one"]


def test_messages_are_scheduled_and_cancelled(factory: MessagingFactory, queue: str) -> None:
    sender, receiver = factory.create_message_sender(queue), factory.create_message_receiver(queue)
    number = assert_type(sender.schedule(BrokeredMessage(b"one"), LATER), int)
    numbers = assert_type(sender.schedule([BrokeredMessage(b"two"), BrokeredMessage(b"three")], LATER), list[int])
    assert bodies(receiver.peek(10)) == [b"one", b"two", b"three"]
    sender.cancel_scheduled(number)
    sender.cancel_scheduled(numbers)
    assert receiver.peek(10, 0) == []
    with pytest.raises(MessageNotFoundError):
        sender.cancel_scheduled(number)


def test_receiver_iterates_until_closed(factory: MessagingFactory, queue: str) -> None:
    factory.create_message_sender(queue).send([BrokeredMessage(bytes([number])) for number in range(5)])
    receiver = factory.create_message_receiver(queue, prefetch_count=3)
    found = []
    for message in receiver:
        receiver.complete(message)
        found.append(message.body)
        if len(found) == 5:
            receiver.close()
    assert found == [bytes([number]) for number in range(5)]
    assert next(receiver, None) is None


def test_waiting_iteration_ends_when_another_thread_closes(factory: MessagingFactory, queue: str) -> None:
    factory.create_message_sender(queue).send(BrokeredMessage(b"one"))
    receiver = factory.create_message_receiver(queue, ReceiveMode.RECEIVE_AND_DELETE)
    found: list[object] = []
    has_one = threading.Event()

    def iterate() -> None:
        for message in receiver:
            found.append(message.body)
            has_one.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    assert has_one.wait(60)
    receiver.close()
    thread.join(60)
    assert not thread.is_alive()
    assert found == [b"one"]


def test_locks_are_renewed_while_the_application_works(
    factory: MessagingFactory, manager: NamespaceManager, queue: str
) -> None:
    manager.update_queue(replace(manager.get_queue(queue), lock_duration=timedelta(seconds=5)))
    factory.create_message_sender(queue).send(BrokeredMessage(b"one"))
    receiver = factory.create_message_receiver(queue, max_auto_lock_renewal=timedelta(hours=1))
    (message,) = receiver.receive(1, SOON)
    first = message.locked_until
    assert first is not None
    eventually(lambda: message.locked_until != first)
    assert message.locked_until is not None
    assert message.locked_until > first
    receiver.complete(message)


# Sessions


def test_next_session_is_accepted(factory: MessagingFactory, session_queue: str) -> None:
    sender = factory.create_message_sender(session_queue)
    sender.send([BrokeredMessage(b"one", session_id="table 7"), BrokeredMessage(b"two", session_id="table 7")])
    with factory.accept_message_session(session_queue, server_wait_time=SOON) as session:
        assert isinstance(session, MessageSession)
        assert (session.session_id, session.path, session.is_settled) == ("table 7", session_queue, False)
        assert session.get_state() is None
        session.set_state(b"seated")
        assert session.get_state() == b"seated"
        first = session.locked_until
        assert first is not None
        assert session.renew_lock() == session.locked_until
        assert session.locked_until >= first
        session.complete(receive_all(session, 2))
    assert session.is_closed
    assert session.is_settled


def test_session_is_accepted_by_id(factory: MessagingFactory, session_queue: str) -> None:
    client = factory.create_queue_client(session_queue)
    client.send([BrokeredMessage(b"one", session_id="a"), BrokeredMessage(b"two", session_id="b")])
    assert sorted(client.get_message_sessions()) == ["a", "b"]
    with client.accept_message_session("b", server_wait_time=SOON) as session:
        assert bodies(session.receive(1, SOON)) == [b"two"]


# Clients


def test_queue_client_sends_and_receives(factory: MessagingFactory, queue: str) -> None:
    with factory.create_queue_client(queue, prefetch_count=2) as client:
        assert isinstance(client, QueueClient)
        assert isinstance(client, MessageReceiver)
        client.send(BrokeredMessage(b"one"))
        client.send_batch([BrokeredMessage(b"two")])
        number = client.schedule(BrokeredMessage(b"three"), LATER)
        client.cancel_scheduled(number)
        client.complete(receive_all(client, 2))
    assert client.is_closed
    with pytest.raises(ClosedError):
        client.send(BrokeredMessage(b"four"))


def test_topic_delivers_by_rules(factory: MessagingFactory, manager: NamespaceManager) -> None:
    topic = manager.create_topic(f"topic{next(NUMBERS)}").path
    manager.create_subscription(topic, "red")
    sender = factory.create_topic_client(topic)
    assert isinstance(sender, TopicClient)
    assert isinstance(sender, MessageSender)
    client = factory.create_subscription_client(topic, "red")
    assert isinstance(client, SubscriptionClient)
    assert (client.topic_path, client.name) == (topic, "red")
    client.add_rule(RuleDescription("red-ones", filter=SqlFilter("colour = 'red'")))
    client.remove_rule("$Default")
    assert [rule.name for rule in client.get_rules()] == ["red-ones"]
    sender.send([BrokeredMessage(application_properties={"colour": colour}) for colour in ("blue", "red")])
    received = client.receive(2, SOON)
    assert [message.application_properties for message in received] == [{"colour": "red"}]
    client.complete(received)


# The factory


def test_factory_is_created_from_address_and_key(namespace: RunningNamespace, queue: str) -> None:
    settings = MessagingFactorySettings(operation_timeout=timedelta(seconds=20))
    provider = TokenProvider.from_key("RootManageSharedAccessKey", namespace.key)
    with MessagingFactory.create(f"amqp://127.0.0.1:{namespace.port}", provider, settings) as factory:
        assert (factory.endpoint.port, factory.settings, factory.state) == (namespace.port, settings, FactoryState.OPEN)
        factory.create_message_sender(queue).send(BrokeredMessage(b"one"))
        again = MessagingFactory(factory.endpoint, provider, settings)
        again.create_message_sender(queue).send(BrokeredMessage(b"two"))
        again.close()
        assert len(factory.create_message_receiver(queue).peek(10)) == 2
    assert factory.is_closed


def test_closed_factory_closes_its_resources(factory: MessagingFactory, queue: str) -> None:
    sender, receiver = factory.create_message_sender(queue), factory.create_message_receiver(queue)
    sender.send(BrokeredMessage(b"one"))
    factory.close()
    factory.close()
    assert (factory.state, factory.is_closed) == (FactoryState.CLOSED, True)
    assert (sender.is_closed, receiver.is_closed) == (True, True)
    for use in (lambda: sender.send(BrokeredMessage()), receiver.receive, lambda: factory.create_topic_client("topic")):
        with pytest.raises(ClosedError):
            use()


def test_faulted_factory_raises_cause(factory: MessagingFactory, queue: str) -> None:
    sender = factory.create_message_sender(queue)
    sender.send(BrokeredMessage(b"one"))
    reason = OSError("the cable is cut")
    factory.fault(reason)
    assert factory.state is FactoryState.FAULTED
    with pytest.raises(FactoryFaultedError, match="the cable is cut") as caught:
        sender.send(BrokeredMessage(b"two"))
    assert caught.value.__cause__ is reason


def test_factory_repr_is_informative(factory: MessagingFactory, namespace: RunningNamespace) -> None:
    assert repr(factory).startswith("<MessagingFactory of ")
    assert str(namespace.port) in repr(factory)
    assert repr(factory.create_message_sender("orders")) == "<MessageSender of 'orders'>"


# Management


def test_queues_are_managed(manager: NamespaceManager) -> None:
    path = f"queue{next(NUMBERS)}"
    created = manager.create_queue(QueueDescription(path, max_delivery_count=3))
    assert manager.get_queue(path) == created
    assert manager.update_queue(replace(created, max_delivery_count=4)).max_delivery_count == 4
    assert path in [queue.path for queue in manager.get_queues()]
    assert manager.get_queue_runtime_info(path).path == path
    with pytest.raises(EntityAlreadyExistsError):
        manager.create_queue(path)
    manager.delete_queue(path)
    assert not manager.queue_exists(path)
    with pytest.raises(EntityNotFoundError):
        manager.get_queue(path)


def test_topics_subscriptions_and_rules_are_managed(manager: NamespaceManager) -> None:
    path = f"topic{next(NUMBERS)}"
    topic = manager.create_topic(path)
    assert manager.get_topic(path) == topic
    assert manager.update_topic(topic) == topic
    assert path in [found.path for found in manager.get_topics()]
    assert manager.topic_exists(path)
    assert manager.get_topic_runtime_info(path).path == path

    subscription = manager.create_subscription(path, "all", RuleDescription("some", filter=SqlFilter("1 = 1")))
    assert manager.get_subscription(path, "all") == subscription
    assert manager.update_subscription(path, subscription) == subscription
    assert [found.name for found in manager.get_subscriptions(path)] == ["all"]
    assert manager.subscription_exists(path, "all")
    assert manager.get_subscription_runtime_info(path, "all").name == "all"

    rule = manager.create_rule(path, "all", RuleDescription("red", filter=SqlFilter("colour = 'red'")))
    assert manager.get_rule(path, "all", "red") == rule
    assert manager.update_rule(path, "all", rule) == rule
    assert [found.name for found in manager.get_rules(path, "all")] == ["some", "red"]
    manager.delete_rule(path, "all", "red")
    assert not manager.rule_exists(path, "all", "red")

    manager.delete_subscription(path, "all")
    assert not manager.subscription_exists(path, "all")
    manager.delete_topic(path)
    assert not manager.topic_exists(path)


def test_manager_is_created_from_address_and_key(namespace: RunningNamespace) -> None:
    provider = TokenProvider.from_key("RootManageSharedAccessKey", namespace.key)
    address = f"amqp://127.0.0.1:{namespace.port}"
    settings = MessagingFactorySettings()
    for make in (NamespaceManager, NamespaceManager.create):
        manager = make(address, provider, settings)
        assert type(manager) is NamespaceManager
        assert (manager.endpoint.port, manager.settings) == (namespace.port, settings)
        assert manager.get_namespace_info().name == namespace.name
        manager.close()
        with pytest.raises(ClosedError):
            manager.get_queues()
