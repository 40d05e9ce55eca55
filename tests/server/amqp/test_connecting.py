"""E3: start and end of connections: SASL, open, heartbeats, and a server that stops."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from websocket import WebSocketBadStatusException, create_connection

from pairbus.broker import Address
from pairbus.dialect.sas import make_sas_token
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    ANONYMOUS,
    MSSBCBS,
    PLAIN,
    Condition,
    Configuration,
    Connection,
    ConnectionOpened,
    SaslCode,
    Symbol,
    anonymous,
    decode,
    encode,
    plain,
)
from pairbus.wire.composites import from_described
from pairbus.wire.performatives import SaslInit, SaslMechanisms, SaslOutcome
from tests.server.amqp.wire_client import (
    DEADLINE_S,
    HungUpError,
    LinkRefusedError,
    WireClient,
    connect,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)
from tests.waiting import eventually

SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


def said_to(namespace: RunningNamespace, data: bytes, *, enough: int | None = None) -> bytes:
    """Return the server's response to some bytes, until it closes or has sent enough."""
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S) as stream:
        stream.sendall(data)
        said = b""
        while enough is None or len(said) < enough:
            more = stream.recv(1 << 16)
            if not more:
                break
            said += more
        return said


def sasl_frames(said: bytes) -> list[object]:
    """Return the server's SASL frames, after its header."""
    assert said.startswith(SASL_HEADER)
    frames = []
    position = len(SASL_HEADER)
    while position < len(said):
        size = int.from_bytes(said[position : position + 4])
        frames.append(from_described(decode(said[position + 8 : position + size])))
        position += size
    return frames


def said_to_init(namespace: RunningNamespace, mechanism: str, response: bytes) -> list[object]:
    body = encode(SaslInit(mechanism=Symbol(mechanism), initial_response=response))
    return sasl_frames(said_to(namespace, SASL_HEADER + (len(body) + 8).to_bytes(4) + b"\x02\x01\0\0" + body))


def test_server_offers_what_the_sdks_know(namespace: RunningNamespace) -> None:
    assert said_to_init(namespace, "EXTERNAL", b"")[0] == SaslMechanisms(
        sasl_server_mechanisms=(MSSBCBS, PLAIN, ANONYMOUS)
    )


def test_peer_without_sasl_is_connected_without_any_rights(namespace: RunningNamespace) -> None:
    """Connect like the SDK for JavaScript with a token and no key."""
    name = fresh_queue(namespace)
    with WireClient(namespace.port, has_sasl=False).open() as client:
        for attach in (client.sender, client.receiver, lambda name: client.requests(f"{name}/$management")):
            with pytest.raises(LinkRefusedError) as caught:
                attach(name)
            assert caught.value.error.condition == Condition.UNAUTHORIZED_ACCESS
        expires_s = int(time.time()) + 3_600
        address = f"sb://localhost/{name}"
        token = make_sas_token(address, "RootManageSharedAccessKey", namespace.key, expires_s)
        assert client.put_token(address, token).status == 202
        assert client.send(client.sender(name), text_message("one")) == ACCEPTED


@pytest.mark.parametrize(
    "header", [b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01", b"AMQP\x03\x01\x00\x01", b"AMQP\x01\x01\x00\x0a"]
)
def test_unsupported_version_is_answered_with_a_supported_one(namespace: RunningNamespace, header: bytes) -> None:
    assert said_to(namespace, header) == SASL_HEADER


@pytest.mark.parametrize("mechanism", ["EXTERNAL", "SCRAM-SHA-256", "", "plain"])
def test_sasl_mechanisms_that_are_not_offered_are_refused(namespace: RunningNamespace, mechanism: str) -> None:
    (_, outcome) = said_to_init(namespace, mechanism, b"n,,n=,r=abc")
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code is SaslCode.AUTH


def test_key_opens_a_connection(namespace: RunningNamespace) -> None:
    name = fresh_queue(namespace)
    with WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key)).open() as client:
        assert client.send(client.sender(name), text_message("one")) == ACCEPTED


@pytest.mark.parametrize(
    "response",
    [b"", b"\0", b"\0\0", b"\0\0\0", b"\0a", b"\xff\xfe\xff", b"\0RootManageSharedAccessKey\0", b"a" * 5_000],
    ids=["empty", "one", "two", "three", "no key", "no text", "empty key", "long"],
)
def test_invalid_plain_response_is_refused(namespace: RunningNamespace, response: bytes) -> None:
    (_, outcome) = said_to_init(namespace, PLAIN, response)
    assert isinstance(outcome, SaslOutcome)
    assert outcome.code is SaslCode.AUTH


def test_open_of_the_server_announces_what_the_sdks_need(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        (opened,) = client.seen(ConnectionOpened)
        assert opened.open.idle_time_out == 240_000
        assert opened.open.max_frame_size == 65_536
        assert opened.open.channel_max >= 4_999
        assert opened.open.container_id == "contoso"
        peer = client.first_session.peer
        assert peer is not None
        assert peer.incoming_window >= 5_000
        assert peer.handle_max >= 255


def test_peer_that_requests_heartbeats_gets_them(namespace: RunningNamespace) -> None:
    """Check that a peer with a short idle timeout hears from an otherwise silent server."""
    quick = Configuration(container_id="quick", idle_time_out_ms=200, strict=False)
    with connect(namespace, configuration=quick) as client:
        client.socket.settimeout(DEADLINE_S)
        heard = b""
        while len(heard) < 16:
            more = client.socket.recv(1 << 12)
            assert more
            heard += more
        assert heard[:16] == b"\0\0\0\x08\x02\0\0\0" * 2


def test_silent_peer_is_disconnected() -> None:
    with running_namespace(idle_timeout_s=1) as served, connect(served) as client:
        # Not one byte more: after twice its timeout the server sends the reason, and closes.
        error = client.until_hung_up()
        assert error is not None
        assert error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        eventually(lambda: not served._running._running.services.connections)


def test_stop_confirms_earlier_sends_then_closes_every_connection() -> None:
    with running_namespace() as served:
        name = fresh_queue(served)
        with connect(served) as client, connect(served) as idle:
            link = client.sender(name)
            stopping = threading.Thread(target=served.stop)
            sent = [client.begin_send(link, text_message(str(number))) for number in range(500)]
            client.until(lambda: sent[0].settled)  # all of them are on their way
            stopping.start()
            error = client.until_hung_up()
            assert error is not None
            assert error.condition == Condition.CONNECTION_FORCED
            assert idle.until_hung_up() == error
            stopping.join()
            confirmed = [delivery for delivery in sent if delivery.settled]
            assert all(delivery.state == ACCEPTED for delivery in confirmed)
        served.start()
        kept = messages_in(served, Address.of(name))
        # Every confirmed message is stored; further ones arrived, but their confirmation did not.
        assert len(kept) >= len(confirmed)
        assert kept == [(str(number).encode(), 0) for number in range(len(kept))]


def test_stop_confirms_everything_that_was_read() -> None:
    with running_namespace() as served:
        name = fresh_queue(served)
        with connect(served) as client:
            link = client.sender(name)
            sent = [client.begin_send(link, text_message(str(number))) for number in range(100)]
            served.call(lambda _host: None)
            received = served._running._running.services.counters
            eventually(lambda: received.messages_sent == 100)
            served.stop()
            error = client.until_hung_up()
            assert error is not None
            assert error.condition == Condition.CONNECTION_FORCED
            assert [delivery.state for delivery in sent] == [ACCEPTED] * 100


def test_stopped_server_accepts_no_connections() -> None:
    with running_namespace() as served:
        port = served.port
        served.stop()
        with pytest.raises(ConnectionRefusedError):
            WireClient(port)


def test_close_is_answered_and_the_connection_removed(namespace: RunningNamespace) -> None:
    with connect(namespace) as client:
        client.engine.close()
        with pytest.raises(HungUpError):
            client.until(lambda: False)
        assert client.failure is None
    eventually(lambda: not namespace._running._running.services.connections)


def test_frames_are_parsed_in_one_piece_or_many(namespace: RunningNamespace) -> None:
    name = fresh_queue(namespace)
    with connect(namespace) as client:
        assert client.send(client.sender(name), text_message("one")) == ACCEPTED
        reported = b"".join(client.sent)
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S) as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(reported)):
            stream.sendall(reported[position : position + 1])
        eventually(lambda: len(messages_in(namespace, Address.of(name))) == 2)
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S) as stream:
        stream.sendall(reported)
        eventually(lambda: len(messages_in(namespace, Address.of(name))) == 3)


# WebSockets


@pytest.mark.parametrize(
    "path", ["/$servicebus/websocket", "/$servicebus/websocket/", "/$ServiceBus/WebSocket", "/%24SERVICEBUS/websocket/"]
)
def test_websocket_path_is_accepted_with_a_trailing_slash_and_in_any_case(
    namespace: RunningNamespace, path: str
) -> None:
    address = f"ws://127.0.0.1:{namespace.port}{path}"
    stream = create_connection(address, subprotocols=["AMQPWSB10"], timeout=DEADLINE_S)
    engine = Connection(Configuration(container_id="older-sdk"), anonymous())
    engine.open()
    while not engine.is_open:
        data = engine.data_to_send()
        if data:
            stream.send_binary(data)
        _, received = stream.recv_data()
        engine.receive_data(received)
    stream.close()


@pytest.mark.parametrize("path", ["/$servicebus/websocket//", "/$servicebus/websocket/x", "/$servicebus/websockets"])
def test_websocket_on_another_path_is_refused(namespace: RunningNamespace, path: str) -> None:
    with pytest.raises(WebSocketBadStatusException):
        create_connection(f"ws://127.0.0.1:{namespace.port}{path}", subprotocols=["AMQPWSB10"], timeout=DEADLINE_S)
