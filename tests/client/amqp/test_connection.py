"""Connections, with peers that answer late, wrongly or not at all."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final

import pytest

from pairbus.client.amqp.connection import ClientConnection
from pairbus.client.amqp.receiving_link import ReceiveOptions, ReceivingLink
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    ClosedError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import PlainCredentials
from pairbus.wire import (
    PLAIN,
    RECEIVER,
    SENDER,
    Authenticated,
    Configuration,
    ConnectionClosed,
    ConnectionOpened,
    Error,
    SaslCode,
    SaslServer,
    SessionEnded,
    Source,
    Target,
    parse_plain,
)
from tests.client.amqp_peer import HEARTBEAT, Peer, connected, run, scripted, settled, until

SETTINGS: Final = MessagingFactorySettings()


async def refused(peer: Peer, credentials: Any = None, kind: type[MessagingError] = MessagingCommunicationError) -> str:
    """Try to connect; why that failed."""
    await peer.listen()
    try:
        with pytest.raises(kind) as caught:
            await ClientConnection.open(peer.endpoint, SETTINGS, credentials)
        assert type(caught.value) is kind
        return str(caught.value)
    finally:
        peer.close()


# Opening


def test_open_frame_names_container_and_host() -> None:
    async def scenario() -> None:
        async with connected(idle_timeout=timedelta(seconds=20)) as (peer, connection):
            assert connection.error is None
            [opened] = peer.seen(ConnectionOpened)
            assert opened.open.container_id.startswith("pairbus-")
            assert opened.open.hostname == "127.0.0.1"
            assert opened.open.idle_time_out == 20_000

    run(scenario())


def test_container_ids_are_unique() -> None:
    async def scenario() -> None:
        async with connected() as (first, _), connected() as (second, _):
            names = {peer.seen(ConnectionOpened)[0].open.container_id for peer in (first, second)}
            assert len(names) == 2

    run(scenario())


def test_refused_connection_raises_communication_error() -> None:
    async def scenario() -> None:
        peer = Peer()
        await peer.listen()
        peer.close()
        with pytest.raises(MessagingCommunicationError, match=f"{peer.endpoint} cannot be reached") as caught:
            await ClientConnection.open(peer.endpoint, SETTINGS, None)
        assert "check that the namespace is running" in str(caught.value)
        assert "Errno" not in str(caught.value)
        assert caught.value.is_transient
        assert isinstance(caught.value.__cause__, OSError)

    run(scenario())


def test_unknown_host_raises_communication_error() -> None:
    async def scenario() -> None:
        for host in ("nowhere.example", "a" * 300, "ä." * 100):
            with pytest.raises(MessagingCommunicationError, match="cannot be reached"):
                await ClientConnection.open(Endpoint(host, tls=False), SETTINGS, None)

    run(scenario())


def test_close_instead_of_open_raises_with_reason() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.closing = Error("amqp:connection:forced", "we are closed on Sundays")
        assert "we are closed on Sundays" in await refused(peer)

    run(scenario())


def test_peer_with_another_protocol_raises() -> None:
    class Web(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            transport.close()

    async def scenario() -> None:
        server = await asyncio.get_running_loop().create_server(Web, "127.0.0.1", 0)
        port: int = server.port  # type: ignore[attr-defined]
        with pytest.raises(MessagingCommunicationError, match="HTTP"):
            await ClientConnection.open(Endpoint("127.0.0.1", port, tls=False), SETTINGS, None)
        server.close()

    run(scenario())


def test_peer_that_disconnects_at_once_raises() -> None:
    async def scenario() -> None:
        class Rude(Peer):
            pass

        peer = Rude()
        peer.opens = False

        async def hang_up() -> None:
            await until(lambda: peer.seen(ConnectionOpened))
            peer.last.hang_up()

        rude = asyncio.create_task(hang_up())
        assert "lost" in await refused(peer)
        await rude

    run(scenario())


def test_cancelled_open_leaves_no_connection() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.opens = False
        await peer.listen()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await ClientConnection.open(peer.endpoint, SETTINGS, None)
        await until(lambda: peer.last.is_lost)
        peer.close()

    run(scenario())


# Names and passwords


def with_password(password: str) -> Peer:
    peer = Peer()
    peer.sasl = SaslServer(
        mechanisms=(PLAIN,),
        authenticate=lambda _mechanism, response: (
            SaslCode.OK if parse_plain(response) == ("user", password) else SaslCode.AUTH
        ),
    )
    return peer


def test_user_and_password_are_presented() -> None:
    async def scenario() -> None:
        peer = with_password("secret")
        await peer.listen()
        connection = await ClientConnection.open(peer.endpoint, SETTINGS, PlainCredentials("user", "secret"))
        [authenticated] = peer.seen(Authenticated)
        assert authenticated.mechanism == PLAIN
        await connection.close()
        peer.close()

    run(scenario())


@pytest.mark.parametrize("credentials", [PlainCredentials("user", "wrong"), None])
def test_a8_failed_authentication_is_permanent(credentials: PlainCredentials | None) -> None:
    async def scenario() -> None:
        text = await refused(with_password("secret"), credentials, UnauthorizedError)
        assert "PLAIN" in text
        assert "wrong" not in text

    run(scenario())


# Being there


def test_idle_connection_is_kept_by_heartbeats() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.configuration = Configuration(container_id="peer", idle_time_out_ms=10_000)
        async with connected(peer) as (_, connection):
            for _ in range(100):
                await asyncio.sleep(30)
                peer.last.beat()
                peer.last.engine.tick(int(asyncio.get_running_loop().time() * 1_000))  # raises if it hears nothing
            assert connection.error is None

    run(scenario())


def test_silent_peer_is_closed_after_twice_idle_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with connected(idle_timeout=timedelta(seconds=20)) as (peer, connection):
            link = SendingLink(connection, "orders")
            await link.attached(1)
            await asyncio.sleep(39)
            assert not connection.gone.done()
            peer.last.beat()
            silent_s = loop.time()
            await connection.gone
            assert loop.time() - silent_s <= 61
            assert isinstance(connection.error, MessagingCommunicationError)
            assert isinstance(link.error, MessagingCommunicationError)
            assert "no data received" in str(connection.error)

    run(scenario())


@pytest.mark.parametrize("end", ["close", "close with a reason", "hang up", "garbage", "a frame that is too large"])
def test_any_end_of_connection_fails_all_links(end: str) -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            sending, receiving = SendingLink(connection, "a"), ReceivingLink(connection, "b", ReceiveOptions())
            await sending.attached(1)
            await receiving.attached(1)
            transport = peer.last.transport
            assert transport is not None
            match end:
                case "close":
                    peer.last.close()
                case "close with a reason":
                    peer.last.close(Error("amqp:unauthorized-access", "no more"))
                case "hang up":
                    peer.last.hang_up()
                case "garbage":
                    transport.write(b"garbage garbage garbage")
                case _:
                    transport.write(b"\x7f\xff\xff\xff\x02\x00\x00\x00" + bytes(1_000))
            await connection.gone
            for link, entity in ((sending, "a"), (receiving, "b")):
                assert isinstance(link.error, MessagingCommunicationError)
                assert link.error.is_transient
                assert link.error.entity == entity
            assert connection.links == {}
            with pytest.raises(MessagingCommunicationError):
                SendingLink(connection, "c")
            await until(lambda: peer.last.is_lost)

    run(scenario())


def test_protocol_violation_closes_with_reason() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            assert peer.last.transport is not None
            peer.last.transport.write(bytes.fromhex("0000000c02000000005399c0"))
            await connection.gone
            await settled()
            closed = peer.seen(ConnectionClosed)
            assert not closed or closed[0].error is not None
            assert isinstance(connection.error, MessagingCommunicationError)
            assert connection.error.condition is not None

    run(scenario())


# Links that fail to attach


def test_attach_without_response_times_out() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            peer.attaches = False
            link = SendingLink(connection, "orders")
            waiting = asyncio.create_task(link.attached(5))
            await asyncio.sleep(1)
            peer.last.beat()
            with pytest.raises(MessagingTimeoutError, match="not attached within 5 s") as caught:
                await waiting
            assert caught.value.entity == "orders"
            assert connection.error is None
            await until(lambda: peer.seen(SessionEnded))

    run(scenario())


def test_abandoned_attach_loses_link() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            peer.attaches = False
            link = SendingLink(connection, "orders")
            waiting = asyncio.create_task(link.attached(5))
            await settled()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert isinstance(link.error, ClosedError)
            await until(lambda: peer.seen(SessionEnded))
            assert connection.links == {}

    run(scenario())


def test_late_attach_is_ignored() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.attaches = False
        async with connected(peer) as (_, connection):
            link = SendingLink(connection, "orders")
            waiting = asyncio.create_task(link.attached(5))
            await settled()
            waiting.cancel()
            for session in peer.last.engine.sessions.values():
                for late in session.links.values():
                    late.attach()
            peer.flush()
            await settled()
            assert connection.error is None
            peer.attaches = True
            other = SendingLink(connection, "orders")
            await other.attached(5)
            await other.send(b"body")

    run(scenario())


def test_each_link_has_its_own_session() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            links = [SendingLink(connection, "orders") for _ in range(5)]
            for link in links:
                await link.attached(1)
            assert len(peer.last.engine.sessions) == 5
            for link in links:
                await link.close()
            await settled()
            assert not peer.last.engine.sessions
            assert not connection.engine.sessions

    run(scenario())


def test_session_limit_of_peer_is_raised() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.configuration = Configuration(container_id="peer", channel_max=1)
        async with connected(peer) as (_, connection):
            links = [SendingLink(connection, "orders") for _ in range(2)]
            with pytest.raises(MessagingCommunicationError, match="allows 2 sessions"):
                SendingLink(connection, "orders")
            for link in links:
                await link.attached(1)

    run(scenario())


# Closing


def test_close_waits_briefly_for_peer() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with connected() as (peer, connection):
            peer.last.is_deaf = True
            started_s = loop.time()
            await connection.close()
            assert loop.time() - started_s < 10
            await until(lambda: peer.last.is_lost)

    run(scenario())


def test_close_is_sent_once() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            await connection.close()
            await connection.close()
            assert [event.error for event in peer.seen(ConnectionClosed)] == [None]
            assert peer.last.is_lost

    run(scenario())


def test_slow_reader_does_not_block_close() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            link = SendingLink(connection, "orders")
            await link.attached(1)
            await settled()
            peer.last.pause()
            futures = [link.send(bytes(100_000)) for _ in range(10)]
            await settled()
            await connection.close()
            results = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(result, MessagingError) for result in results)
            peer.last.resume()

    run(scenario())


def test_heartbeat_is_not_an_event() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            assert peer.last.transport is not None
            peer.last.transport.write(HEARTBEAT * 3)
            await settled()
            assert connection.error is None

    run(scenario())


# Peers that begin


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
@pytest.mark.parametrize("where", ["a session of its own", "a session of ours"])
def test_links_begun_by_peer_are_rejected(role: bool, where: str) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage(b"1"))
            session: Any = peer.sender.session if where == "a session of ours" else peer.last.engine.begin()
            theirs = session.attach("theirs", role, source=Source(address="a"), target=Target(address="b"))
            peer.flush()
            await settled()
            assert not theirs.is_attached
            await sender.send(BrokeredMessage(b"2"))
            assert len(peer.received) == 2

    run(scenario())


def test_delivery_on_sending_link_ends_only_that_link() -> None:
    async def scenario() -> None:
        async with connected() as (peer, connection):
            link = SendingLink(connection, "orders")
            await link.attached(1)
            transfer = bytes.fromhex("005314c008 05 43 43 a00101 43 42".replace(" ", ""))
            channel = peer.sender.session.channel
            head = (8 + len(transfer)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big")
            assert peer.last.transport is not None
            peer.last.transport.write(head + transfer)
            await settled()
            assert link.error is None or isinstance(link.error, MessagingError)
            other = None if connection.error else SendingLink(connection, "orders")
            if other is not None:
                await other.attached(1)
                await other.send(b"body")

    run(scenario())
