"""HTTP requests and their failures."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import InvalidRequestError, MessagingCommunicationError, MessagingTimeoutError
from pairbus.client.management.http import MAX_KEPT, HttpConnections, HttpRequest, HttpResponse, exchange
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.http_peer import Answer, Asked, Peer, peer, replies, says
from tests.waiting import eventually_async

BOUND_S = 20.0
GET = HttpRequest(method="GET", target="/q?api-version=2021-05")
HEALTH = HttpRequest(method="GET", target="/health")


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as running:
        yield running


async def ask(endpoint: Endpoint, request: HttpRequest = GET, tls: ssl.SSLContext | None = None) -> HttpResponse:
    return await exchange(endpoint, request, tls=tls, timeout_s=BOUND_S, max_bytes=1000)


def answer_to(*answers: Answer, request: HttpRequest = GET) -> tuple[HttpResponse, Peer]:
    async def asking() -> tuple[HttpResponse, Peer]:
        async with peer(*answers) as opened:
            return await ask(opened.endpoint, request), opened

    return asyncio.run(asking())


def failure_of(*answers: Answer) -> MessagingCommunicationError:
    with pytest.raises(MessagingCommunicationError) as caught:
        answer_to(*answers)
    return caught.value


# What goes well


def test_request_is_sent_completely_with_host() -> None:
    request = HttpRequest(method="PUT", target="/a%20b?x=1", headers={"X-Token": "t"}, body=b"<entry/>")
    _, opened = answer_to(replies(201), request=request)
    assert opened.asked[0].line == "PUT /a%20b?x=1 HTTP/1.1"
    assert opened.asked[0].body == b"<entry/>"
    assert opened.asked[0].headers == {
        "host": f"127.0.0.1:{opened.port}",
        "connection": "close",
        "content-length": "8",
        "x-token": "t",
    }


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nbody",
        b"HTTP/1.0 200 OK\r\n\r\nbody",
        b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody and more than that",
    ],
    ids=["length", "chunks", "until the end", "old", "preceded by another", "followed by something"],
)
def test_response_is_read_with_any_length_encoding(data: bytes) -> None:
    response, _ = answer_to(says(data))
    assert response == HttpResponse(status=200, body=b"body")


def test_response_may_reach_but_not_exceed_bound() -> None:
    response, _ = answer_to(replies(200, b"x" * 1000))
    assert len(response.body) == 1000
    error = failure_of(replies(200, b"x" * 1001))
    assert "more than 1000 bytes" in str(error)
    assert not error.is_transient


def test_endless_response_is_stopped_at_bound() -> None:
    async def endless(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"x" * 1000)
            await writer.drain()

    async def asking() -> None:
        async with peer(endless) as opened:
            with pytest.raises(MessagingCommunicationError, match="more than 1000 bytes"):
                await ask(opened.endpoint)

    asyncio.run(asking())


# What does not


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\x00\x01\x00\x00",
        b"\x00" * 100,
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    ],
    ids=["AMQP", "zeroes", "no status", "no length", "no chunk", "headers without end"],
)
def test_response_that_is_not_http_is_permanent_error(data: bytes) -> None:
    async def stays(_asked: object, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await reader.read()  # so that it is the bytes that are wrong, and not that they end

    async def asking() -> None:
        async with peer(stays) as opened:
            with pytest.raises(MessagingCommunicationError, match="is not HTTP") as caught:
                await ask(opened.endpoint)
            assert not caught.value.is_transient

    asyncio.run(asking())


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbo", b"HTTP/1.1 100 Continue\r\n\r\n"],
    ids=["nothing", "half a head", "half a body", "only a promise"],
)
def test_truncated_response_is_transient_error(data: bytes) -> None:
    error = failure_of(says(data))
    assert "closed the connection" in str(error)
    assert error.is_transient


def test_cut_connection_is_transient_error() -> None:
    async def cut(_asked: object, _reader: object, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    assert failure_of(cut).is_transient


def test_refused_port_is_transient_error() -> None:
    async def asking() -> None:
        async with peer() as opened:
            endpoint = opened.endpoint
        with pytest.raises(MessagingCommunicationError, match="cannot be reached") as caught:
            await ask(endpoint)
        assert caught.value.is_transient

    asyncio.run(asking())


def test_invalid_host_name_is_an_error() -> None:
    with pytest.raises(MessagingCommunicationError, match="cannot be reached"):
        asyncio.run(ask(Endpoint("a" * 70 + ".invalid", 1, tls=False)))


@pytest.mark.parametrize("token", ["two\r\nlines", "schlüssel"])
def test_invalid_header_is_rejected_without_repeating_it(token: str) -> None:
    request = HttpRequest(method="GET", target="/", headers={"Authorization": token})
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(ask(Endpoint("127.0.0.1", 1, tls=False), request))
    assert token not in str(caught.value)
    assert token not in repr(request)


def test_silent_peer_times_out_and_is_disconnected() -> None:
    async def asking() -> None:
        async with peer() as opened, asyncio.timeout(BOUND_S):
            with pytest.raises(MessagingTimeoutError) as caught:
                await exchange(opened.endpoint, GET, tls=None, timeout_s=0.3)
            assert caught.value.is_transient
            await opened.deserted.wait()

    asyncio.run(asking())


def test_cancelled_request_disconnects() -> None:
    async def asking() -> None:
        async with peer() as opened, asyncio.timeout(BOUND_S):
            task = asyncio.create_task(ask(opened.endpoint))
            await opened.waiting.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await opened.deserted.wait()

    asyncio.run(asking())


def test_cancelled_tls_handshake_disconnects() -> None:
    async def asking() -> None:
        begun, deserted = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            begun.set()
            await reader.read()
            deserted.set()
            writer.close()

        async with await asyncio.start_server(silent, "127.0.0.1", 0) as server, asyncio.timeout(BOUND_S):
            endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
            task = asyncio.create_task(ask(endpoint, tls=ssl.create_default_context()))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await deserted.wait()

    asyncio.run(asking())


def test_on_connected_is_called_before_anything_is_sent() -> None:
    async def asking() -> None:
        reported: list[str] = []
        async with peer(replies(200)) as opened:
            endpoint = opened.endpoint
            await exchange(endpoint, GET, tls=None, timeout_s=BOUND_S, on_connected=lambda: reported.append("once"))
        with pytest.raises(MessagingCommunicationError):
            await exchange(endpoint, GET, tls=None, timeout_s=BOUND_S, on_connected=lambda: reported.append("twice"))
        assert reported == ["once"]

    asyncio.run(asking())


# Connections that are kept


class KeepingPeer:
    """Answers request after request on a connection, with the target of each."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        """The number of the connection, the method and the target of each request."""

        self.opened = 0
        self.ended: list[int] = []
        self.endpoint = Endpoint("127.0.0.1", 1, tls=False)
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.writers.append(writer)
        number = self.opened
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, _, rest = head.partition(b" HTTP/1.1\r\n")
                self.asked.append((number, line.decode()))
                await reader.readexactly(int(Asked(b"x\r\n" + rest).headers.get("content-length", "0")))
                target = line.split()[1]
                await self._answer(target, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.ended.append(number)
            writer.close()

    async def _answer(self, target: bytes, writer: asyncio.StreamWriter) -> None:
        extra = b"Keep-Alive: timeout=0\r\n" if target == b"/brief" else b""
        response = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(target), extra, target)
        if target == b"/lost" and self.opened == 1:
            writer.transport.abort()
        elif target == b"/late" and self.opened == 1:
            writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        elif target == b"/half":
            writer.write(response[:-1])
        elif target == b"/unasked":
            writer.write(response)
            await asyncio.sleep(0)
            writer.write(response)
        else:
            writer.write(response)


def with_kept_connections(scenario: Callable[[KeepingPeer, HttpConnections], Awaitable[None]], **options: Any) -> None:
    async def playing() -> None:
        opened = KeepingPeer()
        async with await asyncio.start_server(opened.serve, "127.0.0.1", 0) as server, asyncio.timeout(BOUND_S):
            opened.endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
            connections = HttpConnections(opened.endpoint, None, **options)
            await scenario(opened, connections)
            await connections.close()
            await eventually_async(lambda: len(opened.ended) == opened.opened)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(playing())


async def fetch(connections: HttpConnections, target: str, method: str = "GET") -> None:
    request = HttpRequest(method=method, target=target, body=b"content" if method == "PUT" else b"")
    response = await connections.exchange(request, timeout_s=BOUND_S)
    assert response.body == target.encode()


def test_connection_is_used_again() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        for target, method in (("/1", "GET"), ("/2", "PUT"), ("/3", "DELETE")):
            await fetch(connections, target, method)
        assert opened.asked == [(1, "GET /1"), (1, "PUT /2"), (1, "DELETE /3")]
        assert not opened.ended

    with_kept_connections(scenario)


def test_concurrent_requests_use_connections_of_their_own_of_which_some_are_kept() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        for _ in range(2):
            await asyncio.gather(*(fetch(connections, f"/{number}") for number in range(10)))
        assert opened.opened == 10 + 10 - MAX_KEPT
        await eventually_async(lambda: len(opened.ended) == opened.opened - MAX_KEPT)

    with_kept_connections(scenario)


@pytest.mark.parametrize("target", ["/lost", "/late"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_request_on_a_connection_that_was_lost_is_repeated_only_if_that_is_harmless(method: str, target: str) -> None:
    """The server closed it while it was idle, with the status 408 or without a word."""

    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, "/1")
        if method == "GET":
            await fetch(connections, target)
            assert opened.asked == [(1, "GET /1"), (1, f"GET {target}"), (2, f"GET {target}")]
        else:
            with pytest.raises(MessagingCommunicationError) as caught:
                await fetch(connections, target, method)
            assert caught.value.is_transient
            assert opened.asked == [(1, "GET /1"), (1, f"{method} {target}")]

    with_kept_connections(scenario)


def test_request_that_fails_on_a_new_connection_is_not_repeated() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        with pytest.raises(MessagingCommunicationError):
            await fetch(connections, "/lost")
        assert opened.opened == 1

    with_kept_connections(scenario)


def test_connection_of_a_request_that_was_cancelled_is_not_used_again() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, "/1")
        task = asyncio.create_task(fetch(connections, "/half"))
        await eventually_async(lambda: (1, "GET /half") in opened.asked)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await fetch(connections, "/2")
        assert opened.asked[-1] == (2, "GET /2")

    with_kept_connections(scenario)


def test_response_that_nobody_has_asked_for_is_nobody_s_answer() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, "/unasked")
        await eventually_async(lambda: opened.ended)
        await fetch(connections, "/2")
        assert opened.opened == 2

    with_kept_connections(scenario)


def test_bytes_that_arrive_as_the_next_request_begins_are_not_its_answer() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, "/1")
        opened.writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
        await fetch(connections, "/2")
        assert opened.asked == [(1, "GET /1"), (2, "GET /2")]

    with_kept_connections(scenario)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("is_closed", [False, True], ids=["stopped", "closed"])
def test_idle_connections_of_another_loop_do_not_count(is_closed: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        connections = HttpConnections(Endpoint("127.0.0.1", listening.getsockname()[1], tls=False), None, max_kept=1)

        async def use() -> KeepingPeer:
            opened = KeepingPeer()
            async with await asyncio.start_server(opened.serve, sock=listening.dup()) as server:
                for target in ("/1", "/2"):
                    await fetch(connections, target)
                server.close()
            return opened

        earlier = asyncio.new_event_loop()
        earlier.run_until_complete(use())
        if is_closed:
            earlier.close()
        assert asyncio.run(use()).opened == 1
        assert len(connections._kept) == (not is_closed)
        if not is_closed:
            earlier.run_until_complete(connections.close())
            earlier.close()
        gc.collect()


@pytest.mark.parametrize(("target", "idle_s"), [("/1", 0.05), ("/brief", 60.0)], ids=["ours", "of the server"])
def test_idle_connection_is_closed_in_time(target: str, idle_s: float) -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, target)
        await eventually_async(lambda: opened.ended)

    with_kept_connections(scenario, idle_s=idle_s)


def test_closed_connections_are_not_kept() -> None:
    async def scenario(opened: KeepingPeer, connections: HttpConnections) -> None:
        await fetch(connections, "/1")
        await connections.close()
        await eventually_async(lambda: opened.ended == [1])
        await fetch(connections, "/2")
        await eventually_async(lambda: opened.ended == [1, 2])

    with_kept_connections(scenario)


def test_connections_that_are_never_closed_end_with_the_loop() -> None:
    async def asking() -> None:
        opened = KeepingPeer()
        server = await asyncio.start_server(opened.serve, "127.0.0.1", 0)
        endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
        await fetch(HttpConnections(endpoint, None), "/1")
        server.close()

    asyncio.run(asking())
    gc.collect()  # a socket that is left open is reported as an error


# TLS


def trusting(ca_file: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file))


def test_trusted_certificate_is_accepted(namespace: RunningNamespace) -> None:
    endpoint = Endpoint("localhost", namespace.port)
    assert asyncio.run(ask(endpoint, HEALTH, trusting(namespace.ca_file))).status == 200


def test_untrusted_certificate_is_rejected_with_advice(namespace: RunningNamespace) -> None:
    with pytest.raises(MessagingCommunicationError, match=r"not trusted.*ca_file.*ssl_context") as caught:
        asyncio.run(ask(Endpoint("localhost", namespace.port), HEALTH, ssl.create_default_context()))
    assert not caught.value.is_transient


def test_peer_without_tls_is_an_error() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def asking() -> None:
        async with await asyncio.start_server(plain, "127.0.0.1", 0) as server:
            endpoint = Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])
            with pytest.raises(MessagingCommunicationError, match="cannot be reached"):
                await ask(endpoint, GET, ssl.create_default_context())

    asyncio.run(asking())
