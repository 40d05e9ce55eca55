"""A7, B2: connections beyond the limit are answered with "server busy", at a bounded cost, and nothing fails over."""

from __future__ import annotations

import asyncio
import http.client
import resource
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from websocket import WebSocketBadStatusException, create_connection

from pairbus import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    ServerBusyError,
)
from pairbus.broker import Address
from pairbus.client.settings import MessagingFactorySettings, RetryPolicy, Transport
from pairbus.pairing import EntityState
from pairbus.server import listener
from pairbus.server.process import new_event_loop
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Error
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, connect, messages_in, text_message
from tests.server.served_process import served_process
from tests.waiting import eventually

BUSY = "com.microsoft:server-busy"
REASON = "the server has reached its limit of 1 connections; try again in 10 seconds or later"


@pytest.fixture(params=[asyncio.new_event_loop, new_event_loop], ids=["asyncio", "best"])
def full(request: pytest.FixtureRequest) -> Iterator[RunningNamespace]:
    """Yield a namespace whose only connection is taken."""
    with (
        running_namespace(queues=["orders"], max_connections=1, new_loop=request.param) as namespace,
        connect(namespace),
    ):
        yield namespace


@contextmanager
def taken(namespace: RunningNamespace) -> Iterator[None]:
    eventually(lambda: namespace._running._running.services.stream_count == 0)
    with connect(namespace):
        yield


def refusals(namespace: RunningNamespace) -> int:
    return len(namespace._running._running._listener._refusals.tasks)


def denied(namespace: RunningNamespace) -> int:
    return namespace.call(lambda host: host.throttle.denied["connections"])


def reported(namespace: RunningNamespace, *, tls: bool = False) -> Error | None:
    """Return the error with which the next AMQP connection is closed."""
    with WireClient(namespace.port, ca_file=namespace.ca_file if tls else None) as client:
        client.engine.open()
        return client.until_hung_up()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_amqp_connection_beyond_the_limit_is_closed_with_server_busy(full: RunningNamespace, tls: bool) -> None:
    error = reported(full, tls=tls)
    assert error is not None
    assert (error.condition, error.description) == (BUSY, REASON)
    eventually(lambda: refusals(full) == 0)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_http_request_beyond_the_limit_is_answered_with_503(full: RunningNamespace, method: str, tls: bool) -> None:
    context = ssl.create_default_context(cafile=str(full.ca_file))
    connection = (
        http.client.HTTPSConnection("localhost", full.port, timeout=DEADLINE_S, context=context)
        if tls
        else http.client.HTTPConnection("localhost", full.port, timeout=DEADLINE_S)
    )
    connection.request(method, "/orders", body=bytes(100_000) if method == "PUT" else None)
    answer = connection.getresponse()
    body = answer.read().decode()
    assert (answer.status, answer.headers["Retry-After"], answer.headers["Connection"]) == (503, "10", "close")
    assert (f"SubCode=50300. Service Unavailable. {REASON}" in body) is (method != "HEAD")


def test_websocket_beyond_the_limit_is_answered_with_503(full: RunningNamespace) -> None:
    address = f"ws://127.0.0.1:{full.port}/$servicebus/websocket"
    with pytest.raises(WebSocketBadStatusException) as caught:
        create_connection(address, subprotocols=["AMQPWSB10"], timeout=DEADLINE_S)
    assert caught.value.status_code == 503


def test_closed_connection_makes_room_for_another() -> None:
    with running_namespace(queues=["orders"], max_connections=2) as contoso:
        with connect(contoso), connect(contoso):
            assert reported(contoso) is not None
        eventually(lambda: contoso._running._running.services.stream_count == 0)
        with connect(contoso) as client:
            client.sender("orders")


# Unproven connections make room


def silence(_contoso: RunningNamespace) -> bytes:
    return b""


def half_a_preface(_contoso: RunningNamespace) -> bytes:
    return b"AM"


def half_a_request(_contoso: RunningNamespace) -> bytes:
    return b"POST /console/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nkey="


def half_an_exchange(_contoso: RunningNamespace) -> bytes:
    return b"AMQP\x03\x01\x00\x00"


def half_a_handshake(_contoso: RunningNamespace) -> bytes:
    return b"\x16\x03\x01"


@pytest.mark.parametrize("say", [silence, half_a_preface, half_a_request, half_an_exchange, half_a_handshake])
def test_e5_connections_without_a_key_are_closed_to_make_room(say: Callable[[RunningNamespace], bytes]) -> None:
    with running_namespace(queues=["orders"], max_connections=3) as contoso, connect(contoso) as first:
        link = first.sender("orders")
        peers: list[socket.socket] = []
        for _ in range(2):  # one after the other, so that the first is the oldest
            peers.append(socket.create_connection(("127.0.0.1", contoso.port), timeout=DEADLINE_S))
            peers[-1].sendall(say(contoso))
            eventually(lambda: unproven_count(contoso) == len(peers))
        with connect(contoso) as second:
            assert second.send(second.sender("orders"), text_message("two")) == ACCEPTED
            closed = [unproven_peer for unproven_peer in peers if is_closed(unproven_peer)]
            assert closed == peers[:1], "the oldest, and no more than need be"
        assert first.send(link, text_message("one")) == ACCEPTED
        for unproven_peer in peers:
            unproven_peer.close()


def test_e5_oldest_connection_is_closed_whatever_its_phase() -> None:
    """Otherwise a flood of silent connections closes every client that has not sent its first byte yet."""
    with running_namespace(queues=["orders"], max_connections=3) as contoso, connect(contoso), ExitStack() as stack:
        peers: list[socket.socket] = []
        in_protocol = contoso._running._running.services.unproven
        for data in (half_an_exchange(contoso), silence(contoso)):
            peers.append(stack.enter_context(socket.create_connection(("127.0.0.1", contoso.port), DEADLINE_S)))
            peers[-1].sendall(data)
            # The first one has its protocol then, which counts its age, and the second one is silent.
            eventually(lambda: (unproven_count(contoso), len(in_protocol)) == (len(peers), 1))
        with connect(contoso) as second:
            second.sender("orders")
            assert [is_closed(peer) for peer in peers] == [True, False]


def test_e5_connections_that_do_not_read_their_responses_make_room() -> None:
    with running_namespace(queues=["orders"], max_connections=3) as contoso, ExitStack() as stack:
        for _ in range(3):
            peer = stack.enter_context(socket.socket())
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            peer.settimeout(DEADLINE_S)
            peer.connect(("127.0.0.1", contoso.port))
            peer.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 300)
        unproven = contoso._running._running.services.unproven
        eventually(lambda: unproven.held_bytes > 0)  # unsent bytes of responses count
        with connect(contoso) as client:
            client.sender("orders")


def unproven_count(namespace: RunningNamespace) -> int:
    parts = namespace._running._running
    return len(parts.services.unproven) + parts._listener.waiting_count


def is_closed(unproven_peer: socket.socket) -> bool:
    unproven_peer.settimeout(0.2)
    try:
        while unproven_peer.recv(1_000):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_e5_connections_of_one_address_are_limited(tls: bool) -> None:
    with running_namespace(queues=["orders"], max_connections_per_address=2) as contoso:
        with connect(contoso), connect(contoso):
            error = reported(contoso, tls=tls)
            assert error is not None
            assert error.condition == BUSY
            assert "your address" in (error.description or "")
        eventually(lambda: not counted(contoso))
        with connect(contoso) as client:
            client.sender("orders")


def counted(namespace: RunningNamespace) -> int:
    """Return how many connections count for their addresses."""
    return namespace._running._running.services.addresses._counts.total()


@pytest.mark.parametrize("say", [silence, half_a_preface, half_a_request, half_an_exchange, half_a_handshake])
def test_e5_connections_count_for_their_address_whatever_their_phase(say: Callable[[RunningNamespace], bytes]) -> None:
    with running_namespace(queues=["orders"], max_connections_per_address=2) as contoso, ExitStack() as stack:
        peers = [open_peer(contoso, stack, say(contoso)) for _ in range(2)]
        eventually(lambda: counted(contoso) == 2)
        error = reported(contoso)
        assert error is not None
        assert "your address" in (error.description or "")
        for peer in peers:
            peer.close()
        eventually(lambda: not counted(contoso))
        with connect(contoso) as client:
            client.sender("orders")


def open_peer(namespace: RunningNamespace, stack: ExitStack, data: bytes) -> socket.socket:
    peer = stack.enter_context(socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S))
    peer.sendall(data)
    return peer


ENDED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "timeout of silence": (b"", {"handshake_timeout_s": 0.2}),
    "timeout of half a handshake": (b"\x16\x03\x01", {"handshake_timeout_s": 0.2}),
    "timeout of half a preface": (b"AM", {"handshake_timeout_s": 0.2}),
    "failed handshake": (b"\x16\x03\x01\x00\x05hello", {}),
    "unknown protocol": (b"SSH-2.0-OpenSSH_9\r\n", {}),
    "protocol violation": (b"AMQP\x00\x09\x09\x09", {}),
}


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "best"])
@pytest.mark.parametrize("end", ENDED)
def test_e5_connection_that_the_server_closes_no_longer_counts_for_its_address(
    end: str, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    data, settings = ENDED[end]
    with (
        running_namespace(max_connections_per_address=100, new_loop=new_loop, **settings) as contoso,
        ExitStack() as stack,
    ):
        peers = [open_peer(contoso, stack, data) for _ in range(3)]
        for peer in peers:
            read_to_end(peer)
        eventually(lambda: not counted(contoso))


@pytest.mark.parametrize("say", [silence, half_an_exchange, half_a_handshake])
def test_e5_evicted_connection_no_longer_counts_for_its_address(say: Callable[[RunningNamespace], bytes]) -> None:
    with (
        running_namespace(queues=["orders"], max_connections=2, max_connections_per_address=100) as contoso,
        ExitStack() as stack,
    ):
        peers = [open_peer(contoso, stack, say(contoso)) for _ in range(6)]
        eventually(lambda: sum(is_closed(peer) for peer in peers) == 4)
        eventually(lambda: counted(contoso) == unproven_count(contoso) == 2)
        for peer in peers:
            peer.close()
        eventually(lambda: not counted(contoso))


# Descriptors run out


FREE: Final = 10
"""Number of descriptors that the server may still open."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the limits of another process can be set on Linux")
@pytest.mark.parametrize("data", [b"", b"AMQP\x03\x01\x00\x00"], ids=["silence", "half an exchange"])
def test_e5_connections_without_a_key_are_closed_when_descriptors_run_out(tmp_path: Path, data: bytes) -> None:
    options = ("--data", tmp_path / "data", "--handshake-timeout-s", 600, "--token-timeout-s", 600)
    with served_process(tmp_path, *options) as served, served.connect() as first, ExitStack() as stack:
        link = first.sender("orders")
        pid = served.process.pid
        most = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()) + 1 + FREE
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        for _ in range(4 * FREE):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S))
            peer.sendall(data)
        eventually(lambda: served.lines("accept failed"))
        with served.connect() as second:
            assert second.send(second.sender("orders"), text_message("two")) == ACCEPTED
        assert first.send(link, text_message("one")) == ACCEPTED


# Cost of refusals


def test_only_so_many_refusals_are_answered_at_a_time(full: RunningNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "REFUSE_WITHIN_S", 600.0)
    silent = [socket.create_connection(("127.0.0.1", full.port)) for _ in range(listener._MOST_REFUSALS)]
    eventually(lambda: refusals(full) == listener._MOST_REFUSALS)
    assert reported(full) is None
    assert full._running._running.services.counters.limits["busy_responses"] == 1
    for stream in silent:
        stream.close()
    eventually(lambda: refusals(full) == 0)
    assert reported(full) is not None


SLOW = {"nothing": b"", "half a preface": b"AM", "half a request": b"GET / HT", "half a handshake": b"\x16\x03\x01"}


@pytest.mark.parametrize("said", SLOW.values(), ids=SLOW)
def test_refused_peer_that_is_slow_is_disconnected(
    full: RunningNamespace, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "REFUSE_WITHIN_S", 0.05)
    with socket.create_connection(("127.0.0.1", full.port), timeout=DEADLINE_S) as stream:
        stream.sendall(said)
        assert read_to_end(stream) == b""
    eventually(lambda: refusals(full) == 0)


@pytest.mark.parametrize("said", [b"SSH-2.0-OpenSSH_9\r\n", b"GET / HTTP/9.9\r\n\r\n", b"AMQP\x00\x09\x09\x09"])
def test_refused_peer_that_sends_garbage_is_disconnected(full: RunningNamespace, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", full.port), timeout=DEADLINE_S) as stream:
        stream.sendall(said)
        read_to_end(stream)
    eventually(lambda: refusals(full) == 0)


def read_to_end(stream: socket.socket) -> bytes:
    said = b""
    try:
        while more := stream.recv(1 << 16):
            said += more
    except ConnectionError:
        pass
    return said


def test_server_stops_while_refusals_are_under_way(full: RunningNamespace) -> None:
    with socket.create_connection(("127.0.0.1", full.port), timeout=DEADLINE_S) as stream:
        eventually(lambda: refusals(full) == 1)
        full.stop()
        assert read_to_end(stream) == b""


# Clients


def patient(transport: Transport, namespace: RunningNamespace) -> MessagingFactorySettings:
    return MessagingFactorySettings(
        transport=transport,
        ca_file=namespace.ca_file,
        operation_timeout=timedelta(seconds=DEADLINE_S),
        retry_policy=RetryPolicy(server_busy_backoff=timedelta(milliseconds=50)),
    )


WAYS: dict[str, tuple[Callable[[RunningNamespace], str], Transport]] = {
    "plain": (lambda full: full.connection_string, Transport.TCP),
    "tls": (lambda full: full.tls_connection_string, Transport.TCP),
    "websocket": (lambda full: full.connection_string, Transport.WEB_SOCKET),
}


@pytest.mark.parametrize("way", WAYS)
def test_client_gets_server_busy_error_and_sends_once_there_is_room(way: str) -> None:
    address, transport = WAYS[way]
    with running_namespace(queues=["orders"], max_connections=1) as contoso:

        async def use() -> None:
            chosen = patient(transport, contoso)
            async with MessagingFactory.from_connection_string(address(contoso), chosen) as factory:
                sender = await factory.create_message_sender("orders")
                with connect(contoso):
                    impatient = MessagingFactorySettings(
                        transport=transport, ca_file=contoso.ca_file, operation_timeout=timedelta(seconds=9)
                    )
                    async with MessagingFactory.from_connection_string(address(contoso), impatient) as other:
                        with pytest.raises(ServerBusyError, match=r"limit of 1 connections|HTTP 503"):
                            await (await other.create_message_sender("orders")).send(BrokeredMessage(b"lost"))
                    before = denied(contoso)
                    sending = asyncio.create_task(sender.send(BrokeredMessage(b"kept")))
                    await asyncio.to_thread(eventually, lambda: denied(contoso) > before)
                await sending

        asyncio.run(use())
        assert len(messages_in(contoso, Address.of("orders"))) == 1


def test_manager_waits_and_succeeds_once_there_is_room() -> None:
    with running_namespace(queues=["orders"], max_connections=1) as contoso:

        async def use() -> None:
            chosen = patient(Transport.TCP, contoso)
            async with NamespaceManager.from_connection_string(contoso.connection_string, chosen) as manager:
                with connect(contoso):
                    before = denied(contoso)
                    asking = asyncio.create_task(manager.get_queue("orders"))
                    await asyncio.to_thread(eventually, lambda: denied(contoso) > before + 1)
                    assert not asking.done()
                assert (await asking).path == "orders"

        asyncio.run(use())


def test_paired_sender_without_patience_does_not_fail_over() -> None:
    with (
        running_namespace("primary", queues=["orders"], max_connections=1) as primary,
        running_namespace("secondary") as secondary,
    ):

        async def use() -> None:
            chosen = patient(Transport.TCP, primary)
            async with (
                MessagingFactory.from_connection_string(primary.connection_string, chosen) as factory,
                MessagingFactory.from_connection_string(secondary.connection_string) as other,
                NamespaceManager.from_connection_string(secondary.connection_string) as manager,
            ):
                options = SendAvailabilityPairedNamespaceOptions(
                    manager, other, backlog_queue_count=1, failover_interval=timedelta()
                )
                pair = await factory.pair_namespace(options)
                sender = await factory.create_message_sender("orders")
                with taken(primary):
                    before = denied(primary)
                    sending = asyncio.create_task(sender.send(BrokeredMessage(b"kept")))
                    await asyncio.to_thread(eventually, lambda: denied(primary) > before + 2)
                    assert not sending.done()
                await sending
                assert {entity.state for entity in pair.status().entities} <= {EntityState.HEALTHY}

        asyncio.run(use())
        assert len(messages_in(primary, Address.of("orders"))) == 1
        backlog = secondary.call(
            lambda host: [queue.message_count for queue in host.use_namespace().queues(host.now_ms())]
        )
        assert sum(backlog) == 0


@pytest.mark.slow
def test_azure_sdk_retries_until_there_is_room() -> None:
    with running_namespace(queues=["orders"], max_connections=1) as contoso:

        def send() -> None:
            with (
                ServiceBusClient.from_connection_string(contoso.connection_string, retry_total=5) as client,
                client.get_queue_sender("orders") as sender,
            ):
                sender.send_messages(ServiceBusMessage(b"x"))

        sending = Thread(target=send)
        with connect(contoso):
            sending.start()
            eventually(lambda: denied(contoso) > 1)
        sending.join(DEADLINE_S)
        assert len(messages_in(contoso, Address.of("orders"))) == 1
