"""Scheduling and expiry"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.compatibility.client import Client
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Reason, Received, SdkError, State, SubQueue, text
from tests.compatibility.waiting import now
from tests.waiting import eventually_async

LATER = timedelta(hours=1)
SOON = timedelta(milliseconds=600)


@feature("Schedule: the message is delivered when it is due", transports=EVERY_TRANSPORT)
async def test_schedule(client: Client, queue: str) -> None:
    sender, receiver = await client.sender(queue), await client.receiver(queue)
    later = now().replace(microsecond=0) + LATER
    (number,) = await sender.schedule([text("later")], later)
    (peeked,) = await receiver.peek(1, from_sequence_number=1)
    assert (peeked.sequence_number, peeked.state) == (number, State.SCHEDULED)
    assert peeked.message.scheduled_enqueue_time == later
    due = now().replace(microsecond=0) + timedelta(seconds=2)
    await sender.schedule([text("hello", subject="s")], due)
    received = await receiver.one()
    assert now() >= due
    assert (received.text, received.message.subject, received.state) == ("hello", "s", State.ACTIVE)
    assert received.enqueued_time >= due - timedelta(milliseconds=1)
    await receiver.complete(received)


@feature("Schedule several messages at once")
async def test_schedule_several(client: Client, queue: str) -> None:
    numbers = await (await client.sender(queue)).schedule([text("a"), text("b"), text("c")], now() + LATER)
    assert len(set(numbers)) == 3
    peeked = await (await client.receiver(queue)).peek(10)
    assert [(one.text, one.sequence_number) for one in peeked] == list(zip("abc", numbers, strict=True))


@feature("Schedule by a property of the message")
async def test_schedule_by_property(client: Client, queue: str) -> None:
    due = now() + SOON
    await (await client.sender(queue)).send(text("hello", scheduled_enqueue_time=due))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert now() >= due
    assert received.text == "hello"
    await receiver.complete(received)


@feature("Cancel a scheduled message")
async def test_cancel(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    first, second = await sender.schedule([text("first"), text("second")], now() + LATER)
    await sender.cancel([first])
    peeked = await (await client.receiver(queue)).peek(10)
    assert [one.sequence_number for one in peeked] == [second]


@feature("Cancelling a message that is not scheduled is an error")
async def test_cancel_nothing(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    with pytest.raises(SdkError) as refused:
        await sender.cancel([66])
    assert refused.value.reason is Reason.MESSAGE_NOT_FOUND


async def dead_letter_of(client: Client, queue: str) -> Received:
    receiver = await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)

    async def peeked() -> list[Received]:
        return await receiver.peek(1, from_sequence_number=1)

    await eventually_async(peeked)
    return await receiver.one()


@feature("An expired message goes to the dead-letter queue")
async def test_expiry_of_a_message(client: Client, entities: Entities) -> None:
    queue = entities.queue(dead_letter_on_expiration=True)
    sender = await client.sender(queue)
    await sender.send_all([text("brief", time_to_live=timedelta(seconds=1)), text("lasting")])
    dead = await dead_letter_of(client, queue)
    assert (dead.text, dead.dead_letter_reason) == ("brief", "TTLExpiredException")
    assert (await (await client.receiver(queue)).one()).text == "lasting"


@feature("The time to live of a queue applies to messages without one")
async def test_expiry_of_a_queue(client: Client, entities: Entities) -> None:
    queue = entities.queue(default_time_to_live_ms=200, dead_letter_on_expiration=True)
    await (await client.sender(queue)).send(text("brief"))
    dead = await dead_letter_of(client, queue)
    assert dead.dead_letter_reason == "TTLExpiredException"


@feature("Without dead-lettering an expired message is removed")
async def test_expiry_without_dead_letters(client: Client, entities: Entities) -> None:
    queue = entities.queue(default_time_to_live_ms=200)
    await (await client.sender(queue)).send(text("brief"))
    receiver = await client.receiver(queue)

    async def is_gone() -> bool:
        return not await receiver.peek(1, from_sequence_number=1)

    assert await eventually_async(is_gone)
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []
