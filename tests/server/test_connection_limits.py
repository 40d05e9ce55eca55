"""A7, E5: each limit of a connection is a setting; a peer beyond it gets an error that names it, which is counted."""

from __future__ import annotations

import asyncio
import base64
import math
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from typing import Any, Final

import h11
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pairbus import BrokeredMessage, MessagingFactory, MessagingFactorySettings, Transport
from pairbus.broker import Address, QueueDescription, RuleDescription, SqlFilterDescription
from pairbus.dialect.management import Operation
from pairbus.dialect.sas import make_sas_token
from pairbus.server.connection_limits import LIMIT_NAMES
from pairbus.server.http.protocol import _Requests
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    SENDER,
    Attach,
    Begin,
    Condition,
    Message,
    Open,
    Rejected,
    SessionEnded,
    Symbol,
    Target,
    encode_message,
)
from pairbus.wire.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from pairbus.wire.performatives import SaslInit, Transfer
from tests.server.amqp.test_failed_commits import Peer, Stage, play
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, connect, messages_in, text_message
from tests.server.http.site import entry
from tests.waiting import eventually
from tests.wire.pair import frame

ROOT: Final = "RootManageSharedAccessKey"
OPENED: Final = (
    SASL_HEADER
    + frame(SaslInit(mechanism=Symbol("ANONYMOUS")), kind=SASL_FRAME)
    + AMQP_HEADER
    + frame(Open(container_id="unproven_peer"))
)
BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=1_000, outgoing_window=1_000)
EMPTY_FRAME: Final = b"\0\0\0\x08\x02\0\0\0"


def metric(namespace: RunningNamespace, name: str, **labels: str) -> float:
    connection = HTTPConnection("127.0.0.1", namespace.port, timeout=DEADLINE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    (found,) = [each.value for each in samples if each.name == name and each.labels == labels]
    return found


def denied(namespace: RunningNamespace, limit: str) -> float:
    return metric(namespace, "pairbus_limit_exceeded_total", limit=limit)


@contextmanager
def unproven_peer(namespace: RunningNamespace, data: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S) as stream:
        if data:
            stream.sendall(data)
        yield stream


def said(stream: socket.socket) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    parts = []
    try:
        while part := stream.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def token(namespace: RunningNamespace, path: str) -> str:
    return make_sas_token(f"sb://localhost/{path}", ROOT, namespace.key, int(time.time()) + 3_600)


def test_every_limit_is_counted_from_the_start() -> None:
    with running_namespace() as namespace:
        assert [denied(namespace, name) for name in LIMIT_NAMES] == [0] * len(LIMIT_NAMES)


# Proven connections.


def test_sessions_beyond_the_limit_close_the_connection() -> None:
    with running_namespace(max_sessions_per_connection=2) as namespace, connect(namespace) as client:
        assert client.engine.peer is not None
        assert client.engine.peer.channel_max == 1, "a client that looks at it does not try"
        client.session()
        client.session()
        client.socket.sendall(frame(BEGIN, channel=2))
        error = client.until_hung_up()
        assert error is not None
        assert error.condition == Condition.FRAMING_ERROR
        assert "max_sessions_per_connection" in str(error.description)
        assert denied(namespace, "max_sessions_per_connection") == 1


def test_links_beyond_the_limit_end_the_session() -> None:
    with running_namespace(queues=["orders"], max_links_per_connection=2) as namespace, connect(namespace) as client:
        first = client.sender("orders")
        session = client.session()
        client.sender("orders", session=session)
        client.begin_attach(SENDER, source=None, target=Target(address="orders"), session=session)
        ended = client.until(lambda: next(iter(client.seen(SessionEnded)), None))
        assert ended.error is not None
        assert ended.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert "2 links, the maximum (max_links_per_connection)" in str(ended.error.description)
        assert client.send(first, text_message("one")) == ACCEPTED, "other sessions go on"
        assert denied(namespace, "max_links_per_connection") == 1


def test_tokens_beyond_the_limit_are_refused() -> None:
    queues = ["one", "two", "three"]
    with (
        running_namespace(queues=queues, max_tokens_per_connection=2) as namespace,
        WireClient(namespace.port).open() as client,
    ):
        node = client.requests("$cbs")
        answers = [client.put_token(f"sb://localhost/{name}", token(namespace, name), node) for name in queues]
        assert [answer.status for answer in answers] == [202, 202, 403]
        assert "max_tokens_per_connection" in answers[-1].description
        assert client.put_token("sb://localhost/one", token(namespace, "one"), node).status == 202, "to renew is fine"
        assert denied(namespace, "max_tokens_per_connection") == 1


# Rules and duplicates.


def test_rules_beyond_the_limit_are_refused() -> None:
    topics = {"news": ["all"]}
    with running_namespace(topics=topics, max_rules_per_subscription=2) as namespace, connect(namespace) as client:
        node = client.requests("news/Subscriptions/all/$management")
        rule = {"sql-filter": {"expression": "a = 1"}}
        answers = [
            node.call(Operation.ADD_RULE, {"rule-name": name, "rule-description": rule}) for name in ("one", "two")
        ]
        assert [answer.status for answer in answers] == [200, 403], "the default rule counts"
        assert answers[-1].condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert "rules_per_subscription" in answers[-1].description
        assert denied(namespace, "max_rules_per_subscription") == 1


def add_costly_rules(namespace: RunningNamespace, count: int) -> None:
    expression = " OR ".join(f"text{number} LIKE '%_a%_b%'" for number in range(20))

    def add(host: Any) -> None:
        for number in range(count):
            rule = RuleDescription(name=f"r{number}", filter=SqlFilterDescription(expression))
            host.use_namespace().add_rule("news", "all", rule, host.now_ms())
        host.use_namespace().remove_rule("news", "all", "$Default", host.now_ms())  # it would match before the others

    namespace.call(add)


def test_message_beyond_the_rule_budget_is_rejected() -> None:
    message = Message(application_properties={f"text{n}": "a" * 1_500 for n in range(20)}, body=(b"",))
    payload = encode_message(message)
    for budget_ms, is_taken in ((1, False), (10_000, True)):
        topics = {"news": ["all"]}
        with running_namespace(topics=topics, rule_budget_ms=budget_ms) as namespace, connect(namespace) as client:
            add_costly_rules(namespace, 30)
            state = client.send(client.sender("news"), payload)
            assert (state == ACCEPTED) is is_taken
            if not is_taken:
                assert isinstance(state, Rejected)
                assert state.error is not None
                assert "rule_units" in str(state.error.description)
            assert denied(namespace, "rule_budget_ms") == (not is_taken)


def test_duplicate_ids_beyond_the_limit_are_looked_up_in_the_store() -> None:
    with running_namespace(max_duplicate_ids_in_memory=10) as namespace:
        description = QueueDescription(requires_duplicate_detection=True)
        namespace.call(lambda host: host.use_namespace().create_queue("orders", description, host.now_ms()))
        with connect(namespace) as client:
            link = client.sender("orders")
            for _ in range(2):
                for number in range(30):
                    assert client.send(link, text_message("x", message_id=str(number))) == ACCEPTED
        info = namespace.call(lambda host: host.use_namespace().entity(Address.of("orders"), host.now_ms()))
        assert info.active_count == 30, "ids that are in the store alone count too"
        assert 0 < metric(namespace, "pairbus_duplicate_ids_in_memory") <= 10


# Unproven connections.


def ended(data: bytes, limit: str, condition: str, namespace: RunningNamespace) -> None:
    """Check that an unproven peer that sends this is refused for that limit."""
    with unproven_peer(namespace, OPENED + data) as stream:
        answer = b""
        while limit.encode() not in answer:
            part = stream.recv(1 << 16)
            assert part, answer
            answer += part
        assert condition.encode() in answer
    assert denied(namespace, limit) == 1


def unfinished(size: int) -> bytes:
    """Return the first bytes of a request to ``$cbs``."""
    started = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    attach = Attach(name="t", handle=0, role=SENDER, source=None, target=Target(address="$cbs"))
    return frame(BEGIN) + frame(attach) + frame(started, payload=bytes(size))


def test_incomplete_messages_of_an_unproven_peer_beyond_the_limit_end_its_session() -> None:
    with running_namespace(unproven_connection_bytes=4_096) as namespace:
        limit = "unproven_connection_bytes"
        ended(unfinished(5_000), limit, Condition.RESOURCE_LIMIT_EXCEEDED, namespace)


def test_unproven_peer_that_sends_much_without_a_token_is_closed() -> None:
    with running_namespace(unproven_received_bytes=10_000) as namespace:
        ended(EMPTY_FRAME * 2_000, "unproven_received_bytes", Condition.RESOURCE_LIMIT_EXCEEDED, namespace)


def test_sessions_links_and_values_of_an_unproven_peer_are_bounded() -> None:
    begins = b"".join(frame(BEGIN, channel=channel) for channel in range(9))
    attaches = b"".join(
        frame(Attach(name=f"l{n}", handle=n, role=SENDER, target=Target(address="$cbs"))) for n in range(17)
    )
    values = frame(Attach(name="x", handle=0, role=SENDER, properties={Symbol("a"): [0] * 1_000}))
    with running_namespace() as namespace:
        exceeded = Condition.RESOURCE_LIMIT_EXCEEDED
        ended(begins, "unproven_sessions", exceeded, namespace)
        ended(frame(BEGIN) + attaches, "unproven_links", exceeded, namespace)
        ended(frame(BEGIN) + values, "values", exceeded, namespace)


def test_longest_holding_unproven_peer_is_closed_when_all_hold_too_much() -> None:
    partial_frame = struct.pack(">IBBH", 60_000, 2, 0, 0) + bytes(30_000)
    with running_namespace(unproven_total_bytes=70_000) as namespace, ExitStack() as stack:
        clients = [stack.enter_context(WireClient(namespace.port)).open() for _ in range(4)]
        for number, client in enumerate(clients[:3]):
            client.socket.sendall(partial_frame)
            held = min(number + 1, 2) * len(partial_frame)
            eventually(lambda held=held: metric(namespace, "pairbus_unproven_bytes") == held)  # type: ignore[misc]
        error = clients[0].until_hung_up()
        assert error is not None
        assert error.condition == "com.microsoft:server-busy"
        assert "unproven_total_bytes" in str(error.description)
        answer = clients[3].put_token("sb://localhost/", token(namespace, ""))
        assert answer.status == 202, "an honest peer is served beside those who hold as much as they may"
        assert denied(namespace, "unproven_total_bytes") == 1


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("began", [b"", b"AMQ", tls_hello()[:20], tls_hello()], ids=["silence", "half", "hello", "tls"])
def test_peer_that_does_not_finish_the_handshake_in_time_is_closed(began: bytes) -> None:
    with running_namespace(handshake_timeout_s=0.2) as namespace, unproven_peer(namespace, began) as stream:
        said(stream)
        eventually(lambda: denied(namespace, "handshake_timeout_s") == 1)


@pytest.mark.parametrize(
    ("began", "reported"), [(SASL_HEADER, b""), (OPENED, b"no token was put within 0.2 seconds (token_timeout_s)")]
)
def test_peer_without_a_token_in_time_is_closed(began: bytes, reported: bytes) -> None:
    with running_namespace(token_timeout_s=0.2) as namespace, unproven_peer(namespace, began) as stream:
        assert reported in said(stream)
        eventually(lambda: denied(namespace, "token_timeout_s") == 1)


# HTTP


@pytest.mark.parametrize("part", ["head", "body"])
def test_request_that_does_not_arrive_in_time_is_answered_and_closed(part: str) -> None:
    with running_namespace(http_request_timeout_s=0.2) as namespace, unproven_peer(namespace) as stream:
        stream.sendall(b"PUT /orders HTTP/1.1\r\nHost: x\r\n")
        if part == "body":
            key = base64.b64encode(f"{ROOT}:{namespace.key}".encode())
            stream.sendall(b"Authorization: Basic " + key + b"\r\nContent-Length: 10\r\n\r\n<entry")
        answer = said(stream)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"(http_request_timeout_s)" in answer
        assert denied(namespace, "http_request_timeout_s") == 1


def test_connection_without_a_request_outlives_the_time_for_one() -> None:
    with running_namespace(http_request_timeout_s=0.2) as namespace:
        idle = HTTPConnection("127.0.0.1", namespace.port, timeout=DEADLINE_S)
        idle.request("GET", "/health")
        idle.getresponse().read()
        with unproven_peer(namespace, b"GET /health HTTP/1.1\r\n") as late:
            said(late)
        idle.auto_open = 0
        idle.request("GET", "/health")
        assert idle.getresponse().status == 200
        idle.close()


def test_response_that_is_not_read_in_time_ends_the_connection() -> None:
    with running_namespace(http_send_timeout_s=0.2) as namespace:
        stream = socket.socket()
        with stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            stream.settimeout(DEADLINE_S)
            stream.connect(("127.0.0.1", namespace.port))
            stream.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
            eventually(lambda: denied(namespace, "http_send_timeout_s") == 1)


def request_of(*lines: bytes) -> bytes:
    return b"\r\n".join([b"GET /health HTTP/1.1", b"Host: x", *lines, b"", b""])


HEADS: Final[dict[str, bytes]] = {
    "a long header": request_of(b"X: " + b"a" * 17_000),
    "a header of more than is buffered": request_of(b"X: " + b"a" * 200_000),
    "a long address": b"GET /" + b"a" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": request_of(*(b"X%d: y" % number for number in range(101))),
    "many empty headers": request_of(*[b"a:"] * 2_000),
    "a head that does not end": request_of(*[b"a:"] * 200)[:-4],
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("pieces", [1, 20])
def test_head_that_is_too_large_is_refused(head: bytes, pieces: int) -> None:
    with running_namespace() as namespace, unproven_peer(namespace) as stream:
        size = len(head) // pieces + 1
        for start in range(0, len(head), size):
            stream.sendall(head[start : start + size])
        answer = said(stream)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"(http_head_bytes)" in answer
        assert denied(namespace, "http_head_bytes") == 1


def test_peer_that_does_not_stop_sending_after_a_refusal_is_disconnected() -> None:
    refused = request_of(*[b"a:"] * 2_000)
    with running_namespace() as namespace, unproven_peer(namespace, refused) as stream, pytest.raises(ConnectionError):
        stream.sendall(b"a" * 100_000_000)


CHUNKED: Final = b"Host: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n"


def in_chunks(body: bytes) -> bytes:
    """Return a body in chunks of one byte."""
    return b"".join(b"1\r\n%c\r\n" % octet for octet in body) + b"0\r\n\r\n"


def test_e5_request_that_takes_many_turns_is_answered() -> None:
    body = entry("<QueueDescription/>") + b" " * 20_000
    with running_namespace() as namespace:
        key = base64.b64encode(f"{ROOT}:{namespace.key}".encode())
        head = b"PUT /orders HTTP/1.1\r\n" + CHUNKED + b"Authorization: Basic " + key + b"\r\n\r\n"
        with unproven_peer(namespace, head + in_chunks(body)) as stream:
            assert said(stream).startswith(b"HTTP/1.1 201 ")


def test_e5_parser_stops_at_the_end_of_its_turn() -> None:
    requests = _Requests()
    requests.receive_data(b"PUT /orders HTTP/1.1\r\n" + CHUNKED + b"\r\n" + in_chunks(b"abc"))
    requests.begin_turn(math.inf)
    events = [requests.next_event() for _ in range(2)]
    requests.begin_turn(0.0)
    events.append(requests.next_event())  # one in each turn, however short it is
    assert (requests.next_event(), requests.is_cut) == (h11.NEED_DATA, True)
    requests.begin_turn(math.inf)
    while not isinstance(events[-1], h11.EndOfMessage):
        events.append(requests.next_event())
    assert b"".join(bytes(event.data) for event in events if isinstance(event, h11.Data)) == b"abc"


def test_head_within_the_limit_is_answered() -> None:
    head = request_of(*(b"X%d: y" % number for number in range(97)))
    with running_namespace() as namespace, unproven_peer(namespace, head + head) as stream:
        answer = b""
        while answer.count(b'"status":"ok"') < 2:
            answer += stream.recv(1 << 16)
        assert answer.count(b"HTTP/1.1 200 ") == 2


# Turns


def test_client_and_new_peer_are_served_beside_unproven_peers_that_send_endlessly() -> None:
    flood = OPENED + EMPTY_FRAME * 20_000
    with (
        running_namespace(queues=["orders"], unproven_received_bytes=131_072) as namespace,
        connect(namespace) as client,
        ExitStack() as stack,
    ):
        link = client.sender("orders")
        for _ in range(50):
            stack.enter_context(unproven_peer(namespace)).sendall(flood)
        assert metric(namespace, "pairbus_unproven_waiting") > 0
        assert client.send(link, text_message("one")) == ACCEPTED
        with WireClient(namespace.port).open() as newcomer:
            assert newcomer.put_token("sb://localhost/orders", token(namespace, "orders")).status == 202
        assert metric(namespace, "pairbus_unproven_waiting") > 0, "they have not come first"
        eventually(lambda: denied(namespace, "unproven_received_bytes") == 50)


# WebSockets


def test_frame_beyond_the_unproven_limit_is_accepted_from_a_client() -> None:
    body = bytes(200_000)

    async def send(connection_string: str) -> None:
        settings = MessagingFactorySettings(transport=Transport.WEB_SOCKET)
        async with MessagingFactory.from_connection_string(connection_string, settings) as factory:
            sender = await factory.create_message_sender("orders")
            await sender.send(BrokeredMessage(body))

    with running_namespace(queues=["orders"], unproven_connection_bytes=4_096) as namespace:
        asyncio.run(send(namespace.connection_string))
        assert len(messages_in(namespace, Address.of("orders"))) == 1


def websocket(namespace: RunningNamespace) -> socket.socket:
    """Return a WebSocket of an unproven peer, ready for frames."""
    stream = socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S)
    stream.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += stream.recv(1 << 12)
    assert answer.startswith(b"HTTP/1.1 101 ")
    return stream


FRAMES: Final[dict[str, bytes]] = {
    "pings": (b"\x89\xfd" + bytes(4) + bytes(125)) * 5_000,
    "frames of one byte": (b"\x82\x81" + bytes(4) + b"A") * 100_000,
    "empty frames": (b"\x82\x80" + bytes(4)) * 100_000,
    "a large frame": b"\x82\xff" + struct.pack(">Q", 900_000) + bytes(4) + bytes(890_000),
}


@pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
def test_unproven_peer_on_a_websocket_is_bounded(data: bytes) -> None:
    with running_namespace() as namespace, websocket(namespace) as stream:
        with suppress(OSError):
            stream.sendall(data)
        said(stream)
        eventually(lambda: metric(namespace, "pairbus_unproven_bytes") == 0)
        assert denied(namespace, "web_socket_frame_bytes") == (data == FRAMES["a large frame"])


# What a connection may have under way.


def is_read(peer: Peer) -> bool:
    return peer.connection._is_reading


def test_connection_with_many_unconfirmed_bytes_is_not_read_until_they_are_stored() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.shut()
        sent = [peer.begin_send(link, text_message(bytes(250_000))) for _ in range(40)]
        limits = stage.services.counters.limits
        await peer.until(lambda: limits["unconfirmed_bytes"])
        assert not is_read(peer)
        stage.store.gate.set()
        assert [await peer.outcome(delivery) for delivery in sent] == [ACCEPTED] * 40
        assert is_read(peer)
        assert limits["unconfirmed_bytes"] < 5, "it is counted when it is reached, and not with each message"

    play(scene)


def test_connection_with_many_unread_bytes_is_not_read_until_its_peer_reads() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        peer.transport.unsent_bytes = 5_000_000
        assert await peer.send(link, "one") == ACCEPTED
        limits = stage.services.counters.limits
        assert limits["unread_bytes"] == 1
        assert not is_read(peer)
        peer.transport.unsent_bytes = 0
        assert await peer.send(link, "two") == ACCEPTED
        assert is_read(peer)
        assert limits["unread_bytes"] == 1

    play(scene)
