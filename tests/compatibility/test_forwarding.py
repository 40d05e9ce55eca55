"""Forwarding"""

from __future__ import annotations

import pytest

from tests.compatibility.client import Client
from tests.compatibility.entities import Entities
from tests.compatibility.feature import feature
from tests.compatibility.values import Reason, SdkError, text


@feature("From queue to queue")
async def test_queue_to_queue(client: Client, entities: Entities) -> None:
    target = entities.queue()
    source = entities.queue(forward_to=target)
    await (await client.sender(target)).send(text("first"))
    await (await client.sender(source)).send(text("hello", message_id="the id", application_properties={"a": 1}))
    receiver = await client.receiver(target)
    first, received = await receiver.receive(2)
    assert (received.text, received.message.message_id) == ("hello", "the id")
    assert received.message.application_properties == {"a": 1}
    assert (received.sequence_number, received.enqueued_sequence_number) == (2, 1)
    await receiver.complete(first)
    await receiver.complete(received)


@feature("From subscription to queue, and to topic")
async def test_subscription_to_topic(client: Client, entities: Entities) -> None:
    queue, second = entities.queue(), entities.topic()
    last = entities.subscription(second)
    first = entities.topic()
    entities.subscription(first, forward_to=queue)
    entities.subscription(first, forward_to=second)
    await (await client.topic_sender(first)).send(text("hello"))
    for place in (queue, last):
        receiver = await client.receiver(place)
        received = await receiver.one()
        assert received.text == "hello"
        await receiver.complete(received)


@feature("Of dead letters, with their source")
async def test_dead_letters(client: Client, entities: Entities) -> None:
    target = entities.queue()
    source = entities.queue(forward_dead_letters_to=target)
    await (await client.sender(source)).send(text("hello"))
    receiver = await client.receiver(source)
    await receiver.dead_letter(await receiver.one(), reason="r", description="d")
    collector = await client.receiver(target)
    dead = await collector.one()
    assert (dead.text, dead.dead_letter_reason, dead.dead_letter_description) == ("hello", "r", "d")
    assert dead.dead_letter_source == source
    await collector.complete(dead)


@feature("A forwarding entity cannot be received from")
async def test_no_receiving(client: Client, entities: Entities) -> None:
    source = entities.queue(forward_to=entities.queue())
    with pytest.raises(SdkError) as refused:
        await (await client.receiver(source)).receive()
    assert refused.value.reason is Reason.GENERAL
