"""Sessions"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from tests.compatibility.client import Ability, Client, Endpoint
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Mode, Reason, SdkError, SubQueue, text
from tests.compatibility.waiting import BRIEF, BRIEF_MS, PATIENCE, SELF_RENEWED, SELF_RENEWED_MS, now, past

SHORTLY = timedelta(milliseconds=1500)


@feature("Receive from a named session, in order", transports=EVERY_TRANSPORT)
async def test_named_session(client: Client, sessions: str) -> None:
    sender = await client.sender(sessions)
    for number in range(3):
        for session_id in ("a", "b"):
            await sender.send(text(f"{session_id}{number}", session_id=session_id))
    receiver = await client.session(sessions, "b")
    assert receiver.session_id == "b"
    assert timedelta(seconds=30) < receiver.locked_until - now() <= timedelta(seconds=61)
    received = await receiver.receive(3)
    assert [(one.text, one.message.session_id) for one in received] == [("b0", "b"), ("b1", "b"), ("b2", "b")]
    for one in received:
        await receiver.complete(one)
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []


@feature("Receive from the next available session")
async def test_next_session(client: Client, sessions: str) -> None:
    sender = await client.sender(sessions)
    await sender.send_all([text("1", session_id="a")])
    await sender.send_all([text("2", session_id="b")])
    first = await client.session(sessions, None)
    second = await client.session(sessions, None)
    assert {first.session_id, second.session_id} == {"a", "b"}
    for receiver in (first, second):
        received = await receiver.one()
        assert received.message.session_id == receiver.session_id
        await receiver.complete(received)


@feature("A receiver that waits for a session gets the first available one")
async def test_waiting_for_a_session(
    client: Client, endpoint: Endpoint, sessions: str, connect: Callable[[Endpoint], Client]
) -> None:
    async with connect(endpoint) as other:
        waiting = asyncio.create_task(other.session(sessions, None, wait=PATIENCE))
        await (await client.sender(sessions)).send(text("hello", session_id="late"))
        receiver = await waiting
        assert receiver.session_id == "late"
        received = await receiver.one()
        assert received.text == "hello"
        await receiver.complete(received)


@feature("No session within the wait time is a timeout")
async def test_no_session(client: Client, sessions: str) -> None:
    before = now()
    with pytest.raises(SdkError) as refused:
        await client.session(sessions, None, wait=SHORTLY)
    assert refused.value.reason is Reason.TIMEOUT
    assert SHORTLY * 0.8 <= now() - before < PATIENCE


@feature("A session that another receiver holds cannot be locked")
async def test_locked_session(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).send(text("hello", session_id="a"))
    holder = await client.session(sessions, "a")
    with pytest.raises(SdkError) as refused:
        await client.session(sessions, "a")
    assert refused.value.reason is Reason.SESSION_CANNOT_BE_LOCKED
    await holder.close()
    again = await client.session(sessions, "a")
    await again.complete(await again.one())


@feature("Closing a session's receiver releases the session; unsettled messages are redelivered, not counted")
async def test_closing_a_session(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).send_all([text("1", session_id="a"), text("2", session_id="a")])
    receiver = await client.session(sessions, "a")
    assert len(await receiver.receive(2)) == 2
    await receiver.close()
    again = await client.session(sessions, "a")
    received = await again.receive(2)
    assert [(one.text, one.delivery_count) for one in received] == [("1", 0), ("2", 0)]
    for one in received:
        await again.complete(one)


@feature("A session without messages can be opened by its name")
async def test_empty_session(client: Client, sessions: str) -> None:
    receiver = await client.session(sessions, "empty")
    assert receiver.session_id == "empty"
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []


@feature("Session state", transports=EVERY_TRANSPORT)
async def test_session_state(client: Client, sessions: str) -> None:
    receiver = await client.session(sessions, "a")
    assert await receiver.state() is None
    await receiver.set_state(b"at step 1")
    assert await receiver.state() == b"at step 1"
    await receiver.close()
    again = await client.session(sessions, "a")
    assert await again.state() == b"at step 1"
    await again.set_state(b"")
    assert await again.state() == b""
    await again.set_state(None)
    assert await again.state() is None


@feature("Every settlement in a session")
async def test_settling_in_a_session(client: Client, sessions: str) -> None:
    names = ["completed", "abandoned", "deferred", "dead"]
    await (await client.sender(sessions)).send_all([text(name, session_id="a") for name in names])
    receiver = await client.session(sessions, "a")
    completed, abandoned, deferred, dead = await receiver.receive(4)
    await receiver.complete(completed)
    await receiver.defer(deferred)
    await receiver.dead_letter(dead, reason="r", description="d")
    await receiver.abandon(abandoned)
    again = await receiver.one()
    assert (again.text, again.delivery_count) == ("abandoned", 1)
    await receiver.complete(again)
    (found,) = await receiver.receive_deferred([deferred.sequence_number])
    assert found.text == "deferred"
    await receiver.complete(found)
    dead_letters = await client.receiver(sessions, sub_queue=SubQueue.DEAD_LETTER)
    found = await dead_letters.one()
    assert (found.text, found.message.session_id, found.dead_letter_reason) == ("dead", "a", "r")
    await dead_letters.complete(found)


@feature("Receive and delete from a session")
async def test_receive_and_delete(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).send_all([text("1", session_id="a"), text("2", session_id="a")])
    receiver = await client.session(sessions, "a", mode=Mode.RECEIVE_AND_DELETE)
    assert [one.text for one in await receiver.receive(2)] == ["1", "2"]
    assert await receiver.peek(1, from_sequence_number=1) == []


@feature("Receive continuously from a session")
async def test_streaming(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).send_all([text(f"{number}", session_id="a") for number in range(5)])
    receiver = await client.session(sessions, "a")
    assert [one.text for one in await receiver.stream(5)] == [f"{number}" for number in range(5)]


@feature("Peek in a session shows its messages only")
async def test_peek(client: Client, sessions: str) -> None:
    sender = await client.sender(sessions)
    for session_id in ("a", "b", "a"):
        await sender.send(text(session_id, session_id=session_id))
    receiver = await client.session(sessions, "a")
    assert [one.text for one in await receiver.peek(10, from_sequence_number=1)] == ["a", "a"]


@feature("Schedule a message for a session")
async def test_schedule(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).schedule([text("hello", session_id="a")], now() + timedelta(milliseconds=300))
    receiver = await client.session(sessions, None)
    assert receiver.session_id == "a"
    received = await receiver.one()
    assert received.text == "hello"
    await receiver.complete(received)


@feature("Renew the lock of a session")
async def test_renewal(client: Client, entities: Entities) -> None:
    queue = entities.queue(requires_session=True, lock_duration_ms=2 * BRIEF_MS)
    await (await client.sender(queue)).send(text("hello", session_id="a"))
    receiver = await client.session(queue, "a")
    first = receiver.locked_until
    received = await receiver.one()
    await past(first - BRIEF)
    until = await receiver.renew_session_lock()
    assert until > first
    await past(first)
    await receiver.complete(received)


@pytest.mark.slow
@feature("The SDK renews the lock of a session automatically")
async def test_automatic_renewal(client: Client, entities: Entities) -> None:
    queue = entities.queue(requires_session=True, lock_duration_ms=SELF_RENEWED_MS)
    await (await client.sender(queue)).send(text("hello", session_id="a"))
    receiver = await client.session(queue, "a", renew_for=timedelta(minutes=1))
    received = await receiver.one()
    await past(now() + SELF_RENEWED + timedelta(seconds=1))
    await receiver.complete(received)


@feature("A session whose lock has expired is lost, and available to others; its messages are counted")
async def test_lost_session(client: Client, entities: Entities) -> None:
    queue = entities.queue(requires_session=True, lock_duration_ms=BRIEF_MS)
    await (await client.sender(queue)).send(text("hello", session_id="a"))
    receiver = await client.session(queue, "a")
    received = await receiver.one()
    await past(receiver.locked_until + timedelta(milliseconds=300))
    with pytest.raises(SdkError) as refused:
        await receiver.complete(received)
    assert refused.value.reason is Reason.SESSION_LOCK_LOST
    with pytest.raises(SdkError) as refused:
        await receiver.set_state(b"late")
    assert refused.value.reason is Reason.SESSION_LOCK_LOST
    again = await client.session(queue, "a")
    received = await again.one()
    assert (received.text, received.delivery_count) == ("hello", 1)


@feature("A message without a session is refused where sessions are required")
async def test_message_without_session(client: Client, sessions: str) -> None:
    sender = await client.sender(sessions)
    with pytest.raises(SdkError) as refused:
        await sender.send(text("hello"))
    assert refused.value.reason is Reason.GENERAL
    await sender.send(text("hello", session_id="a"))


@feature("A queue without sessions refuses a receiver of a session")
async def test_session_of_an_entity_without_sessions(client: Client, queue: str) -> None:
    with pytest.raises(SdkError) as refused:
        await client.session(queue, "a")
    assert refused.value.reason in {Reason.GENERAL, Reason.SESSION_CANNOT_BE_LOCKED}  # JavaScript's guess


@feature("A queue without sessions keeps the session id of messages")
async def test_session_id_without_sessions(client: Client, queue: str) -> None:
    await (await client.sender(queue)).send(text("hello", session_id="a"))
    receiver = await client.receiver(queue)
    received = await receiver.one()
    assert received.message.session_id == "a"
    await receiver.complete(received)


@feature("List sessions", needs=[Ability.LIST_SESSIONS])
async def test_listing(client: Client, entities: Entities, sessions: str) -> None:
    assert await client.sessions(sessions) == []
    ids = [f"session {number:03}" for number in range(130)]
    await (await client.sender(sessions)).send_all([text(found, session_id=found) for found in ids])
    assert sorted(await client.sessions(sessions)) == ids


@feature("List sessions by when their state was set", needs=[Ability.LIST_SESSIONS])
async def test_listing_by_state(client: Client, sessions: str) -> None:
    await (await client.sender(sessions)).send(text("hello", session_id="without state"))
    before = now() - timedelta(seconds=1)
    receiver = await client.session(sessions, "with state")
    await receiver.set_state(b"state")
    assert await client.sessions(sessions, updated_after=before) == ["with state"]
    assert await client.sessions(sessions, updated_after=now() + timedelta(minutes=1)) == []
    assert sorted(await client.sessions(sessions)) == ["with state", "without state"]


@feature("Sessions of a subscription", transports=EVERY_TRANSPORT)
async def test_subscription(client: Client, entities: Entities) -> None:
    topic = entities.topic()
    subscription = entities.subscription(topic, requires_session=True)
    await (await client.topic_sender(topic)).send_all([text("1", session_id="a"), text("2", session_id="a")])
    receiver = await client.session(subscription, None)
    assert receiver.session_id == "a"
    received = await receiver.receive(2)
    assert [one.text for one in received] == ["1", "2"]
    for one in received:
        await receiver.complete(one)
