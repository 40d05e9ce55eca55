"""Hostile peers, each in a process of its own: what they send, as fast as the server takes it.

Run as ``python -m benchmarks.hostile_peers KIND CONNECTION_STRING`` it is such a peer until its standard input ends,
and says how many times it did what it does.
"""

from __future__ import annotations

import json
import os
import select
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache, partial
from itertools import chain, count, cycle, repeat
from threading import Thread
from typing import Final

from benchmarks.server import token_for
from pairbus.dialect.connection_string import ConnectionString, parse_connection_string
from pairbus.dialect.sas import make_sas_token
from pairbus.dialect.sent import BATCH_FORMAT, MAX_BATCH_MESSAGES, join_batch
from pairbus.wire import (
    PLAIN,
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Message,
    Open,
    Properties,
    Source,
    Symbol,
    Target,
    encode_message,
    plain,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import Detach, End, SaslInit, Transfer
from tests.server.test_hostile_peers import (
    BEGUN,
    CBS,
    HEARTBEAT,
    HOSTILE,
    OPENED,
    PHASES,
    WEB_SOCKET,
    Phase,
    request,
    transfer,
    web_socket_frame,
)
from tests.wire.pair import frame

HOSTILE_QUEUE: Final = "flooded"
TOPIC: Final = "ruled"
SUBSCRIPTION: Final = "all"
RULES: Final = 2_000
PROPERTY: Final = "text"

_FROM: Final = "127.0.0.2"
"""Another address than the sender's, so that limits by address do not apply to both."""
_CROWD: Final = 100
_KEPT: Final = 64
"""Number of connections that are kept open after their data was sent; then the oldest is closed."""
_TOKENS: Final = 9_000
_PART_BYTES: Final = 60_000
_READ_BYTES: Final = 256 * 1024
_WAIT_S: Final = 1.0
_RESET: Final = struct.pack("ii", 1, 0)
_BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)

Attack = Callable[[ConnectionString], Iterator[None]]
"""Attacks for as long as it is iterated over; each step is one attempt."""

Chunks = Callable[[ConnectionString], Iterator[bytes]]
"""Returns the data to send on one connection, one chunk for each attempt."""


# How it is sent


def _connect(address: ConnectionString) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", address.port), _WAIT_S, (_FROM, 0))
    # Closed with a reset: otherwise the attack ends when its address has no ports left.
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    return stream


def flood(opening: Chunks, chunks: Chunks, connections: int = 1, *, waits: bool = False) -> Attack:
    """Send on so many connections without waiting for answers, read these, and connect anew when one is closed.

    With ``waits`` the first chunk is sent alone, and the rest after the answer to it.
    """

    def attack(address: ConnectionString) -> Iterator[None]:
        streams: dict[socket.socket, _Stream] = {}
        while True:
            while len(streams) < connections:
                stream = _connect(address)
                stream.setblocking(False)
                streams[stream] = _Stream(chain(opening(address), chunks(address)), waits=waits)
            ready = [stream for stream, its in streams.items() if its.may_send]
            readable, writable, _ = select.select(streams, ready, [], _WAIT_S)
            closed = {stream for stream in readable if not streams[stream].read(stream)}
            for stream in writable:
                try:
                    if streams[stream].send(stream):
                        yield
                except OSError:
                    closed.add(stream)
            for stream in closed:
                stream.close()
                del streams[stream]

    return attack


class _Stream:
    """The data that one connection has not sent yet."""

    def __init__(self, chunks: Iterator[bytes], *, waits: bool) -> None:
        self.may_send = True
        self._chunks = chunks
        self._unsent = memoryview(b"")
        self._waits = waits

    def send(self, stream: socket.socket) -> bool:
        """Send a part; return whether that was the end of a chunk."""
        if not self._unsent:
            self._unsent = memoryview(next(self._chunks))
        self._unsent = self._unsent[stream.send(self._unsent) :]
        if self._waits and not self._unsent:
            self.may_send = self._waits = False
        return not self._unsent

    def read(self, stream: socket.socket) -> bool:
        """Read, and forget it; return whether the connection goes on."""
        self.may_send = True
        try:
            return bool(stream.recv(_READ_BYTES))
        except BlockingIOError:
            return True
        except OSError:
            return False


def connections(said: Chunks) -> Attack:
    """Connect, say one thing and connect again; the connections are closed a little later, without a word."""

    def attack(address: ConnectionString) -> Iterator[None]:
        opened: deque[socket.socket] = deque()
        words = said(address)
        while True:
            stream = _connect(address)
            opened.append(stream)
            with suppress(OSError):  # the server may have closed it
                stream.sendall(next(words))
            if len(opened) > _KEPT:
                opened.popleft().close()
            yield

    return attack


def _disconnect_at_once(address: ConnectionString) -> Iterator[None]:
    while True:
        _connect(address).close()
        yield


def _shake_hands(address: ConnectionString) -> Iterator[None]:
    """Do whole TLS handshakes, none of which resumes an earlier one."""
    while True:
        context = _stranger_context()
        with closing(_connect(address)) as stream, context.wrap_socket(stream, server_hostname="localhost"):
            yield


def _stranger_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@cache
def _hello() -> bytes:
    """The first flight of a TLS handshake, which may be sent again and again without any work."""
    said = ssl.MemoryBIO()
    client = _stranger_context().wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return said.read()


def always(data: bytes) -> Chunks:
    """The same, over and over."""
    return lambda _address: repeat(data)


def once(data: bytes) -> Chunks:
    return lambda _address: iter((data,))


# Unproven peers


def _numbered(payload: bytes) -> Chunks:
    return lambda _address: (transfer(payload, number) for number in count())


def _oversized(_address: ConnectionString) -> Iterator[bytes]:
    for number in count():
        yield b"".join(transfer(bytes(60_000), number, more=part < 9) for part in range(10))


def _attach_and_detach(_address: ConnectionString) -> Iterator[bytes]:
    detach = frame(Detach(handle=0, closed=True))
    for number in count():
        attach = Attach(name=f"l{number}", handle=0, role=SENDER, source=Source(), target=Target(address="orders"))
        yield frame(attach) + detach


def _http(method: str, path: str, body: bytes = b"", *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


_GET: Final = _http("GET", "/")
_PAGE: Final = _http("GET", "/console/login", b"", "Accept: text/html")
_LOGIN: Final = _http(
    "POST", "/console/login", b"key_name=Root&key=guess", "Content-Type: application/x-www-form-urlencoded"
)
_UNAUTHORIZED: Final = _http("GET", "/orders?api-version=2021-05")
_METRICS: Final = _http("GET", "/metrics")
_HEALTH: Final = _http("GET", "/health")
_BOMB: Final = _http(
    "PUT",
    "/orders?api-version=2021-05",
    b'<?xml version="1.0"?><!DOCTYPE b [<!ENTITY a0 "ha">'
    + b"".join(b'<!ENTITY a%d "%b">' % (number + 1, b"&a%d;" % number * 10) for number in range(12))
    + b"]><entry>&a12;</entry>",
)
_UPGRADE: Final = HOSTILE["a WebSocket without a word"]()


def _guess(number: int) -> bytes:
    return _sasl_plain(f"key-{number}", "a guess")


def _sasl_plain(name: str, key: str) -> bytes:
    said = plain(name, key).initial_response
    return SASL_HEADER + frame(SaslInit(mechanism=Symbol(PLAIN), initial_response=said), kind=SASL_FRAME)


def _wrong_tokens(_address: ConnectionString) -> Iterator[bytes]:
    for number in count():
        token = make_sas_token("sb://localhost/orders", f"key-{number}", "a guess", int(time.time()) + 3_600)
        yield transfer(request(token), number)


def _websocket_frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Binary messages, masked with zeros as a client may."""
    for data in chunks:
        yield struct.pack(">BBQI", 0x82, 0xFF, len(data), 0) + data


def _lists_by_websocket(address: ConnectionString) -> Iterator[bytes]:
    return _websocket_frames(chain((BEGUN + CBS,), _numbered(_LISTS)(address)))


def _bytes_by_websocket(_address: ConnectionString) -> Iterator[bytes]:
    for data in chain((OPENED,), repeat(HEARTBEAT * 16)):
        yield b"".join(web_socket_frame(bytes((octet,))) for octet in data)


def _hostile(kind: str) -> Chunks:
    """Return the input of a kind of the tests, which is computed once."""

    def chunks(_address: ConnectionString) -> Iterator[bytes]:
        return repeat(HOSTILE[kind]())

    return chunks


def trickle(phase: Phase) -> Attack:
    """Send a byte at a time on many connections, and connect anew when one is closed."""

    def attack(address: ConnectionString) -> Iterator[None]:
        streams: dict[socket.socket, Iterator[bytes]] = {}
        while True:
            while len(streams) < _CROWD:
                stream = _connect(address)
                stream.sendall(phase.before)
                if phase.before == WEB_SOCKET:
                    stream.recv(_READ_BYTES)
                stream.setblocking(False)
                streams[stream] = cycle(phase.pieces)
            for stream, pieces in [*streams.items()]:
                try:
                    stream.send(next(pieces))
                    yield
                except BlockingIOError:
                    continue
                except OSError:
                    stream.close()
                    del streams[stream]

    return attack


_ALSO: Final = (
    "maps whose keys have the same hash",
    "requests with many properties",
    "many headers",
    "many parameters",
    "many fields",
    "compressed forms",
    "deep JSON",
    "deep JSON in a token",
)
"""Kinds of the tests that send something once on each connection."""

_SLOW: Final = (
    "SASL",
    "frames after the open",
    "the head of a request",
    "the body of a form",
    "a frame of a WebSocket",
    "AMQP in a WebSocket",
)
"""Phases of the tests in which a peer takes its time."""

_LISTS: Final = request([[]] * 20_000)
_PINGS: Final = web_socket_frame(b"", opcode=9) * 100
_NOISE: Final = bytes(range(256)) * 200

UNPROVEN: Final[dict[str, Attack]] = {
    "requests of empty lists to $cbs": flood(once(BEGUN + CBS), _numbered(_LISTS)),
    f"the same on {_CROWD} connections": flood(once(BEGUN + CBS), _numbered(_LISTS), _CROWD),
    "the same over a WebSocket": flood(once(_UPGRADE), _lists_by_websocket, waits=True),
    "oversized token requests": flood(once(BEGUN + CBS), _oversized),
    "unfinished token requests": flood(once(BEGUN + CBS), always(transfer(bytes(60_000), more=True))),
    "tokens with a wrong signature": flood(once(BEGUN + CBS), _wrong_tokens),
    "links attached and detached": flood(once(BEGUN), _attach_and_detach),
    "more links than allowed": connections(always(HOSTILE["many links"]())),
    "attaches of empty lists": connections(always(HOSTILE["attaches of empty lists"]())),
    "sessions begun and ended": flood(once(OPENED), always(frame(_BEGIN) + frame(End()))),
    "more sessions than allowed": connections(always(HOSTILE["many sessions"]())),
    "heartbeats": flood(once(OPENED), always(HEARTBEAT * 100)),
    "connect and disconnect": _disconnect_at_once,
    "connect, open AMQP, disconnect": connections(always(OPENED)),
    "TLS handshakes": _shake_hands,
    "TLS hellos without the rest": connections(lambda _address: repeat(_hello())),
    "GET / on one connection": flood(once(_GET), always(_GET)),
    "GET /health on one connection": flood(once(_HEALTH), always(_HEALTH * 16)),
    "GET / on new connections": connections(always(_GET)),
    f"GET /console/login on {_CROWD} connections": flood(once(_PAGE), always(_PAGE), _CROWD),
    "POST /console/login with a wrong key": connections(always(_LOGIN)),
    "a form in chunks of one byte": flood(once(HOSTILE["chunks of one byte"]()), always(b"1\r\na\r\n" * 4_000)),
    "GET /metrics without a key": flood(once(_METRICS), always(_METRICS)),
    "management requests without a key": flood(once(_UNAUTHORIZED), always(_UNAUTHORIZED)),
    "XML bombs without a key": flood(once(_BOMB), always(_BOMB)),
    "WebSocket upgrades": connections(always(_UPGRADE)),
    "pings over a WebSocket": flood(once(_UPGRADE), always(_PINGS), waits=True),
    "frames of one byte over a WebSocket": flood(once(_UPGRADE), _bytes_by_websocket, waits=True),
    "wrong keys by SASL PLAIN": connections(lambda _address: map(_guess, count())),
    "noise": connections(always(_NOISE)),
    **{f"{kind}, on new connections": connections(_hostile(kind)) for kind in _ALSO},
    **{f"{name}, a byte at a time, on {_CROWD} connections": trickle(PHASES[name]) for name in _SLOW},
}
"""Peers without a key."""


# What clients send that have a key


def _opened(target: str, address: ConnectionString) -> Iterator[bytes]:
    """Show the key, and attach a link to the target and one for answers."""
    assert address.key_name is not None
    assert address.key is not None
    yield (
        _sasl_plain(address.key_name, address.key)
        + AMQP_HEADER
        + frame(Open(container_id="client", max_frame_size=65_536))
        + frame(Begin(next_outgoing_id=0, incoming_window=2**31 - 1, outgoing_window=2**31 - 1))
        + frame(Attach(name="t", handle=0, role=SENDER, source=Source(address="x"), target=Target(address=target)))
    )
    if "$" in target:
        yield frame(
            Attach(name="r", handle=1, role=RECEIVER, source=Source(address=target), target=Target(address="x"))
        )


def _delivery(payload: bytes, number: int, message_format: int = 0) -> bytes:
    """A message in as many frames as it takes."""
    parts = [payload[start : start + _PART_BYTES] for start in range(0, len(payload), _PART_BYTES)]
    return b"".join(
        frame(
            Transfer(
                handle=0,
                delivery_id=number,
                delivery_tag=b"%d" % number,
                message_format=message_format,
                more=index < len(parts) - 1,
            ),
            payload=part,
        )
        for index, part in enumerate(parts)
    )


def _deliveries(payload: Callable[[], bytes], message_format: int = 0) -> Chunks:
    def chunks(_address: ConnectionString) -> Iterator[bytes]:
        encoded = payload()
        return (_delivery(encoded, number, message_format) for number in count())

    return chunks


def _tokens(address: ConnectionString) -> Iterator[bytes]:
    """Tokens for more paths than any application has, and then for all of them again."""
    paths = [f"queue-{number}" for number in range(_TOKENS)]
    payloads = [request(token_for(address, path)) for path in paths]
    for number, payload in enumerate(cycle(payloads)):
        yield transfer(payload, number)


def _large_request() -> bytes:
    words = {"operation": "com.microsoft:peek-message"}
    return encode_message(
        Message(
            properties=Properties(message_id="1", reply_to="x"),
            application_properties=words,
            body=([[]] * 60_000,),
            body_kind=0x77,
        )
    )


def _long_text() -> bytes:
    return encode_message(Message(application_properties={PROPERTY: "a" * 60_000}, body=(b"",)))


def _batch(message: bytes, size_bytes: int = 250_000) -> bytes:
    return join_batch([message] * min(size_bytes // (len(message) + 8), MAX_BATCH_MESSAGES))


_SMALL: Final = encode_message(Message(properties=Properties(message_id="0123456789abcdef" * 2), body=(b"x",)))
_SMALLEST: Final = encode_message(Message(body=(b"",)))

CLIENTS: Final[dict[str, Attack]] = {
    "requests of 60,000 values": flood(partial(_opened, "orders/$management"), _deliveries(_large_request)),
    f"{_TOKENS:,} tokens on one connection": flood(partial(_opened, "$cbs"), _tokens),
    f"messages of 60 KB through {RULES:,} rules with LIKE": flood(partial(_opened, TOPIC), _deliveries(_long_text)),
    "the same in batches of 250 KB": flood(
        partial(_opened, TOPIC), _deliveries(lambda: _batch(_long_text()), BATCH_FORMAT)
    ),
    f"full batches of small messages through {RULES:,} rules": flood(
        partial(_opened, TOPIC), _deliveries(lambda: _batch(_SMALL), BATCH_FORMAT)
    ),
    f"batches of 80 small messages through {RULES:,} rules": flood(
        partial(_opened, TOPIC), _deliveries(lambda: join_batch([_SMALL] * 80), BATCH_FORMAT)
    ),
    "full batches of messages of one byte": flood(
        partial(_opened, HOSTILE_QUEUE), _deliveries(lambda: _batch(_SMALL), BATCH_FORMAT)
    ),
    "full batches of messages without anything": flood(
        partial(_opened, HOSTILE_QUEUE), _deliveries(lambda: _batch(_SMALLEST), BATCH_FORMAT)
    ),
}
"""Clients that take more than their share."""

KINDS: Final = {**UNPROVEN, **CLIENTS}


# The process


def _attack(kind: str, address: ConnectionString) -> None:
    attempts = 0
    start = time.perf_counter()

    def leave() -> None:
        sys.stdin.read()
        print(json.dumps(attempts / (time.perf_counter() - start)), flush=True)
        os._exit(0)

    Thread(target=leave, daemon=True).start()
    print("ready", flush=True)
    while True:
        with suppress(OSError):  # refused, reset or too slow: that is what the server is there for
            for _ in KINDS[kind](address):
                attempts += 1


if __name__ == "__main__":
    _attack(sys.argv[1], parse_connection_string(sys.argv[2]))
