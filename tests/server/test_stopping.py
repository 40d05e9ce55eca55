"""E1: a server that is stopped loses nothing, notifies every peer, and releases everything."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.server import NamespaceServer, Settings
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import received_message
from pairbus.store import GroupCommitter, MemoryStore, StoreFailedError
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    Condition,
    Configuration,
    Connection,
    ConnectionClosed,
    Delivery,
    Event,
    anonymous,
    decode_message,
)
from tests.server.amqp.wire_client import DEADLINE_S, HungUpError, WireClient, body_of, connect, text_message
from tests.server.ledger_rows import lifecycle_events_in
from tests.waiting import eventually

ORDERS: Final = Address.of("orders")
NUMBER: Final = 3_000


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"]) as served:
        yield served


def fill(namespace: RunningNamespace) -> list[bytes]:
    bodies = [b"%d" % number for number in range(NUMBER)]
    messages = [received_message(text_message(body)) for body in bodies]
    namespace.call(lambda host: [host.use_namespace().send(ORDERS, [message], host.now_ms()) for message in messages])
    return bodies


def left(host: NamespaceHost) -> list[bytes]:
    found: list[bytes] = []
    while deliveries := host.use_namespace().receive(ORDERS, 1_000, host.now_ms(), delete=True):
        found += [b"".join(decode_message(delivery.body).body) for delivery in deliveries]
    return found


def read_until_hung_up(client: WireClient) -> None:
    with pytest.raises(HungUpError):
        client.until(lambda: None)


def test_message_received_and_deleted_during_a_stop_is_received_or_kept(
    namespace: RunningNamespace,
) -> None:
    bodies = fill(namespace)
    with connect(namespace) as client:
        link = client.receiver("orders", credit=100_000, deletes=True)
        client.receive(link, 10)
        stopping = Thread(target=namespace.stop)
        stopping.start()
        read_until_hung_up(client)
        stopping.join()
        assert client.closed is not None
        assert client.closed.condition == Condition.CONNECTION_FORCED
        received = [body_of(delivery) for delivery in client.deliveries(link)]
    namespace.start()
    rest = namespace.call(left)
    assert sorted(received + rest) == sorted(bodies)


def open_websocket(stream: socket.socket) -> None:
    key = base64.b64encode(os.urandom(16))
    stream.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\nSec-WebSocket-Key: " + key + b"\r\n\r\n"
    )
    assert stream.recv(4_096).startswith(b"HTTP/1.1 101")


def test_websocket_gets_an_amqp_close_when_the_server_stops(namespace: RunningNamespace) -> None:
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=60) as stream:
        open_websocket(stream)
        engine = Connection(Configuration(container_id="till"), anonymous())
        engine.open()
        events: list[Event] = []
        frames = Frames(stream)
        while not engine.is_open:
            data = engine.data_to_send()
            if data:
                stream.sendall(b"\x82\xfe" + struct.pack(">H", len(data)) + bytes(4) + data)
            events += engine.receive_data(frames.next() or b"")
        stopping = Thread(target=namespace.stop)
        stopping.start()
        while (piece := frames.next()) is not None:
            events += engine.receive_data(piece)
        stopping.join()
    (closed,) = [event for event in events if isinstance(event, ConnectionClosed)]
    assert closed.error is not None
    assert closed.error.condition == Condition.CONNECTION_FORCED


def test_unexpected_error_on_a_websocket_is_logged(
    namespace: RunningNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def receive(_connection: ServerConnection, _data: bytes) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ServerConnection, "data_received", receive)
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=60) as stream:
        open_websocket(stream)
        stream.sendall(b"\x82\x81" + bytes(4) + b"A")
        while stream.recv(4_096):
            pass
    [line] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert line.message.startswith("connection failed peer=127.0.0.1:")
    assert line.exc_info is not None
    assert str(line.exc_info[1]) == "a defect"


class Frames:
    """The contents of a WebSocket's binary frames."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._data = b""

    def next(self) -> bytes | None:
        """Return the next piece; ``None`` when a frame of another kind ends it."""
        kind, size = self._take(2)
        if size == 126:
            (size,) = struct.unpack(">H", self._take(2))
        payload = self._take(size)
        return payload if kind == 0x82 else None

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            self._data += self._stream.recv(4_096)
        taken, self._data = self._data[:size], self._data[size:]
        return taken


def test_stop_with_a_failing_last_commit_releases_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Use a store in memory, so that it can be made to fail."""
    store = MemoryStore()

    def open_in_memory(_path: object, make: object, now_ms: int, wake: object, **_: object) -> GroupCommitter:
        return GroupCommitter(store, make, now_ms, wake)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupCommitter, "open", open_in_memory)

    async def scene() -> None:
        server = NamespaceServer(Settings(data=tmp_path, port=(0,)))
        await server.start()
        host = server.host
        host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms())
        store.fail_next_run(StoreFailedError("the store", "it is on fire"))
        await server.stop()
        await server.stop()  # stopping twice is allowed
        assert not asyncio.all_tasks() - {asyncio.current_task()}

    asyncio.run(scene())
    assert "last writes failed" in caplog.text


def test_connection_without_a_detected_protocol_is_closed_at_a_stop(namespace: RunningNamespace) -> None:
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=60) as stream:
        stream.sendall(b"AM")  # which may become AMQP
        eventually(lambda: namespace._running._running.services.receptions)
        namespace.stop()
        with suppress(ConnectionError):
            assert stream.recv(1) == b""


def test_unread_delivery_does_not_delay_a_stop(namespace: RunningNamespace) -> None:
    fill(namespace)
    with connect(namespace) as client:
        link = client.receiver("orders", credit=100_000)
        client.receive(link, 1)
        namespace.stop()
        read_until_hung_up(client)
        assert any(isinstance(event, Delivery) for event in client.events)


def test_stop_delayed_by_a_peer_writes_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pairbus.server.server._CLOSE_S", DEADLINE_S)  # a second may be too short on a busy machine
    ledger = tmp_path / "ledger"
    with running_namespace(
        data=tmp_path / "data", queues=["orders"], ledger=ledger, ledger_lives=True, drain_s=0.0
    ) as namespace:
        with connect(namespace) as client:
            fill(namespace)
            client.receive(client.receiver("orders", credit=100_000), 1)  # and it reads no more
            namespace.stop()
        namespace.start()
        assert namespace.call(lambda host: len(host.use_namespace().peek(ORDERS, 0, NUMBER, host.now_ms()))) == NUMBER
    assert len([event for event, _, _ in lifecycle_events_in(ledger) if event == "accepted"]) == NUMBER
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
