"""E3: whatever hostile peers send to the port, honest clients notice nothing, and nothing of it stays behind."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

import pytest

from pairbus.broker import Address, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dialect.management import Operation
from pairbus.dialect.sas import make_sas_token
from pairbus.dialect.sent import BATCH_FORMAT, join_batch
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.http.protocol import HttpProtocol
from pairbus.server.listener import ProtocolSniffer
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RELEASED,
    Declare,
    Int,
    Link,
    Message,
    Modified,
    Rejected,
    decode_message,
    encode_message,
)
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, body_of, connect, failures, messages_in, text_message
from tests.waiting import eventually

MOST_MEMORY_BYTES: Final = 24 * 1024 * 1024
"""Allowed growth of the process memory after all peers, compared with the first few of each kind."""

LATEST_ANSWER_S: Final = 5.0
"""Longest response time of the honest client, whatever the others do."""


# The honest client.


class Citizen:
    """Sends messages, receives them, settles them, and checks each: none lost, none twice, all in order."""

    def __init__(self, namespace: RunningNamespace, *, ca_file: Path | None = None) -> None:
        self._namespace = namespace
        self._ca_file = ca_file
        self._is_over = threading.Event()
        self.count = 0
        self.longest_s = 0.0

    def live(self) -> None:
        with connect(self._namespace, ca_file=self._ca_file) as client:
            name = "citizen" if self._ca_file is None else "citizen-tls"
            sender, receiver = client.sender(name), client.receiver(name)
            node = client.requests(f"{name}/$management")
            while not self._is_over.is_set():
                started = time.monotonic()
                self._exchange(client, sender, receiver)
                if self.count % 50 == 0:
                    assert node.call(Operation.PEEK_MESSAGE).status == 204
                self.longest_s = max(self.longest_s, time.monotonic() - started)
                client.events.clear()
                client.sent.clear()

    def _exchange(self, client: WireClient, sender: Link, receiver: Link) -> None:
        body = str(self.count)
        assert client.send(sender, text_message(body)) == ACCEPTED
        delivery = client.receive_one(receiver)
        assert body_of(delivery) == body.encode()
        assert decode_message(delivery.payload).header.delivery_count == 0
        assert client.settle(delivery, ACCEPTED) == ACCEPTED
        self.count += 1

    def stop(self) -> None:
        self._is_over.set()


# Recorded conversations.


def frames_of(said: bytes) -> list[bytes]:
    """Split a conversation into headers and frames."""
    frames = []
    position = 0
    while position < len(said):
        is_header = said[position : position + 4] == b"AMQP"
        size = 8 if is_header else int.from_bytes(said[position : position + 4])
        frames.append(said[position : position + size])
        position += size
    return frames


def conversations(namespace: RunningNamespace) -> list[list[bytes]]:
    """Return valid conversations, which the server has answered completely."""
    reported = []
    with connect(namespace) as client:
        sender = client.sender("targets")
        for number in range(3):
            assert client.send(sender, text_message(str(number))) == ACCEPTED
        batch = join_batch([text_message("a"), text_message("b")])
        assert client.send(sender, batch, message_format=BATCH_FORMAT) == ACCEPTED
        receiver = client.receiver("targets", credit=5)
        states = (ACCEPTED, RELEASED, Modified(delivery_failed=True), Rejected(), ACCEPTED)
        for delivery, state in zip(client.receive(receiver, 5), states, strict=False):
            client.settle(delivery, state)
        receiver.flow(3, drain=True)
        client.barrier()
        client.detach(receiver)
        client.engine.close()
        client.flush()
        reported.append(b"".join(client.sent))
    with connect(namespace) as client:
        visits = client.sender("visits")
        assert client.send(visits, text_message("one", group_id="a")) == ACCEPTED
        holding = client.session_receiver("visits", None, credit=1)
        client.receive(holding)
        node = client.requests("visits/$management")
        node.call(Operation.SET_SESSION_STATE, {"session-id": "a", "session-state": b"x"}, link=holding.name)
        node.call(Operation.GET_MESSAGE_SESSIONS, {"skip": Int(0), "top": Int(10)})
        client.begin_session_receiver("visits", None)
        coordinator = client.coordinator()
        client.send(coordinator, encode_message(Message(body=(Declare(),), body_kind=AMQP_VALUE)))
        client.barrier()
        reported.append(b"".join(client.sent))
    with WireClient(namespace.port).open() as client:
        token = sas(namespace)
        assert client.put_token("sb://localhost/targets", token).status == 202
        client.sender("targets")
        rules = client.requests("targets/$management")
        rules.call(Operation.PEEK_MESSAGE, {"from-sequence-number": 0, "message-count": Int(2)})
        rules.call(Operation.ADD_RULE, {"rule-name": "a", "rule-description": {"sql-filter": {"expression": "1=1"}}})
        reported.append(b"".join(client.sent))
    return [frames_of(said) for said in reported]


def sas(namespace: RunningNamespace, path: str = "") -> str:
    expires_s = int(time.time()) + 3_600
    return make_sas_token(f"sb://localhost/{path}", "RootManageSharedAccessKey", namespace.key, expires_s)


# Mutations.


def _drop(chance: Random, frames: list[bytes]) -> None:
    del frames[chance.randrange(len(frames))]


def _double(chance: Random, frames: list[bytes]) -> None:
    frames.insert(chance.randrange(len(frames)), chance.choice(frames))


def _repeat(chance: Random, frames: list[bytes]) -> None:
    position = chance.randrange(len(frames))
    frames[position:position] = [frames[position]] * chance.randint(2, 50)


def _swap(chance: Random, frames: list[bytes]) -> None:
    one, two = chance.randrange(len(frames)), chance.randrange(len(frames))
    frames[one], frames[two] = frames[two], frames[one]


def _shuffle_the_rest(chance: Random, frames: list[bytes]) -> None:
    start = chance.randrange(len(frames))
    rest = frames[start:]
    chance.shuffle(rest)
    frames[start:] = rest


def _change_bytes(chance: Random, frames: list[bytes]) -> None:
    position = chance.randrange(len(frames))
    changed = bytearray(frames[position])
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    frames[position] = bytes(changed)


def _change_body(chance: Random, frames: list[bytes]) -> None:
    """Mutate the body of a frame, and keep the frame itself valid."""
    position = chance.randrange(len(frames))
    changed = bytearray(frames[position])
    if len(changed) > 8:
        changed[chance.randrange(8, len(changed))] = chance.choice((0, 0x40, 0x45, 0xC0, 0xD0, 0xF0, 0xFF))
    frames[position] = bytes(changed)


def _change_channel(chance: Random, frames: list[bytes]) -> None:
    position = chance.randrange(len(frames))
    frame = frames[position]
    frames[position] = frame[:6] + chance.randbytes(2) + frame[8:]


def _change_size(chance: Random, frames: list[bytes]) -> None:
    position = chance.randrange(len(frames))
    size = chance.choice((0, 1, 7, 8, 9, 512, 65_536, 65_537, 2**31, 2**32 - 1))
    frames[position] = size.to_bytes(4) + frames[position][4:]


def _cut(chance: Random, frames: list[bytes]) -> None:
    del frames[chance.randrange(len(frames)) :]


def _insert_garbage(chance: Random, frames: list[bytes]) -> None:
    frames.insert(chance.randrange(len(frames)), chance.randbytes(chance.randint(1, 200)))


def _insert_empty_frames(chance: Random, frames: list[bytes]) -> None:
    frames.insert(chance.randrange(len(frames)), b"\0\0\0\x08\x02\0\0\0" * chance.randint(1, 100))


MUTATIONS: Final = (
    _drop,
    _double,
    _repeat,
    _swap,
    _shuffle_the_rest,
    _change_bytes,
    _change_body,
    _change_channel,
    _change_size,
    _cut,
    _insert_garbage,
    _insert_empty_frames,
)


class FuzzedPeers:
    """Hostile peers of many kinds, each with one connection."""

    def __init__(self, namespace: RunningNamespace, seed: int) -> None:
        self.chance = Random(seed)  # noqa: S311 (a test's own)
        self._seed = seed
        self._count = 0
        self._port = namespace.port
        self._token = sas(namespace)
        self._reported = conversations(namespace)
        self._silent: list[socket.socket] = []
        self._context = ssl.create_default_context(cafile=str(namespace.ca_file))
        self._kinds: Mapping[str, Callable[[], None]] = {
            "random bytes": self._random_bytes,
            "conversation": self._conversation,
            "conversation over tls": self._conversation_over_tls,
            "drip": self._drip,
            "cut off": self._cut_off,
            "tls garbage": self._tls_garbage,
            "half handshake": self._half_handshake,
            "tls and silent": self._tls_and_silent,
            "http garbage": self._http_garbage,
            "http over tls": self._http_over_tls,
            "huge head": self._huge_head,
            "bad chunks": self._bad_chunks,
            "xml": self._xml,
            "token": self._changed_token,
            "upgrade": self._upgrade,
            "frames": self._websocket_frames,
            "silence": self._silence,
            "reset": self._reset,
        }

    @property
    def kinds(self) -> list[str]:
        return [*self._kinds]

    def come(self, kind: str) -> None:
        """Run one peer. Each has its own seed, so that the outcome of one does not change what the next does."""
        self._count += 1
        self.chance = Random(f"{self._seed}, {self._count}")  # noqa: S311 (a test's own)
        self._kinds[kind]()

    def go(self) -> None:
        for stream in self._silent:
            stream.close()
        self._silent.clear()

    # Connections.

    @contextmanager
    def connection(self, *, secure: bool = False) -> Iterator[socket.socket]:
        plain = socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S)
        stream: socket.socket = plain
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secure:
                stream = self._context.wrap_socket(plain, server_hostname="localhost")
            with suppress(ConnectionError, ssl.SSLError):
                yield stream
            self._leave(stream)
        finally:
            stream.close()

    def _leave(self, stream: socket.socket) -> None:
        """Disconnect in one of several ways; most leave nothing to wait for."""
        if self.chance.random() < 0.6:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif not isinstance(stream, ssl.SSLSocket):
            self.read_all(stream)

    @staticmethod
    def read_all(stream: socket.socket) -> bytes:
        """Shut down the sending side, and read until the server closes."""
        said = b""
        with suppress(OSError):  # the server may have closed already
            stream.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while more := stream.recv(1 << 16):
                said += more
        return said

    def _ask(self, request: bytes, *, secure: bool = False) -> bytes:
        """Return the head of the response to a request."""
        said = b""
        with self.connection(secure=secure) as stream, suppress(ConnectionError):
            stream.sendall(request)
            while b"\r\n\r\n" not in said and (more := stream.recv(1 << 16)):
                said += more
        return said

    @staticmethod
    def _status(said: bytes) -> int:
        return int(said.split(b" ", 2)[1]) if said.startswith(b"HTTP/1.1 ") else 0

    # AMQP.

    def _random_bytes(self) -> None:
        chance = self.chance
        start = chance.choice((b"", b"AMQP", b"AMQP\x03\x01\0\0", b"AMQP\0\x01\0\0", b"GET ", b"P", b"\x16\x03"))
        with self.connection() as stream:
            stream.sendall(start + chance.randbytes(chance.choice((1, 10, 100, 10_000))))

    def _mutated(self) -> list[bytes]:
        frames = [*self.chance.choice(self._reported)]
        for _ in range(self.chance.randint(1, 4)):
            if frames:
                self.chance.choice(MUTATIONS)(self.chance, frames)
        return frames

    def _conversation(self) -> None:
        with self.connection() as stream:
            stream.sendall(b"".join(self._mutated()))

    def _conversation_over_tls(self) -> None:
        with self.connection(secure=True) as stream:
            stream.sendall(b"".join(self._mutated()))

    def _drip(self) -> None:
        said = b"".join(self._mutated())[: self.chance.randint(1, 400)]
        with self.connection() as stream:
            for position in range(len(said)):
                stream.sendall(said[position : position + 1])

    def _cut_off(self) -> None:
        said = b"".join(self.chance.choice(self._reported))
        with self.connection() as stream:
            stream.sendall(said[: self.chance.randrange(len(said))])

    # TLS.

    def _tls_garbage(self) -> None:
        chance = self.chance
        size = chance.choice((0, 1, 100, 5_000))
        record = (
            b"\x16\x03" + chance.randbytes(1) + chance.choice((size, 0, 65_535)).to_bytes(2) + chance.randbytes(size)
        )
        with self.connection() as stream:
            stream.sendall(record)

    def _hello(self) -> bytes:
        outgoing = ssl.MemoryBIO()
        talk = self._context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with suppress(ssl.SSLWantReadError):
            talk.do_handshake()
        return outgoing.read()

    def _half_handshake(self) -> None:
        hello = bytearray(self._hello())
        chance = self.chance
        match chance.randrange(3):
            case 0:
                del hello[chance.randrange(1, len(hello)) :]
            case 1:
                hello[chance.randrange(len(hello))] ^= chance.randrange(1, 256)
        with self.connection() as stream:
            stream.sendall(hello)

    def _tls_and_silent(self) -> None:
        with self.connection(secure=True):
            pass

    # HTTP.

    def _requests(self) -> bytes:
        chance = self.chance
        authorization = b"Authorization: " + self._token.encode() + b"\r\n"
        method = chance.choice((b"GET", b"PUT", b"DELETE", b"POST", b"HEAD", b"OPTIONS", b"PATCH", b"TRACE"))
        path = chance.choice(
            (b"/", b"/strange", b"/$Resources/Queues?$skip=x&$top=-1", b"/health", b"/metrics", b"/a/Subscriptions/b")
        )
        body = chance.choice((b"", b"<entry/>", chance.randbytes(50)))
        head = method + b" " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + authorization
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    def _changed(self, request: bytes) -> bytes:
        changed = bytearray(request)
        for _ in range(self.chance.randint(0, 5)):
            changed[self.chance.randrange(4, len(changed))] = self.chance.randrange(256)
        return bytes(changed)

    def _http_garbage(self) -> None:
        with self.connection() as stream:
            stream.sendall(b"".join(self._changed(self._requests()) for _ in range(self.chance.randint(1, 3))))

    def _http_over_tls(self) -> None:
        with self.connection(secure=True) as stream:
            stream.sendall(self._changed(self._requests()))

    def _huge_head(self) -> None:
        chance = self.chance
        line = chance.choice((b"X: " + b"y" * 100_000, b"\r\n".join(b"X-%d: y" % number for number in range(8_000))))
        path = b"/" + b"z" * chance.choice((1, 100_000))
        assert self._status(self._ask(b"GET " + path + b" HTTP/1.1\r\n" + line + b"\r\n\r\n")) in {0, 400, 404, 431}

    def _bad_chunks(self) -> None:
        chance = self.chance
        chunks = chance.choice(
            (
                b"zz\r\nabc\r\n",
                b"-5\r\n",
                b"ffffffffffffffffff\r\nabc",
                b"5\r\nabc",
                b"3\r\nabcdef\r\n0\r\n\r\n",
                b"0;\0\r\n\r\n",
            )
        )
        with self.connection() as stream:
            stream.sendall(self._put(b"/strange") + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)

    def _put(self, path: bytes) -> bytes:
        return (
            b"PUT "
            + path
            + b"?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
            + self._token.encode()
            + b"\r\n"
        )

    def _xml(self) -> None:
        """Check that even a client with all rights cannot overload the server."""
        chance = self.chance
        body = chance.choice(XML_BOMBS)
        path = chance.choice(
            (b"/strange", b"/odd/Subscriptions/a", b"/odd/Subscriptions/a/Rules/b", b"/$AuthorizationRules/a")
        )
        said = self._ask(self._put(path) + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        assert self._status(said) in {0, 400, 404, 413}, said

    def _changed_token(self) -> None:
        """Change one character of the signature."""
        start = self._token.index("sig=") + 4
        letters = [
            position
            for position in range(start, self._token.index("&", start) - 5)
            if self._token[position].isalpha() and self._token[position - 1] != "%" and self._token[position - 2] != "%"
        ]
        position = self.chance.choice(letters)
        other = "x" if self._token[position] != "x" else "y"
        token = (self._token[:position] + other + self._token[position + 1 :]).encode()
        if self.chance.random() < 0.3:
            token = bytes(self.chance.choice((byte, byte ^ 1)) for byte in token)
        said = self._ask(b"GET /$Resources/Queues HTTP/1.1\r\nHost: localhost\r\nAuthorization: " + token + b"\r\n\r\n")
        assert self._status(said) in {400, 401}, said

    # WebSockets.

    def upgrading(self, **changed: str) -> bytes:
        words = {
            "Host": "localhost",
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": base64.b64encode(self.chance.randbytes(16)).decode(),
            "Sec-WebSocket-Protocol": "AMQPWSB10",
            **changed,
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in words.items() if value)
        return f"GET /$servicebus/websocket HTTP/1.1\r\n{head}\r\n".encode()

    def _upgrade(self) -> None:
        chance = self.chance
        changed = chance.choice(
            (
                {"Sec-WebSocket-Version": "7"},
                {"Sec-WebSocket-Key": "short"},
                {"Sec-WebSocket-Key": ""},
                {"Sec-WebSocket-Protocol": "other"},
                {"Sec-WebSocket-Protocol": ""},
                {"Upgrade": "h2c"},
                {"Connection": "close"},
                {"Sec-WebSocket-Extensions": "permessage-deflate; nonsense=\u00ff"},
            )
        )
        request = self.upgrading(**changed)
        with self.connection() as stream:
            stream.sendall(self._changed(request) if chance.random() < 0.5 else request)

    def _websocket_frames(self) -> None:
        chance = self.chance
        said = b"".join(self._mutated())
        frames = [
            chance.choice(
                (
                    websocket_frame(0x1, b"text"),
                    websocket_frame(0x1, b"\xff\xfe"),
                    websocket_frame(0x2, said[:1_000]),
                    websocket_frame(0x2, said[:10], final=False),
                    websocket_frame(0x0, b"continued"),
                    websocket_frame(0x9, b"ping"),
                    websocket_frame(0x9, bytes(126)),
                    websocket_frame(0x8, b"\x03"),
                    websocket_frame(0x8, b"\x03\xe8"),
                    websocket_frame(0x3, b"reserved"),
                    websocket_frame(0x2, b"unmasked", masked=False),
                    b"\x82\xff" + b"\x7f" * 8,
                    b"\x82\xfe\xff",
                    chance.randbytes(20),
                )
            )
            for _ in range(chance.randint(1, 4))
        ]
        with self.connection() as stream:
            stream.sendall(self.upgrading())
            if chance.random() < 0.5:
                stream.recv(1 << 12)
            stream.sendall(b"".join(frames))

    # Silence.

    def _silence(self) -> None:
        if len(self._silent) < 100:
            stream = socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S)
            self._silent.append(stream)
            stream.sendall(self.chance.choice((b"", b"A", b"AMQP\x03\x01\0\0", b"GET / HT", b"\x16", b"PUT")))

    def _reset(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port), timeout=DEADLINE_S) as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def websocket_frame(opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> bytes:
    start = bytes((opcode | (0x80 if final else 0),))
    flag = 0x80 if masked else 0
    size = bytes((flag | len(payload),)) if len(payload) < 126 else bytes((flag | 126,)) + len(payload).to_bytes(2)
    return start + size + (bytes(4) if masked else b"") + payload


def _nested(depth: int) -> bytes:
    return b"<a>" * depth + b"</a>" * depth


XML_BOMBS: Final = (
    b'<!DOCTYPE a [<!ENTITY b "b"><!ENTITY c "' + b"&b;" * 100 + b'"><!ENTITY d "' + b"&c;" * 100 + b'">]><a>&d;</a>',
    b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
    b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    _nested(1_000),
    _nested(100_000),
    b'<entry xmlns="http://www.w3.org/2005/Atom"><content>' + _nested(50_000) + b"</content></entry>",
    b"<a " + b" ".join(b'b%d="c"' % number for number in range(20_000)) + b"/>",
    b"<a" + b">" * 1_000,
    b"\xff\xfe<\x00a\x00/\x00>\x00",
    b"<entry",
    b"",
)


# Leftovers.


def anonymous_memory_bytes() -> int:
    """Return the private memory of the process, without mapped files."""
    gc.collect()
    _, resident, shared, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return (int(resident) - int(shared)) * 4_096


def connections_of(namespace: RunningNamespace) -> int:
    """Return the number of all open connections of the server, of any protocol or none."""
    parts = namespace._running._running
    return len(parts.services.connections) + len(parts._http.connections) + parts._listener.waiting_count


def tasks_of(namespace: RunningNamespace) -> set[str]:
    """Return the tasks on the server's loop, except the current one and the server's own."""

    def names(_host: object) -> set[str]:
        asking, own = asyncio.current_task(), {"pairbus-supervisor", "pairbus-scrubber", "pairbus-index-check"}
        others = [task for task in asyncio.all_tasks() if task is not asking]
        return {str(task.get_coro()) for task in others if task.get_name() not in own}

    return namespace.call(names)


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        served.call(
            lambda host: [
                *(
                    host.use_namespace().create_queue(name, QueueDescription(), host.now_ms())
                    for name in ("citizen", "citizen-tls", "targets")
                ),
                host.use_namespace().create_queue("visits", QueueDescription(requires_session=True), host.now_ms()),
                host.use_namespace().create_topic("odd", TopicDescription(), host.now_ms()),
                host.use_namespace().create_subscription("odd", "a", SubscriptionDescription(), host.now_ms()),
            ]
        )
        yield served


def bother(namespace: RunningNamespace, seed: int, each: int) -> None:
    """Run that many hostile peers of each kind beside honest clients; then check that everything is as before."""
    citizens = [Citizen(namespace), Citizen(namespace, ca_file=namespace.ca_file)]
    peers = FuzzedPeers(namespace, seed)
    with ThreadPoolExecutor(len(citizens)) as pool:
        lives: list[Future[None]] = [pool.submit(citizen.live) for citizen in citizens]
        try:
            for kind in peers.kinds:  # one-time allocations do not count
                for _ in range(2):
                    peers.come(kind)
            before_bytes = anonymous_memory_bytes()
            plan = peers.kinds * each
            peers.chance.shuffle(plan)
            for kind in plan:
                peers.come(kind)
                if any(life.done() for life in lives):
                    break
            peers.go()
            if not any(life.done() for life in lives):
                eventually(lambda: connections_of(namespace) == len(citizens))
                assert sum(namespace._running._running.services.counters.connections.values()) == len(citizens)
                eventually(lambda: not tasks_of(namespace))
                assert anonymous_memory_bytes() - before_bytes < MOST_MEMORY_BYTES
        finally:
            peers.go()
            for citizen in citizens:
                citizen.stop()
        for life in lives:
            life.result()
    for citizen in citizens:
        assert citizen.count >= 10
        assert citizen.longest_s < LATEST_ANSWER_S
    assert messages_in(namespace, Address.of("citizen")) == messages_in(namespace, Address.of("citizen-tls")) == []
    eventually(lambda: connections_of(namespace) == 0)
    eventually(lambda: not any(map(alive, (ServerConnection, HttpProtocol, ProtocolSniffer))))


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_aborted_http_connection_is_removed_at_once(namespace: RunningNamespace, secure: bool) -> None:
    """Check that it is not seconds later: the buffers of each TLS connection take a quarter of a megabyte."""
    peers = FuzzedPeers(namespace, 1)
    for _ in range(20):
        with peers.connection(secure=secure) as stream:
            stream.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert stream.recv(1 << 12).startswith(b"HTTP/1.1 200")
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    eventually(lambda: connections_of(namespace) == 0)
    namespace.call(lambda _host: None)
    assert alive(HttpProtocol) == 0


TEXTS: Final = {
    "text": [websocket_frame(0x1, b"text")],
    "no text": [websocket_frame(0x1, b"\xff\xfe")],
    "no text in two pieces": [websocket_frame(0x1, b"\xff", final=False), websocket_frame(0x0, b"\xfe")],
    "no text after goodbye": [
        websocket_frame(0x1, b"text"),
        websocket_frame(0x8, b"\x03\xe8"),
        websocket_frame(0x1, b"\xff"),
    ],
    "no text, twice": [websocket_frame(0x1, b"\xff"), websocket_frame(0x1, b"\xff")],
}


@pytest.mark.parametrize("frames", TEXTS)
def test_text_on_a_websocket_is_not_an_internal_error(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture, frames: str
) -> None:
    """Check that the log has no internal error: anyone who can reach the port can send text."""
    peers = FuzzedPeers(namespace, 1)
    with peers.connection() as stream:
        stream.sendall(peers.upgrading())
        assert stream.recv(1 << 12).startswith(b"HTTP/1.1 101")
        stream.sendall(b"".join(TEXTS[frames]))
        peers.read_all(stream)
    eventually(lambda: connections_of(namespace) == 0)
    assert failures(caplog) == []


@pytest.mark.parametrize("final", [True, False], ids=["in one frame", "in many"])
def test_buffered_bytes_of_a_websocket_without_a_token_are_bounded(namespace: RunningNamespace, final: bool) -> None:
    """Allow a megabyte, as with plain AMQP; a message may declare more, but its bytes are not kept."""
    peers = FuzzedPeers(namespace, 1)
    megabyte = bytes(1 << 20)
    pieces = [websocket_piece(megabyte, is_first=number == 0) for number in range(14)]
    whole = b"\x82\xff" + (15 << 20).to_bytes(8) + bytes(4) + megabyte * 14
    with peers.connection() as stream:
        stream.sendall(peers.upgrading())
        assert stream.recv(1 << 12).startswith(b"HTTP/1.1 101")
        with suppress(ConnectionError):  # in pieces it is AMQP at once, which is invalid, too
            stream.sendall(whole if final else b"".join(pieces))
    eventually(lambda: connections_of(namespace) == 0)


def websocket_piece(payload: bytes, *, is_first: bool) -> bytes:
    """Return a fragment of an unfinished message."""
    return bytes((0x02 if is_first else 0x00, 0xFF)) + len(payload).to_bytes(8) + bytes(4) + payload


def quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Log errors only, and not thousands of lines about hostile peers."""
    for name in (None, "uvicorn.error", "pairbus"):
        caplog.set_level(logging.ERROR, name)


def test_fuzzed_connections_harm_no_client(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> None:
    quietly(caplog)
    bother(namespace, seed=1, each=12)
    assert failures(caplog) == []


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("seed", range(2, 4))
def test_many_fuzzed_connections_harm_no_client(
    namespace: RunningNamespace, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    quietly(caplog)
    bother(namespace, seed, each=150)
    assert failures(caplog) == []
