"""Sessions, with a real namespace and with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.session import MessageSession
from pairbus.client.settings import NO_RETRY, ReceiveMode
from pairbus.dialect.annotations import LINK_TIMEOUT
from pairbus.dialect.management import ASSOCIATED_LINK, Request, Response
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Error, Timestamp
from tests.client.amqp_peer import LOCK_S, SECOND, Peer, message_bytes, now, run, scripted, settled
from tests.client.stage import factory_of, make_queue, play

SHORT: Final = timedelta(milliseconds=50)
RENEW: Final = "com.microsoft:renew-session-lock"
GET_STATE: Final = "com.microsoft:get-session-state"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@asynccontextmanager
async def visits(namespace: RunningNamespace) -> AsyncIterator[tuple[MessagingFactory, str]]:
    path = make_queue(namespace, requires_session=True)
    async with factory_of(namespace) as factory:
        yield factory, path


async def send(factory: MessagingFactory, path: str, *messages: tuple[str, str]) -> None:
    async with await factory.create_message_sender(path) as sender:
        for session_id, text in messages:
            await sender.send(BrokeredMessage(text, session_id=session_id))


async def texts(session: MessageSession, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        messages = await session.receive(count)
        assert messages
        found += [message.text() for message in messages]
        await session.complete(messages)
    return found


# With a real namespace


def test_a5_named_session_delivers_its_messages_in_order(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"), ("b", "x"), ("a", "2"), ("a", "3"))
            async with await factory.accept_message_session(path, "a") as session:
                assert session.session_id == "a"
                assert session.path == path
                assert session.locked_until is not None
                assert session.locked_until > datetime.now(UTC)
                assert await texts(session, 3) == ["1", "2", "3"]
                assert await session.receive(1, timedelta()) == []

    play(scenario())


def test_a5_session_can_be_accepted_before_it_has_messages(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            session = await factory.accept_message_session(path, "empty")
            task = asyncio.create_task(session.receive())
            await send(factory, path, ("empty", "first"))
            assert [message.text() for message in await task] == ["first"]

    play(scenario())


def test_a5_next_session_has_messages_and_is_unlocked(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"), ("b", "2"))
            sessions = [await factory.accept_message_session(path) for _ in range(2)]
            assert {session.session_id for session in sessions} == {"a", "b"}
            with pytest.raises(MessagingTimeoutError) as caught:
                await factory.accept_message_session(path, server_wait_time=SHORT)
            assert caught.value.entity == path

    play(scenario())


def test_a5_waiting_accept_gets_next_session(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            task = asyncio.create_task(factory.accept_message_session(path, server_wait_time=30 * SECOND))
            await send(factory, path, ("late", "1"))
            session = await task
            assert session.session_id == "late"

    play(scenario())


def test_a5_session_locked_by_another_receiver_cannot_be_locked(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            session = await factory.accept_message_session(path, "a")
            with pytest.raises(SessionCannotBeLockedError) as caught:
                await factory.accept_message_session(path, "a", server_wait_time=SHORT)
            assert caught.value.entity == path
            await session.close()
            again = await factory.accept_message_session(path, "a", server_wait_time=SHORT)
            assert again.session_id == "a"

    play(scenario())


def test_a5_unsettled_messages_of_closed_session_are_redelivered(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"), ("a", "2"), ("a", "3"))
            session = await factory.accept_message_session(path, "a", prefetch_count=10)
            [first] = await session.receive(1)
            await session.complete(first)
            await session.close()
            async with await factory.accept_message_session(path, "a") as again:
                assert await texts(again, 2) == ["2", "3"]

    play(scenario())


def test_a5_every_settlement_works_in_a_session(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, *(("a", str(number)) for number in range(4)))
            session = await factory.accept_message_session(path, "a")
            one, two, three, four = await session.receive(4)
            await session.complete(one)
            await session.defer(two)
            await session.dead_letter(three, "reason")
            await session.abandon(four, {"again": True})
            [again] = await session.receive()
            assert (again.text(), again.application_properties) == ("3", {"again": True})
            await session.complete(again)
            [deferred] = await session.receive_deferred(two.sequence_number)
            assert deferred.text() == "1"
            await session.complete(deferred)
            assert await session.peek(10) == []

    play(scenario())


def test_a5_peek_returns_only_messages_of_session(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("b", "x"), ("a", "1"), ("b", "y"), ("a", "2"))
            session = await factory.accept_message_session(path, "a")
            assert [message.text() for message in await session.peek(10)] == ["1", "2"]

    play(scenario())


def test_a5_session_state_is_stored(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            session = await factory.accept_message_session(path, "a")
            assert await session.get_state() is None
            await session.set_state(b"\0halfway")
            assert await session.get_state() == b"\0halfway"
            await session.close()
            async with await factory.accept_message_session(path, "a") as again:
                assert await again.get_state() == b"\0halfway"
                await again.set_state(b"")
                assert await again.get_state() == b""
                await again.set_state(None)
                assert await again.get_state() is None

    play(scenario())


def test_a5_renewal_covers_all_messages(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"))
            session = await factory.accept_message_session(path, "a")
            [message] = await session.receive()
            before = session.locked_until
            assert before is not None
            assert await session.renew_lock() >= before
            assert await session.renew_lock(message) == session.locked_until

    play(scenario())


def test_a5_session_lost_with_connection_can_be_accepted_again(
    namespace: RunningNamespace,
) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"))
            session = await factory.accept_message_session(path, "a")
            [message] = await session.receive()
            waiting = asyncio.create_task(session.receive())
            await session.peek()
            await asyncio.to_thread(namespace.kill_connections)
            with pytest.raises(SessionLockLostError, match="accept the session again") as caught:
                await waiting
            assert caught.value.entity == path
            assert isinstance(caught.value.__cause__, MessagingCommunicationError)
            for operation in (session.complete, session.abandon):
                with pytest.raises(SessionLockLostError):
                    await operation(message)
            with pytest.raises(SessionLockLostError):
                await session.get_state()
            async with await factory.accept_message_session(path, "a") as again:
                assert await texts(again, 1) == ["1"]

    play(scenario())


def test_a5_sessions_require_session_queue(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        plain = make_queue(namespace)
        async with visits(namespace) as (factory, path):
            with pytest.raises(InvalidRequestError) as caught:
                await factory.accept_message_session(plain, "a")
            assert caught.value.entity == plain
            receiver = await factory.create_message_receiver(path)
            with pytest.raises(InvalidRequestError):
                await receiver.receive()
            with pytest.raises(EntityNotFoundError):
                await factory.accept_message_session("nowhere")

    play(scenario())


def test_a5_session_supports_receive_and_delete(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            await send(factory, path, ("a", "1"))
            session = await factory.accept_message_session(path, "a", ReceiveMode.RECEIVE_AND_DELETE)
            assert [message.text() for message in await session.receive()] == ["1"]
            assert await session.peek(5) == []

    play(scenario())


@pytest.mark.parametrize("session_id", ["", "é" * 128, "a/b?c#d", " "])
def test_a5_any_session_id_is_found(namespace: RunningNamespace, session_id: str) -> None:
    async def scenario() -> None:
        async with visits(namespace) as (factory, path):
            try:
                await send(factory, path, (session_id, "1"))
            except MessagingError as error:
                assert not session_id and not error.is_transient  # noqa: PT017, PT018 (no name may be no name)
                return
            async with await factory.accept_message_session(path, session_id) as session:
                assert session.session_id == session_id
                assert await texts(session, 1) == ["1"]
                assert await session.renew_lock() is not None

    play(scenario())


# With a peer that listens closely


def test_wait_time_is_sent_to_namespace() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            await factory.accept_message_session("visits", server_wait_time=timedelta(seconds=7))
            await factory.accept_message_session("visits")
            waits = [event.attach.properties[LINK_TIMEOUT] for event in peer.attached]  # type: ignore[index]
            assert waits[0] == pytest.approx(7_000, abs=50)
            assert waits[1] == pytest.approx(60_000, abs=50)

    run(scenario())


def test_a5_requests_name_the_session_and_its_link() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", "alice")
            until = now() + timedelta(minutes=5)
            peer.answers[RENEW] = lambda _request: Response(
                body={"expiration": Timestamp(int(until.timestamp() * 1_000))}
            )
            await session.renew_lock()
            await session.get_state()
            await session.set_state(b"state")
            await session.peek()
            for request in peer.requests:
                assert request.body["session-id"] == "alice"
                assert request.properties[ASSOCIATED_LINK] == peer.receiver.name
            assert session.locked_until is not None
            assert abs(session.locked_until - until) < SECOND

    run(scenario())


@pytest.mark.parametrize(
    "error",
    [
        None,
        Error("amqp:link:detach-forced", "moved"),
        Error("amqp:internal-error", "oops"),
        Error("com.microsoft:server-busy", "busy"),
        Error("com.microsoft:operation-cancelled", "stopping"),
        Error("com.microsoft:timeout", "slow"),
        Error("com.microsoft:session-lock-lost", "too late"),
    ],
    ids=lambda error: "no reason" if error is None else str(error.condition),
)
def test_a5_lost_link_loses_session_lock(error: Error | None) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", "alice")
            peer.stock.append(message_bytes(b"body"))
            [message] = await session.receive()
            waiting = asyncio.create_task(session.receive())
            await settled()
            peer.detach(peer.receiver, error)
            with pytest.raises(SessionLockLostError):
                await waiting
            with pytest.raises(SessionLockLostError):
                await session.receive()
            with pytest.raises(SessionLockLostError):
                await session.complete(message)
            with pytest.raises(SessionLockLostError):
                await anext(session)
            attached = [event for event in peer.attached if event.attach.source.address == "visits"]  # type: ignore[union-attr]
            assert len(attached) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("com.microsoft:timeout", MessagingTimeoutError),
        ("com.microsoft:session-cannot-be-locked", SessionCannotBeLockedError),
        ("amqp:not-allowed", InvalidRequestError),
    ],
)
def test_a5_refusal_by_namespace_is_not_retried(condition: str, kind: type[MessagingError]) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.refusals.append(Error(condition, "no"))
            with pytest.raises(kind, match="no") as caught:
                await factory.accept_message_session("visits")
            assert (caught.value.entity, caught.value.condition) == ("visits", condition)
            assert len(peer.attached) == 1

    run(scenario())


def test_accept_is_retried_until_timeout_without_response() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted() as (peer, factory):
            peer.attaches = False
            with pytest.raises(MessagingTimeoutError) as caught:
                await factory.accept_message_session("visits", server_wait_time=2 * SECOND)
            assert caught.value.condition is None
            assert loop.time() <= 62.1
            assert len(peer.attached) >= 3

    run(scenario())


def test_transient_error_is_retried() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.refusals.extend([Error("amqp:internal-error", "oops"), Error("amqp:link:detach-forced", "moved")])
            session = await factory.accept_message_session("visits")
            assert session.session_id == "next"

    run(scenario())


def test_cancelled_accept_holds_no_session() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.attaches = False
            task = asyncio.create_task(factory.accept_message_session("visits"))
            await settled()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled()
            assert len(peer.last.engine.sessions) == 1  # for tokens

    run(scenario())


@pytest.mark.parametrize("body", [{}, {"expiration": "x"}, {"expiration": []}, {"expiration": None}], ids=str)
def test_e3_renewal_response_without_expiry_is_internal_server_error(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", "alice")
            peer.answers[RENEW] = lambda _request: Response(body=body)
            with pytest.raises(InternalServerError) as caught:
                await session.renew_lock()
            assert caught.value.entity == "visits"

    run(scenario())


@pytest.mark.parametrize("state", ["text", 5, [1]], ids=str)
def test_e3_invalid_state_is_rejected(state: Any) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", "alice")
            peer.answers[GET_STATE] = lambda _request: Response(body={"session-state": state})
            with pytest.raises(InternalServerError):
                await session.get_state()
            with pytest.raises((TypeError, MessagingError)):
                await session.set_state(state)

    run(scenario())


def test_wait_time_is_clamped_to_maximum() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", server_wait_time=timedelta(days=60))
            assert session.session_id == "next"
            [attached] = peer.attached
            assert (attached.attach.properties or {})[LINK_TIMEOUT] == 0xFFFFFFFF

    run(scenario())


@pytest.mark.parametrize("prefetch_count", [0, 10])
def test_received_and_deleted_messages_of_session_survive_lost_link(prefetch_count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session(
                "visits", "a", ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=prefetch_count
            )
            peer.drains = False  # what came is not handed out before the rest of the credit has come back
            peer.stock.extend(message_bytes(b"%d" % number) for number in range(3))
            waiting = asyncio.create_task(session.receive(1 if prefetch_count else 10))
            await settled()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            taken = [] if waiting.cancelled() else waiting.result()
            peer.last.hang_up()
            await settled()
            while len(taken) < 3:
                taken += await session.receive(2)
            assert [message.body for message in taken] == [b"0", b"1", b"2"]
            with pytest.raises(SessionLockLostError):
                await session.receive()

    run(scenario())


def test_discarded_received_and_deleted_messages_are_logged_at_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session(
                "visits", "a", ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10
            )
            peer.stock.extend(message_bytes() for _ in range(5))
            await session.receive()
            peer.last.hang_up()
            await settled()
            assert len(await session.receive()) == 1
            await session.close()

    run(scenario())
    assert "received and deleted messages discarded entity=visits count=3" in caplog.text


# Locks that are renewed by themselves


def renewing(peer: Peer, times_s: list[float]) -> None:
    def answer(_request: Request) -> Response:
        times_s.append(asyncio.get_running_loop().time())
        return Response(body={"expiration": Timestamp(int((now().timestamp() + LOCK_S) * 1_000))})

    peer.answers[RENEW] = answer


def test_a5_session_lock_is_renewed_for_given_time() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            times_s: list[float] = []
            renewing(peer, times_s)
            session = await factory.accept_message_session(
                "visits", "alice", max_auto_lock_renewal=timedelta(minutes=10)
            )
            for _ in range(30):
                await asyncio.sleep(30)
                peer.last.beat()
            pauses_s = [later - earlier for earlier, later in zip([0.0, *times_s], times_s, strict=False)]
            assert times_s[-1] <= 600
            assert times_s[-1] >= 540
            assert all(pause_s < LOCK_S for pause_s in pauses_s)
            assert session.locked_until is not None

    run(scenario())


def test_a5_closed_session_is_not_renewed() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            times_s: list[float] = []
            renewing(peer, times_s)
            session = await factory.accept_message_session("visits", "a", max_auto_lock_renewal=timedelta(minutes=10))
            await asyncio.sleep(40)
            await session.close()
            renewed = len(times_s)
            assert renewed
            await asyncio.sleep(100)
            assert len(times_s) == renewed

    run(scenario())


# Its end


def test_closed_session_rejects_operations() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            session = await factory.accept_message_session("visits", "alice")
            waiting = asyncio.create_task(session.receive())
            await settled()
            await session.close()
            await session.close()
            assert "alice" in repr(session)
            with pytest.raises((ClosedError, SessionLockLostError)):
                await waiting
            for operation in (session.receive(), session.get_state(), session.set_state(b""), session.renew_lock()):
                with pytest.raises(ClosedError, match="has been closed"):
                    await operation
            assert peer.all_links() == []

    run(scenario())


@pytest.mark.parametrize("locked_until", ["x", [1], 2**62, -5, 1.5, b"x"], ids=str)
def test_e3_missing_lock_expiry_is_accepted(locked_until: Any) -> None:
    async def scenario() -> None:
        async with scripted(retry_policy=NO_RETRY) as (peer, factory):
            peer.locked_until = locked_until
            try:
                session = await factory.accept_message_session("visits", "alice")
            except MessagingError as error:
                assert error.entity == "visits"  # noqa: PT017 (either is fine)
            else:
                assert session.locked_until is None or session.locked_until.tzinfo is UTC

    run(scenario())


@pytest.mark.parametrize("session_id", [5, b"x", [1]], ids=str)
def test_e3_session_id_that_is_not_text_is_rejected(session_id: Any) -> None:
    async def scenario() -> None:
        async with scripted(retry_policy=NO_RETRY) as (peer, factory):
            peer.session_id = session_id
            try:
                session = await factory.accept_message_session("visits")
            except MessagingError as error:
                assert error.entity == "visits"  # noqa: PT017 (either is fine)
            else:
                assert isinstance(session.session_id, str)

    run(scenario())
