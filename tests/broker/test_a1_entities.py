"""A1: a namespace holds queues, topics and subscriptions, which are created, read, updated, listed and deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pairbus.broker.descriptions import (
    AuthorizationRule,
    EntityStatus,
    QueueDescription,
    Right,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.errors import (
    EntityExistsError,
    EntityNotFoundError,
    InvalidDescriptionError,
    InvalidNameError,
    InvalidOperationError,
)
from pairbus.broker.message import Address
from pairbus.broker.ports import EntityGone
from tests.broker.broker import MINUTE, SECOND, START, Broker, dead

DAY = 24 * 60 * MINUTE


# Creation and lookup


def test_a1_new_queue_has_the_settings_it_was_given_and_no_messages() -> None:
    broker = Broker()
    description = QueueDescription(lock_duration_ms=7 * SECOND, max_delivery_count=3, user_metadata="orders")
    made = broker.namespace.create_queue("Orders", description, START)
    assert made == broker.info(Address.of("orders"))
    assert (made.path, made.description) == ("Orders", description)
    assert (made.created_ms, made.updated_ms, made.accessed_ms) == (START, START, START)
    assert (made.message_count, made.size_bytes) == (0, 0)


def test_a1_new_topic_has_no_subscriptions() -> None:
    broker = Broker()
    info = broker.namespace.create_topic("events", TopicDescription(), START)
    assert (info.path, info.description, info.subscription_count) == ("events", TopicDescription(), 0)


def test_a1_new_subscription_belongs_to_its_topic() -> None:
    broker = Broker()
    topic = broker.topic()
    made = broker.namespace.create_subscription("topic", "Sub", SubscriptionDescription(max_delivery_count=2), START)
    assert made == broker.info(Address.of("topic", "sub"))
    assert made.path == "Sub"
    assert broker.info(topic).subscription_count == 1


def test_a1_settings_have_the_defaults_of_the_service() -> None:
    queue = QueueDescription()
    assert (queue.lock_duration_ms, queue.max_delivery_count, queue.max_size_megabytes) == (MINUTE, 10, 1024)
    assert (queue.default_time_to_live_ms, queue.auto_delete_on_idle_ms) == (None, None)
    assert queue.duplicate_window_ms == 10 * MINUTE
    assert SubscriptionDescription().lock_duration_ms == MINUTE
    assert SubscriptionDescription().max_delivery_count == 10


def test_a1_authorization_rules_are_kept_with_the_entity() -> None:
    broker = Broker()
    rule = AuthorizationRule(name="app", rights=(Right.SEND, Right.LISTEN), primary_key="k1", secondary_key="k2")
    queue = broker.queue(authorization_rules=(rule,))
    broker.restart()
    description = broker.info(queue).description
    assert isinstance(description, QueueDescription)
    assert description.authorization_rules == (rule,)


@pytest.mark.parametrize("again", ["queue", "QUEUE", "Queue"])
def test_a1_name_in_another_case_is_already_in_use(again: str) -> None:
    broker = Broker()
    broker.queue("queue")
    with pytest.raises(EntityExistsError) as raised:
        broker.queue(again)
    assert raised.value.entity == again


def test_a1_queues_and_topics_share_their_names() -> None:
    broker = Broker()
    broker.queue("name")
    with pytest.raises(EntityExistsError):
        broker.topic("Name")


def test_a1_subscription_names_are_unique_within_their_topic() -> None:
    broker = Broker()
    broker.topic("one")
    broker.topic("two")
    broker.subscription("sub", topic="one")
    broker.subscription("sub", topic="two")
    with pytest.raises(EntityExistsError):
        broker.subscription("SUB", topic="one")


def test_a1_entities_are_found_in_any_case() -> None:
    broker = Broker()
    broker.topic("Events")
    broker.subscription("All", topic="EVENTS")
    broker.send(Address("eVENTS"), "hello")
    assert broker.take(Address("EVENTS", "aLL")) == ["hello"]


def test_a1_entity_that_does_not_exist_is_not_found() -> None:
    broker = Broker()
    broker.topic()
    requests: list[Callable[[], object]] = [
        lambda: broker.info(Address.of("no")),
        lambda: broker.info(Address.of("topic", "no")),
        lambda: broker.delete(Address.of("no")),
        lambda: broker.update(Address.of("no")),
        lambda: broker.send(Address.of("no"), "x"),
        lambda: broker.receive(Address.of("no")),
        lambda: broker.receive(Address.of("topic", "no")),
        lambda: broker.peek(Address.of("no")),
        lambda: broker.subscription(topic="no"),
        lambda: broker.namespace.subscriptions("no", START),
        lambda: broker.namespace.touch(Address.of("no"), START),
    ]
    for request in requests:
        with pytest.raises(EntityNotFoundError):
            request()


def test_a1_queue_has_no_subscriptions() -> None:
    broker = Broker()
    broker.queue()
    with pytest.raises(EntityNotFoundError):
        broker.subscription(topic="queue")


def test_a1_receive_from_a_topic_is_refused() -> None:
    broker = Broker()
    topic = broker.topic()
    with pytest.raises(InvalidOperationError):
        broker.receive(topic)


def test_a1_send_to_a_subscription_or_dead_letter_queue_is_refused() -> None:
    broker = Broker()
    broker.topic()
    subscription, queue = broker.subscription(), broker.queue()
    for address in (subscription, dead(queue), dead(subscription)):
        with pytest.raises(InvalidOperationError):
            broker.send(address, "x")


# Listing


def test_a1_queues_topics_and_subscriptions_are_listed_separately() -> None:
    broker = Broker()
    broker.queue("b")
    broker.topic("t")
    broker.queue("a")
    broker.subscription("s2", topic="t")
    broker.subscription("s1", topic="t")
    assert {info.path for info in broker.namespace.queues(START)} == {"a", "b"}
    assert {info.path for info in broker.namespace.topics(START)} == {"t"}
    assert {info.path for info in broker.namespace.subscriptions("T", START)} == {"s1", "s2"}


# Names


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a/b/c",
        "contoso/x-servicebus-transfer/0",
        "127.0.0.1/x-servicebus-transfer/0",
        "txt/.-_123",
        "Q~1",
        "x" * 260,
    ],
)
def test_a1_path_of_segments_is_a_valid_name(name: str) -> None:
    broker = Broker()
    broker.queue(name)
    assert broker.info(Address.of(name)).path == name


@pytest.mark.parametrize(
    "name",
    [
        "", " ", "/", "/a", "a/", "a//b", ".", "a/..", "a@b", "a?b", "a#b", "a*b", "a\\b", "a\nb", "\x00", "\ud800",
        "$management", "a/$DeadLetterQueue", "a/Subscriptions/b", "x" * 261, "a b", " a", "a+b", "a:b", "a%20b", "a!",
        "größe", "a,b", "a(b)", "a=b",
    ],
)  # fmt: skip
def test_a1_invalid_names_are_refused(name: str) -> None:
    broker = Broker()
    for create in (broker.queue, broker.topic):
        with pytest.raises(InvalidNameError):
            create(name)
    assert broker.namespace.queues(START) == broker.namespace.topics(START) == []


def test_a1_error_of_an_invalid_name_shows_the_character_and_the_allowed_ones() -> None:
    with pytest.raises(InvalidNameError) as caught:
        Broker().queue("bad name!!")
    assert str(caught.value) == (
        "'bad name!!' has the character ' ' at position 4; the name of a queue or topic may have letters (a-z, A-Z),"
        " digits, '.', '-', '_', '~' and '/'"
    )


@pytest.mark.parametrize("name", ["", " ", "a/b", "a?b", "x" * 51, "a b", "größe", "$Default", "a~b", "a+b"])
def test_a1_subscription_name_is_one_short_segment(name: str) -> None:
    broker = Broker()
    topic = broker.topic()
    with pytest.raises(InvalidNameError):
        broker.subscription(name)
    assert broker.info(topic).subscription_count == 0


# Settings


@pytest.mark.parametrize(
    "settings",
    [
        {"lock_duration_ms": 5 * SECOND},
        {"lock_duration_ms": 5 * MINUTE},
        {"max_delivery_count": 1},
        {"max_delivery_count": 2**31 - 1},
        {"default_time_to_live_ms": SECOND},
        {"auto_delete_on_idle_ms": 5 * MINUTE},
        {"requires_duplicate_detection": True, "duplicate_window_ms": 20 * SECOND},
        {"requires_duplicate_detection": True, "duplicate_window_ms": 7 * DAY},
        {"max_size_megabytes": 5120},
        {"max_message_bytes": 1},
    ],
)
def test_a1_setting_at_the_end_of_its_range_is_accepted(settings: dict[str, Any]) -> None:
    broker = Broker()
    queue = broker.queue(**settings)
    assert broker.info(queue).description == QueueDescription(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"lock_duration_ms": 5 * SECOND - 1},
        {"lock_duration_ms": 5 * MINUTE + 1},
        {"max_delivery_count": 0},
        {"max_delivery_count": 2**31},
        {"default_time_to_live_ms": SECOND - 1},
        {"auto_delete_on_idle_ms": 5 * MINUTE - 1},
        {"requires_duplicate_detection": True, "duplicate_window_ms": 20 * SECOND - 1},
        {"duplicate_window_ms": 20 * SECOND - 1},
        {"duplicate_window_ms": 7 * DAY + 1},
        {"requires_duplicate_detection": True, "duplicate_window_ms": 7 * DAY + 1},
        {"max_size_megabytes": 0},
        {"max_size_megabytes": 1025},
        {"max_message_bytes": 0},
        {"forward_to": "nowhere"},
        {"forward_dead_letters_to": "nowhere"},
    ],
)
def test_a1_setting_past_its_range_is_refused_at_creation_and_update(settings: dict[str, Any]) -> None:
    broker = Broker()
    broker.queue("other")
    with pytest.raises(InvalidDescriptionError):
        broker.queue(**settings)
    assert [info.path for info in broker.namespace.queues(START)] == ["other"]
    fixed = {
        name: settings.pop(name) for name in ("requires_session", "requires_duplicate_detection") & settings.keys()
    }
    queue = broker.queue(**fixed)
    before = broker.info(queue)
    broker.wait(1)
    with pytest.raises(InvalidDescriptionError):
        broker.update(queue, **settings)
    assert broker.info(queue) == before


def test_a1_update_changes_the_settings_and_their_time() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.wait(5)
    info = broker.update(queue, max_delivery_count=3, status=EntityStatus.SEND_DISABLED)
    assert info.description == QueueDescription(max_delivery_count=3, status=EntityStatus.SEND_DISABLED)
    assert (info.created_ms, info.updated_ms) == (START, START + 5)
    assert info == broker.info(queue)


def test_a1_topics_and_subscriptions_are_updated_too() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription()
    broker.update(topic, user_metadata="t")
    broker.update(subscription, max_delivery_count=1)
    assert broker.info(topic).description == TopicDescription(user_metadata="t")
    assert broker.info(subscription).description == SubscriptionDescription(max_delivery_count=1)


def test_a1_update_keeps_the_messages() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "a", "b")
    broker.update(queue, max_delivery_count=1)
    assert broker.take(queue) == ["a", "b"]


@pytest.mark.parametrize("setting", ["requires_session", "requires_duplicate_detection", "partitioned"])
@pytest.mark.parametrize("value", [True, False])
def test_a1_some_settings_cannot_be_changed(setting: str, value: bool) -> None:
    broker = Broker()
    settings: dict[str, Any] = {setting: not value}
    queue = broker.queue(**settings)
    before = broker.info(queue)
    with pytest.raises(InvalidDescriptionError, match=setting):
        broker.update(queue, **{setting: value})
    assert broker.info(queue) == before


def test_a1_queue_does_not_become_a_topic() -> None:
    broker = Broker()
    queue = broker.queue()
    with pytest.raises(InvalidDescriptionError):
        broker.namespace.update(queue, TopicDescription(), START)


def test_a1_forwarding_target_is_spelled_like_the_destination() -> None:
    broker = Broker()
    broker.queue("Target")
    queue = broker.queue(forward_to="tARGET")
    description = broker.info(queue).description
    assert isinstance(description, QueueDescription)
    assert description.forward_to == "Target"


# Deletion


def test_a1_deleting_a_queue_deletes_its_messages() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.send(queue, "old")
    broker.delete(queue)
    with pytest.raises(EntityNotFoundError):
        broker.send(queue, "x")
    broker.queue()
    assert broker.peek(queue) == []
    assert broker.info(queue).size_bytes == 0


def test_a1_deleting_a_topic_deletes_its_subscriptions() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription()
    broker.delete(topic)
    broker.topic()
    with pytest.raises(EntityNotFoundError):
        broker.info(subscription)


def test_a1_deleting_a_subscription_keeps_its_topic_and_the_others() -> None:
    broker = Broker()
    topic = broker.topic()
    gone, left = broker.subscription("gone"), broker.subscription("left")
    broker.send(topic, "x")
    size = broker.info(left).size_bytes
    broker.delete(gone)
    broker.tidy()
    assert broker.info(topic).subscription_count == 1
    assert broker.info(topic).size_bytes == size
    assert broker.take(left) == ["x"]


def test_a1_deletion_of_an_entity_raises_a_notice() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription = broker.subscription()
    broker.delete(topic)
    assert set(broker.namespace.take_notices()) == {EntityGone(topic), EntityGone(subscription)}
    assert broker.namespace.take_notices() == []


def test_a1_work_due_in_a_deleted_entity_delays_no_other() -> None:
    broker = Broker()
    deleted, queue = broker.queue("deleted", default_time_to_live_ms=SECOND), broker.queue()
    broker.send(deleted, "expires")
    broker.delete(deleted)
    sequence = broker.schedule(queue, "later", MINUTE)
    broker.wait(MINUTE)
    assert broker.take(queue) == ["later"]
    assert sequence == 1


@pytest.mark.parametrize("waiting", ["a lock", "a schedule", "a session"])
def test_a1_nothing_stays_due_when_its_entity_is_deleted(waiting: str) -> None:
    broker = Broker()
    queue = broker.queue(requires_session=waiting == "a session")
    if waiting == "a lock":
        broker.send(queue, "x")
        broker.one(queue)
    elif waiting == "a schedule":
        broker.schedule(queue, "x", SECOND)
    else:
        broker.accept(queue, "s")
    broker.delete(queue)
    broker.tidy()
    broker.wait(DAY)
    assert broker.namespace.next_due_ms() is None
