"""A8, E5: claims are looked up in a table, end with their key, and leave nothing behind."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from threading import Event

import pytest

from pairbus.broker import Address, AuthorizationRule, QueueDescription, Right
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Grant
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.consumer import Consumer
from pairbus.server.amqp.node import Claims
from pairbus.server.amqp.services import BOUNDS, UnprovenConnections
from pairbus.server.host import NamespaceHost
from pairbus.server.http.protocol import HttpProtocol, StreamingWebSocket
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, SaslClient, plain
from pairbus.wire.performatives import Transfer
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, connect, text_message
from tests.waiting import eventually
from tests.wire.pair import frame

SEND = (Right.SEND,)
UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)
FAR_S = 4_000_000_000


def grant(path: str, expires_ms: int = 10**15, who: str = "") -> Grant:
    return Grant(path, frozenset(SEND), expires_ms, who=who)


def test_claim_covers_its_path_and_everything_below() -> None:
    claims = Claims()
    claims.put("a/b", grant("a/b", who="key"))
    assert claims.allows("a/b", SEND, 0)
    assert claims.allows("a/b/$management", SEND, 0)
    assert not claims.allows("a", SEND, 0)
    assert not claims.allows("a/bc", SEND, 0)
    assert not claims.allows("a/b", (Right.LISTEN,), 0)
    assert (claims.who("a/b/c"), claims.who("x")) == ("key", "")
    claims.put("", grant(""))
    assert claims.allows("x/y", SEND, 0)


def test_expired_claims_are_dropped_and_renewed_ones_stay() -> None:
    claims = Claims()
    for turn in range(100):
        claims.put("renewed", grant("renewed", 1_000 + turn))
    claims.put("other", grant("other", 500))
    assert claims.next_expiry_ms() == 500
    claims.drop_expired(500)
    assert (len(claims), claims.next_expiry_ms()) == (1, 1_099)
    claims.drop_expired(1_098)
    assert claims.allows("renewed/x", SEND, 1_098)
    claims.drop_expired(1_099)
    assert not claims


def test_unproven_connections_share_a_bounded_amount_and_the_oldest_is_evicted() -> None:
    aborted: list[str] = []
    shed: list[str] = []

    class UnprovenPeer:
        def __init__(self, name: str) -> None:
            self.name = name

        def abort(self) -> None:
            aborted.append(self.name)

        def shed(self) -> None:
            shed.append(self.name)

    unproven = UnprovenConnections(1_000)
    first, second, third = UnprovenPeer("first"), UnprovenPeer("second"), UnprovenPeer("third")
    for each in (first, second, third):
        unproven.add(each)
    unproven.hold(second, 600)
    unproven.hold(first, 390)
    unproven.hold(second, 610)
    assert (shed, unproven.held_bytes) == ([], 1_000)
    unproven.hold(third, 1)
    assert (shed, unproven.held_bytes, len(unproven)) == (["second"], 391, 2), "it has held something for longest"
    unproven.hold(first, 0)
    unproven.hold(third, 999)
    unproven.hold(first, 2)
    assert (shed, unproven.held_bytes, len(unproven)) == (["second", "third"], 2, 1), "the first had let go meanwhile"
    unproven.add(second)
    assert unproven.evict()
    assert (aborted, unproven.held_bytes, len(unproven)) == (["first"], 0, 1), "the oldest makes room for others"
    unproven.discard(second)
    unproven.hold(second, 10**9)
    assert (unproven.evict(), unproven.held_bytes) == (False, 0), "whoever has shown a key is not counted here"


@pytest.fixture
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders", "other"]) as served:
        yield served


def rule(name: str, key: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights or (Right.SEND,), primary_key=key, secondary_key=key + "2")


def add_key(namespace: RunningNamespace, added: AuthorizationRule) -> None:
    def change(host: NamespaceHost) -> None:
        rules = host.use_namespace().authorization_rules(host.now_ms())
        kept = [each for each in rules if each.name != added.name]
        host.use_namespace().set_authorization_rules([*kept, added], host.now_ms())

    namespace.call(change)


def remove_key(namespace: RunningNamespace) -> None:
    def change(host: NamespaceHost) -> None:
        rules = host.use_namespace().authorization_rules(host.now_ms())
        host.use_namespace().set_authorization_rules([each for each in rules if each.name != "app"], host.now_ms())

    namespace.call(change)


def regenerate_key(namespace: RunningNamespace) -> None:
    add_key(namespace, rule("app", "another"))


def reduce_rights(namespace: RunningNamespace) -> None:
    add_key(namespace, rule("app", "secret", Right.LISTEN))


def with_sasl(namespace: RunningNamespace) -> WireClient:
    return WireClient(namespace.port, sasl=plain("app", "secret")).open()


def with_token(namespace: RunningNamespace) -> WireClient:
    client = WireClient(namespace.port).open()
    token = make_sas_token("sb://localhost/orders", "app", "secret", FAR_S)
    assert client.put_token("sb://localhost/orders", token).status == 202
    return client


@pytest.mark.parametrize("revoke", [remove_key, regenerate_key, reduce_rights])
@pytest.mark.parametrize("enter", [with_sasl, with_token])
def test_e5_revoked_key_ends_the_connections_that_it_opened(
    namespace: RunningNamespace,
    enter: Callable[[RunningNamespace], WireClient],
    revoke: Callable[[RunningNamespace], None],
) -> None:
    add_key(namespace, rule("app", "secret"))
    with enter(namespace) as client, connect(namespace) as root:
        link = client.sender("orders")
        assert client.send(link, text_message("one")) == ACCEPTED
        other = root.sender("orders")
        revoke(namespace)
        assert client.detached(link).condition == Condition.UNAUTHORIZED_ACCESS
        closed = client.until_hung_up()
        assert closed is not None
        assert closed.condition == Condition.UNAUTHORIZED_ACCESS
        assert root.send(other, text_message("two")) == ACCEPTED, "another key is not concerned"


def test_e5_revoked_key_of_an_entity_ends_its_links_and_a_key_that_stays_does_not(namespace: RunningNamespace) -> None:
    def set_keys(*keys: AuthorizationRule) -> None:
        description = QueueDescription(authorization_rules=keys)
        namespace.call(lambda host: host.use_namespace().update(Address.of("orders"), description, host.now_ms()))

    set_keys(rule("own", "secret"))
    with WireClient(namespace.port).open() as client:
        token = make_sas_token("sb://localhost/orders", "own", "secret2", FAR_S)
        assert client.put_token("sb://localhost/orders", token).status == 202
        link = client.sender("orders")
        set_keys(rule("own", "secret"), rule("more", "else"))
        assert client.send(link, text_message("still")) == ACCEPTED
        set_keys(rule("more", "else"))
        assert client.detached(link).condition == Condition.UNAUTHORIZED_ACCESS


def unfinished_request(client: WireClient) -> None:
    node = client.requests("$cbs")
    link, session = node.asking, client.first_session
    partial = Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"t", message_format=0, more=True)
    client.socket.sendall(frame(partial, channel=session.channel, payload=bytes(BOUNDS.incomplete_bytes // 4)))
    client.barrier()


def locked_messages(client: WireClient) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=10)
    for _ in range(3):
        assert client.send(sender, text_message("locked")) == ACCEPTED
    assert len(client.receive(receiver, 3)) == 3


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("sasl", "use"),
    [(None, unfinished_request), (plain("app", "secret"), locked_messages)],
    ids=["unfinished request", "locked messages"],
)
def test_e5_connection_that_is_lost_is_freed_without_the_garbage_collector(
    namespace: RunningNamespace, sasl: SaslClient | None, use: Callable[[WireClient], None], tls: bool
) -> None:
    add_key(namespace, rule("app", "secret", Right.SEND, Right.LISTEN))
    with WireClient(namespace.port, sasl=sasl, ca_file=namespace.ca_file if tls else None).open() as client:
        use(client)
        gc.collect()
        assert objects(namespace, ServerConnection, Consumer)
        gc.disable()
    try:
        eventually(lambda: not objects(namespace, ServerConnection, Consumer))
    finally:
        gc.enable()


def objects(namespace: RunningNamespace, *kinds: type) -> int:
    """Return the number of objects of some classes; compiled ones take no weak references."""
    return namespace.call(lambda _host: sum(type(each) in kinds for each in gc.get_objects()))


def test_e5_request_of_a_lost_connection_is_not_decoded(namespace: RunningNamespace) -> None:
    add_key(namespace, rule("app", "secret", Right.SEND, Right.LISTEN))
    services = namespace._running._running.services
    may_go_on = Event()
    with WireClient(namespace.port, sasl=plain("app", "secret")).open() as client:
        node = client.requests("orders/$management")
        services.worker.submit(may_go_on.wait)
        try:
            node.ask("com.microsoft:peek-message", {"filler": "x" * 10_000}, message_id="large")
            client.flush()
            (connection,) = services.connections
            assert isinstance(connection, ServerConnection)
            decoding = eventually(lambda: connection._computing)
            # Reading is paused meanwhile, so the server would not notice that the client closes the connection.
            namespace.call(lambda _host: connection.abort())
            eventually(decoding.cancelled)
        finally:
            may_go_on.set()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (HttpProtocol, b"GET /health HTTP/1.1\r\nX: " + b"a" * 10_000),
        (HttpProtocol, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3 + b"GET /"),
        (StreamingWebSocket, UPGRADE),
        (ServerConnection, UPGRADE),
    ],
    ids=["half a request", "requests", "a WebSocket", "AMQP in a WebSocket"],
)
def test_e5_http_connection_that_is_lost_is_freed_without_the_garbage_collector(
    namespace: RunningNamespace, kind: type, data: bytes, tls: bool
) -> None:
    gc.collect()
    gc.disable()
    try:
        with stream_to(namespace, tls=tls) as stream:
            stream.sendall(data[:20])
            stream.sendall(data[20:])
            eventually(lambda: objects(namespace, kind))
        eventually(lambda: not objects(namespace, kind))
    finally:
        gc.enable()


def stream_to(namespace: RunningNamespace, *, tls: bool) -> socket.socket:
    stream = socket.create_connection(("127.0.0.1", namespace.port), timeout=DEADLINE_S)
    if not tls:
        return stream
    context = ssl.create_default_context(cafile=str(namespace.ca_file))
    return context.wrap_socket(stream, server_hostname="localhost")
