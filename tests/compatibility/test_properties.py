"""Properties of messages"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.compatibility.client import Ability, Client
from tests.compatibility.feature import feature
from tests.compatibility.values import Amqp, Message, Received, State, data, text
from tests.compatibility.waiting import now

SYSTEM = {
    "correlation_id": "the correlation",
    "session_id": "the session",
    "reply_to_session_id": "the other session",
    "partition_key": "the session",
    "content_type": "application/json",
    "subject": "the subject",
    "to": "the destination",
    "reply_to": "the sender",
    "time_to_live": timedelta(minutes=5),
}


async def round_trip(client: Client, queue: str, message: Message) -> Received:
    await (await client.sender(queue)).send(message)
    receiver = await client.receiver(queue)
    received = await receiver.one()
    await receiver.complete(received)
    return received


@feature("System properties are received as they were sent")
async def test_system_properties(client: Client, queue: str) -> None:
    received = await round_trip(client, queue, text("hello", message_id="the id", **SYSTEM))
    expected: dict[str, Any] = {"message_id": "the id", **SYSTEM}
    assert {name: getattr(received.message, name) for name in expected} == expected


@feature("A message without properties has none when it is received")
async def test_no_properties(client: Client, queue: str) -> None:
    message = (await round_trip(client, queue, text("hello"))).message
    assert {name: getattr(message, name) for name in SYSTEM} == dict.fromkeys(SYSTEM)
    assert message.application_properties == {}
    assert message.scheduled_enqueue_time is None


@feature("A message without an id gets one")
async def test_id_is_assigned(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(Message(body=data(b"simple")))
    await sender.send(Message(body=data(b"annotated"), amqp=Amqp(priority=5)))
    receiver = await client.receiver(queue)
    received = await receiver.receive(2)
    ids = {one.message.message_id for one in received}
    assert len(ids) == 2
    assert all(isinstance(found, str) and found for found in ids)
    for one in received:
        await receiver.complete(one)


@feature("Properties that the service adds: sequence number, times, delivery count, lock")
async def test_properties_added_by_the_service(client: Client, queue: str) -> None:
    before = now()
    sender = await client.sender(queue)
    await sender.send(text("first", time_to_live=timedelta(minutes=1)))
    await sender.send(text("second"))
    receiver = await client.receiver(queue)
    first, second = await receiver.receive(2)
    assert [first.sequence_number, second.sequence_number] == [1, 2]
    # The service tells it only of messages that came through another entity.
    assert [one.enqueued_sequence_number or one.sequence_number for one in (first, second)] == [1, 2]
    assert before - timedelta(milliseconds=1) <= first.enqueued_time <= second.enqueued_time <= now()
    assert first.delivery_count == second.delivery_count == 0
    assert first.state is State.ACTIVE
    assert first.expires_at == first.enqueued_time + timedelta(minutes=1)
    assert first.lock_token is not None
    assert first.lock_token != second.lock_token
    assert first.locked_until is not None
    assert timedelta(seconds=30) < first.locked_until - now() <= timedelta(seconds=61)
    assert first.dead_letter_reason is None
    assert first.dead_letter_source is None
    await receiver.complete(first)
    await receiver.complete(second)


@feature("Message ids and correlation ids that are numbers")
async def test_number_ids(client: Client, queue: str) -> None:
    message = (await round_trip(client, queue, text("hello", message_id=66, correlation_id=2**40))).message
    assert (message.message_id, message.correlation_id) == (66, 2**40)


@feature("Message ids and correlation ids that are UUIDs", needs=[Ability.ID_UUID])
async def test_uuid_ids(client: Client, queue: str) -> None:
    ids = (UUID(int=66), UUID(int=2**127))
    message = (await round_trip(client, queue, text("hello", message_id=ids[0], correlation_id=ids[1]))).message
    assert (message.message_id, message.correlation_id) == ids


@feature("Message ids and correlation ids that are bytes", needs=[Ability.ID_BYTES])
async def test_bytes_ids(client: Client, queue: str) -> None:
    message = (await round_trip(client, queue, text("hello", message_id=b"\xff1", correlation_id=b"\xff2"))).message
    assert (message.message_id, message.correlation_id) == (b"\xff1", b"\xff2")


async def check_properties(client: Client, queue: str, **properties: Any) -> None:
    received = await round_trip(client, queue, text("hello", application_properties=properties))
    found = {
        name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value
        for name, value in received.message.application_properties.items()
    }
    assert found == {
        name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value
        for name, value in properties.items()
    }


@feature("Application properties: text, numbers, booleans, times")
async def test_application_properties(client: Client, queue: str) -> None:
    await check_properties(
        client,
        queue,
        text="Grüße",
        empty="",
        long="x" * 1000,
        yes=True,
        no=False,
        zero=0,
        small=-128,
        int_max=2**31 - 1,
        int_min=-(2**31),
        double=3.141592653589793,
        tiny=5e-324,
        date=datetime(2026, 11, 15, 12, 30, tzinfo=UTC),
    )


@feature("Application properties: null", needs=[Ability.NULL_PROPERTIES])
async def test_null_properties(client: Client, queue: str) -> None:
    await check_properties(client, queue, nothing=None, something="there")


@feature("Application properties: numbers of 64 bits", needs=[Ability.LONG_PROPERTIES])
async def test_long_properties(client: Client, queue: str) -> None:
    await check_properties(client, queue, large=2**40, largest=2**53 - 1, least=-(2**40))


@feature("Application properties: UUIDs", needs=[Ability.UUID_PROPERTIES])
async def test_uuid_properties(client: Client, queue: str) -> None:
    await check_properties(client, queue, id=UUID("12345678-1234-5678-1234-567812345678"))


@feature("The AMQP view: header, annotations, footer")
async def test_amqp_view(client: Client, queue: str) -> None:
    amqp = Amqp(
        durable=True,
        priority=7,
        content_encoding="gzip",
        creation_time=datetime(2026, 11, 15, 12, 30, tzinfo=UTC),
        absolute_expiry_time=datetime(2036, 11, 15, 12, 30, tzinfo=UTC),
        group_sequence=3,
        annotations={"x-mine": "annotated", "x-number": 7},
        delivery_annotations={"x-delivered": "for this hop"},
        footer={"x-foot": "note"},
    )
    sent = text("hello", message_id="the id", session_id="s", application_properties={"a": 1}, amqp=amqp)
    message = (await round_trip(client, queue, sent)).message
    assert message.amqp == amqp
    assert (message.message_id, message.session_id, message.application_properties) == ("the id", "s", {"a": 1})


@feature("The AMQP view: user id", needs=[Ability.AMQP_USER_ID])
async def test_user_id(client: Client, queue: str) -> None:
    message = (await round_trip(client, queue, text("hello", amqp=Amqp(user_id=b"ada")))).message
    assert message.amqp is not None
    assert message.amqp.user_id == b"ada"
