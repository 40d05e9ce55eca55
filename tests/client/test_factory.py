"""The way into a namespace: what a factory makes, and what is left when it is closed."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    ClosedError,
    FactoryFaultedError,
    MessagingCommunicationError,
    UnauthorizedError,
)
from pairbus.client.factory import FactoryState, MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings, Transport
from pairbus.client.token_provider import PlainCredentials, TokenProvider
from pairbus.dialect.sas import make_sas_token
from pairbus.server.process import new_event_loop
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.amqp_peer import ROOT, message_bytes, run, scripted, settled
from tests.client.stage import factory_of, make_queue, play


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


async def exchange(factory: MessagingFactory, path: str) -> None:
    """Send and receive a message."""
    queue = await factory.create_queue_client(path)
    await queue.send(BrokeredMessage(b"body"))
    [message] = await queue.receive()
    await queue.complete(message)


# Making one


def test_connection_string_is_sufficient(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        settings = MessagingFactorySettings(operation_timeout=timedelta(seconds=30))
        async with MessagingFactory.from_connection_string(namespace.connection_string, settings) as factory:
            assert factory.endpoint == Endpoint("localhost", namespace.port, tls=False)
            assert factory.settings is settings
            assert factory.state is FactoryState.OPEN
            assert not factory.is_closed
            assert f"localhost:{namespace.port}, open" in repr(factory)
            assert namespace.key not in repr(factory)
            await exchange(factory, path)

    play(scenario())


@pytest.mark.parametrize("form", ["{}?x", "{}?", "{}#x", "{}*", "{}\\", "{}@x", "{}\n", "a//{}", "", "/"])
def test_invalid_entity_path_is_rejected(namespace: RunningNamespace, form: str) -> None:
    async def scenario() -> None:
        path = form.format(make_queue(namespace))
        async with factory_of(namespace) as factory:
            for create in (
                factory.create_message_sender,
                factory.create_message_receiver,
                factory.create_queue_client,
                factory.create_topic_client,
            ):
                with pytest.raises(ValueError, match="path"):
                    await create(path)

    play(scenario())


@pytest.mark.parametrize("text", ["", "nonsense", "Endpoint=sb://localhost;SharedAccessKeyName=root"])
def test_e3_invalid_connection_string_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        MessagingFactory.from_connection_string(text)


@pytest.mark.parametrize("as_text", [True, False])
def test_address_and_token_provider_are_sufficient(namespace: RunningNamespace, as_text: bool) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        address: str | Endpoint = f"amqp://localhost:{namespace.port}"
        if not as_text:
            address = Endpoint("localhost", namespace.port, tls=False)
        key = TokenProvider.from_key("RootManageSharedAccessKey", namespace.key)
        async with MessagingFactory.create(address, key) as factory:
            await exchange(factory, path)

    play(scenario())


def test_e3_invalid_address_is_rejected() -> None:
    with pytest.raises(ValueError, match="sb://"):
        MessagingFactory.create("ftp://localhost")


class AlmostProvider:
    """A credential that is not wrapped in a token provider."""

    def __repr__(self) -> str:
        return "AlmostProvider()"

    async def get_token(self, *scopes: str) -> str:
        return " ".join(scopes)


@pytest.mark.parametrize("credentials", ["key", 5, AlmostProvider(), ("user", "secret")], ids=repr)
def test_e4_invalid_credentials_are_rejected_at_once(credentials: Any) -> None:
    with pytest.raises(TypeError, match="token_provider must be TokenProvider or PlainCredentials or None"):
        MessagingFactory.create("amqp://localhost", credentials)


def test_e4_invalid_settings_are_rejected_at_once(namespace: RunningNamespace) -> None:
    settings: Any = {"operation_timeout": 5}
    with pytest.raises(TypeError, match="settings must be MessagingFactorySettings"):
        MessagingFactory.from_connection_string(namespace.connection_string, settings)
    with pytest.raises(TypeError, match="settings must be MessagingFactorySettings"):
        MessagingFactory.create("amqp://localhost", None, settings)


def test_e4_factory_in_another_event_loop_is_rejected() -> None:
    factory = MessagingFactory.create("amqp://localhost", PlainCredentials("user", "secret"))
    sender = asyncio.run(factory.create_message_sender("orders"))
    with pytest.raises(RuntimeError, match=r"another event loop.* pairbus\.blocking"):
        asyncio.run(sender.send(BrokeredMessage()))
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(factory.create_message_receiver("orders"))


def test_a8_given_token_grants_its_scope(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path, other = make_queue(namespace), make_queue(namespace)
        audience = f"sb://localhost:{namespace.port}/{path}"
        name = "RootManageSharedAccessKey"
        good = make_sas_token(audience, name, namespace.key, int(time.time()) + 600)
        ended = make_sas_token(audience, name, namespace.key, int(time.time()) - 600)
        endpoint = Endpoint("localhost", namespace.port, tls=False)
        async with MessagingFactory.create(endpoint, TokenProvider.from_token(good)) as factory:
            await exchange(factory, path)
            with pytest.raises(UnauthorizedError) as caught:
                await exchange(factory, other)
            assert caught.value.entity == other
        async with MessagingFactory.create(endpoint, TokenProvider.from_token(ended)) as factory:
            with pytest.raises(UnauthorizedError) as late:
                await exchange(factory, path)
            assert late.value.entity == path

    play(scenario())


@pytest.mark.parametrize("credentials", [None, PlainCredentials("user", "secret")])
def test_a8_access_without_token_is_rejected(namespace: RunningNamespace, credentials: PlainCredentials | None) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        endpoint = Endpoint("localhost", namespace.port, tls=False)
        settings = MessagingFactorySettings(retry_policy=NO_RETRY)
        async with MessagingFactory.create(endpoint, credentials, settings) as factory:
            with pytest.raises(UnauthorizedError) as caught:
                await exchange(factory, path)
            assert caught.value.entity == path

    play(scenario())


# TLS and WebSockets


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("way", ["ca_file", "text", "context"])
def test_a9_tls_with_given_authority(namespace: RunningNamespace, transport: Transport, way: str) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        ways: dict[str, dict[str, Any]] = {
            "ca_file": {"ca_file": namespace.ca_file},
            "text": {"ca_file": str(namespace.ca_file)},
            "context": {"ssl_context": ssl.create_default_context(cafile=str(namespace.ca_file))},
        }
        settings = MessagingFactorySettings(transport=transport, **ways[way])
        async with MessagingFactory.from_connection_string(namespace.tls_connection_string, settings) as factory:
            await exchange(factory, path)

    play(scenario())


@pytest.mark.parametrize("transport", Transport)
def test_e4_untrusted_certificate_is_raised_at_once(namespace: RunningNamespace, transport: Transport) -> None:
    async def scenario() -> None:
        settings = MessagingFactorySettings(transport=transport)
        async with MessagingFactory.from_connection_string(namespace.tls_connection_string, settings) as factory:
            with pytest.raises(MessagingCommunicationError, match="ca_file") as caught:
                await exchange(factory, "orders")
            assert not caught.value.is_transient
            assert caught.value.entity == "orders"

    play(scenario())


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[int]:
    """Run a server that is not a namespace and sends the same bytes to every client; yield its port."""

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        with suppress(OSError):
            await reader.read()
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


NOT_FOUND: Final = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
BUSY: Final = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "tls", "transport", "is_transient", "text"),
    [
        (NOT_FOUND, True, Transport.TCP, False, "does not use TLS .*UseDevelopmentEmulator=true"),
        (NOT_FOUND, True, Transport.WEB_SOCKET, False, "does not use TLS"),
        (NOT_FOUND, False, Transport.WEB_SOCKET, False, "refused the WebSocket with HTTP 404"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", False, Transport.WEB_SOCKET, False, "not a namespace"),
        (BUSY, False, Transport.WEB_SOCKET, True, "refused the WebSocket with HTTP 503"),
    ],
    ids=["tls", "tls and websocket", "404", "ssh", "503"],
)
def test_e4_server_other_than_namespace_is_not_retried(
    answer: bytes, tls: bool, transport: Transport, is_transient: bool, text: str
) -> None:
    async def scenario() -> None:
        settings = MessagingFactorySettings(transport=transport, retry_policy=NO_RETRY)
        async with answering(answer) as port:
            endpoint = Endpoint("127.0.0.1", port, tls=tls)
            async with MessagingFactory.create(endpoint, ROOT, settings) as factory:
                sender = await factory.create_message_sender("orders")
                with pytest.raises(MessagingCommunicationError, match=text) as caught:
                    await sender.send(BrokeredMessage())
                assert caught.value.is_transient is is_transient
                assert caught.value.entity == "orders"

    play(scenario())


def test_e3_unreadable_authority_is_rejected(namespace: RunningNamespace, tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(ValueError, match=r"missing\.pem"):
            await unreadable()

    async def unreadable() -> None:
        settings = MessagingFactorySettings(ca_file=tmp_path / "missing.pem")
        async with MessagingFactory.from_connection_string(namespace.tls_connection_string, settings) as factory:
            await exchange(factory, "orders")

    play(scenario())


# What it makes


@pytest.mark.parametrize("path", ["", "/", "a//b", None, 5, b"orders"])
def test_e3_invalid_path_is_rejected_before_connecting(path: Any) -> None:
    async def scenario() -> None:
        async with scripted(TokenProvider.from_key("root", "secret")) as (peer, factory):
            for make in (
                factory.create_message_sender,
                factory.create_message_receiver,
                factory.create_queue_client,
                factory.create_topic_client,
                factory.accept_message_session,
            ):
                with pytest.raises((ValueError, TypeError), match="path"):
                    await make(path)
            with pytest.raises((ValueError, TypeError), match="path"):
                await factory.create_subscription_client(path, "one")
            assert peer.connections == []

    run(scenario())


def test_slashes_around_path_are_ignored(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace, requires_session=True)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(f"/{path}/")
            assert sender.path == path
            await sender.send(BrokeredMessage(b"body", session_id="a"))
            session = await factory.accept_message_session(f"/{path}/", "a")
            assert session.path == path
            assert await session.get_state() is None

    play(scenario())


def test_all_resources_share_one_connection() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            for path in ("a", "b", "c"):
                queue = await factory.create_queue_client(path)
                await queue.send(BrokeredMessage())
                await queue.receive(1, timedelta())
                await queue.peek()
            await factory.accept_message_session("visits")
            assert len(peer.connections) == 1

    run(scenario())


def test_concurrent_starts_share_one_connection() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            senders = [await factory.create_message_sender(f"queue-{number}") for number in range(50)]
            await asyncio.gather(*(sender.send(BrokeredMessage()) for sender in senders))
            assert len(peer.connections) == 1
            assert len(peer.received) == 50

    run(scenario())


def test_lost_connection_is_reopened_once() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            senders = [await factory.create_message_sender(f"queue-{number}") for number in range(20)]
            await asyncio.gather(*(sender.send(BrokeredMessage()) for sender in senders))
            peer.last.hang_up()
            await asyncio.gather(*(sender.send(BrokeredMessage()) for sender in senders))
            assert len(peer.connections) == 2

    run(scenario())


def test_a2_restart_of_namespace_is_survived(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            queue = await factory.create_queue_client(path)
            await queue.send(BrokeredMessage(b"before"))
            await asyncio.to_thread(namespace.restart)
            await queue.send(BrokeredMessage(b"after"))
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += await queue.receive(5)
            assert [message.body for message in found] == [b"before", b"after"]
            await queue.complete(found)

    play(scenario())


# Closing


async def busy(factory: MessagingFactory) -> list[asyncio.Task[Any]]:
    """Use everything that a factory creates."""
    queue = await factory.create_queue_client("orders", prefetch_count=5, max_auto_lock_renewal=timedelta(minutes=5))
    session = await factory.accept_message_session("visits", max_auto_lock_renewal=timedelta(minutes=5))
    subscription = await factory.create_subscription_client("topic", "one")
    topic = await factory.create_topic_client("topic")
    await topic.send(BrokeredMessage())
    await queue.receive(1, timedelta())
    operations = [
        queue.receive(),
        session.receive(),
        subscription.receive(),
        queue.receive(),
        topic.schedule(BrokeredMessage(), datetime.now(UTC)),
        queue.peek(),
    ]
    tasks = [asyncio.ensure_future(operation) for operation in operations]
    await asyncio.sleep(1)
    return tasks


def test_closed_factory_closes_everything_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with scripted(TokenProvider.from_key("root", "secret")) as (peer, factory):
            peer.stock.extend(message_bytes(locked_s=60) for _ in range(3))
            peer.answers["com.microsoft:peek-message"] = lambda _request: None
            peer.answers["com.microsoft:schedule-message"] = lambda _request: None
            tasks = await busy(factory)
            await factory.close()
            assert factory.state is FactoryState.CLOSED
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, ClosedError | list) or "session" in str(result), repr(result)
            await settled()
            assert peer.last.is_lost
            assert len(asyncio.all_tasks()) == 1

    run(scenario())


def test_close_leaves_nothing_behind_with_real_namespace(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        factory = factory_of(namespace)
        queue = await factory.create_queue_client(path, prefetch_count=5, max_auto_lock_renewal=timedelta(minutes=5))
        await queue.send([BrokeredMessage() for _ in range(3)])
        await queue.receive()
        waiting = asyncio.create_task(queue.receive(10))
        await queue.peek()
        await factory.close()
        await asyncio.gather(waiting, return_exceptions=True)
        gc.collect()
        alive = [thing for thing in gc.get_objects() if isinstance(thing, ClientConnection)]
        assert all(connection.error is not None for connection in alive)

    play(scenario())


def open_sockets(port: int) -> list[socket.socket]:
    """The clients' ends of connections to a port."""
    sockets = [thing for thing in gc.get_objects() if isinstance(thing, socket.socket) and thing.fileno() >= 0]
    found = []
    for one in sockets:
        with suppress(OSError):
            if one.getpeername()[1:2] == (port,):
                found.append(one)
    return found


@pytest.mark.parametrize("transport", Transport)
@pytest.mark.parametrize("tls", [False, True])
def test_socket_is_closed_when_close_returns(namespace: RunningNamespace, tls: bool, transport: Transport) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        settings = MessagingFactorySettings(transport=transport, ca_file=namespace.ca_file)
        connection_string = namespace.tls_connection_string if tls else namespace.connection_string
        factory = MessagingFactory.from_connection_string(connection_string, settings)
        await exchange(factory, path)
        assert len(open_sockets(namespace.port)) == 1
        await factory.close()
        assert open_sockets(namespace.port) == []

    play(scenario())


def test_factory_works_with_uvloop(namespace: RunningNamespace) -> None:
    path = make_queue(namespace)

    async def scenario() -> None:
        async with factory_of(namespace) as factory:
            await exchange(factory, path)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(scenario())
    gc.collect()


def test_close_is_idempotent() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            await asyncio.gather(factory.close(), factory.close(), sender.close())
            assert peer.last.is_lost
            await factory.close()

    run(scenario())


def test_unconnected_factory_closes_at_once() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            await factory.create_message_sender("orders")
            await factory.close()
            assert peer.connections == []

    run(scenario())


def test_closed_factory_creates_nothing() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            sender = await factory.create_message_sender("orders")
            await factory.close()
            assert factory.is_closed
            assert "closed" in repr(factory)
            for operation in (
                factory.create_message_sender("orders"),
                factory.create_message_receiver("orders"),
                factory.create_queue_client("orders"),
                factory.create_topic_client("orders"),
                factory.create_subscription_client("topic", "one"),
                factory.accept_message_session("orders"),
                sender.send(BrokeredMessage()),
            ):
                with pytest.raises(ClosedError, match=r"the factory of .* has been closed"):
                    await operation

    run(scenario())


def test_close_cancels_connecting() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.opens = False
            sender = await factory.create_message_sender("orders")
            task = asyncio.create_task(sender.send(BrokeredMessage()))
            await settled()
            await factory.close()
            with pytest.raises(ClosedError):
                await task
            await settled()
            assert peer.last.is_lost

    run(scenario())


def test_close_raises_to_waiting_accept() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.attaches = False
            task = asyncio.create_task(factory.accept_message_session("visits"))
            await settled()
            await factory.close()
            with pytest.raises(ClosedError):
                await task

    run(scenario())


def test_silent_peer_does_not_block_close() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted() as (peer, factory):
            for number in range(5):
                queue = await factory.create_queue_client(f"queue-{number}", prefetch_count=5)
                await queue.send(BrokeredMessage())
                await queue.receive(1, timedelta())
            peer.last.is_deaf = True
            started_s = loop.time()
            await factory.close()
            assert loop.time() - started_s <= 30

    run(scenario())


def test_silent_peer_gets_one_close_timeout_for_everything() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted() as (peer, factory):
            queue = await factory.create_queue_client("orders", prefetch_count=5)
            await queue.send(BrokeredMessage())
            await queue.receive(1, timedelta())
            await queue.peek()
            await settled()
            peer.last.is_deaf = True
            started_s = loop.time()
            await factory.close()
            assert loop.time() - started_s <= 12

    run(scenario())


@pytest.mark.parametrize("count", [1, 3])
def test_sends_in_flight_raise_when_factory_is_closed(count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            peer.outcome = lambda _delivery: None
            messages = [BrokeredMessage() for _ in range(count)]
            sending = asyncio.create_task(sender.send(messages[0] if count == 1 else messages))
            await settled()
            await factory.close()
            with pytest.raises(ClosedError, match=r"the factory of .* has been closed"):
                await sending

    run(scenario())


def test_cancelled_close_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            peer.last.is_deaf = True
            task = asyncio.create_task(factory.close())
            await settled()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(30)
            assert peer.last.is_lost
            assert len(asyncio.all_tasks()) == 1

    run(scenario())


# Faults


def test_c17_faulted_factory_raises_cause() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            waiting = asyncio.create_task((await factory.create_message_receiver("orders")).receive())
            await settled()
            reason = RuntimeError("the disk is full")
            factory.fault(reason)
            factory.fault(RuntimeError("another"))
            assert factory.state is FactoryState.FAULTED
            assert factory.is_closed
            assert "faulted" in repr(factory)
            with pytest.raises(FactoryFaultedError, match="the disk is full") as caught:
                await waiting
            assert caught.value.__cause__ is reason
            for operation in (sender.send(BrokeredMessage()), factory.create_message_sender("orders")):
                with pytest.raises(FactoryFaultedError, match="the disk is full") as again:
                    await operation
                assert again.value.__cause__ is reason
            await factory.close()
            assert factory.state is FactoryState.FAULTED
            assert peer.last.is_lost
            assert len(asyncio.all_tasks()) == 1

    run(scenario())


@pytest.mark.parametrize("count", [1, 3])
def test_c17_send_in_flight_raises_fault(count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage())
            peer.outcome = lambda _delivery: None
            messages = [BrokeredMessage() for _ in range(count)]
            sending = asyncio.create_task(sender.send(messages[0] if count == 1 else messages))
            await settled()
            reason = RuntimeError("the disk is full")
            factory.fault(reason)
            with pytest.raises(FactoryFaultedError, match="the disk is full") as caught:
                await sending
            assert caught.value.__cause__ is reason

    run(scenario())


@pytest.mark.parametrize("name", ["peek", "renew_lock", "complete", "schedule", "accept_message_session"])
def test_c17_any_operation_in_flight_raises_fault(name: str) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            queue = await factory.create_queue_client("orders")
            peer.stock.append(message_bytes(locked_s=60))
            [message] = await queue.receive()
            peer.answers = defaultdict(lambda: lambda _request: None)
            peer.verdict = lambda _delivery, _state: None
            await settled()
            operations: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "peek": queue.peek,
                "renew_lock": lambda: queue.renew_lock(message),
                "complete": lambda: queue.complete(message),
                "schedule": lambda: queue.schedule(BrokeredMessage(), datetime.now(UTC)),
                "accept_message_session": queue.accept_message_session,
            }
            peer.attaches = name != "accept_message_session"
            task = asyncio.create_task(operations[name]())
            await settled()
            assert not task.done()
            factory.fault(RuntimeError("the disk is full"))
            with pytest.raises(FactoryFaultedError, match="the disk is full"):
                await task

    run(scenario())


def test_c17_closed_factory_cannot_be_faulted() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            await factory.close()
            factory.fault(RuntimeError("too late"))
            assert factory.state is FactoryState.CLOSED

    run(scenario())


# Where it is


def test_unreachable_namespace_error_names_address() -> None:
    async def scenario() -> None:
        async with scripted(retry_policy=NO_RETRY) as (peer, factory):
            peer.stop()
            sender = await factory.create_message_sender("orders")
            with pytest.raises(MessagingCommunicationError, match=f"{peer.endpoint} cannot be reached") as caught:
                await sender.send(BrokeredMessage())
            assert caught.value.entity == "orders"

    run(scenario())


# Outages


def spoken(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return the log records of the factory."""
    return [(record.levelno, record.message) for record in caplog.records if record.name == "pairbus.client.factory"]


@pytest.mark.parametrize("was_connected", [False, True])
def test_outage_is_logged_once_at_start_and_end(caplog: pytest.LogCaptureFixture, was_connected: bool) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            if was_connected:
                await sender.send(BrokeredMessage())
                await settled()
                assert spoken(caplog) == []
            peer.close()
            await settled()
            sending = [asyncio.create_task(sender.send(BrokeredMessage())) for _ in range(5)]
            await asyncio.sleep(20)
            [(level, text)] = spoken(caplog)
            assert level == logging.WARNING
            assert str(peer.endpoint) in text
            await peer.listen()
            await asyncio.gather(*sending)
            assert spoken(caplog)[1:] == [(logging.INFO, f"namespace available again endpoint={peer.endpoint}")]

    caplog.set_level(logging.INFO, "pairbus.client")
    run(scenario())
    assert len(spoken(caplog)) == 2  # that it is closed is no outage


def test_a2_waiting_retry_continues_when_namespace_is_reached() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with scripted() as (peer, factory):
            peer.stop()
            senders = [await factory.create_message_sender(f"queue-{number}") for number in range(10)]
            receivers = [await factory.create_message_receiver(f"queue-{number}") for number in range(10)]

            async def timed(work: Coroutine[Any, Any, Any]) -> float:
                await work
                return loop.time()

            works: list[Coroutine[Any, Any, Any]] = [sender.send(BrokeredMessage()) for sender in senders]
            works += [receiver.receive(1, timedelta()) for receiver in receivers]
            works += [receiver.peek() for receiver in receivers]
            tasks = [asyncio.create_task(timed(work)) for work in works]
            await asyncio.sleep(20)
            await peer.listen()
            times_s = await asyncio.gather(*tasks)
            assert max(times_s) - min(times_s) < 0.1
            assert len(peer.connections) == 1

    run(scenario())
