"""Receiving"""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.compatibility.client import Ability, Client
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Mode, Reason, SdkError, State, text
from tests.compatibility.waiting import PATIENCE, now

SHORTLY = timedelta(milliseconds=500)


@feature("Receive and delete")
async def test_receive_and_delete(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text("first"), text("second")])
    receiver = await client.receiver(queue, mode=Mode.RECEIVE_AND_DELETE)
    received = await receiver.receive(2)
    assert [one.text for one in received] == ["first", "second"]
    assert [one.lock_token for one in received] == [None, None]
    assert await receiver.peek(1, from_sequence_number=1) == []


@feature("A message that was received and deleted cannot be settled")
async def test_no_settlement_after_deletion(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("gone"))
    receiver = await client.receiver(queue, mode=Mode.RECEIVE_AND_DELETE)
    received = await receiver.one()
    with pytest.raises(SdkError):
        await receiver.complete(received)


@feature("Receiving from an empty queue ends after the wait time")
async def test_empty_queue(client: Client, queue: str) -> None:
    receiver = await client.receiver(queue)
    before = now()
    assert await receiver.receive(5, wait=SHORTLY) == []
    assert SHORTLY * 0.9 <= now() - before < PATIENCE


@feature("A receiver that waits gets a message as soon as it is sent", transports=EVERY_TRANSPORT)
async def test_waiting_receiver(client: Client, queue: str) -> None:
    receiver = await client.receiver(queue)
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []
    await (await client.sender(queue)).send(text("hello"))
    received = await receiver.one()
    assert received.text == "hello"
    await receiver.complete(received)


@feature("Receive continuously, message by message", transports=EVERY_TRANSPORT)
async def test_streaming(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(20)])
    receiver = await client.receiver(queue)
    received = await receiver.stream(20)
    assert [one.text for one in received] == [f"{number}" for number in range(20)]
    assert await (await client.receiver(queue)).peek(1, from_sequence_number=1) == []


@feature("Prefetch", needs=[Ability.PREFETCH])
async def test_prefetch(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(12)])
    receiver = await client.receiver(queue, prefetch=5)
    found: list[str] = []
    while len(found) < 12:
        received = await receiver.receive(4)
        assert received
        for one in received:
            await receiver.complete(one)
        found += [one.text for one in received]
    assert found == [f"{number}" for number in range(12)]


@feature("Closing a receiver releases prefetched messages", needs=[Ability.PREFETCH])
async def test_closing_releases(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(10)])
    receiver = await client.receiver(queue, prefetch=10)
    first = await receiver.one()
    await receiver.complete(first)
    await receiver.close()
    again = await client.receiver(queue)
    received = await again.receive(9)
    assert [one.text for one in received] == [f"{number}" for number in range(1, 10)]
    assert {one.delivery_count for one in received} == {0}
    for one in received:
        await again.complete(one)


@feature("A receiver that stopped waiting locks no later message")
async def test_credit_does_not_linger(client: Client, queue: str) -> None:
    early = await client.receiver(queue)
    assert await early.receive(5, wait=timedelta(milliseconds=100)) == []
    await early.close()
    await (await client.sender(queue)).send(text("late"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert (received.text, received.delivery_count) == ("late", 0)
    await receiver.complete(received)


@feature("Several receivers share a queue; no message goes to two of them")
async def test_competing_receivers(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(20)])
    receivers = [await client.receiver(queue), await client.receiver(queue)]
    received = [await receiver.receive(10) for receiver in receivers]
    texts = [one.text for found in received for one in found]
    assert sorted(texts, key=int) == [f"{number}" for number in range(20)]
    for receiver, found in zip(receivers, received, strict=True):
        for one in found:
            await receiver.complete(one)


@feature("Peek", transports=EVERY_TRANSPORT)
async def test_peek(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}", subject="s") for number in range(5)])
    receiver = await client.receiver(queue)
    peeked = await receiver.peek(3)
    assert [one.text for one in peeked] == ["0", "1", "2"]
    assert {one.message.subject for one in peeked} == {"s"}
    assert {one.delivery_count for one in peeked} == {0}
    received = await receiver.receive(5)
    assert len(received) == 5
    for one in received:
        await receiver.complete(one)


@feature("Peek from a sequence number")
async def test_peek_from(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send_all([text(f"{number}") for number in range(5)])
    receiver = await client.receiver(queue)
    peeked = await receiver.peek(10, from_sequence_number=3)
    assert [(one.text, one.sequence_number) for one in peeked] == [("2", 3), ("3", 4), ("4", 5)]
    assert await receiver.peek(10, from_sequence_number=6) == []


@feature("Peek shows active, locked, deferred and scheduled messages")
async def test_peek_shows_states(client: Client, queue: str) -> None:
    sender = await client.sender(queue)
    await sender.send_all([text("deferred"), text("locked"), text("active")])
    await sender.schedule([text("scheduled")], now() + timedelta(hours=1))
    receiver = await client.receiver(queue)
    deferred, locked = await receiver.receive(2)
    await receiver.defer(deferred)
    peeked = await receiver.peek(10, from_sequence_number=1)
    assert {one.text: one.state for one in peeked} == {
        "deferred": State.DEFERRED,
        "locked": State.ACTIVE,
        "active": State.ACTIVE,
        "scheduled": State.SCHEDULED,
    }
    await receiver.complete(locked)


@feature("A peeked message cannot be settled")
async def test_peeked_messages_cannot_be_settled(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello"))
    receiver = await client.receiver(queue)
    (peeked,) = await receiver.peek(1)
    with pytest.raises(SdkError):
        await receiver.complete(peeked)


@feature("A receiver of a session queue has to name a session")
async def test_sessions_are_required(client: Client, entities: Entities) -> None:
    receiver = await client.receiver(entities.queue(requires_session=True))
    with pytest.raises(SdkError) as refused:
        await receiver.receive(wait=SHORTLY)
    assert refused.value.reason is Reason.GENERAL
