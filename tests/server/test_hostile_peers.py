"""E3, E5: peers without a key, on a real process: an honest sender goes on, and the memory they took comes back."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager
from pairbus.wire import (
    AMQP_VALUE,
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
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import SaslInit, Transfer
from tests.pairing.processes import NamespaceProcess
from tests.server.amqp.wire_client import eventually
from tests.wire.pair import frame

CONNECTIONS = 200
MEGABYTE = 1024 * 1024
COMES_BACK_BYTES = 20 * MEGABYTE

SASL = SASL_HEADER + frame(SaslInit(mechanism=Symbol("ANONYMOUS")), kind=SASL_FRAME)
OPENED = SASL + AMQP_HEADER + frame(Open(container_id="stranger"))
BEGUN = OPENED + frame(Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000))
CBS = frame(Attach(name="t", handle=0, role=SENDER, source=Source(address="x"), target=Target(address="$cbs"))) + frame(
    Attach(name="r", handle=1, role=RECEIVER, source=Source(address="$cbs"), target=Target(address="x"))
)
HTTP = b"Host: localhost\r\nContent-Length: 1000000\r\n"


def request(body: object) -> bytes:
    message = Message(
        properties=Properties(message_id="1", reply_to="x"),
        application_properties={"operation": "put-token", "type": "jwt", "name": "sb://localhost/orders"},
        body=(body,),
        body_kind=AMQP_VALUE,
    )
    return encode_message(message)


def transfer(payload: bytes, number: int = 0, *, more: bool = False) -> bytes:
    sent = Transfer(handle=0, delivery_id=number, delivery_tag=b"%d" % number, message_format=0, more=more)
    return frame(sent, payload=payload)


def many_links() -> bytes:
    attaches = [
        frame(Attach(name=f"l{n}", handle=n, role=SENDER, source=Source(), target=Target(address="$cbs")))
        for n in range(200)
    ]
    return BEGUN + b"".join(attaches)


def many_sessions() -> bytes:
    begin = Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)
    return OPENED + b"".join(frame(begin, channel=n) for n in range(500))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "silence": lambda: b"",
    "half a preface": lambda: b"AMQ",
    "half a TLS hello": lambda: b"\x16\x03\x01\x02\x00\x01",
    "a SASL header": lambda: SASL_HEADER,
    "SASL and no open": lambda: SASL + AMQP_HEADER,
    "an open and no token": lambda: OPENED,
    "an unfinished frame": lambda: OPENED + struct.pack(">IBBH", 65_000, 2, 0, 0) + bytes(60_000),
    "unfinished token requests": lambda: BEGUN + CBS + transfer(bytes(60_000), more=True),
    "token requests that are too large": lambda: (
        BEGUN + CBS + b"".join(transfer(bytes(60_000), more=n < 9) for n in range(10))
    ),
    "requests of empty lists": lambda: BEGUN + CBS + b"".join(transfer(request([[]] * 20_000), n) for n in range(20)),
    "attaches of empty lists": lambda: (
        BEGUN + frame(Attach(name="x", handle=0, role=SENDER, properties={Symbol("a"): [[]] * 50_000}))
    ),
    "many links": many_links,
    "many sessions": many_sessions,
    "noise": lambda: bytes(range(256)) * 200,
    "a frame larger than allowed": lambda: OPENED + struct.pack(">IBBH", 2**31, 2, 0, 0),
    "half a head": lambda: b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 20_000,
    "half a body": lambda: b"POST /console/login HTTP/1.1\r\n" + HTTP + b"\r\nkey=" + bytes(10_000),
    "half a management request": lambda: b"PUT /orders HTTP/1.1\r\n" + HTTP + b"\r\n<entry>" + b" " * 10_000,
    "a WebSocket without a word": lambda: (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    ),
}


class Served(NamespaceProcess):
    """A namespace with a queue, in a process of its own."""

    @property
    def port(self) -> int:
        return self._port

    @property
    def resident_bytes(self) -> int:
        assert self._process is not None
        text = Path(f"/proc/{self._process.pid}/status").read_text("ascii")
        return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmRSS"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("hostile") / "contoso") as process:
        asyncio.run(prepare(process))
        yield process


async def prepare(served: Served) -> None:
    async with NamespaceManager.from_connection_string(served.connection_string) as manager:
        await manager.create_queue("orders")
    await exchange(served)


async def exchange(served: Served) -> None:
    """What an honest client does: send some, receive them."""
    async with MessagingFactory.from_connection_string(served.connection_string) as factory:
        sender = await factory.create_message_sender("orders")
        for number in range(20):
            await sender.send(BrokeredMessage(b"%d" % number))
        receiver = await factory.create_message_receiver("orders")
        received = 0
        while received < 20:
            messages = await receiver.receive(max_message_count=20)
            await receiver.complete(messages)
            received += len(messages)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("kind", HOSTILE)
def test_e5_strangers_take_nothing_from_an_honest_client_and_give_memory_back(served: Served, kind: str) -> None:
    before = served.resident_bytes
    data = HOSTILE[kind]()
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=30))
            with suppress(OSError):  # it may have been closed for what it has sent
                stranger.sendall(data)
        asyncio.run(exchange(served))
        assert served.resident_bytes - before < 100 * MEGABYTE
    eventually(lambda: served.resident_bytes - before < COMES_BACK_BYTES)
    asyncio.run(exchange(served))
