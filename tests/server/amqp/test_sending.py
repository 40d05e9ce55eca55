"""E3: transfers to the server: formats, sizes, frames, and the one outcome of each."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pairbus.broker import (
    Address,
    RuleDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.broker.limits import MEGABYTE
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.sent import BATCH_FORMAT, join_batch
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    AMQP_SEQUENCE,
    AMQP_VALUE,
    Condition,
    Configuration,
    Described,
    Header,
    Int,
    Link,
    Message,
    Properties,
    Rejected,
    Symbol,
    Timestamp,
    ULong,
    decode_message,
    encode,
    encode_message,
)
from pairbus.wire.performatives import Transfer
from tests.server.amqp.wire_client import (
    WireClient,
    body_of,
    connect,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


@pytest.fixture
def queue(namespace: RunningNamespace) -> str:
    return fresh_queue(namespace)


def bodies(namespace: RunningNamespace, name: str) -> list[bytes]:
    return [body for body, _ in messages_in(namespace, Address.of(name))]


def reason(state: object) -> str:
    """Return the condition of a rejection; its error has all the fields that Python's SDK reads."""
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.description
    return state.error.condition


def careless_sender(client: WireClient, name: str) -> Link:
    """Return a sender that ignores the maximum message size."""
    link = client.sender(name)
    link.remote_max_message_size = 0
    return link


def still_works(client: WireClient, link: Link) -> None:
    assert client.send(link, text_message("after")) == ACCEPTED


# Formats.


def test_batch_has_one_message_per_data_section(namespace: RunningNamespace, client: WireClient, queue: str) -> None:
    batch = join_batch([text_message(str(number)) for number in range(5)])
    assert client.send(client.sender(queue), batch, message_format=BATCH_FORMAT) == ACCEPTED
    assert bodies(namespace, queue) == [b"0", b"1", b"2", b"3", b"4"]


def test_properties_of_a_batch_envelope_are_ignored(client: WireClient, queue: str) -> None:
    """Check what the SDKs repeat there from the first message; the messages' own properties are delivered."""
    envelope = Message(
        header=Header(ttl=1),
        message_annotations={Symbol("x-opt-partition-key"): "outside"},
        properties=Properties(message_id="outside", group_id="outside"),
        application_properties={"where": "outside"},
        body=(text_message("one", message_id="inside"), text_message("two")),
    )
    assert client.send(client.sender(queue), encode_message(envelope), message_format=BATCH_FORMAT) == ACCEPTED
    first, second = client.receive(client.receiver(queue, credit=2), 2)
    inside = decode_message(first.payload)
    assert inside.properties.message_id == "inside"
    assert inside.properties.group_id is None
    assert inside.application_properties is None
    assert inside.header.ttl is None
    assert decode_message(second.payload).properties.message_id not in {None, "outside"}


def test_batch_is_accepted_as_a_whole_or_rejected(namespace: RunningNamespace, client: WireClient, queue: str) -> None:
    good, bad = text_message("good"), b"\x00\x53\x75\xa0\x05abc"
    link = client.sender(queue)
    for batch in ([good, bad], [bad, good], [good, text_message("x", message_id="i" * 129)]):
        assert isinstance(client.send(link, join_batch(batch), message_format=BATCH_FORMAT), Rejected)
    assert bodies(namespace, queue) == []
    still_works(client, link)


def test_batch_larger_than_a_batch_may_be_is_rejected(
    namespace: RunningNamespace, client: WireClient, queue: str
) -> None:
    link = careless_sender(client, queue)
    batch = join_batch([text_message(bytes(100_000)) for _ in range(3)])
    assert reason(client.send(link, batch, message_format=BATCH_FORMAT)) == Condition.MESSAGE_SIZE_EXCEEDED
    assert bodies(namespace, queue) == []
    still_works(client, link)


GARBAGE = {
    "nothing": b"",
    "text": b"hello",
    "half a message": text_message("one")[:-1],
    "no section": encode({"a": 1}),
    "an unknown section": b"\x00\x53\x10\x45",
    "two kinds of body": b"\x00\x53\x75\xa0\x01a\x00\x53\x77\x40",
    "two values": b"\x00\x53\x77\x40\x00\x53\x77\x40",
    "two headers": b"\x00\x53\x70\x45\x00\x53\x70\x45\x00\x53\x77\x40",
    "annotations that are a list": b"\x00\x53\x72\x45\x00\x53\x77\x40",
    "properties that are a map": b"\x00\x53\x73\xc1\x01\x00\x00\x53\x77\x40",
    "data that is text": b"\x00\x53\x75\xa1\x01a",
    "a sequence that is data": b"\x00\x53\x76\xa0\x01a",
    "application properties with a number for a name": b"\x00\x53\x74" + encode({1: 2}) + b"\x00\x53\x77\x40",
    "application properties with a map in them": b"\x00\x53\x74" + encode({"a": {"b": 1}}) + b"\x00\x53\x77\x40",
    "a list without end": b"\x00\x53\x77" + b"\xc0\x02\x01" * 1,
    "deep nesting": b"\x00\x53\x77" + b"\x00" * 5_000,
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("message_format", [0, BATCH_FORMAT], ids=["alone", "in a batch"])
def test_garbage_is_rejected_or_can_be_received(
    namespace: RunningNamespace, client: WireClient, queue: str, name: str, message_format: int
) -> None:
    """Check that everything accepted is delivered: no message may stay in a queue undeliverable."""
    link = client.sender(queue)
    payload = GARBAGE[name] if message_format == 0 else join_batch([GARBAGE[name]])
    state = client.send(link, payload, message_format=message_format)
    still_works(client, link)
    expected = 1 if isinstance(state, Rejected) else 2
    receiver = client.receiver(queue, credit=5)
    received = client.receive(receiver, expected)
    assert body_of(received[-1]) == b"after"
    for delivery in received:
        assert client.settle(delivery, Rejected()) == Rejected()
    dead = client.receive(client.receiver(f"{queue}/$DeadLetterQueue", credit=5), expected)
    assert len(dead) == expected


@pytest.mark.parametrize("name", [name for name in GARBAGE if name != "nothing"])
def test_invalid_batch_envelope_is_rejected(
    namespace: RunningNamespace, client: WireClient, queue: str, name: str
) -> None:
    link = client.sender(queue)
    assert isinstance(client.send(link, GARBAGE[name], message_format=BATCH_FORMAT), Rejected)
    assert bodies(namespace, queue) == []
    still_works(client, link)


def test_batch_of_value_sections_is_rejected(namespace: RunningNamespace, client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    for payload in (
        b"",
        encode_message(Message(body=(text_message("a"),), body_kind=AMQP_VALUE)),
        encode_message(Message(body=([text_message("a")],), body_kind=AMQP_SEQUENCE)),
    ):
        assert reason(client.send(link, payload, message_format=BATCH_FORMAT)) == Condition.DECODE_ERROR
    assert bodies(namespace, queue) == []


@pytest.mark.parametrize("message_format", [1, 0x80013701, 0x7FFFFFFF, 0xFFFFFFFF])
def test_unknown_message_format_is_rejected(
    namespace: RunningNamespace, client: WireClient, queue: str, message_format: int
) -> None:
    link = client.sender(queue)
    state = client.send(link, text_message("one"), message_format=message_format)
    assert reason(state) == ServiceBusCondition.ARGUMENT_ERROR
    assert bodies(namespace, queue) == []
    still_works(client, link)


@pytest.mark.parametrize("seed", range(4))
def test_corrupted_messages_harm_nothing(
    namespace: RunningNamespace, client: WireClient, queue: str, seed: int
) -> None:
    """Check that everything accepted can be peeked, delivered, abandoned with new properties and dead-lettered."""
    chance = random.Random(seed)  # noqa: S311 (a test's own)
    good = encode_message(
        Message(
            header=Header(ttl=100_000_000, priority=7),
            delivery_annotations={Symbol("a"): 1},
            message_annotations={Symbol("x-opt-partition-key"): "key", Symbol("b"): [1, "two"]},
            properties=Properties(message_id=UUID(int=5), subject="s", content_type=Symbol("t"), group_sequence=3),
            application_properties={"int": Int(5), "text": "ö", "when": Timestamp(5), "none": None},
            body=(b"body",),
            footer={Symbol("f"): 1},
        )
    )
    link = client.sender(queue)
    accepted = 0
    for _ in range(100):
        changed = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        accepted += client.send(link, bytes(changed)) == ACCEPTED
    receiver = client.receiver(queue)
    node = client.requests(f"{queue}/$management")
    for _ in range(accepted):
        answer = node.call("com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": Int(200)})
        assert answer.status in {200, 204}
        if client.is_empty(receiver):
            break  # some expired, or are scheduled
        delivery = client.deliveries(receiver)[-1]
        state = client.settle(delivery, Rejected())
        assert state == Rejected()


# Properties for rules.


def test_unusual_properties_reach_rules_unchanged(namespace: RunningNamespace, client: WireClient) -> None:
    rule = RuleDescription(name="r", filter=SqlFilterDescription("colour = 'red' AND sys.Label IS NULL"))
    namespace.call(
        lambda host: [
            host.use_namespace().create_topic("seen", TopicDescription(), host.now_ms()),
            host.use_namespace().create_subscription("seen", "s", SubscriptionDescription(), host.now_ms()),
            host.use_namespace().add_rule("seen", "s", rule, host.now_ms()),
        ]
    )
    namespace.call(lambda host: host.use_namespace().remove_rule("seen", "s", "$Default", host.now_ms()))
    link = client.sender("seen")
    for properties in ({"colour": Described(Symbol("x"), 1)}, {"colour": "red"}, {Symbol("colour"): "red"}, {"": 1}):
        client.send(link, b"\x00\x53\x74" + encode(properties) + b"\x00\x53\x77\x40")
    still_works(client, link)


# Outcomes.


def test_message_without_an_id_gets_one(client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    for _ in range(2):
        assert client.send(link, text_message("one")) == ACCEPTED
    one, two = client.receive(client.receiver(queue, credit=2), 2)
    ids = [decode_message(each.payload).properties.message_id for each in (one, two)]
    assert all(isinstance(each, str) and len(each) == 32 for each in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    "identity", ["text", UUID(int=7), b"\x00\x01", ULong(7)], ids=lambda identity: type(identity).__name__
)
def test_message_id_keeps_its_type(client: WireClient, queue: str, identity: object) -> None:
    assert client.send(client.sender(queue), text_message("one", message_id=identity)) == ACCEPTED
    found = decode_message(client.receive_one(client.receiver(queue)).payload).properties.message_id
    assert (type(found), found) == (type(identity), identity)


def test_presettled_message_is_stored_without_a_response(
    namespace: RunningNamespace, client: WireClient, queue: str
) -> None:
    link = client.sender(queue)
    delivery = client.begin_send(link, text_message("one"), settled=True)
    still_works(client, link)
    assert delivery.state is None
    assert bodies(namespace, queue) == [b"one", b"after"]


def test_presettled_message_that_is_refused_is_dropped(
    namespace: RunningNamespace, client: WireClient, queue: str
) -> None:
    link = careless_sender(client, queue)
    client.begin_send(link, b"garbage", settled=True)
    client.begin_send(link, text_message(bytes(300_000)), settled=True)
    still_works(client, link)
    assert bodies(namespace, queue) == [b"after"]


def test_message_in_many_frames_is_received_as_one(namespace: RunningNamespace, queue: str) -> None:
    body = random.Random(1).randbytes(200_000)  # noqa: S311 (a test's own)
    with connect(namespace) as client:
        client.engine._writer.max_frame_size = 512
        assert client.send(client.sender(queue), text_message(body)) == ACCEPTED
    tiny = Configuration(container_id="tiny", max_frame_size=512, strict=False)
    with connect(namespace, configuration=tiny) as client:
        assert body_of(client.receive_one(client.receiver(queue))) == body


def test_aborted_message_leaves_nothing(namespace: RunningNamespace, client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    for more, aborted in ((True, False), (True, False), (False, True)):
        part = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"t", more=more, aborted=aborted)
        client.engine._writer.write(client.first_session.channel, encode(part), b"" if aborted else bytes(1_000))
    client.barrier()
    assert bodies(namespace, queue) == []
    connection: Any = next(iter(namespace._running._running.services.connections))
    assert connection._engine.incomplete_bytes == 0


@pytest.mark.parametrize("size", [262_145, 400_000, 2_000_000])
def test_oversized_message_is_rejected_and_the_link_stays_usable(
    namespace: RunningNamespace, client: WireClient, queue: str, size: int
) -> None:
    link = careless_sender(client, queue)
    assert reason(client.send(link, text_message(bytes(size)))) == Condition.MESSAGE_SIZE_EXCEEDED
    still_works(client, link)
    assert bodies(namespace, queue) == [b"after"]


@pytest.mark.parametrize("message_id", ["a", None])
def test_largest_message_is_accepted(client: WireClient, queue: str, message_id: str | None) -> None:
    """Check that the limit counts what was sent, without the id that the server assigns."""
    link = careless_sender(client, queue)
    overhead = len(text_message(bytes(1_000), message_id=message_id)) - 1_000
    whole = text_message(bytes(262_144 - overhead), message_id=message_id)
    assert len(whole) == 262_144
    assert client.send(link, whole) == ACCEPTED
    larger = text_message(bytes(262_145 - overhead), message_id=message_id)
    assert reason(client.send(link, larger)) == Condition.MESSAGE_SIZE_EXCEEDED


def test_largest_message_without_an_id_is_forwarded(namespace: RunningNamespace, client: WireClient) -> None:
    destination = fresh_queue(namespace)
    source = fresh_queue(namespace, forward_to=destination)
    overhead = len(text_message(bytes(1_000))) - 1_000
    assert client.send(client.sender(source), text_message(bytes(262_144 - overhead))) == ACCEPTED
    assert len(bodies(namespace, destination)) == 1


def test_batch_limit_is_announced_and_applies_to_entities_with_larger_messages() -> None:
    with running_namespace(tier="premium") as premium, connect(premium) as client:
        queue = fresh_queue(premium, max_message_bytes=5 * MEGABYTE)
        link = client.sender(queue)
        attach = client.attach_of(link).attach
        assert attach.max_message_size == 5 * MEGABYTE
        assert (attach.properties or {})["com.microsoft:max-message-batch-size"] == MEGABYTE
        batch = join_batch([text_message(bytes(600_000)) for _ in range(2)])
        state = client.send(link, batch, message_format=BATCH_FORMAT)
        assert reason(state) == Condition.MESSAGE_SIZE_EXCEEDED
        assert client.send(link, text_message(bytes(3 * MEGABYTE))) == ACCEPTED
        assert len(bodies(premium, queue)) == 1


def test_message_without_a_session_where_sessions_are_required(namespace: RunningNamespace, client: WireClient) -> None:
    link = client.sender(fresh_queue(namespace, requires_session=True))
    assert reason(client.send(link, text_message("one"))) == Condition.NOT_ALLOWED
    assert client.send(link, text_message("one", group_id="")) == ACCEPTED


@pytest.mark.parametrize(
    "annotations",
    [
        {Symbol("x-opt-partition-key"): 5},
        {Symbol("x-opt-partition-key"): b"\xff"},
        {Symbol("x-opt-partition-key"): "k" * 129},
        {Symbol("x-opt-scheduled-enqueue-time"): "soon"},
        {Symbol("x-opt-scheduled-enqueue-time"): True},
    ],
    ids=["number", "not UTF-8", "long", "text", "truth"],
)
def test_invalid_annotations_are_rejected(client: WireClient, queue: str, annotations: dict[Symbol, object]) -> None:
    link = client.sender(queue)
    payload = encode_message(Message(message_annotations=annotations, body=(b"x",)))
    assert reason(client.send(link, payload)) in {Condition.INVALID_FIELD, ServiceBusCondition.ARGUMENT_ERROR}
    still_works(client, link)


def test_time_beyond_the_calendar_is_handled(client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    for when in (Timestamp(2**63 - 1), Timestamp(-(2**63)), Timestamp(253_402_300_800_000)):
        payload = encode_message(
            Message(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): when}, body=(b"x",))
        )
        client.send(link, payload)
    still_works(client, link)


def test_credit_is_replenished(client: WireClient, queue: str) -> None:
    link = client.sender(queue)
    for _ in range(3):
        sent = [client.begin_send(link, text_message(str(number))) for number in range(link.credit)]
        assert {client.outcome(delivery) for delivery in sent} == {ACCEPTED}
        client.until(lambda: link.credit >= 1_000)


def test_sender_that_ignores_credit_is_served(namespace: RunningNamespace, client: WireClient, queue: str) -> None:
    """Send like the SDK for Python: it ignores credit and window."""
    link = client.sender(queue)
    sent = [client.begin_send(link, text_message("x"), beyond_credit=True) for _ in range(6_000)]
    assert {client.outcome(delivery) for delivery in sent} == {ACCEPTED}
    assert len(bodies(namespace, queue)) == 6_000


def test_busy_server_rejects_and_the_link_stays_usable(
    namespace: RunningNamespace, client: WireClient, queue: str
) -> None:
    link = client.sender(queue)
    namespace.server_busy = True
    try:
        assert reason(client.send(link, text_message("one"))) == ServiceBusCondition.SERVER_BUSY
    finally:
        namespace.server_busy = False
    still_works(client, link)
    assert bodies(namespace, queue) == [b"after"]


def test_full_queue_rejects_until_there_is_space() -> None:
    with running_namespace(tier="relaxed") as small, connect(small) as client:
        queue = fresh_queue(small, max_size_megabytes=1)
        link = client.sender(queue)
        states = [client.send(link, text_message(bytes(300_000))) for _ in range(5)]
        assert states[:3] == [ACCEPTED] * 3
        assert reason(states[4]) == Condition.RESOURCE_LIMIT_EXCEEDED
        receiver = client.receiver(queue)
        for _ in range(3):
            assert client.settle(client.receive_one(receiver), ACCEPTED) == ACCEPTED
        still_works(client, link)


def test_time_to_live_is_delivered_as_it_was_set(client: WireClient, queue: str) -> None:
    payload = encode_message(Message(header=Header(ttl=90_000, durable=True, priority=9), body=(b"x",)))
    assert client.send(client.sender(queue), payload) == ACCEPTED
    header = decode_message(client.receive_one(client.receiver(queue)).payload).header
    assert (header.ttl, header.durable, header.priority) == (90_000, True, 9)
