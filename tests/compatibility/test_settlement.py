"""Settling"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.compatibility.client import Ability, Client, Endpoint
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Mode, Reason, SdkError, State, SubQueue, text
from tests.compatibility.waiting import BRIEF, BRIEF_MS, SELF_RENEWED, SELF_RENEWED_MS, now, past


async def is_empty(client: Client, queue: str, sub_queue: SubQueue | None = None) -> bool:
    receiver = await client.receiver(queue, sub_queue=sub_queue)
    return not await receiver.peek(1, from_sequence_number=1)


@feature("Complete", transports=EVERY_TRANSPORT)
async def test_complete(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    await receiver.complete(await receiver.one())
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []
    assert await is_empty(client, queue)


@feature("Abandon: the message is redelivered, and counted")
async def test_abandon(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text("first"), text("second")])
    receiver = await client.receiver(queue)
    for count in range(3):
        received = await receiver.one()
        assert (received.text, received.delivery_count) == ("first", count)
        await receiver.abandon(received)
    again, second = await receiver.receive(2)
    assert (again.text, again.delivery_count) == ("first", 3)
    assert (second.text, second.delivery_count) == ("second", 0)
    await receiver.complete(again)
    await receiver.complete(second)


@feature("Abandon with changed properties", needs=[Ability.MODIFY_PROPERTIES])
async def test_abandon_with_properties(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello", application_properties={"kept": 1, "changed": "old"}))
    receiver = await client.receiver(queue)
    await receiver.abandon(await receiver.one(), {"changed": "new", "added": True})
    received = await receiver.one()
    assert received.message.application_properties == {"kept": 1, "changed": "new", "added": True}
    await receiver.complete(received)


@feature("Defer, and receive by sequence number", transports=EVERY_TRANSPORT)
async def test_defer(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text("deferred", subject="s"), text("next")])
    receiver = await client.receiver(queue)
    deferred = await receiver.one()
    await receiver.defer(deferred)
    following = await receiver.one()
    assert following.text == "next"
    await receiver.complete(following)
    (again,) = await receiver.receive_deferred([deferred.sequence_number])
    assert (again.text, again.message.subject, again.state) == ("deferred", "s", State.DEFERRED)
    assert again.sequence_number == deferred.sequence_number
    await receiver.complete(again)
    assert await is_empty(client, queue)


@feature("Defer with changed properties", needs=[Ability.MODIFY_PROPERTIES])
async def test_defer_with_properties(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    await receiver.defer(received, {"why": "not yet"})
    (again,) = await receiver.receive_deferred([received.sequence_number])
    assert again.message.application_properties == {"why": "not yet"}
    await receiver.complete(again)


@feature("A deferred message can be abandoned, deferred and dead-lettered again")
async def test_settling_deferred_messages(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    await receiver.defer(received)
    number = received.sequence_number
    (again,) = await receiver.receive_deferred([number])
    await receiver.abandon(again)
    (again,) = await receiver.receive_deferred([number])
    await receiver.defer(again)
    (again,) = await receiver.receive_deferred([number])
    await receiver.dead_letter(again, reason="enough")
    dead = await (await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)).one()
    assert (dead.text, dead.dead_letter_reason) == ("hello", "enough")


@feature("Deferred messages can be received and deleted")
async def test_deleting_deferred_messages(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    await receiver.defer(received)
    deleting = await client.receiver(queue, mode=Mode.RECEIVE_AND_DELETE)
    (again,) = await deleting.receive_deferred([received.sequence_number])
    assert again.text == "hello"
    assert await is_empty(client, queue)


@feature("An unknown sequence number of a deferred message is an error")
async def test_no_such_deferred_message(client: Client, queue: str) -> None:
    receiver = await client.receiver(queue)
    with pytest.raises(SdkError) as refused:
        await receiver.receive_deferred([66])
    assert refused.value.reason is Reason.MESSAGE_NOT_FOUND


@feature("Dead-letter with a reason, and receive from the dead-letter queue", transports=EVERY_TRANSPORT)
async def test_dead_letter(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello", message_id="the id", application_properties={"kept": 1}))
    receiver = await client.receiver(queue)
    await receiver.dead_letter(await receiver.one(), reason="no good", description="it is broken")
    dead_letters = await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)
    dead = await dead_letters.one()
    assert (dead.text, dead.message.message_id) == ("hello", "the id")
    assert (dead.dead_letter_reason, dead.dead_letter_description) == ("no good", "it is broken")
    assert dead.message.application_properties["kept"] == 1
    await dead_letters.complete(dead)
    assert await is_empty(client, queue)
    assert await is_empty(client, queue, SubQueue.DEAD_LETTER)


@feature("Dead-letter without a reason")
async def test_dead_letter_without_reason(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    await receiver.dead_letter(await receiver.one())
    dead = await (await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)).one()
    assert dead.text == "hello"
    assert not dead.dead_letter_reason


@feature("Dead-letter with changed properties", needs=[Ability.MODIFY_PROPERTIES])
async def test_dead_letter_with_properties(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    await receiver.dead_letter(await receiver.one(), reason="r", description="d", properties={"added": 7})
    dead = await (await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)).one()
    assert dead.message.application_properties == {
        "added": 7,
        "DeadLetterReason": "r",
        "DeadLetterErrorDescription": "d",
    }


@feature("Peek and receive-and-delete in the dead-letter queue")
async def test_dead_letter_queue(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    await receiver.dead_letter(await receiver.one(), reason="r")
    dead_letters = await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER, mode=Mode.RECEIVE_AND_DELETE)
    (peeked,) = await dead_letters.peek(1)
    assert peeked.dead_letter_reason == "r"
    assert (await dead_letters.one()).text == "hello"


@feature("The transfer dead-letter queue exists, and is empty")
async def test_transfer_dead_letters(client: Client, queue: str) -> None:
    receiver = await client.receiver(queue, sub_queue=SubQueue.TRANSFER_DEAD_LETTER)
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []


@feature("Too many deliveries: the message is dead-lettered")
async def test_max_delivery_count(client: Client, entities: Entities) -> None:
    queue = entities.queue(max_delivery_count=2)
    await (await client.sender(queue)).send(text("poison"))
    receiver = await client.receiver(queue)
    for _ in range(2):
        await receiver.abandon(await receiver.one())
    dead = await (await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)).one()
    assert dead.text == "poison"
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_description
    assert await is_empty(client, queue)


@feature("Settling twice is an error")
async def test_settling_twice(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    await receiver.complete(received)
    with pytest.raises(SdkError) as refused:
        await receiver.abandon(received)
    assert refused.value.reason in {Reason.ALREADY_SETTLED, Reason.LOCK_LOST}


@feature("An expired lock: settling fails, the message is redelivered, and counted")
async def test_expired_lock(client: Client, entities: Entities) -> None:
    queue = entities.queue(lock_duration_ms=BRIEF_MS)
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.locked_until is not None
    await past(received.locked_until)
    with pytest.raises(SdkError) as refused:
        await receiver.complete(received)
    assert refused.value.reason is Reason.LOCK_LOST
    again = await receiver.one()
    assert (again.text, again.delivery_count) == ("hello", 1)
    await receiver.complete(again)


@feature("Renewing a lock keeps the message")
async def test_renewing_a_lock(client: Client, entities: Entities) -> None:
    queue = entities.queue(lock_duration_ms=2 * BRIEF_MS)
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    first = received.locked_until
    assert first is not None
    await past(first - BRIEF)
    until = await receiver.renew_lock(received)
    assert until > first
    await past(first)
    await receiver.complete(received)
    assert await is_empty(client, queue)


@feature("Renewing the locks of several messages at the same time", needs=[Ability.CONCURRENT_CALLS])
async def test_renewing_several_locks(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(10)])
    receiver = await client.receiver(queue)
    received = await receiver.receive(10)
    renewed = await asyncio.gather(*(receiver.renew_lock(one) for one in received))
    assert len(renewed) == 10
    for one in received:
        await receiver.complete(one)


@feature("Renewing a lock that has expired fails")
async def test_renewing_an_expired_lock(client: Client, entities: Entities) -> None:
    queue = entities.queue(lock_duration_ms=BRIEF_MS)
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.locked_until is not None
    await past(received.locked_until)
    with pytest.raises(SdkError) as refused:
        await receiver.renew_lock(received)
    assert refused.value.reason is Reason.LOCK_LOST


@pytest.mark.slow
@feature("The SDK renews locks automatically")
async def test_automatic_renewal(client: Client, entities: Entities) -> None:
    queue = entities.queue(lock_duration_ms=SELF_RENEWED_MS)
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue, renew_for=timedelta(minutes=1))
    received = await receiver.one()
    await past(now() + SELF_RENEWED + timedelta(seconds=1))
    await receiver.complete(received)
    assert await is_empty(client, queue)


@feature("A lock outlives its receiver: another one settles the message")
async def test_settling_with_another_receiver(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text("first"), text("second"), text("third"), text("fourth")])
    receiver = await client.receiver(queue)
    first, second, third, fourth = await receiver.receive(4)
    await receiver.close()
    other = await client.receiver(queue)
    assert await other.receive(wait=timedelta(milliseconds=200)) == []
    await other.complete(first)
    await other.abandon(second)
    await other.defer(third)
    await other.dead_letter(fourth, reason="r", description="d")
    again = await other.one()
    assert (again.text, again.delivery_count) == ("second", 1)
    await other.complete(again)
    (deferred,) = await other.receive_deferred([third.sequence_number])
    await other.complete(deferred)
    dead = await (await client.receiver(queue, sub_queue=SubQueue.DEAD_LETTER)).one()
    assert (dead.text, dead.dead_letter_reason, dead.dead_letter_description) == ("fourth", "r", "d")
    assert await is_empty(client, queue)


@feature("A message locked by one client is not seen by another until the lock expires")
async def test_locks_exclude_others(
    client: Client, endpoint: Endpoint, entities: Entities, connect: Callable[[Endpoint], Client]
) -> None:
    queue = entities.queue(lock_duration_ms=BRIEF_MS)
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    async with connect(endpoint) as other_client:
        other = await other_client.receiver(queue)
        again = await other.one()
        assert received.locked_until is not None
        assert now() >= received.locked_until - timedelta(milliseconds=50)
        assert again.delivery_count == 1
        await other.complete(again)
