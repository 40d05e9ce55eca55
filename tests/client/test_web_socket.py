"""WebSockets as transports: with a real namespace, and with peers that do what no namespace should."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import socket
import ssl
import struct
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.web_socket import connect_web_socket
from pairbus.server.process import new_event_loop
from pairbus.store.certificate import Certificate, open_certificate
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    Configuration,
    Connection,
    ConnectionClosed,
    ConnectionOpened,
    Event,
    SaslClient,
    anonymous,
    plain,
)

DEADLINE_S: Final = 30.0
SUBPROTOCOL: Final = "AMQPWSB10"
CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
PIECE: Final = bytes(range(256)) * 256
PIECES: Final = 1_000
"""So many pieces are far more than two ends of a socket and their buffers hold."""

BOUND_BYTES: Final = 24 * 1024 * 1024
HEARTBEAT: Final = bytes.fromhex("0000000802000000")
SHORT: Final = timedelta(milliseconds=50)


# The inner protocol.


class Recorder(asyncio.Protocol):
    """Records its callbacks, and checks the order in which the transport calls them."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.calls: list[str] = []
        self.data = bytearray()
        self.errors: list[Exception | None] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self._changed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert not self.calls
        self.transport = cast("asyncio.Transport", transport)
        self._note("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        assert data
        assert set(self.calls) == {"made"}
        self.data += data
        self._changed.set()

    def eof_received(self) -> None:
        assert self.calls == ["made"]
        self._note("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        assert self.calls[0] == "made"
        assert "lost" not in self.calls
        self.errors.append(exc)
        self._note("lost")

    def pause_writing(self) -> None:
        self.may_write.clear()

    def resume_writing(self) -> None:
        self.may_write.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    async def lost(self) -> Exception | None:
        await self.until(lambda: self.errors)
        return self.errors[0]

    def _note(self, call: str) -> None:
        self.calls.append(call)
        self._changed.set()


class Speaker(Recorder):
    """Speaks AMQP: enough to open a connection and to close it."""

    def __init__(self, host: str, sasl: SaslClient | None = None) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.engine = Connection(Configuration(container_id="speaker", hostname=host), sasl or anonymous())
        self.engine.open()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.events.extend(self.engine.receive_data(data))
        self.flush()

    def flush(self) -> None:
        assert self.transport is not None
        self.transport.write(self.engine.data_to_send())

    async def until_event(self, kind: type[Event]) -> None:
        await self.until(lambda: any(isinstance(event, kind) for event in self.events))


# The peer.


def frame(opcode: int, data: bytes = b"", *, fin: bool = True) -> bytes:
    head = opcode | (0x80 if fin else 0)
    if len(data) < 126:
        return bytes((head, len(data))) + data
    if len(data) < 65_536:
        return struct.pack(">BBH", head, 126, len(data)) + data
    return struct.pack(">BBQ", head, 127, len(data)) + data


def close_data(code: int, reason: str = "") -> bytes:
    return struct.pack(">H", code) + reason.encode()


class Peer:
    """The other end of a connection, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.sent_bytes = 0

    async def request(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def accept(self, subprotocol: str | None = SUBPROTOCOL, *, more: bytes = b"") -> None:
        request = await self.request()
        (key,) = (line.partition(": ")[2] for line in request.split("\r\n") if line.startswith("Sec-WebSocket-Key"))
        accepted = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()  # noqa: S324 (RFC 6455)
        chosen = "" if subprotocol is None else f"Sec-WebSocket-Protocol: {subprotocol}\r\n"
        self.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {b64encode(accepted).decode()}\r\n{chosen}\r\n".encode()
            + more
        )

    def write(self, data: bytes) -> None:
        self.writer.write(data)

    def send(self, opcode: int, data: bytes = b"", *, fin: bool = True) -> None:
        self.write(frame(opcode, data, fin=fin))

    async def send_pieces(self) -> None:
        for _ in range(PIECES):
            self.send(BINARY, PIECE)
            self.sent_bytes += len(PIECE)
            await self.writer.drain()

    async def receive(self) -> tuple[int, bytes]:
        head, size = await self.reader.readexactly(2)
        assert head & 0x80, "a namespace need not take fragments"
        assert size & 0x80, "a client has to mask"
        size &= 0x7F
        if size >= 126:
            size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
        mask = await self.reader.readexactly(4)
        data = await self.reader.readexactly(size)
        key = (mask * (size // 4 + 1))[:size]
        return head & 0x0F, (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")

    async def ended(self) -> bytes:
        """Return the bytes received until the client disconnects."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def stop_reading(self) -> None:
        cast("asyncio.Transport", self.writer.transport).pause_reading()

    def cut(self) -> None:
        """Reset the connection."""
        found: socket.socket = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Talk = Callable[[Peer], Awaitable[None]]


# Where they meet.


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A kind of event loop, and whether there is TLS."""

    new_loop: Callable[[], asyncio.AbstractEventLoop]
    certificate: Certificate | None

    def run(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> list[BaseException | None]:
        """Play a scene, which leaves nothing behind; what the loop was left with to complain about."""
        troubles: list[dict[str, Any]] = []

        async def play() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _loop, context: troubles.append(context))
            async with asyncio.timeout(DEADLINE_S):
                await scene()
            assert asyncio.all_tasks() == {asyncio.current_task()}

        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            runner.run(play())
        gc.collect()  # what has not been closed complains now
        return [context.get("exception") for context in troubles]

    @asynccontextmanager
    async def peer(self, talk: Talk) -> AsyncIterator[Endpoint]:
        """Run a server that answers every client with a script, and wait for its end."""
        tasks: list[asyncio.Task[None]] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await talk(Peer(reader, writer))
            finally:
                writer.close()
                with suppress(OSError):
                    await writer.wait_closed()

        server = await asyncio.start_server(
            lambda reader, writer: tasks.append(asyncio.create_task(serve(reader, writer))),
            "127.0.0.1",
            ssl=self.server_context(),
        )
        try:
            yield Endpoint("127.0.0.1", server.sockets[0].getsockname()[1], self.certificate is not None)
        finally:
            server.close()
            await asyncio.gather(*tasks)
            await server.wait_closed()

    def server_context(self) -> ssl.SSLContext | None:
        if self.certificate is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate.cert_file, self.certificate.key_file)
        return context

    async def connect(self, protocol: asyncio.Protocol, endpoint: Endpoint, **settings: Any) -> asyncio.Transport:
        ca_file = None if self.certificate is None else self.certificate.ca_file
        chosen = MessagingFactorySettings(**{"ca_file": ca_file, **settings})
        return await connect_web_socket(asyncio.get_running_loop(), protocol, endpoint, chosen)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return open_certificate(tmp_path_factory.mktemp("certificate"), [], int(time.time() * 1000))


@pytest.fixture(
    params=[
        "asyncio",
        pytest.param("asyncio-tls", marks=pytest.mark.slow),
        pytest.param("best", marks=pytest.mark.slow),
        pytest.param("best-tls", marks=pytest.mark.slow),
    ]
)
def way(request: pytest.FixtureRequest, certificate: Certificate) -> Way:
    kind, _, tls = request.param.partition("-")
    return Way(
        new_loop=asyncio.new_event_loop if kind == "asyncio" else new_event_loop,
        certificate=certificate if tls else None,
    )


@pytest.fixture(scope="module")
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


async def turns() -> None:
    """Let everything happen that is ready to."""
    for _ in range(20):
        await asyncio.sleep(0.001)


async def until_still(number: Callable[[], int]) -> int:
    """Wait until a number does not change any more."""
    seen: list[int] = []
    while len(seen) < 50 or len(set(seen[-50:])) > 1:
        seen.append(number())
        await asyncio.sleep(0.002)
    return seen[-1]


async def hangs_up_in_the_end(peer: Peer) -> None:
    await peer.accept()
    await peer.ended()


# A namespace


def at(namespace: RunningNamespace, way: Way) -> tuple[Endpoint, dict[str, Any]]:
    return Endpoint("localhost", namespace.port, way.certificate is not None), {"ca_file": namespace.ca_file}


def test_a9_amqp_works_over_web_socket(way: Way, contoso: RunningNamespace) -> None:
    async def scene() -> None:
        endpoint, settings = at(contoso, way)
        speaker = Speaker(endpoint.host)
        transport = await way.connect(speaker, endpoint, **settings)
        assert transport is speaker.transport
        await speaker.until_event(ConnectionOpened)
        speaker.engine.close()
        speaker.flush()
        await speaker.until_event(ConnectionClosed)
        transport.close()
        assert await speaker.lost() is None

    assert way.run(scene) == []


def test_a9_large_write_is_accepted_by_namespace(way: Way, contoso: RunningNamespace) -> None:
    async def scene() -> None:
        endpoint, settings = at(contoso, way)
        speaker = Speaker(endpoint.host, plain("RootManageSharedAccessKey", contoso.key))
        transport = await way.connect(speaker, endpoint, **settings)
        await speaker.until_event(ConnectionOpened)
        transport.write(HEARTBEAT * 150_000)
        speaker.engine.close()
        speaker.flush()
        await speaker.until_event(ConnectionClosed)
        transport.abort()
        assert await speaker.lost() is None

    assert way.run(scene) == []


def test_stopping_namespace_closes_web_socket(way: Way) -> None:
    async def scene() -> None:
        with running_namespace() as namespace:
            endpoint, settings = at(namespace, way)
            speaker = Speaker(endpoint.host)
            await way.connect(speaker, endpoint, **settings)
            await speaker.until_event(ConnectionOpened)
            await asyncio.to_thread(namespace.stop)
            await speaker.until_event(ConnectionClosed)
            await speaker.lost()
            await asyncio.to_thread(namespace.start)

    assert way.run(scene) == []


def test_cut_connection_is_lost(way: Way, contoso: RunningNamespace) -> None:
    async def scene() -> None:
        endpoint, settings = at(contoso, way)
        speaker = Speaker(endpoint.host)
        await way.connect(speaker, endpoint, **settings)
        await speaker.until_event(ConnectionOpened)
        await asyncio.to_thread(contoso.kill_connections)
        assert isinstance(await speaker.lost(), OSError)

    assert way.run(scene) == []


def test_unsigned_certificate_is_not_trusted(way: Way, contoso: RunningNamespace) -> None:
    async def scene() -> None:
        recorder = Recorder()
        with pytest.raises(ssl.SSLCertVerificationError):
            await way.connect(recorder, Endpoint("localhost", contoso.port), ca_file=None)
        assert recorder.calls == []

    assert way.run(scene) == []


# Opening


def test_request_names_path_host_and_subprotocol(way: Way) -> None:
    requests: list[str] = []

    async def talk(peer: Peer) -> None:
        requests.append(await peer.request())

    async def scene() -> None:
        async with way.peer(talk) as endpoint:
            with pytest.raises(ConnectionError, match="did not open: connection closed"):
                await way.connect(Recorder(), endpoint)
        head, *lines = requests[0].split("\r\n")
        assert head == "GET /$servicebus/websocket HTTP/1.1"
        assert f"Sec-WebSocket-Protocol: {SUBPROTOCOL}" in lines
        assert f"Host: 127.0.0.1:{endpoint.port}" in lines

    assert way.run(scene) == []


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone", "refused the WebSocket with HTTP 404$"),
        (b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "refused the WebSocket with HTTP 503$"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "refused the WebSocket with HTTP 200$"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "not a namespace with a WebSocket: missing Connection header"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "not a namespace with a WebSocket: .*invalid HTTP status line"),
        (b"\0" * 100_000, "not a namespace with a WebSocket: "),
    ],
    ids=["404", "503", "200", "half", "ssh", "zeros"],
)
def test_response_that_is_not_a_web_socket_raises(way: Way, answer: bytes, text: str) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        peer.write(answer)
        await peer.ended()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            with pytest.raises(ConnectionError, match=text):
                await way.connect(recorder, endpoint)
        assert recorder.calls == []

    assert way.run(scene) == []


@pytest.mark.parametrize("subprotocol", [None, "mqtt"])
def test_web_socket_with_other_subprotocol_raises(way: Way, subprotocol: str | None) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(subprotocol, more=frame(BINARY, b"something else"))
        await peer.ended()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            with pytest.raises(ConnectionError, match=r"not a namespace.*: .*(mqtt|AMQPWSB10)$"):
                await way.connect(recorder, endpoint)
        assert recorder.calls == []

    assert way.run(scene) == []


def test_disconnect_instead_of_response_raises(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.request()
        peer.cut()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            with pytest.raises(ConnectionError, match="WebSocket"):
                await way.connect(recorder, endpoint)
        assert recorder.calls == []

    assert way.run(scene) == []


def test_refused_port_raises(way: Way) -> None:
    async def scene() -> None:
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            with pytest.raises(ConnectionRefusedError):
                await way.connect(
                    Recorder(), Endpoint("127.0.0.1", bound.getsockname()[1], way.certificate is not None)
                )

    assert way.run(scene) == []


def test_cancelled_handshake_closes_connection(way: Way) -> None:
    async def scene() -> None:
        asked, ended = asyncio.Event(), asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.request()
            asked.set()
            await peer.ended()
            ended.set()

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            task = asyncio.create_task(way.connect(recorder, endpoint))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()
        assert recorder.calls == []

    assert way.run(scene) == []


def test_cancelled_wait_for_silent_peer_closes_connection(way: Way) -> None:
    async def scene() -> None:
        came, ended = asyncio.Event(), asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.reader.readexactly(1)
            came.set()
            await peer.ended()
            ended.set()

        recorder = Recorder()
        deaf = Way(new_loop=way.new_loop, certificate=None)
        async with deaf.peer(talk) as endpoint:
            there = Endpoint(endpoint.host, endpoint.port, way.certificate is not None)
            task = asyncio.create_task(way.connect(recorder, there))
            await came.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await ended.wait()
        assert recorder.calls == []

    assert way.run(scene) == []


def test_cancellation_at_open_loses_connection(way: Way) -> None:
    async def scene() -> None:
        class Canceller(Recorder):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                task.cancel()

        canceller = Canceller()
        async with way.peer(hangs_up_in_the_end) as endpoint:
            task = asyncio.create_task(way.connect(canceller, endpoint))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await canceller.lost() is None

    assert way.run(scene) == []


def test_protocol_that_raises_on_connection_made_loses_connection(way: Way) -> None:
    class Failing(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            raise ArithmeticError

    async def scene() -> None:
        failing = Failing()
        async with way.peer(hangs_up_in_the_end) as endpoint:
            with pytest.raises(ConnectionResetError) as caught:
                await way.connect(failing, endpoint)
            assert isinstance(caught.value.__cause__, ArithmeticError)
            assert isinstance(await failing.lost(), ArithmeticError)

    assert [type(trouble) for trouble in way.run(scene)] == [ArithmeticError]


# Receiving


def test_data_with_handshake_response_is_received(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(more=frame(BINARY, b"at ") + frame(BINARY, b"once"))
        await peer.ended()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            await recorder.until(lambda: recorder.data == b"at once")
            transport.abort()
            await recorder.lost()

    assert way.run(scene) == []


def test_fragments_are_received(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        peer.send(BINARY, b"first", fin=False)
        assert await peer.receive() == (BINARY, b"first")
        peer.send(CONT, b"", fin=False)
        peer.send(PING, b"in between")
        assert await peer.receive() == (PONG, b"in between")
        peer.send(CONT, b"second", fin=False)
        assert await peer.receive() == (BINARY, b"second")
        peer.send(CONT, b"third")
        assert await peer.receive() == (BINARY, b"third")

    class Echo(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            assert self.transport is not None
            self.transport.write(data)

    async def scene() -> None:
        echo = Echo()
        async with way.peer(talk) as endpoint:
            await way.connect(echo, endpoint)
            await echo.lost()

    assert way.run(scene) == []


def test_frame_sent_byte_by_byte_is_received(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        for octet in frame(BINARY, bytes(range(200))):
            peer.write(bytes((octet,)))
            await asyncio.sleep(0)
        await peer.ended()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            await recorder.until(lambda: recorder.data == bytes(range(200)))
            transport.abort()
            await recorder.lost()

    assert way.run(scene) == []


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (frame(TEXT, b"hello"), 1003, "text"),
        (frame(TEXT, b"hel", fin=False) + frame(CONT, b"lo"), 1003, "text"),
        (b"\x82\x81mask\x00", 1002, "masking"),
        (b"\x87\x00", 1002, "opcode"),
        (frame(CONT, b"of what?"), 1002, "continuation"),
        (b"\x82\x7f" + (1 << 40).to_bytes(8, "big"), 1009, "1099511627776"),
    ],
    ids=["text", "fragmented text", "masked", "opcode", "continuation", "huge"],
)
def test_invalid_frames_end_connection_with_reason(way: Way, sent: bytes, code: int, text: str) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(more=frame(BINARY, b"before") + sent)
        opcode, data = await peer.receive()
        assert (opcode, data[:2]) == (CLOSE, close_data(code))
        await peer.ended()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            await way.connect(recorder, endpoint)
            with pytest.raises(ConnectionError, match=text):
                raise await recorder.lost() or AssertionError
        assert recorder.data == b"before"
        assert recorder.calls == ["made", "lost"]

    assert way.run(scene) == []


def test_protocol_that_raises_loses_connection(way: Way) -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ArithmeticError(data)

    async def talk(peer: Peer) -> None:
        await peer.accept()
        peer.send(BINARY, b"0")
        await peer.ended()

    async def scene() -> None:
        failing = Failing()
        async with way.peer(talk) as endpoint:
            await way.connect(failing, endpoint)
            assert isinstance(await failing.lost(), ArithmeticError)

    assert [type(trouble) for trouble in way.run(scene)] == [ArithmeticError]


# Not receiving


class Pausing(Recorder):
    """Pauses after every piece."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        assert self.transport is not None
        assert self.transport.is_reading()
        self.transport.pause_reading()
        assert not self.transport.is_reading()


async def three_at_once(peer: Peer) -> None:
    await peer.accept(more=frame(BINARY, b"1") + frame(BINARY, b"2") + frame(BINARY, b"3") + frame(CLOSE))
    await peer.ended()


def test_pausing_protocol_receives_frames_one_by_one(way: Way) -> None:
    async def scene() -> None:
        pausing = Pausing()
        async with way.peer(three_at_once) as endpoint:
            transport = await way.connect(pausing, endpoint)
            for received in (b"1", b"12", b"123"):
                await pausing.until(lambda: len(pausing.data) == len(received))  # noqa: B023 (awaited here)
                await turns()
                assert bytes(pausing.data) == received
                assert pausing.calls == ["made"]
                transport.resume_reading()
            assert await pausing.lost() is None
        assert pausing.calls == ["made", "eof", "lost"]

    assert way.run(scene) == []


@pytest.mark.parametrize("end", ["close", "abort"])
def test_paused_protocol_can_end_connection(way: Way, end: str) -> None:
    async def scene() -> None:
        pausing = Pausing()
        async with way.peer(three_at_once) as endpoint:
            transport = await way.connect(pausing, endpoint)
            await pausing.until(lambda: pausing.data)
            getattr(transport, end)()
            assert await pausing.lost() is None
        assert pausing.data == b"1"
        assert pausing.calls == ["made", "lost"]

    assert way.run(scene) == []


def test_paused_protocol_completes_close(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(more=frame(BINARY, b"1") + frame(BINARY, b"2"))
        assert await peer.receive() == (CLOSE, close_data(1000))
        peer.send(CLOSE, close_data(1000))
        assert await peer.reader.read() == b""  # and no reset, which an unread answer would cause

    async def scene() -> None:
        pausing = Pausing()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(pausing, endpoint)
            await pausing.until(lambda: pausing.data)
            transport.close()
            assert await pausing.lost() is None
        assert pausing.data == b"1"
        assert pausing.calls == ["made", "lost"]

    assert way.run(scene) == []


def test_protocol_that_raises_after_pause_loses_connection(way: Way) -> None:
    class Failing(Pausing):
        def data_received(self, data: bytes) -> None:
            if self.data:
                raise ArithmeticError(data)
            super().data_received(data)

    async def scene() -> None:
        failing = Failing()
        async with way.peer(three_at_once) as endpoint:
            transport = await way.connect(failing, endpoint)
            await failing.until(lambda: failing.data)
            await turns()
            transport.resume_reading()
            assert isinstance(await failing.lost(), ArithmeticError)

    assert [type(trouble) for trouble in way.run(scene)] == [ArithmeticError]


def test_paused_reading_applies_backpressure(way: Way) -> None:
    peers: list[Peer] = []

    async def talk(peer: Peer) -> None:
        peers.append(peer)
        await peer.accept()
        await peer.send_pieces()
        await peer.ended()

    class Counter(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.digest = hashlib.sha256()
            self.received_bytes = 0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.data.clear()
            self.digest.update(data)
            self.received_bytes += len(data)

    async def scene() -> None:
        counter = Counter()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(counter, endpoint)
            await counter.until(lambda: counter.received_bytes)
            transport.pause_reading()
            received = counter.received_bytes
            assert await until_still(lambda: peers[0].sent_bytes) < received + BOUND_BYTES
            assert counter.received_bytes == received
            transport.resume_reading()
            await counter.until(lambda: counter.received_bytes == PIECES * len(PIECE))
            assert counter.digest.digest() == hashlib.sha256(PIECE * PIECES).digest()
            transport.abort()
            assert await counter.lost() is None

    assert way.run(scene) == []


# Sending


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 262_144, 262_145, 5_000_000])
def test_writes_of_any_size_are_sent(way: Way, size: int) -> None:
    written = (PIECE * (size // len(PIECE) + 1))[:size]
    came = bytearray()

    async def talk(peer: Peer) -> None:
        await peer.accept()
        while len(came) < size:
            opcode, data = await peer.receive()
            assert opcode == BINARY
            assert data
            came.extend(data)

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            (await way.connect(recorder, endpoint)).write(written)
            await recorder.lost()
        assert came == written

    assert way.run(scene) == []


def test_any_bytes_like_object_can_be_written(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        for expected in (b"bytes", b"bytearray", b"memoryview", b"\1\0\2\0", b"lines"):
            assert await peer.receive() == (BINARY, expected)

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            transport.write(b"")
            transport.write(b"bytes")
            transport.write(bytearray(b"bytearray"))
            transport.write(memoryview(b"memoryview"))
            transport.write(memoryview(b"\1\0\2\0").cast("H"))
            transport.writelines([b"li", b"nes"])
            await recorder.lost()

    assert way.run(scene) == []


def test_protocol_is_paused_and_resumed_by_backpressure(way: Way) -> None:
    async def scene() -> None:
        may_read = asyncio.Event()
        came = hashlib.sha256()

        async def talk(peer: Peer) -> None:
            await peer.accept()
            await may_read.wait()
            left = len(PIECE) * PIECES
            while left:
                _, data = await peer.receive()
                came.update(data)
                left -= len(data)

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            written = 0
            while written < PIECES:
                if not recorder.may_write.is_set():
                    may_read.set()
                    await recorder.may_write.wait()
                transport.write(PIECE)
                written += 1
                assert transport.get_write_buffer_size() < BOUND_BYTES
                await asyncio.sleep(0)
            assert may_read.is_set(), "it was never paused"
            await recorder.lost()
        assert came.digest() == hashlib.sha256(PIECE * PIECES).digest()

    assert way.run(scene) == []


def test_transport_exposes_underlying_transport(way: Way) -> None:
    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(hangs_up_in_the_end) as endpoint:
            transport = await way.connect(recorder, endpoint)
            assert transport.get_extra_info("peername") == (endpoint.host, endpoint.port)
            assert (transport.get_extra_info("ssl_object") is not None) == endpoint.tls
            transport.set_write_buffer_limits(high=5_000, low=1_000)
            assert transport.get_write_buffer_limits() == (1_000, 5_000)
            assert not transport.can_write_eof()
            assert transport.get_protocol() is recorder
            other = Recorder()
            other.calls = recorder.calls
            transport.set_protocol(other)
            transport.abort()
            await other.lost()

    assert way.run(scene) == []


# Closing


def test_close_flushes_and_waits_for_peer(way: Way) -> None:
    async def scene() -> None:
        may_answer = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.accept()
            assert await peer.receive() == (BINARY, b"last words")
            assert await peer.receive() == (CLOSE, close_data(1000))
            await may_answer.wait()
            peer.send(BINARY, b"too late")
            peer.send(CLOSE, close_data(1000))
            assert await peer.ended() == b""

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            transport.write(b"last words")
            transport.close()
            assert transport.is_closing()
            transport.write(b"and one more")
            transport.close()
            await turns()
            assert recorder.calls == ["made"]
            may_answer.set()
            assert await recorder.lost() is None
            transport.write(b"and one more")
            transport.close()
            transport.abort()
            transport.pause_reading()
            transport.resume_reading()
            await turns()
        assert recorder.data == b""
        assert recorder.calls == ["made", "lost"]

    assert way.run(scene) == []


def test_close_does_not_wait_forever_for_silent_peer(way: Way) -> None:
    async def scene() -> None:
        is_over = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.accept()
            await is_over.wait()

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint, attempt_timeout=SHORT)
            transport.close()
            assert await recorder.lost() is None
            is_over.set()

    assert way.run(scene) == []


def test_close_does_not_wait_forever_for_peer_that_does_not_read(way: Way) -> None:
    async def scene() -> None:
        is_over = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.accept()
            peer.stop_reading()
            await is_over.wait()
            peer.writer.transport.abort()

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint, attempt_timeout=SHORT)
            while recorder.may_write.is_set():
                transport.write(PIECE)
                await asyncio.sleep(0)
            transport.close()
            assert await recorder.lost() is None
            is_over.set()

    assert way.run(scene) == []


@pytest.mark.parametrize("cuts", [False, True], ids=["ends", "cuts"])
def test_disconnect_after_close_completes_it(way: Way, cuts: bool) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        if cuts:
            peer.cut()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            (await way.connect(recorder, endpoint)).close()
            assert await recorder.lost() is None
        assert recorder.calls == ["made", "lost"]

    assert way.run(scene) == []


def test_abort_disconnects_without_close_frame(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        assert await peer.ended() == b""

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            transport.abort()
            assert transport.is_closing()
            assert await recorder.lost() is None
        assert recorder.calls == ["made", "lost"]

    assert way.run(scene) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", None),
        (close_data(1000, "done"), None),
        (close_data(1001), None),
        (close_data(1011, "out of order"), "closed the WebSocket: 1011 .*out of order"),
    ],
    ids=["no code", "done", "going", "trouble"],
)
def test_close_by_peer_is_answered_and_reported(way: Way, data: bytes, text: str | None) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(more=frame(BINARY, b"before") + frame(CLOSE, data) + frame(BINARY, b"after"))
        assert await peer.receive() == (CLOSE, data)
        assert await peer.ended() == b""

    class Closing(Recorder):
        def eof_received(self) -> None:
            super().eof_received()
            assert self.transport is not None
            self.transport.write(b"too late")
            self.transport.close()

    async def scene() -> None:
        closing = Closing()
        async with way.peer(talk) as endpoint:
            await way.connect(closing, endpoint)
            error = await closing.lost()
        assert closing.data == b"before"
        assert closing.calls == ["made", "eof", "lost"]
        if text is None:
            assert error is None
        else:
            with pytest.raises(ConnectionError, match=text):
                raise error or AssertionError

    assert way.run(scene) == []


def test_close_by_peer_without_disconnect_is_reported(way: Way) -> None:
    async def scene() -> None:
        is_over = asyncio.Event()

        async def talk(peer: Peer) -> None:
            await peer.accept()
            peer.stop_reading()
            peer.send(CLOSE)
            await is_over.wait()
            peer.writer.transport.abort()

        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            await way.connect(recorder, endpoint, attempt_timeout=SHORT)
            assert await recorder.lost() is None
            is_over.set()
        assert recorder.calls == ["made", "eof", "lost"]

    assert way.run(scene) == []


@pytest.mark.parametrize("rest", [b"", frame(BINARY, b"the rest of this never comes")[:9]], ids=["whole", "within"])
def test_disconnect_without_close_frame_is_reported_as_error(way: Way, rest: bytes) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept(more=frame(BINARY, b"whole") + rest)

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            await way.connect(recorder, endpoint)
            with pytest.raises(ConnectionResetError, match="closed the connection without closing"):
                raise await recorder.lost() or AssertionError
        assert recorder.data == b"whole"
        assert recorder.calls == ["made", "eof", "lost"]

    assert way.run(scene) == []


def test_reset_by_peer_is_reported_as_error(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        assert await peer.receive() == (BINARY, b"ready")
        peer.cut()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            (await way.connect(recorder, endpoint)).write(b"ready")
            assert isinstance(await recorder.lost(), OSError)
        assert recorder.calls[-1] == "lost"

    assert way.run(scene) == []


def test_reset_during_large_write_is_reported_as_error(way: Way) -> None:
    async def talk(peer: Peer) -> None:
        await peer.accept()
        await peer.receive()
        peer.cut()

    async def scene() -> None:
        recorder = Recorder()
        async with way.peer(talk) as endpoint:
            transport = await way.connect(recorder, endpoint)
            while "lost" not in recorder.calls:
                transport.write(PIECE)
                await asyncio.sleep(0)
                if not recorder.may_write.is_set():
                    await recorder.lost()
            assert isinstance(await recorder.lost(), OSError)

    assert way.run(scene) == []
