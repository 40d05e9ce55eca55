"""Both ends of a queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pairbus.client.errors import ClosedError
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.settings import ReceiveMode
from pairbus.dialect.management import Request, Response
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Array
from tests.client.amqp_peer import run, scripted, settled
from tests.client.stage import factory_of, make_queue, play

SESSIONS = "com.microsoft:get-message-sessions"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


def test_a1_queue_client_sends_and_receives(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            queue = await factory.create_queue_client(path, prefetch_count=10)
            assert (queue.path, queue.prefetch_count, queue.receive_mode) == (path, 10, ReceiveMode.PEEK_LOCK)
            await queue.send(BrokeredMessage(b"1"))
            await queue.send([BrokeredMessage(b"2"), BrokeredMessage(b"3")])
            found: list[ReceivedMessage] = []
            while len(found) < 3:
                found += await queue.receive(3)
            assert [message.body for message in found] == [b"1", b"2", b"3"]
            await queue.complete(found)
            at = datetime.now(UTC) + timedelta(hours=1)
            number = await queue.schedule(BrokeredMessage(), at)
            numbers = await queue.schedule([BrokeredMessage()], at)
            await queue.cancel_scheduled([number, *numbers])
            assert await queue.peek(10) == []

    play(scenario())


def test_a3_queue_client_supports_receive_and_delete(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            queue = await factory.create_queue_client(path, ReceiveMode.RECEIVE_AND_DELETE)
            await queue.send(BrokeredMessage(b"1"))
            assert len(await queue.receive()) == 1
            assert await queue.peek() == []

    play(scenario())


def test_a5_queue_client_accepts_sessions_and_lists_them(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace, requires_session=True)
        async with factory_of(namespace) as factory:
            queue = await factory.create_queue_client(path)
            assert await queue.get_message_sessions() == []
            before = datetime.now(UTC) - timedelta(minutes=1)
            for session_id in ("a", "b", "c"):
                await queue.send(BrokeredMessage(session_id.encode(), session_id=session_id))
            assert sorted(await queue.get_message_sessions()) == ["a", "b", "c"]
            assert await queue.get_message_sessions(before) == []
            async with await queue.accept_message_session("b") as session:
                await session.set_state(b"state")
                assert [message.body for message in await session.receive()] == [b"b"]
            assert await queue.get_message_sessions(before) == ["b"]
            assert await queue.get_message_sessions(datetime.now(UTC) + timedelta(hours=1)) == []
            async with await queue.accept_message_session() as session:
                assert session.session_id in {"a", "b", "c"}

    play(scenario())


def test_sessions_are_listed_in_pages() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            names = [f"{number:03d}" for number in range(250)]

            def page(request: Request) -> Response:
                found = names[request.body["skip"] :][: request.body["top"]]
                return Response(body={"skip": request.body["skip"], "sessions-ids": Array(tuple(found))})

            peer.answers[SESSIONS] = page
            queue = await factory.create_queue_client("orders")
            assert await queue.get_message_sessions() == names
            assert len(peer.requests) == 3

    run(scenario())


def test_e3_naive_time_is_rejected() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            queue = await factory.create_queue_client("orders")
            with pytest.raises(ValueError, match="no time zone"):
                await queue.get_message_sessions(datetime(2030, 1, 1))  # noqa: DTZ001 (that is the point)

    run(scenario())


def test_closed_queue_client_rejects_operations() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            queue = await factory.create_queue_client("orders")
            await queue.send(BrokeredMessage())
            await queue.receive(1, timedelta())
            await queue.peek()
            await queue.close()
            await settled()
            assert peer.all_links() == []
            for operation in (
                queue.send(BrokeredMessage()),
                queue.schedule(BrokeredMessage(), datetime.now(UTC)),
                queue.cancel_scheduled(1),
                queue.receive(),
                queue.accept_message_session(),
                queue.get_message_sessions(),
            ):
                with pytest.raises(ClosedError, match="QueueClient has been closed"):
                    await operation

    run(scenario())
