"""Sending"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from pairbus.broker import STANDARD
from tests.compatibility.client import Client, drain
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, Tier, feature
from tests.compatibility.values import Message, Reason, SdkError, data, text


def pattern(size: int) -> bytes:
    """Bytes in which a lost or a doubled frame shows."""
    return b"".join(b"%08d" % number for number in range(size // 8 + 1))[:size]


@feature("Several messages in one call arrive in order", transports=EVERY_TRANSPORT)
async def test_several_messages(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}", message_id=f"{number}") for number in range(50)])
    receiver = await client.receiver(queue)
    received = await receiver.receive(50)
    assert [one.text for one in received] == [f"{number}" for number in range(50)]
    assert [one.sequence_number for one in received] == list(range(1, 51))
    for one in received:
        await receiver.complete(one)


@feature("Messages of a batch keep their own properties")
async def test_batch_keeps_properties(client: Client, queue: str) -> None:
    sent = [
        text(f"{number}", message_id=f"id {number}", subject=f"subject {number}", application_properties={"n": number})
        for number in range(3)
    ]
    assert await (await client.sender(queue)).send_batch(sent) == 3
    receiver = await client.receiver(queue)
    for message, received in zip(sent, await receiver.receive(3), strict=True):
        assert received.text == message.body.content[0].decode()
        assert received.message.message_id == message.message_id
        assert received.message.subject == message.subject
        assert received.message.application_properties == message.application_properties
        await receiver.complete(received)


@feature("A batch accepts messages until it is full", tier=Tier.STANDARD)
async def test_full_batch(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    count = await sender.send_batch([Message(body=data(pattern(10_000))) for _ in range(100)])
    assert 24 <= count <= 26  # 256 KB
    receiver = await client.receiver(queue)
    assert [one.message.body.content[0] == pattern(10_000) async for one in drain(receiver)] == [True] * count


@feature("A full batch of small messages without ids is accepted", tier=Tier.STANDARD)
async def test_full_batch_of_small_messages(client: Client, queue: str) -> None:
    """The limit counts what the sender sent, without the ids that the service adds."""
    sender = await client.sender(queue)
    count = await sender.send_batch([Message(body=data(b"x" * 60)) for _ in range(9_000)])
    assert 1_000 <= count <= STANDARD.messages_per_batch
    receiver = await client.receiver(queue)
    assert (await receiver.one()).message.message_id


@feature("A received message can be sent again, with all its properties")
async def test_received_message_is_sent_again(client: Client, queue: str) -> None:
    sender, receiver = await client.sender(queue), await client.receiver(queue)
    sent = text(
        "one",
        message_id="id",
        correlation_id="correlation",
        session_id="table seven",
        reply_to_session_id="table eight",
        partition_key="table seven",
        subject="subject",
        to="there",
        reply_to="here",
        content_type="text/plain",
        time_to_live=timedelta(minutes=5),
        application_properties={"text": "x", "number": 5},
    )
    await sender.send(sent)
    first = await receiver.one()
    await receiver.complete(first)
    await sender.send_again(first)
    second = await receiver.one()
    assert replace(second.message, amqp=None, application_properties={}) == replace(
        first.message, amqp=None, application_properties={}
    )
    assert second.message.application_properties.keys() == {"text", "number"}
    await receiver.complete(second)


@feature("A batch that is too large is refused as a whole", tier=Tier.STANDARD)
async def test_batch_too_large(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    with pytest.raises(SdkError) as refused:
        await sender.send_all([Message(body=data(pattern(128 * 1024))) for _ in range(2)])
    assert refused.value.reason is Reason.SIZE_EXCEEDED
    await sender.send(text("small"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.text == "small"
    await receiver.complete(received)


@feature("A message of 200 KB, in many frames", transports=EVERY_TRANSPORT, tier=Tier.STANDARD)
async def test_large_message(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(Message(body=data(pattern(200_000))))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.message.body == data(pattern(200_000))
    await receiver.complete(received)


@feature("A message of nearly 1 MB on a premium namespace", tier=Tier.PREMIUM)
async def test_very_large_message(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(Message(body=data(pattern(1_000_000))))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.message.body == data(pattern(1_000_000))
    await receiver.complete(received)


@feature("A message that is too large is refused", tier=Tier.STANDARD)
async def test_message_too_large(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    with pytest.raises(SdkError) as refused:
        await sender.send(Message(body=data(b"A" * 256 * 1024)))
    assert refused.value.reason is Reason.SIZE_EXCEEDED
    await sender.send(text("small"))


@feature("Many messages one after another on one sender")
async def test_many_messages(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    for number in range(100):
        await sender.send(text(f"{number}"))
    receiver = await client.receiver(queue)
    assert [one.text async for one in drain(receiver)] == [f"{number}" for number in range(100)]


@feature("Duplicates of a message are dropped where they are detected")
async def test_duplicates(client: Client, entities: Entities) -> None:
    queue = entities.queue(requires_duplicate_detection=True)
    sender = await client.sender(queue)
    await sender.send(text("first", message_id="a"))
    await sender.send(text("again", message_id="a"))
    await sender.send_all([text("other", message_id="b"), text("third", message_id="a")])
    receiver = await client.receiver(queue)
    assert [one.text async for one in drain(receiver)] == ["first", "other"]


@feature("Duplicates are kept where they are not detected")
async def test_no_duplicate_detection(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send(text("first", message_id="a"))
    await sender.send(text("again", message_id="a"))
    receiver = await client.receiver(queue)
    assert [one.text async for one in drain(receiver)] == ["first", "again"]
