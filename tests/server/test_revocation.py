"""E5: a key that is deleted or regenerated stops working within seconds, whatever it has opened."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from websocket import ABNF, WebSocketConnectionClosedException, create_connection

from pairbus.dialect.sas import make_sas_token
from pairbus.wire import ACCEPTED, Condition, Int, Link, SaslClient, plain
from tests.console.site import Person
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, text_message
from tests.server.http.site import entry
from tests.server.test_hostile_peers import Served, authorized, prepare
from tests.waiting import eventually

WITHIN_S: Final = 5.0
"""The promise: from the answer to the change until nothing that the key has opened goes on."""

NAME: Final = "app"
SESSIONS: Final = "sessions"
"""A queue that requires sessions."""

FAR_S: Final = 4_000_000_000
RIGHTS: Final = "".join(f"<AccessRights>{right}</AccessRights>" for right in ("Manage", "Send", "Listen"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("revocation")
    publish(directory, SPARE)
    options = ("--jwt-issuer", ISSUER, "--jwt-keys", str(directory / KEY_FILE))
    with Served(directory / "contoso", *options) as process:
        asyncio.run(prepare(process))
        manage(
            process,
            "PUT",
            f"/{SESSIONS}",
            "<QueueDescription><RequiresSession>true</RequiresSession></QueueDescription>",
        )
        yield process


# Keys: of the namespace, and of a queue.


def manage(served: Served, method: str, path: str, content: str = "", **headers: str) -> None:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    body = entry(content) if content else None
    connection.request(
        method, path, body, {**authorized(served), **{k.replace("_", "-"): v for k, v in headers.items()}}
    )
    response = connection.getresponse()
    detail = response.read()
    connection.close()
    assert response.status in {200, 201}, detail


def key_of(name: str, key: str) -> str:
    return (
        f"<KeyName>{name}</KeyName><PrimaryKey>{key}</PrimaryKey><SecondaryKey>{key}2</SecondaryKey>"
        f"<Rights>{RIGHTS}</Rights>"
    )


def rule(key: str) -> str:
    return f"<SharedAccessAuthorizationRule>{key_of(NAME, key)}</SharedAccessAuthorizationRule>"


def queue(*keys: str) -> str:
    rules = "".join(
        f'<AuthorizationRule i:type="SharedAccessAuthorizationRule">{key_of(NAME, key)}</AuthorizationRule>'
        for key in keys
    )
    return f"<QueueDescription><AuthorizationRules>{rules}</AuthorizationRules></QueueDescription>"


KEY_PATH: Final = f"/$AuthorizationRules/{NAME}"


@contextmanager
def namespace_key(served: Served) -> Iterator[None]:
    manage(served, "PUT", KEY_PATH, rule("secret"))
    yield
    connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    connection.request("DELETE", KEY_PATH, None, authorized(served))  # the test may have done it
    connection.getresponse().read()
    connection.close()


@contextmanager
def entity_key(served: Served) -> Iterator[None]:
    manage(served, "PUT", "/orders", queue("secret"), If_Match="*")
    yield
    manage(served, "PUT", "/orders", queue(), If_Match="*")


def delete_key(served: Served) -> None:
    manage(served, "DELETE", KEY_PATH)


def regenerate_key(served: Served) -> None:
    manage(served, "PUT", KEY_PATH, rule("another"), If_Match="*")


def delete_entity_key(served: Served) -> None:
    manage(served, "PUT", "/orders", queue(), If_Match="*")


def regenerate_entity_key(served: Served) -> None:
    manage(served, "PUT", "/orders", queue("another"), If_Match="*")


# Keys of an issuer, in a file.

ISSUER: Final = "https://issuer.example/contoso"
KEY_FILE: Final = "keys.json"
APP, SPARE, ANOTHER = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))


def publish(directory: Path, *keys: ec.EllipticCurvePrivateKey, key_id: str = NAME) -> None:
    """Replace the key file; the first key has the id."""
    ids = (key_id, "another")
    listed = [
        {**ECAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": each}
        for each, key in zip(ids, keys, strict=False)
    ]
    fresh = directory / "fresh.json"
    fresh.write_text(json.dumps({"keys": listed}), encoding="utf-8")
    fresh.replace(directory / KEY_FILE)


def jwt_token() -> str:
    claims = {"iss": ISSUER, "aud": "https://servicebus.azure.net", "exp": FAR_S, "roles": ["Manage"], "appid": NAME}
    return jwt.encode(claims, APP, "ES256", headers={"kid": NAME})


@contextmanager
def issuer_key(served: Served) -> Iterator[None]:
    publish(served._data.parent, APP, SPARE)
    eventually(lambda: http_status(served, jwt_token()) == 200)
    yield
    publish(served._data.parent, SPARE, key_id="spare")


def http_status(served: Served, authorization: str) -> int:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    connection.request("GET", "/orders", headers={"Authorization": authorization})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


def remove_issuer_key(served: Served) -> None:
    publish(served._data.parent, SPARE, key_id="spare")


def remove_every_issuer_key(served: Served) -> None:
    publish(served._data.parent)


def replace_issuer_key(served: Served) -> None:
    """Publish another key under the same id."""
    publish(served._data.parent, ANOTHER, SPARE)


# Ways in.


class RefusedError(Exception):
    """The credential opens nothing."""


@dataclass(frozen=True)
class Opened:
    """The connections and requests that a key has opened."""

    works: Callable[[], bool]
    until_over: Callable[[], object]
    """Waits until it is over."""


Way = Callable[[Served, ExitStack], Opened]


class WebSocketStream:
    """A WebSocket as a socket, as far as ``WireClient`` uses one."""

    def __init__(self, port: int) -> None:
        address = f"ws://127.0.0.1:{port}/$servicebus/websocket"
        self._stream = create_connection(address, subprotocols=["AMQPWSB10"], timeout=DEADLINE_S)
        self.settimeout = self._stream.settimeout
        self.close = self._stream.shutdown

    def sendall(self, data: bytes) -> None:
        self._stream.send_binary(data)

    def recv(self, _size: int) -> bytes:
        try:
            opcode, data = self._stream.recv_data()
        except WebSocketConnectionClosedException:
            return b""
        return bytes(data) if opcode == ABNF.OPCODE_BINARY else b""


def over_web_socket(served: Served) -> Any:
    return WebSocketStream(served.port)


def over_tls(served: Served) -> Any:
    return served.connect(tls=True)


Transport = Callable[[Served], Any]
Open = Callable[[Served, WireClient], Opened]
"""Opens something on an authorized connection."""


def wire_client(served: Served, sasl: SaslClient | None, transport: Transport | None) -> WireClient:
    client = WireClient(served.port, sasl=sasl)
    if transport is not None:
        client.socket.close()
        client.socket = transport(served)
    return client


def ended(client: WireClient, *links: Link) -> Callable[[], None]:
    """Return what waits until the links, and then the connection, have been closed because of the key."""

    def until_over() -> None:
        assert {client.detached(link).condition for link in links} == {Condition.UNAUTHORIZED_ACCESS}
        error = client.until_hung_up()
        assert error is not None
        assert error.condition == Condition.UNAUTHORIZED_ACCESS

    return until_over


def sending(_served: Served, client: WireClient) -> Opened:
    link = client.sender("orders")
    return Opened(lambda: client.send(link, text_message("one")) == ACCEPTED, ended(client, link))


def receiving(_served: Served, client: WireClient) -> Opened:
    sender, receiver = client.sender("orders"), client.receiver("orders", deletes=True)

    def works() -> bool:
        assert client.send(sender, text_message("one")) == ACCEPTED
        return bool(client.receive_one(receiver))

    return Opened(works, ended(client, sender, receiver))


def receiving_a_session(served: Served, client: WireClient) -> Opened:
    sender, receiver = client.sender(SESSIONS), client.session_receiver(SESSIONS, "a")

    def works() -> bool:
        assert client.send(sender, text_message("one", group_id="a")) == ACCEPTED
        return bool(client.receive_one(receiver))

    def until_over() -> None:
        ended(client, sender, receiver)()
        with WireClient(served.port, sasl=plain("RootManageSharedAccessKey", served.key)).open() as other:
            other.session_receiver(SESSIONS, "a")  # refused while the session is locked, for a minute

    return Opened(works, until_over)


def managing(_served: Served, client: WireClient) -> Opened:
    node = client.requests("orders/$management")
    body = {"from-sequence-number": 0, "message-count": Int(1)}
    return Opened(
        lambda: node.call("com.microsoft:peek-message", body).status in {200, 204},
        ended(client, node.asking, node.replies),
    )


def by_sasl(served: Served, stack: ExitStack, transport: Transport | None = None) -> Opened:
    client = stack.enter_context(wire_client(served, plain(NAME, "secret"), transport))
    client.engine.open()
    client.until(lambda: client.engine.is_open or client.failure)
    if client.failure is not None:
        raise RefusedError(str(client.failure))
    return sending(served, client)


def by_token(
    served: Served,
    stack: ExitStack,
    transport: Transport | None = None,
    *,
    entity: str = "orders",
    tokens: int = 1,
    opening: Open = sending,
    token: str = "",
) -> Opened:
    client = stack.enter_context(wire_client(served, None, transport)).open()
    node = client.requests("$cbs")
    token = token or make_sas_token(f"sb://localhost/{entity}", NAME, "secret", FAR_S)
    for path in (entity, *(f"{entity}/{number}" for number in range(1, tokens))):
        answer = client.put_token(f"sb://localhost/{path}", token, node)
        if answer.status != 202:
            raise RefusedError(answer.description)
    return opening(served, client)


def by_sasl_in_a_web_socket(served: Served, stack: ExitStack) -> Opened:
    return by_sasl(served, stack, over_web_socket)


def by_token_in_a_web_socket(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, over_web_socket)


def by_sasl_over_tls(served: Served, stack: ExitStack) -> Opened:
    return by_sasl(served, stack, over_tls)


def by_token_over_tls(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, over_tls)


def by_many_tokens(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, tokens=600)


def by_receiver(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, opening=receiving)


def by_session_receiver(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, entity=SESSIONS, opening=receiving_a_session)


def by_management_link(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, opening=managing)


def by_jwt(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, token=jwt_token())


def by_jwt_in_a_web_socket(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, over_web_socket, token=jwt_token())


def by_jwt_over_tls(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, over_tls, token=jwt_token())


def by_jwt_receiver(served: Served, stack: ExitStack) -> Opened:
    return by_token(served, stack, opening=receiving, token=jwt_token())


def by_management_jwt(served: Served, stack: ExitStack) -> Opened:
    opened = management(f"Bearer {jwt_token()}", served, stack)
    return replace(opened, until_over=lambda: eventually(lambda: not opened.works()))


def management(authorization: str, served: Served, stack: ExitStack) -> Opened:
    """An open connection, on which each request shows the credential."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    stack.callback(connection.close)

    def status() -> int:
        connection.request("GET", "/orders", headers={"Authorization": authorization})
        response = connection.getresponse()
        response.read()
        return response.status

    if status() == 401:
        raise RefusedError

    def until_over() -> None:
        assert status() == 401

    return Opened(lambda: status() == 200, until_over)


def by_management_key(served: Served, stack: ExitStack) -> Opened:
    key = base64.b64encode(f"{NAME}:secret".encode()).decode()
    return management(f"Basic {key}", served, stack)


def by_management_token(served: Served, stack: ExitStack) -> Opened:
    return management(make_sas_token("https://localhost/orders", NAME, "secret", FAR_S), served, stack)


def by_console(served: Served, _stack: ExitStack) -> Opened:
    return console(served, key_name=NAME, key="secret")


def by_console_with_a_token(served: Served, _stack: ExitStack) -> Opened:
    token = make_sas_token("sb://localhost/", NAME, "secret", FAR_S)
    return console(served, connection_string=f"Endpoint=sb://localhost/;SharedAccessSignature={token}")


def console(served: Served, **credential: str) -> Opened:
    person = Person(served.port)
    if person.post("/console/login", **credential).status != 303:
        raise RefusedError

    def until_over() -> None:
        assert person.get().status == 303, "the page leads to the login"

    return Opened(lambda: person.get().status == 200, until_over)


def by_live_page(served: Served, stack: ExitStack) -> Opened:
    person = Person(served.port)
    if person.post("/console/login", key_name=NAME, key="secret").status != 303:
        raise RefusedError
    events = stack.enter_context(person.stream(page="entities"))

    def until_over() -> None:
        assert [kind for kind, _ in events][-1] == "logout"

    return Opened(lambda: bool(next(events)), until_over)


NAMESPACE_WAYS: Final[tuple[Way, ...]] = (
    by_sasl,
    by_token,
    by_sasl_in_a_web_socket,
    by_token_in_a_web_socket,
    by_sasl_over_tls,
    by_token_over_tls,
    by_many_tokens,
    by_receiver,
    by_session_receiver,
    by_management_link,
    by_management_key,
    by_management_token,
    by_console,
    by_console_with_a_token,
    by_live_page,
)
ENTITY_WAYS: Final[tuple[Way, ...]] = (
    by_token,
    by_token_in_a_web_socket,
    by_token_over_tls,
    by_receiver,
    by_management_link,
    by_management_token,
)
ISSUER_WAYS: Final[tuple[Way, ...]] = (
    by_jwt,
    by_jwt_in_a_web_socket,
    by_jwt_over_tls,
    by_jwt_receiver,
    by_management_jwt,
)
CASES: Final = [
    *((way, namespace_key, change) for way in NAMESPACE_WAYS for change in (delete_key, regenerate_key)),
    *((way, entity_key, change) for way in ENTITY_WAYS for change in (delete_entity_key, regenerate_entity_key)),
    *((way, issuer_key, change) for way in ISSUER_WAYS for change in (remove_issuer_key, replace_issuer_key)),
    (by_jwt, issuer_key, remove_every_issuer_key),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "key", "revoke"), CASES, ids=[f"{way.__name__}-{revoke.__name__}" for way, _, revoke in CASES]
)
def test_e5_revoked_key_ends_what_it_has_opened_within_five_seconds(
    served: Served, way: Way, key: Any, revoke: Callable[[Served], None]
) -> None:
    with key(served), ExitStack() as stack:
        opened = way(served, stack)
        assert opened.works()
        revoke(served)
        began = time.monotonic()
        opened.until_over()
        assert time.monotonic() - began < WITHIN_S
        with pytest.raises(RefusedError):
            way(served, stack)


@pytest.mark.slow
def test_e5_key_file_that_becomes_a_pipe_is_reported_and_does_not_keep_the_process(tmp_path: Path) -> None:
    publish(tmp_path, APP)
    options = ("--jwt-issuer", ISSUER, "--jwt-keys", str(tmp_path / KEY_FILE))

    def replace_by_pipe() -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "pipe").replace(tmp_path / KEY_FILE)

    with Served(tmp_path / "contoso", *options) as served:
        asyncio.run(prepare(served))
        replace_by_pipe()
        eventually(lambda: "component signing-keys is stuck: the issuer's keys cannot be read" in health(served))
        assert http_status(served, jwt_token()) == 200
        publish(tmp_path)
        eventually(lambda: http_status(served, jwt_token()) == 401)
        eventually(lambda: '"ok"' in health(served))
        replace_by_pipe()
        eventually(lambda: '"degraded"' in health(served))
        served.stop()


def health(served: Served) -> str:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
    connection.request("GET", "/health")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


@pytest.mark.slow
def test_e5_request_whose_key_is_deleted_while_its_body_arrives_is_refused(served: Served) -> None:
    body = entry(rule("stolen"))
    credentials = base64.b64encode(f"{NAME}:secret".encode()).decode()
    with namespace_key(served):
        connection = HTTPConnection("127.0.0.1", served.port, timeout=DEADLINE_S)
        connection.putrequest("PUT", "/$AuthorizationRules/stolen")
        connection.putheader("Authorization", f"Basic {credentials}")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:-1])
        delete_key(served)
        connection.send(body[-1:])
        assert connection.getresponse().status == 401
        connection.close()
