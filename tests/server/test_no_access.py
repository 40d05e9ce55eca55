"""A8: no access without the claim, by any route; a refused client learns nothing and changes nothing.

The cases come from the tables that the server itself routes by: a new kind of link, operation or route is covered
automatically, or a test reports that it is not.
"""

from __future__ import annotations

import http.client
import re
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote_plus
from uuid import UUID

import pytest

from pairbus.broker import (
    Address,
    AuthorizationRule,
    QueueDescription,
    Right,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.annotations import TRANSFER_DESTINATION
from pairbus.dialect.management import Operation
from pairbus.dialect.sas import make_sas_token
from pairbus.server.amqp.attachment import FORMS
from pairbus.server.amqp.management.node import OPERATIONS
from pairbus.server.host import NamespaceHost
from pairbus.server.http.routes import ROUTES, ManagementRoute
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Array,
    Condition,
    Coordinator,
    Int,
    Link,
    Source,
    Symbol,
    Target,
    Timestamp,
    UInt,
    plain,
)
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import LinkRefusedError, WireClient, text_message

UNAUTHORIZED: Final = Condition.UNAUTHORIZED_ACCESS
HOST: Final = "sb://localhost"
FAR_MS: Final = 253_402_300_800_000


def key(name: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=f"{name}-1", secondary_key=f"{name}-2")


SENDING: Final = key("sending", Right.SEND)
LISTENING: Final = key("listening", Right.LISTEN)
BOTH: Final = key("both", Right.SEND, Right.LISTEN)
KEYS: Final = (SENDING, LISTENING, BOTH)
LACKING: Final = {Right.SEND: LISTENING, Right.LISTEN: SENDING, Right.MANAGE: BOTH}
"""For each claim, a key to the whole namespace with all other claims that can exist without it."""

BOSS: Final = key("boss", Right.MANAGE, Right.SEND, Right.LISTEN)
"""Each entity has a key of that name, with a value of its own."""

MISSING: Final = {"orders": "absent", "old": "odd", "news": "gone", "all": "any", "visits": "voided"}
"""For each existing name, a missing one of the same shape."""


def boss_of(entity: str) -> AuthorizationRule:
    return replace(BOSS, primary_key=f"{entity}-1", secondary_key=f"{entity}-2")


def queue(entity: str, **settings: Any) -> QueueDescription:
    return QueueDescription(authorization_rules=(boss_of(entity),), **settings)


def missing(text: str) -> str:
    """Return the text with names of missing entities."""
    return re.sub(rf"\b({'|'.join(MISSING)})\b", lambda found: MISSING[found[0].lower()], text, flags=re.IGNORECASE)


def furnish(host: NamespaceHost) -> None:
    """Reset everything that the tests use to a known state."""
    namespace, now_ms = host.use_namespace(), host.now_ms()
    root = next(rule for rule in namespace.authorization_rules(now_ms) if Right.MANAGE in rule.rights)
    for entity in [*namespace.queues(now_ms), *namespace.topics(now_ms)]:
        namespace.delete(Address.of(entity.path), now_ms)
    namespace.set_authorization_rules([root, *KEYS], now_ms)
    for name in ("orders", "orders/old", "orders2"):
        namespace.create_queue(name, queue(name), now_ms)
    namespace.create_queue("visits", queue("visits", requires_session=True), now_ms)
    namespace.create_topic("news", TopicDescription(authorization_rules=(boss_of("news"),)), now_ms)
    namespace.create_subscription("news", "all", SubscriptionDescription(), now_ms)


def contents(host: NamespaceHost) -> list[object]:
    """Return everything in the namespace that a request could have changed."""
    namespace, now_ms = host.use_namespace(), host.now_ms()
    found: list[object] = list(namespace.authorization_rules(now_ms))
    found += [replace(info, accessed_ms=0) for info in namespace.queues(now_ms)]
    for topic in namespace.topics(now_ms):
        found.append(replace(topic, accessed_ms=0))
        for subscription in namespace.subscriptions(topic.path, now_ms):
            found.append(replace(subscription, accessed_ms=0))
            found += namespace.rules(topic.path, subscription.path, now_ms)
    return found


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        served.call(furnish)
        yield served


@pytest.fixture
def fresh(namespace: RunningNamespace) -> RunningNamespace:
    """Return the same namespace, reset."""
    namespace.call(furnish)
    return namespace


@pytest.fixture
def unchanged(namespace: RunningNamespace) -> Iterator[None]:
    before = namespace.call(contents)
    yield
    assert namespace.call(contents) == before


def sas(rule: AuthorizationRule, path: str = "", *, expires_in_s: int = 3_600) -> str:
    return make_sas_token(f"{HOST}/{path}", rule.name, rule.primary_key, int(time.time()) + expires_in_s)


def root_of(namespace: RunningNamespace) -> AuthorizationRule:
    return replace(BOSS, name="RootManageSharedAccessKey", primary_key=namespace.key)


@contextmanager
def connected(namespace: RunningNamespace, *tokens: tuple[str, str]) -> Iterator[WireClient]:
    """Yield a connection that has put tokens, each for an address, and each accepted."""
    with WireClient(namespace.port).open() as client:
        if tokens:
            node = client.requests("$cbs")
            for audience, token in tokens:
                assert client.put_token(f"{HOST}/{audience}", token, node).status == 202
        yield client


# Links.


@dataclass(frozen=True)
class Way:
    """A kind of link to an address."""

    form: str
    role: bool
    """The server's role."""
    address: str

    def __str__(self) -> str:
        return f"{'to' if self.role == RECEIVER else 'from'} {self.address}"

    def attach(self, client: WireClient) -> Link:
        here = "here"
        if self.form == "coordinator":
            return client.attach(SENDER, source=Source(address=here), target=Coordinator())
        if self.role == RECEIVER:
            return client.attach(SENDER, source=Source(address=here), target=Target(address=self.address))
        session_filter = {Symbol("com.microsoft:session-filter"): "one"} if "visits" in self.address.lower() else None
        source = Source(address=self.address, filter=session_filter if self.form == "entity" else None)
        return client.attach(RECEIVER, source=source, target=Target(address=here))


PATHS: Final = (
    "orders",
    "orders/old",
    "visits",
    "news",
    "news/Subscriptions/all",
    "orders/$DeadLetterQueue",
    "orders/old/$DeadLetterQueue",
    "orders/$Transfer/$DeadLetterQueue",
    "news/Subscriptions/all/$DeadLetterQueue",
    "news/Subscriptions/all/$Transfer/$DeadLetterQueue",
)
SPELLINGS: Final[tuple[Callable[[str], str], ...]] = (
    str,
    str.upper,
    str.lower,
    lambda path: f"/{path}/",
    lambda path: f"amqps://localhost:5671/{path}",
    lambda path: f"sb://contoso.servicebus.windows.net/{path.upper()}/",
)
SUFFIXES: Final = {"entity": "", "management": "/$management"}
WAYS: Final = [
    Way(form, role, spell(path + SUFFIXES[form]))
    for (form, role), described in FORMS.items()
    if described.rights
    for path in PATHS
    for spell in SPELLINGS
]


def refused(way: Way, client: WireClient) -> LinkRefusedError:
    with pytest.raises(LinkRefusedError) as caught:
        way.attach(client)
    return caught.value


def assert_turned_away(way: Way, client: WireClient) -> None:
    """Check that a link is refused for the claim, with the same text if the entity is missing."""
    there = refused(way, client)
    assert there.error.condition == UNAUTHORIZED
    assert there.attach.source is None
    assert there.attach.target is None
    nowhere = refused(replace(way, address=missing(way.address)), client)
    assert nowhere.error.condition == UNAUTHORIZED
    assert nowhere.error.description == missing(there.error.description or "")
    assert nowhere.error.info == there.error.info


def passes(way: Way, client: WireClient) -> bool:
    """Return whether the claim suffices; that dead letters cannot be sent to is another matter."""
    try:
        client.detach(way.attach(client))
    except LinkRefusedError as refusal:
        return refusal.error.condition == Condition.NOT_ALLOWED
    return True


@pytest.fixture(scope="module")
def peers(namespace: RunningNamespace) -> Iterator[dict[str, WireClient]]:
    """Yield connections with every token except the required one, by their claims."""
    with ExitStack() as stack:
        yield {
            "nothing": stack.enter_context(connected(namespace)),
            "another entity": stack.enter_context(connected(namespace, ("orders2", sas(boss_of("orders2"))))),
            "another address": stack.enter_context(
                connected(namespace, ("orders2", sas(root_of(namespace), "orders2")))
            ),
            **{rule.name: stack.enter_context(connected(namespace, ("", sas(rule)))) for rule in KEYS},
        }


@pytest.fixture(scope="module")
def root(namespace: RunningNamespace) -> Iterator[WireClient]:
    with connected(namespace, ("", sas(root_of(namespace)))) as client:
        yield client


def test_every_kind_of_link_is_tried() -> None:
    open_to_all = {form for (form, _), described in FORMS.items() if not described.rights}
    assert open_to_all == {"tokens", "coordinator"}
    assert {form for form, _ in FORMS} == open_to_all | set(SUFFIXES)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.usefixtures("unchanged")
def test_a8_no_link_without_the_claim(way: Way, peers: dict[str, WireClient], root: WireClient) -> None:
    needed = FORMS[way.form, way.role].rights
    useless = [rule.name for rule in KEYS if not set(rule.rights) & set(needed)]
    for name in ("nothing", "another entity", "another address", *useless):
        assert_turned_away(way, peers[name])
    assert passes(way, root)


def test_a8_send_right_does_not_reveal_missing_entities(namespace: RunningNamespace) -> None:
    with connected(namespace, ("", sas(SENDING))) as client:
        Way("entity", RECEIVER, "orders").attach(client)
        assert refused(Way("entity", RECEIVER, "absent"), client).error.condition == Condition.NOT_FOUND
        for address in ("orders", "absent"):
            assert refused(Way("entity", SENDER, address), client).error.condition == UNAUTHORIZED


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("", id="empty"),
        pytest.param("SharedAccessSignature ", id="no parts"),
        pytest.param("not a token", id="no token"),
        pytest.param("eyJhbGciOiJub25lIn0.e30.", id="unsigned web token"),
        pytest.param(sas(replace(SENDING, primary_key="wrong")), id="wrong key"),
        pytest.param(sas(replace(SENDING, name="unknown")), id="unknown key"),
        pytest.param(sas(SENDING, expires_in_s=-1), id="expired"),
        pytest.param(sas(SENDING, "orders2"), id="for another entity"),
        pytest.param(sas(SENDING, "orders/old"), id="for an entity below"),
        pytest.param(sas(SENDING, "order"), id="for half the name"),
        pytest.param(sas(boss_of("orders2")), id="key of another entity"),
        pytest.param(sas(boss_of("orders/old")), id="key of an entity below"),
        pytest.param(sas(SENDING)[:-1], id="cut"),
        pytest.param(sas(SENDING).replace("se=", "se=1"), id="later end"),
    ],
)
def test_a8_invalid_token_is_refused_with_the_same_text_everywhere(namespace: RunningNamespace, token: str) -> None:
    with WireClient(namespace.port).open() as client:
        node = client.requests("$cbs")
        there = client.put_token(f"{HOST}/orders", token, node)
        nowhere = client.put_token(f"{HOST}/absent", token, node)
        assert (there.status, there.description) == (401, nowhere.description)
        assert nowhere.status == 401
        assert refused(Way("entity", RECEIVER, "orders"), client).error.condition == UNAUTHORIZED
        assert client.put_token(f"{HOST}/orders", sas(SENDING), node).status == 202
        Way("entity", RECEIVER, "orders").attach(client)


# Another spelling of a token's address must not grant more: the signed address counts.

_RESPELLINGS: Final[dict[str, Callable[[str], str]]] = {
    "encoded twice": quote_plus,
    "encoded three times": lambda text: quote_plus(quote_plus(text)),
    "encoded twice in lower case": lambda text: quote_plus(text).lower(),
    "encoded twice in part": lambda text: text.replace("%2F", "%252F"),
    "colon encoded twice": lambda text: text.replace("%3A", "%253A"),
    "decoded": unquote_plus,
    "decoded, encoded otherwise": lambda text: quote(unquote_plus(text), safe=""),
    "with a query": lambda text: text + "%3Fa",
    "with a query before the path": lambda text: text.replace("%2Forders", "%3F%2Forders"),
    "with a slash": lambda text: text + "%2F",
    "without the path": lambda text: text.removesuffix("%2Forders"),
    "empty": lambda _text: "",
}


@pytest.mark.parametrize("respell", _RESPELLINGS.values(), ids=_RESPELLINGS)
@pytest.mark.parametrize("elsewhere", ["", "orders2", "orders3/old", "news"])
def test_a8_token_in_another_spelling_covers_no_other_entity(
    namespace: RunningNamespace, respell: Callable[[str], str], elsewhere: str
) -> None:
    resource = quote_plus(f"{HOST}/orders")
    token = sas(root_of(namespace), "orders")
    assert f"sr={resource}&" in token
    with WireClient(namespace.port).open() as client:
        answer = client.put_token(f"{HOST}/{elsewhere}", token.replace(resource, respell(resource)))
        assert answer.status == 401
        assert refused(Way("entity", SENDER, elsewhere or "orders"), client).error.condition == UNAUTHORIZED


# Keys of entities.


@pytest.mark.parametrize(
    ("owner", "opens"),
    [
        ("orders", ["orders", "orders/$DeadLetterQueue", "orders/$management", "orders/$Transfer/$DeadLetterQueue"]),
        ("orders/old", ["orders/old", "orders/old/$DeadLetterQueue", "orders/old/$management"]),
        ("news", ["news/Subscriptions/all", "news/Subscriptions/all/$DeadLetterQueue", "news/$management"]),
    ],
)
@pytest.mark.parametrize("audience", ["owner", "each"])
def test_a8_key_of_an_entity_covers_it_and_its_parts_only(
    namespace: RunningNamespace, owner: str, opens: list[str], audience: str
) -> None:
    everything = {
        path + suffix
        for path in (*PATHS, "orders2", "orders2/$DeadLetterQueue")
        for suffix in SUFFIXES.values()
        if path not in {"news", "visits"}
    }
    token = sas(boss_of(owner), owner)
    with WireClient(namespace.port).open() as client:
        node = client.requests("$cbs")
        for path in everything | {*opens}:
            mine = path == owner or (
                path.startswith(owner + "/") and not (owner == "orders" and path.startswith("orders/old"))
            )
            put = client.put_token(f"{HOST}/{owner if audience == 'owner' else path}", token, node)
            assert put.status == (202 if mine or audience == "owner" else 401), path
            way = Way("management" if path.endswith("$management") else "entity", SENDER, path)
            if mine:
                client.detach(way.attach(client))
            else:
                assert refused(way, client).error.condition == UNAUTHORIZED, path


def test_a8_key_of_a_topic_covers_its_subscriptions_and_sending(namespace: RunningNamespace) -> None:
    with connected(namespace, ("news", sas(boss_of("news"), "news"))) as client:
        link = client.sender("news")
        assert client.send(link, text_message("one")) == ACCEPTED
        received = client.receive_one(client.receiver("news/Subscriptions/all"))
        assert client.settle(received, ACCEPTED) == ACCEPTED


def test_a8_key_does_not_cover_a_missing_entity(namespace: RunningNamespace) -> None:
    with WireClient(namespace.port).open() as client:
        assert client.put_token(f"{HOST}/absent", sas(BOSS, "absent")).status == 401


def test_a8_sending_through_an_entity_needs_the_claim_for_the_destination_too(fresh: RunningNamespace) -> None:
    via = {Symbol(TRANSFER_DESTINATION): "orders2"}
    only_here = ("orders", sas(boss_of("orders"), "orders"))
    there_too = ("orders2", sas(boss_of("orders2"), "orders2"))
    with connected(fresh, only_here) as client:
        for destination in ("orders2", "absent"):
            with pytest.raises(LinkRefusedError) as caught:
                client.sender("orders", properties={Symbol(TRANSFER_DESTINATION): destination})
            assert caught.value.error.condition == UNAUTHORIZED
    with connected(fresh, there_too) as client, pytest.raises(LinkRefusedError) as caught:
        client.sender("orders", properties=via)
    assert caught.value.error.condition == UNAUTHORIZED
    with connected(fresh, only_here, there_too) as client:
        assert client.send(client.sender("orders", properties=via), text_message("one")) == ACCEPTED
        assert client.receive_one(client.receiver("orders2"))


def test_a8_name_of_another_peers_link_gives_no_access_to_its_session(fresh: RunningNamespace) -> None:
    token = ("visits", sas(root_of(fresh), "visits"))
    with connected(fresh, token) as holder, connected(fresh, token) as thief:
        link = holder.session_receiver("visits", "one", name="mine")
        own = holder.requests("visits/$management")
        assert (
            own.call(Operation.SET_SESSION_STATE, {"session-id": "one", "session-state": b"x"}, link="mine").status
            == 200
        )
        asking = thief.requests("visits/$management")
        for operation in (Operation.GET_SESSION_STATE, Operation.SET_SESSION_STATE, Operation.RENEW_SESSION_LOCK):
            for name in ("mine", None):
                answer = asking.call(operation, {"session-id": "one", "session-state": b"y"}, link=name)
                assert (answer.status, answer.condition) == (410, "com.microsoft:session-lock-lost")
        state = own.call(Operation.GET_SESSION_STATE, {"session-id": "one"}, link=link.name)
        assert state.body == {"session-state": b"x"}


# Operations on management nodes.

BODIES: Final[dict[str, dict[str, Any]]] = {
    Operation.PEEK_MESSAGE: {"from-sequence-number": 0, "message-count": Int(1)},
    Operation.SCHEDULE_MESSAGE: {"messages": [{"message-id": "m", "message": text_message("later", message_id="m")}]},
    Operation.CANCEL_SCHEDULED_MESSAGE: {"sequence-numbers": Array((1,))},
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: {"sequence-numbers": Array((1,)), "receiver-settle-mode": UInt(0)},
    Operation.UPDATE_DISPOSITION: {"disposition-status": "completed", "lock-tokens": Array((UUID(int=1),))},
    Operation.RENEW_LOCK: {"lock-tokens": Array((UUID(int=1),))},
    Operation.BATCH_DELETE_MESSAGES: {"message-count": Int(10), "enqueued-time-utc": Timestamp(FAR_MS)},
    Operation.RENEW_SESSION_LOCK: {"session-id": "one"},
    Operation.GET_SESSION_STATE: {"session-id": "one"},
    Operation.SET_SESSION_STATE: {"session-id": "one", "session-state": b"x"},
    Operation.GET_MESSAGE_SESSIONS: {"last-updated-time": Timestamp(FAR_MS), "skip": Int(0), "top": Int(10)},
    Operation.ENUMERATE_RULES: {"skip": Int(0), "top": Int(10)},
    Operation.ADD_RULE: {"rule-name": "red", "rule-description": {"sql-filter": {"expression": "1=1"}}},
    Operation.REMOVE_RULE: {"rule-name": "$Default"},
}
NODES: Final = ("orders", "visits", "news/Subscriptions/all", "news", "orders/$DeadLetterQueue")


def test_every_operation_is_tried() -> None:
    assert BODIES.keys() == OPERATIONS.keys()


def test_every_claim_is_tested_as_missing() -> None:
    assert LACKING.keys() == set(Right)


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.partition(":")[2])
def test_a8_no_operation_without_the_claim(fresh: RunningNamespace, operation: str, node: str) -> None:
    before = fresh.call(contents)
    with connected(fresh, ("", sas(LACKING[OPERATIONS[operation].right]))) as client:
        answer = client.requests(f"{node}/$management").call(operation, BODIES[operation])
        assert (answer.status, answer.condition, answer.body) == (401, UNAUTHORIZED, {})
    assert fresh.call(contents) == before
    with connected(fresh, ("", sas(root_of(fresh)))) as client:
        answer = client.requests(f"{node}/$management").call(operation, BODIES[operation])
        assert answer.status != 401


def test_a8_right_claim_changes_what_the_others_did_not(fresh: RunningNamespace) -> None:
    """Check that the test above detects changes where there are some."""
    before = fresh.call(contents)
    with connected(fresh, ("", sas(root_of(fresh)))) as client:
        node = client.requests("news/Subscriptions/all/$management")
        assert node.call(Operation.REMOVE_RULE, BODIES[Operation.REMOVE_RULE]).status == 200
    assert fresh.call(contents) != before


# Routes.

_ENTRY: Final = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{0} xmlns='
    '"http://schemas.microsoft.com/netservices/2010/10/servicebus/connect">{1}</{0}></content></entry>'
)
_ALL_RIGHTS: Final = "".join(f"<AccessRights>{right.capitalize()}</AccessRights>" for right in Right)
_OPEN_KEY: Final = f"<Rights>{_ALL_RIGHTS}</Rights><PrimaryKey>evil</PrimaryKey>"
REQUEST_BODIES: Final = {
    "put-entity": _ENTRY.format("QueueDescription", "<UserMetadata>mine</UserMetadata>"),
    "put-subscription": _ENTRY.format("SubscriptionDescription", ""),
    "put-rule": _ENTRY.format("RuleDescription", "<Name>red</Name>"),
    "add-fault": '{"kind": "slow", "latency_ms": 1, "duration_ms": 1}',
    "put-key": _ENTRY.format("SharedAccessAuthorizationRule", _OPEN_KEY),
}
CHANGING: Final = ("put", "delete")


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    text: str

    @property
    def lasting(self) -> str:
        """Return the part that is equal in all responses."""
        return re.sub(r"TrackingId:\S+, Timestamp:[^<\s]+", "", self.text)


class Caller:
    """Makes requests over TLS, on one connection each."""

    def __init__(self, namespace: RunningNamespace) -> None:
        self._port = namespace.port
        self._context = ssl.create_default_context(cafile=str(namespace.ca_file))

    def __call__(
        self, method: str, path: str, token: str | None, body: str | None = None, **headers: str
    ) -> HttpAnswer:
        connection = http.client.HTTPSConnection("localhost", self._port, context=self._context, timeout=60)
        authorization = {} if token is None else {"Authorization": token}
        try:
            connection.request(method, path, body, {**authorization, **headers})
            response = connection.getresponse()
            return HttpAnswer(response.status, response.read().decode())
        finally:
            connection.close()


@pytest.fixture(scope="module")
def call(namespace: RunningNamespace) -> Caller:
    return Caller(namespace)


MANAGED: Final = [route for route in ROUTES if route.right is not None]


def managed_path(route: ManagementRoute, example: str) -> str:
    return f"{example}?api-version=2021-05"


def bad_tokens(namespace: RunningNamespace, right: Right) -> dict[str, str | None]:
    root = root_of(namespace)
    return {
        "nothing": None,
        "empty": "",
        "not a token": "Bearer x",
        "wrong key": sas(replace(root, primary_key="wrong")),
        "wrong key shown": "Basic Um9vdE1hbmFnZVNoYXJlZEFjY2Vzc0tleTp3cm9uZw==",
        "expired": sas(root, expires_in_s=-1),
        "another address": sas(root, "orders2"),
        "another entity": sas(boss_of("orders2"), "orders2"),
        "another entity's key for everything": sas(boss_of("orders2")),
        "the other claims": sas(LACKING[right]),
    }


def test_every_route_that_is_open_to_all_shows_nothing(namespace: RunningNamespace, call: Caller) -> None:
    opened = [route for route in ROUTES if route.right is None]
    assert {route.operation for route in opened} == {"health", "metrics"}
    for route in opened:
        answer = call(route.method, route.example, None)
        assert answer.status == 200
        assert not re.search(r"\b(orders|news|visits)\b", answer.text)
    everything = call("GET", "/metrics", sas(root_of(namespace))).text
    assert 'entity="orders"' in everything


@pytest.mark.parametrize("route", MANAGED, ids=lambda route: route.operation)
@pytest.mark.parametrize("spelled", [str, str.upper], ids=["as it is", "in capitals"])
def test_a8_no_request_without_the_claim(
    fresh: RunningNamespace, call: Caller, route: ManagementRoute, spelled: Callable[[str], str]
) -> None:
    path = managed_path(route, spelled(route.example))
    body = REQUEST_BODIES.get(route.operation)
    before = fresh.call(contents)
    assert route.right is not None
    for name, token in bad_tokens(fresh, route.right).items():
        for headers in ({}, {"If-Match": "*"}) if route.method == "PUT" else ({},):
            there = call(route.method, path, token, body, **headers)
            nowhere = call(route.method, managed_path(route, missing(spelled(route.example))), token, body, **headers)
            assert (there.status, nowhere.status) == (401, 401), name
            assert there.lasting == nowhere.lasting, name
    assert fresh.call(contents) == before
    headers = {"If-Match": "*"} if route.operation in {"put-entity", "put-subscription"} else {}
    answer = call(route.method, path, sas(root_of(fresh)), body, **headers)
    assert answer.status in {200, 201, 404}
    if route.operation.startswith(CHANGING) and answer.status != 404:
        assert fresh.call(contents) != before


def _ends_with_name(route: ManagementRoute) -> bool:
    return route.pattern.endswith("}")


@pytest.mark.parametrize("route", [each for each in MANAGED if _ends_with_name(each)], ids=lambda each: each.operation)
@pytest.mark.parametrize(
    "name",
    ["x:%2F%2Fh%2Forders", "x:%2f%2fh%2forders", "sb:%2F%2Flocalhost%2Forders", "%3A%2F%2F%2Forders", "%3Forders"],
)
def test_a8_name_that_looks_like_an_address_does_not_move_the_request_elsewhere(
    fresh: RunningNamespace, call: Caller, route: ManagementRoute, name: str
) -> None:
    """Check that the key of ``orders`` covers ``orders`` only, even if the name at the end of a path spells that."""
    parent = route.example.rpartition("/")[0]
    if not parent:
        parent = "/orders2"
    before = fresh.call(contents)
    answer = call(
        route.method,
        managed_path(route, f"{parent}/{name}"),
        sas(boss_of("orders"), "orders"),
        REQUEST_BODIES.get(route.operation),
    )
    assert answer.status == 401
    assert fresh.call(contents) == before


def test_a8_key_of_an_entity_manages_it_and_no_other(fresh: RunningNamespace, call: Caller) -> None:
    token = sas(boss_of("orders"), "orders")
    body = REQUEST_BODIES["put-entity"]
    for other in ("orders/old", "orders2", "absent", "orders/new", "news", "$Resources/Queues", "$namespaceinfo"):
        assert call("GET", f"/{other}?api-version=2021-05", token).status == 401
        assert call("PUT", f"/{other}?api-version=2021-05", token, body).status == 401
        assert call("DELETE", f"/{other}?api-version=2021-05", token).status == 401
    assert call("GET", "/orders?api-version=2021-05", token).status == 200
    news = sas(boss_of("news"), "news")
    assert call("GET", "/news/Subscriptions/all/Rules?api-version=2021-05", news).status == 200
    assert (
        call("PUT", "/news/Subscriptions/more?api-version=2021-05", news, REQUEST_BODIES["put-subscription"]).status
        == 201
    )


def test_a8_forwarding_needs_a_claim_for_the_target(fresh: RunningNamespace, call: Caller) -> None:
    def forwarding(target: str) -> str:
        return _ENTRY.format("QueueDescription", f"<ForwardTo>{HOST}/{target}</ForwardTo>")

    token = sas(boss_of("orders"), "orders")
    for target in ("orders2", "absent"):
        assert call("PUT", "/orders?api-version=2021-05", token, forwarding(target), **{"If-Match": "*"}).status == 401
    supplement = {"ServiceBusSupplementaryAuthorization": sas(boss_of("orders2"), "orders2")}
    answer = call("PUT", "/orders?api-version=2021-05", token, forwarding("orders2"), **{"If-Match": "*"}, **supplement)
    assert answer.status == 200


# Expiry.


@pytest.fixture
def clocked() -> Iterator[ClockedNamespace]:
    with clocked_namespace() as served:
        served.call(furnish)
        yield served


def short_token(clocked: ClockedNamespace, path: str = "orders") -> str:
    """Return a token that expires in a moment."""
    ends_s = clocked.clock.stop_before_the_second(250)
    rule = root_of(clocked)
    return make_sas_token(f"{HOST}/{path}", rule.name, rule.primary_key, ends_s)


def lasting_token(clocked: ClockedNamespace, path: str = "orders") -> str:
    rule = root_of(clocked)
    return make_sas_token(f"{HOST}/{path}", rule.name, rule.primary_key, clocked.clock() // 1_000 + 3_600)


def test_a8_links_end_when_their_token_expires(clocked: ClockedNamespace) -> None:
    with WireClient(clocked.port).open() as client:
        node = client.requests("$cbs")
        assert client.put_token(f"{HOST}/visits", lasting_token(clocked, "visits"), node).status == 202
        lasting = client.session_receiver("visits", "one")
        assert client.put_token(f"{HOST}/orders", short_token(clocked), node).status == 202
        links = [client.sender("orders"), client.receiver("orders"), client.requests("orders/$management").asking]
        for link in links:
            error = client.detached(link)
            assert (error.condition, (error.description or "").split(":")[0]) == (UNAUTHORIZED, "ExpiredToken")
        assert lasting.is_attached
        assert refused(Way("entity", RECEIVER, "orders"), client).error.condition == UNAUTHORIZED
        assert client.put_token(f"{HOST}/orders", lasting_token(clocked), node).status == 202
        assert client.send(client.sender("orders"), text_message("again")) == ACCEPTED


def test_a8_wait_for_a_session_ends_when_the_token_expires(clocked: ClockedNamespace) -> None:
    with WireClient(clocked.port).open() as client:
        assert client.put_token(f"{HOST}/visits", short_token(clocked, "visits")).status == 202
        waiting = client.begin_session_receiver("visits", None)
        with pytest.raises(LinkRefusedError) as caught:
            client.attached(waiting)
        assert caught.value.error.condition == UNAUTHORIZED


def test_a8_session_is_released_when_the_token_of_its_holder_expires(clocked: ClockedNamespace) -> None:
    with WireClient(clocked.port).open() as client, WireClient(clocked.port).open() as next_one:
        assert client.put_token(f"{HOST}/visits", short_token(clocked, "visits")).status == 202
        holding = client.session_receiver("visits", "one")
        assert client.detached(holding).condition == UNAUTHORIZED
        assert next_one.put_token(f"{HOST}/visits", lasting_token(clocked, "visits")).status == 202
        assert next_one.session_receiver("visits", "one").is_attached


def test_a8_token_that_is_renewed_in_time_keeps_the_link(clocked: ClockedNamespace) -> None:
    with WireClient(clocked.port).open() as client:
        node = client.requests("$cbs")
        assert client.put_token(f"{HOST}/orders2", lasting_token(clocked, "orders2"), node).status == 202
        ends = short_token(clocked)
        assert client.put_token(f"{HOST}/orders", ends, node).status == 202
        kept = client.sender("orders")
        assert client.put_token(f"{HOST}/orders", lasting_token(clocked), node).status == 202
        # The same short token for another address shows when it expires.
        assert client.put_token(f"{HOST}/orders/$management", ends, node).status == 202
        client.put_token(f"{HOST}/orders2", short_token(clocked, "orders2"), node)
        client.detached(client.receiver("orders2"))
        assert client.send(kept, text_message("still here")) == ACCEPTED


def test_a8_sending_through_an_entity_ends_with_the_token_for_the_destination(clocked: ClockedNamespace) -> None:
    with WireClient(clocked.port).open() as client:
        node = client.requests("$cbs")
        assert client.put_token(f"{HOST}/orders", lasting_token(clocked), node).status == 202
        assert client.put_token(f"{HOST}/orders2", short_token(clocked, "orders2"), node).status == 202
        watch = client.receiver("orders2")
        through = client.sender("orders", properties={Symbol(TRANSFER_DESTINATION): "orders2"})
        client.detached(watch)
        assert client.detached(through).condition == UNAUTHORIZED


# Keys sent directly.


def test_a8_key_of_the_namespace_is_accepted_and_a_wrong_one_refused(namespace: RunningNamespace) -> None:
    with WireClient(namespace.port, sasl=plain(SENDING.name, SENDING.secondary_key)).open() as client:
        Way("entity", RECEIVER, "orders").attach(client)
        assert refused(Way("entity", SENDER, "orders"), client).error.condition == UNAUTHORIZED


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (SENDING.name, "wrong"),
        (SENDING.name, ""),
        ("unknown", "x"),
        ("", ""),
        (BOSS.name, boss_of("orders").primary_key),
    ],
    ids=["wrong value", "no value", "unknown name", "nothing", "key of an entity"],
)
def test_a8_sasl_plain_with_a_wrong_key_is_refused(namespace: RunningNamespace, name: str, value: str) -> None:
    with WireClient(namespace.port, sasl=plain(name, value)) as client:
        client.engine.open()
        client.until_hung_up()
        assert client.failure is not None
        assert client.failure.condition == UNAUTHORIZED
