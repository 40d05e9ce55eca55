"""A6: auto-forwarding, and forwarding of dead letters."""

from __future__ import annotations

import pytest

from pairbus.broker.descriptions import EntityStatus, QueueDescription
from pairbus.broker.errors import InvalidDescriptionError, InvalidOperationError
from pairbus.broker.limits import RELAXED
from pairbus.broker.message import Address
from tests.broker.broker import LOCK, MINUTE, SECOND, START, Broker, blob, dead, letter, reason, text, texts

MEGABYTE = 1024 * 1024


def chain(broker: Broker, length: int) -> list[Address]:
    """Create queues ``q0`` to ``q<length>``, each forwarding to the next."""
    last = broker.queue(f"q{length}")
    others = [broker.queue(f"q{at}", forward_to=f"q{at + 1}") for at in reversed(range(length))]
    return [*reversed(others), last]


# Chains


def test_a6_forwarded_message_arrives_with_a_new_number_and_keeps_the_first_one() -> None:
    broker = Broker()
    source, target = chain(broker, 1)
    broker.send(target, "before")
    broker.send(source, letter("x", message_id="m", session_id="s", time_to_live_ms=MINUTE))
    assert broker.info(source).message_count == 0
    _, delivery = broker.receive(target)
    record = delivery.record
    assert text(delivery) == "x"
    assert (record.sequence, record.original_sequence, record.delivery_count) == (2, 1, 0)
    assert (record.message_id, record.session_id, record.expires_ms) == ("m", "s", START + MINUTE)


def test_a6_message_is_forwarded_four_times() -> None:
    broker = Broker()
    queues = chain(broker, 4)
    broker.send(queues[0], "x")
    assert broker.take(queues[4]) == ["x"]


def test_a6_message_is_not_forwarded_five_times() -> None:
    broker = Broker()
    queues = chain(broker, 5)
    broker.send(queues[0], "x")
    assert broker.info(queues[5]).message_count == 0
    (buried,) = broker.receive(dead(queues[4]))
    assert (text(buried), reason(buried)) == ("x", "MaxTransferHopCountExceeded")


def test_a6_forwarding_loop_ends_in_the_dead_letter_queue() -> None:
    broker = Broker()
    one = broker.queue("one")
    two = broker.queue("two", forward_to="one")
    broker.update(one, forward_to="two")
    broker.send(one, "x")
    buried = [*broker.receive(dead(one)), *broker.receive(dead(two))]
    assert [(text(found), reason(found)) for found in buried] == [("x", "MaxTransferHopCountExceeded")]


def test_a6_forwarding_loop_through_a_topic_ends() -> None:
    broker = Broker()
    topic = broker.topic()
    subscription, plain = broker.subscription(forward_to="topic"), broker.subscription("plain")
    broker.send(topic, "x")
    assert broker.take(plain) == ["x"] * 5
    assert broker.take(dead(subscription)) == ["x"]


def test_a6_subscription_forwards_to_a_queue_and_to_a_topic() -> None:
    broker = Broker()
    target, topic = broker.queue("target"), broker.topic()
    second = broker.topic("second")
    end = broker.subscription("end", topic="second")
    broker.subscription("to-queue", forward_to="target")
    broker.subscription("to-topic", forward_to="second")
    broker.send(topic, "x")
    broker.send(second, "y")
    assert broker.take(target) == ["x"]
    assert broker.take(end) == ["x", "y"]


def test_a6_subscription_may_forward_to_a_queue_whose_path_reads_like_its_own() -> None:
    broker = Broker()
    topic, target = broker.topic("topic"), broker.queue("topic/sub")
    broker.subscription("sub", forward_to="topic/sub")
    broker.send(topic, "x")
    assert broker.take(target) == ["x"]


def test_a6_scheduled_message_is_forwarded_at_its_time() -> None:
    broker = Broker()
    source, target = chain(broker, 1)
    sequence = broker.schedule(source, "x", MINUTE)
    assert broker.info(source).scheduled_count == 1
    assert broker.info(target).message_count == 0
    broker.wait(MINUTE)
    (delivery,) = broker.receive(target)
    assert delivery.record.original_sequence == sequence


def test_a6_forwarding_entity_delivers_only_its_dead_letters() -> None:
    broker = Broker()
    source, _ = chain(broker, 1)
    for request in (
        lambda: broker.receive(source),
        lambda: broker.deferred(source, 1),
        lambda: broker.namespace.delete_messages(source, 1, START),
    ):
        with pytest.raises(InvalidOperationError):
            request()
    assert broker.receive(dead(source)) == []


def test_a6_queue_and_subscription_with_sessions_forward_at_once() -> None:
    broker = Broker()
    target, topic = broker.queue("target"), broker.topic()
    source = broker.queue("source", requires_session=True, forward_to="target")
    broker.subscription(requires_session=True, forward_to="target")
    broker.send(source, letter("x", session_id="s"))
    broker.send(topic, letter("y", session_id="s"))
    broker.restart()
    assert broker.take(target) == ["x", "y"]
    with pytest.raises(InvalidOperationError, match="forwards to 'target'"):
        broker.accept(source)


def test_a6_update_does_not_start_forwarding_while_messages_wait_in_sessions() -> None:
    broker = Broker()
    target, source = broker.queue("target"), broker.queue("source", requires_session=True)
    broker.send(source, letter("x", session_id="s"))
    with pytest.raises(InvalidDescriptionError, match="1 messages wait in its sessions"):
        broker.update(source, forward_to="target")
    session = broker.accept(source, "s")
    (delivery,) = broker.receive(source, session_token=session)
    broker.update(source, forward_to="target")
    broker.abandon(source, delivery)
    assert broker.take(target) == ["x"]


def test_a6_new_entity_cannot_forward_to_itself() -> None:
    with pytest.raises(InvalidDescriptionError, match="there is no such entity"):
        Broker().queue("q", forward_to="q")


def test_a6_message_sent_to_a_queue_that_forwards_to_itself_is_dead_lettered_once() -> None:
    broker = Broker()
    queue = broker.queue("Q")
    broker.send(queue, "waiting", "locked")
    broker.receive(queue, 1)
    broker.update(queue, forward_to="q", forward_dead_letters_to="q")
    broker.send(queue, "new")
    broker.restart()
    broker.tidy()
    assert not broker.namespace.tidy(broker.now_ms)
    assert broker.info(queue).active_count == 0
    assert broker.info(queue).description == QueueDescription(forward_to="Q", forward_dead_letters_to="Q")
    assert {reason(found) for found in broker.peek(dead(queue))} == {"MaxTransferHopCountExceeded"}
    with pytest.raises(InvalidOperationError, match="forwards to itself"):
        broker.receive(queue)
    assert sorted(broker.take(dead(queue))) == ["locked", "new", "waiting"]


def test_a6_dead_letters_that_a_queue_forwards_to_itself_return_four_times() -> None:
    broker = Broker()
    queue = broker.queue("q")
    broker.update(queue, forward_dead_letters_to="q")
    broker.send(queue, "x")
    for _ in range(5):
        broker.dead_letter(queue, broker.one(queue))
    assert broker.receive(queue) == []
    assert broker.take(dead(queue)) == ["x"]


# Waiting messages


def test_a6_messages_waiting_when_forwarding_begins_are_forwarded_step_by_step() -> None:
    broker = Broker()
    source, target = broker.queue("source"), broker.queue("target")
    broker.send(source, *"abcde")
    broker.update(source, forward_to="target")
    assert broker.namespace.tidy(START, steps=2)
    assert broker.info(target).message_count == 2
    broker.restart()
    broker.tidy()
    assert broker.take(target) == list("abcde")
    assert broker.info(source).message_count == 0


@pytest.mark.parametrize("ends_by", ["abandon", "lock end"])
def test_a6_locked_message_is_forwarded_when_its_lock_ends(ends_by: str) -> None:
    broker = Broker()
    source, target = broker.queue("source"), broker.queue("target")
    broker.send(source, "x")
    delivery = broker.one(source)
    broker.update(source, forward_to="target")
    broker.tidy()
    assert broker.info(target).message_count == 0
    if ends_by == "abandon":
        broker.abandon(source, delivery)
    else:
        broker.wait(LOCK)
    assert broker.take(target) == ["x"]


def test_a6_failed_deliveries_are_not_counted_at_the_destination() -> None:
    broker = Broker()
    source, target, morgue = (
        broker.queue("source", max_delivery_count=2),
        broker.queue("target"),
        broker.queue("morgue"),
    )
    broker.send(source, "buried", "forwarded")
    for _ in range(2):
        broker.abandon(source, broker.one(source))
    broker.abandon(source, broker.one(source))
    broker.update(source, forward_to="target", forward_dead_letters_to="morgue")
    broker.tidy()
    assert [(text(found), found.record.delivery_count) for found in broker.receive(target)] == [("forwarded", 0)]
    assert [(text(found), found.record.delivery_count) for found in broker.receive(morgue)] == [("buried", 0)]


def test_a6_locked_message_can_be_completed_after_forwarding_begins() -> None:
    broker = Broker()
    source, target = broker.queue("source"), broker.queue("target")
    broker.send(source, "x")
    delivery = broker.one(source)
    broker.update(source, forward_to="target")
    broker.complete(source, delivery)
    assert broker.info(source).message_count == broker.info(target).message_count == 0


# Refusing destinations


@pytest.mark.parametrize(
    ("obstacle", "expected"),
    [
        ("deleted", "DestinationNotFound"),
        ("disabled", "DestinationDisabled"),
        ("send-disabled", "DestinationDisabled"),
        ("full", "DestinationQuotaExceeded"),
        ("too small", "DestinationMessageSizeExceeded"),
    ],
)
def test_a6_message_refused_by_the_destination_is_dead_lettered_at_the_source(obstacle: str, expected: str) -> None:
    broker = Broker(RELAXED)
    target = broker.queue("target", max_size_megabytes=1)
    source = broker.queue("source", forward_to="target")
    match obstacle:
        case "deleted":
            broker.delete(target)
        case "disabled":
            broker.update(target, status=EntityStatus.DISABLED)
        case "send-disabled":
            broker.update(target, status=EntityStatus.SEND_DISABLED)
        case "full":
            broker.send(target, blob(MEGABYTE))
        case _:
            broker.update(target, max_message_bytes=1)
    assert broker.send(source, "x") == [1]
    buried = broker.one(dead(source))
    assert (text(buried), reason(buried)) == ("x", expected)
    assert "target" in str(buried.record.amendments) or obstacle == "deleted"


def test_a6_receive_disabled_destination_accepts_forwarded_messages() -> None:
    broker = Broker()
    target = broker.queue("target", status=EntityStatus.RECEIVE_DISABLED)
    broker.send(broker.queue("source", forward_to="target"), "x")
    assert broker.info(target).message_count == 1


def test_a6_undeliverable_message_is_dead_lettered_at_the_last_queue() -> None:
    broker = Broker()
    first, second, third = chain(broker, 2)
    broker.delete(third)
    broker.send(first, "x")
    assert (broker.info(first).message_count, broker.info(second).dead_letter_count) == (0, 1)


def test_a6_copy_that_cannot_be_forwarded_delays_no_other() -> None:
    broker = Broker()
    topic = broker.topic()
    target = broker.queue("target", status=EntityStatus.DISABLED)
    forwards, plain = broker.subscription("forwards", forward_to="target"), broker.subscription("plain")
    broker.send(topic, "x")
    assert broker.take(plain) == ["x"]
    assert broker.take(dead(forwards)) == ["x"]
    assert broker.info(target).message_count == 0


# Dead letters


def test_a6_dead_letters_are_forwarded_with_their_reason_and_source() -> None:
    broker = Broker()
    morgue = broker.queue("Morgue")
    queue = broker.queue("Orders", forward_dead_letters_to="morgue")
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue), reason="broken")
    assert broker.info(queue).message_count == 0
    (found,) = broker.receive(morgue)
    assert (text(found), reason(found), found.record.dead_letter_source) == ("x", "broken", "Orders")
    assert (found.record.delivery_count, found.record.original_sequence) == (0, 1)


def test_a6_messages_dead_lettered_by_the_broker_are_forwarded() -> None:
    broker = Broker()
    morgue = broker.queue("morgue")
    queue = broker.queue(forward_dead_letters_to="morgue", dead_letter_on_expiration=True, max_delivery_count=1)
    broker.send(queue, "failed", letter("expired", time_to_live_ms=SECOND))
    broker.abandon(queue, broker.one(queue))
    broker.wait(SECOND)
    found = broker.receive(morgue)
    assert [(text(each), reason(each)) for each in found] == [
        ("failed", "MaxDeliveryCountExceeded"),
        ("expired", "TTLExpiredException"),
    ]


@pytest.mark.parametrize("obstacle", ["deleted", "disabled", "full"])
def test_a6_dead_letters_that_cannot_be_forwarded_stay_with_their_entity(obstacle: str) -> None:
    broker = Broker(RELAXED)
    morgue = broker.queue("morgue", max_size_megabytes=1)
    queue = broker.queue(forward_dead_letters_to="morgue")
    if obstacle == "deleted":
        broker.delete(morgue)
    elif obstacle == "disabled":
        broker.update(morgue, status=EntityStatus.DISABLED)
    else:
        broker.send(morgue, blob(MEGABYTE))
    broker.send(queue, "x")
    broker.dead_letter(queue, broker.one(queue), reason="mine")
    assert reason(broker.one(dead(queue))) == "mine"


def test_a6_existing_dead_letters_are_forwarded_when_forwarding_begins() -> None:
    broker = Broker()
    morgue, queue = broker.queue("morgue"), broker.queue()
    broker.send(queue, "a", "b")
    for delivery in broker.receive(queue):
        broker.dead_letter(queue, delivery)
    broker.update(queue, forward_dead_letters_to="morgue")
    broker.tidy()
    assert broker.take(morgue) == ["a", "b"]
    assert broker.info(queue).message_count == 0


def test_a6_forwarding_loop_of_dead_letters_ends() -> None:
    broker = Broker()
    one = broker.queue("one", max_delivery_count=1)
    two = broker.queue("two", max_delivery_count=1, forward_dead_letters_to="one")
    broker.update(one, forward_dead_letters_to="two")
    broker.send(one, "x")
    for _ in range(10):
        for queue in (one, two):
            for delivery in broker.receive(queue):
                broker.abandon(queue, delivery)
    assert texts([*broker.peek(dead(one)), *broker.peek(dead(two))]) == ["x"]


def test_a6_dead_letters_of_a_subscription_name_it() -> None:
    broker = Broker()
    morgue, topic = broker.queue("morgue"), broker.topic("Topic")
    subscription = broker.subscription("Sub", topic="Topic", forward_dead_letters_to="morgue")
    broker.send(topic, "x")
    broker.dead_letter(subscription, broker.one(subscription))
    source = broker.one(morgue).record.dead_letter_source
    assert source is not None
    assert source.startswith("Topic/")
    assert source.endswith("Sub")
