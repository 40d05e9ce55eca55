"""The broker reference says what is true: its operations raise what it says; reasons and errors are all there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, replace
from random import Random
from typing import Any, Final
from uuid import uuid4

import pytest

from pairbus.broker import (
    MISSING,
    STANDARD,
    Address,
    AuthorizationRule,
    BrokerError,
    CorrelationFilter,
    DeliveredMessage,
    EntityInfo,
    EntityStatus,
    FilterDescription,
    Missing,
    Namespace,
    NewMessage,
    QueueDescription,
    QueuePart,
    Right,
    RuleDescription,
    SendOperation,
    SessionGrant,
    SettlementKind,
    SettlementRequest,
    SettleOperation,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    Value,
    errors,
)
from pairbus.store import GroupCommitter, MemoryStore, StoreError
from tests.docs.snippets import ROOT
from tests.docs.tables import codes, rows_of

PAGE = ROOT / "docs" / "reference" / "broker.md"
TEXT = PAGE.read_text(encoding="utf-8")

OPERATIONS: Final = {
    names[0]: raised
    for name, _, raised in rows_of(PAGE, "operation", "what it does", "raises")
    if (names := codes(name))
}


def raised_by(operation: str) -> set[str]:
    """The errors that the table has for an operation; the row of a transaction names other rows."""
    names = codes(OPERATIONS[operation])
    return {error for name in names for error in (raised_by(name) if name in OPERATIONS else {name})}


def test_table_has_every_operation() -> None:
    public = [name for name, _ in inspect.getmembers(Namespace, inspect.isfunction) if not name.startswith("_")]
    assert sorted(OPERATIONS) == public


def test_table_has_every_reason() -> None:
    words = {
        value
        for name, value in vars(errors).items()
        if name.isupper() and not name.endswith("_PROPERTY") and isinstance(value, str)
    }
    assert {codes(row[0])[0] for row in rows_of(PAGE, "reason", "when")} == words
    assert f"`{errors.REASON_PROPERTY}` and `{errors.DESCRIPTION_PROPERTY}`" in " ".join(TEXT.split())


def test_table_has_every_error() -> None:
    listed = {codes(row[0])[0] for row in rows_of(PAGE, "error", "base class", "description")}
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BrokerError)}
    assert listed == kinds


def test_diagram_has_the_states_that_an_entity_counts() -> None:
    diagram = TEXT.split("```mermaid")[1].split("```")[0]
    states = {state for arrow in re.findall(r"^ +(\S+) --> (\w+):", diagram, re.MULTILINE) for state in arrow} - {"[*]"}
    counted = {field.name.removesuffix("_count") for field in fields(EntityInfo) if field.name.endswith("_count")}
    assert states - {"dead"} == counted & {"ready", "locked", "deferred", "scheduled"}
    assert "dead_letter" in counted


# A namespace that is small in every way, and everything that can be asked of it, with good arguments and bad ones.


class View:
    def user(self, _name: str) -> Value | Missing:
        return MISSING

    def system(self, _name: str) -> Value:
        return None


SMALL: Final = replace(
    STANDARD,
    message_bytes=600_000, batch_bytes=1_300_000, header_bytes=10, id_characters=8, path_characters=12,
    name_characters=8, entities=7, subscriptions_per_topic=3, sql_filters_per_topic=2, correlation_filters_per_topic=1,
    expression_characters=20, entity_megabytes=(1, 2), min_lock_ms=1, messages_per_transaction=3, partitions=2,
    rule_units=399,
)  # fmt: skip
OUTSIDE: Final[dict[str, Any]] = {
    "records": None, "limits": SMALL, "view": lambda _: View(), "fresh_id": uuid4, "fresh_token": lambda: uuid4().bytes,
}  # fmt: skip

ADDRESSES: Final = [
    *(Address.of(path) for path in ("queue", "sessions", "topic")),
    *(Address.of(path) for path in ("queue", "sessions", "topic", "passing", "closed", "no")),
    *(Address.of("queue", part=part) for part in (QueuePart.DEAD_LETTER, QueuePart.TRANSFER_DEAD_LETTER)),
    *(Address.of("topic", name) for name in ("sub", "sub", "sess", "no")),
    Address.of("queue", "sub"),
]  # fmt: skip
# What makes the other calls meaningful happens more often; what ends everything, seldom.
OFTEN: Final = {
    "send": 8.0, "receive": 8.0, "accept_session": 6.0, "add_rule": 4.0, "update_rule": 4.0, "remove_rule": 4.0,
    "create_subscription": 8.0, "set_session_state": 8.0, "transact": 8.0, "delete": 0.2, "check_send": 8.0,
    "settle": 16.0, "reload": 0.5, "suspend": 0.2, "quarantine": 1.0,
    "can_deliver_in": 0.2, "can_grant": 0.2, "entity_id": 0.2,
}  # fmt: skip
EXPRESSIONS: Final = ["1 = 1", "1 =", "a = 'much too long to be taken'"]


KEY: Final = AuthorizationRule(name="root", rights=(Right.LISTEN,), primary_key="1", secondary_key="2")


class Caller:
    """Calls one operation after another with arguments out of a hat."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ms = 1_000_000
        self.tokens: list[bytes] = []
        self.session_tokens: list[bytes] = []
        keeper = GroupCommitter(
            MemoryStore(max_bytes=random.choice([7_000_000, 7_000_000, 7_000_000, 4_208_000])),
            lambda records: Namespace(**{**OUTSIDE, "records": records}),
            self.now_ms,
        )
        self.namespace = keeper.use_namespace()
        self.arguments: dict[str, Callable[[], Any]] = {
            "addresses": lambda: [random.choice(ADDRESSES)],
            "address": lambda: random.choice(ADDRESSES),
            "description": self.description,
            "enqueued_before_ms": lambda: random.choice([None, self.now_ms]),
            "from_sequence": lambda: random.randrange(3),
            "delete": lambda: random.random() < 0.3,
            "expires": lambda: random.random() < 0.9,
            "is_exempt": lambda: lambda _entity_id: False,
            "key_name": lambda: random.choice(["root", "no"]),
            "limit": lambda: 1_000,
            "lock_token": self.lock_token,
            "max_bytes": lambda: random.choice([None, 1_000_000]),
            "max_count": lambda: random.choice([-1, 1, 2, 3]),
            "messages": self.messages,
            "name": lambda: random.choice(["sub", "sess", "new", "$Default", "", "much too long", "a/b"]),
            "now_ms": self.tick,
            "operations": self.operations,
            "path": lambda: random.choice(["queue", "new", "other", "more", "", "much too long a path", "a//b"]),
            "rules": lambda: [KEY] * random.randrange(3),
            "rule": lambda: random.choice([None, self.rule()]),
            "sequence": lambda: random.randrange(1, 12),
            "entity_id": lambda: random.randrange(1, 12),
            "sequences": lambda: [random.randrange(1, 12)],
            "session_id": lambda: random.choice([None, "a", "b", "much too long"]),
            "session_token": lambda: random.choice([None, b"nobody", *self.session_tokens[-3:]]),
            "skip": lambda: random.choice([0, 1, 5]),
            "state": lambda: random.choice([None, bytes(10), bytes(590_000), bytes(600_001)]),
            "start": lambda: None,
            "steps": lambda: 10,
            "subscription": lambda: random.choice(["sub", "sub", "no"]),
            "to_sequence": lambda: random.choice([None, 5]),
            "top": lambda: random.choice([None, 0, 2]),
            "topic": lambda: random.choice(["topic", "topic", "queue", "no"]),
            "updated_after_ms": lambda: random.choice([None, 0]),
            "verdict": self.verdict,
        }
        self.furnish()

    def furnish(self) -> None:
        namespace, now_ms = self.namespace, self.now_ms
        namespace.create_queue("queue", QueueDescription(max_size_megabytes=1, lock_duration_ms=50), now_ms)
        namespace.create_queue("sessions", QueueDescription(requires_session=True, max_size_megabytes=1), now_ms)
        namespace.create_queue("passing", QueueDescription(forward_to="queue", max_size_megabytes=1), now_ms)
        closed = QueueDescription(status=EntityStatus.DISABLED, max_size_megabytes=1)
        namespace.create_queue("closed", closed, now_ms)
        namespace.create_topic("topic", TopicDescription(max_size_megabytes=1), now_ms)
        namespace.create_subscription("topic", "sub", SubscriptionDescription(), now_ms)
        namespace.create_subscription("topic", "sess", SubscriptionDescription(requires_session=True), now_ms)

    def call(self, operation: str) -> str | None:
        """Do it; the name of the error that was raised."""
        function = getattr(self.namespace, operation)
        arguments = {name: self.arguments[name]() for name in inspect.signature(function).parameters}
        if operation in {"add_rule", "update_rule"}:
            arguments["rule"] = self.rule()
        if operation == "transact":
            arguments["operations"] = self.operations()
        arguments = self.fit(operation, arguments)
        try:
            answer = function(**arguments)
        except (BrokerError, StoreError) as error:
            return type(error).__name__
        self.remember(answer)
        return None

    def fit(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Descriptions are of the kind that the operation makes."""
        kinds = {
            "create_queue": QueueDescription,
            "create_topic": TopicDescription,
            "create_subscription": SubscriptionDescription,
        }
        if operation in kinds:
            arguments["description"] = self.describe(kinds[operation])
        return arguments

    def remember(self, answer: Any) -> None:
        if isinstance(answer, SessionGrant):
            self.session_tokens.append(answer.session_token)
        for found in answer if isinstance(answer, list) else ():
            if isinstance(found, DeliveredMessage) and found.lock_token is not None:
                self.tokens.append(found.lock_token)

    def tick(self) -> int:
        self.now_ms += self.random.randrange(5)
        return self.now_ms

    def description(self) -> Any:
        return self.describe(self.random.choice([QueueDescription, TopicDescription, SubscriptionDescription]))

    def describe(self, kind: Any) -> Any:
        if kind is SubscriptionDescription:
            return kind(lock_duration_ms=self.random.choice([50, 0]))
        return kind(max_size_megabytes=self.random.choice([1, 2, 3]))

    def rule(self) -> RuleDescription:
        choose = self.random.choice
        filters: list[FilterDescription] = [CorrelationFilter(label="a"), CorrelationFilter()]
        return RuleDescription(
            name=choose(["$Default", "one", "two", "three", "four", "much too long", ""]),
            filter=choose([*filters, *map(SqlFilterDescription, EXPRESSIONS)]),
            action=choose([None, *map(SqlActionDescription, EXPRESSIONS)]) if self.random.random() < 0.2 else None,
        )

    def message(self) -> NewMessage:
        choose = self.random.choice
        return NewMessage(
            bytes(choose([1, 1, 300_000, 500_000, 600_001])),
            message_id=choose(["m", "m", "m", "much too long"]),
            session_id=choose([None, "a", "b"]),
            partition_key=choose([None, None, "b"]),
            scheduled_ms=choose([None, None, self.now_ms + 20]),
            header_bytes=choose([0, 0, 0, 11]),
        )

    def messages(self) -> list[NewMessage]:
        return [self.message() for _ in range(self.random.randrange(1, 3))]

    def lock_token(self) -> bytes:
        return self.random.choice([b"nobody", *self.tokens[-3:]])

    def verdict(self) -> SettlementRequest:
        choose = self.random.choice
        return SettlementRequest(
            disposition=choose(list(SettlementKind)), properties=choose([{}, {}, {"note": "much too long"}])
        )

    def operations(self) -> list[SendOperation | SettleOperation]:
        choose = self.random.choice
        send = SendOperation(choose(ADDRESSES), self.messages(), choose([None, None, Address.of("queue")]))
        settle = SettleOperation(choose(ADDRESSES), self.lock_token(), self.verdict())
        return choose([[send], [settle], [send, settle], [send, send]])


@pytest.fixture(scope="module")
def seen() -> dict[str, set[str]]:
    """Return the errors that each operation raised in a long random walk through a few namespaces."""
    random = Random(1)  # noqa: S311 (the same walk each time)
    found: dict[str, set[str]] = {name: set() for name in OPERATIONS}
    names = [name for name in OPERATIONS if name not in {"inspect", "restoration", "started"}]
    weights = [OFTEN.get(name, 2) for name in names]
    for _ in range(120):
        caller = Caller(random)
        for name in random.choices(names, weights, k=600):
            error = caller.call(name)
            if error is not None:
                found[name].add(error)
    return found


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_raises_the_errors_of_the_table(operation: str, seen: dict[str, set[str]]) -> None:
    assert seen[operation] <= raised_by(operation), "raises more than the table says"
    assert raised_by(operation) <= seen[operation], "is said to raise what it never did"


# Arguments of the wrong type, which the table leaves out.

WRONG: Final[dict[str, Any]] = {
    "address": "queue", "description": "large", "max_count": "many", "messages": [b"body"], "name": 7, "now_ms": 1.5,
    "path": 7, "rule": "1 = 1", "verdict": "complete",
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "argument"),
    [
        (operation, argument)
        for operation in OPERATIONS
        for argument in inspect.signature(getattr(Namespace, operation)).parameters
        if argument in WRONG and (operation, argument) != ("remove_rule", "name")  # which is of something that exists
    ],
)
def test_argument_of_the_wrong_type_is_refused(operation: str, argument: str) -> None:
    caller = Caller(Random(1))  # noqa: S311 (the same each time)
    namespace, now_ms = caller.namespace, caller.now_ms
    queue = Address.of("sessions" if "session" in operation else "queue")
    namespace.send(Address.of("queue"), [NewMessage(b"1")], now_ms)
    (delivery,) = namespace.receive(Address.of("queue"), 1, now_ms)
    grant = namespace.accept_session(Address.of("sessions"), "a", now_ms)
    assert grant is not None
    good: dict[str, Any] = {
        "address": queue, "addresses": [queue], "description": QueueDescription(), "entity_id": 1, "from_sequence": 0,
        "key_name": "root",
        "lock_token": delivery.lock_token, "max_count": 1, "messages": [], "name": "new", "now_ms": now_ms,
        "operations": [], "path": "new", "rule": None, "rules": [KEY], "sequence": 1, "sequences": [],
        "session_id": "b", "session_token": grant.session_token, "state": b"", "subscription": "sub", "topic": "topic",
    }  # fmt: skip
    function = getattr(namespace, operation)
    needed = {
        name: good[name]
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }
    with pytest.raises(errors.InvalidRequestError):
        function(**{**caller.fit(operation, needed), argument: WRONG[argument]})


# What counts as use of an entity.

LATER: Final = 1_000_100


def use(operation: str, namespace: Namespace, tokens: dict[str, bytes]) -> Address:
    """Do it; which entity was used by it."""
    queue, sessions, sub = Address.of("queue"), Address.of("sessions"), Address.of("topic", "sub")
    calls: dict[str, tuple[Address, Callable[[], object]]] = {
        "send": (queue, lambda: namespace.send(queue, [NewMessage(b"")], LATER)),
        "cancel_scheduled": (queue, lambda: namespace.cancel_scheduled(queue, [2], LATER)),
        "receive": (sub, lambda: namespace.receive(sub, 1, LATER)),
        "receive_deferred": (queue, lambda: namespace.receive_deferred(queue, [], LATER)),
        "peek": (sub, lambda: namespace.peek(sub, 0, 1, LATER)),
        "delete_messages": (queue, lambda: namespace.delete_messages(queue, 1, LATER)),
        "accept_session": (sessions, lambda: namespace.accept_session(sessions, "b", LATER)),
        "renew_lock": (sub, lambda: namespace.renew_lock(sub, tokens["lock"], LATER)),
        "renew_session": (sessions, lambda: namespace.renew_session(sessions, tokens["session"], LATER)),
        "update": (sub, lambda: namespace.update(sub, SubscriptionDescription(), LATER)),
        "add_rule": (sub, lambda: namespace.add_rule("topic", "sub", RuleDescription(name="no"), LATER)),
        "touch": (sub, lambda: namespace.touch(sub, LATER)),
    }
    address, call = calls[operation]
    call()
    return address


USES: Final = codes(TEXT.split("These count as use:")[1].split(";")[0])


@pytest.mark.parametrize("operation", USES)
def test_operations_that_count_as_use_of_an_entity(operation: str) -> None:
    caller = Caller(Random(1))  # noqa: S311 (the same each time)
    namespace, now_ms = caller.namespace, caller.now_ms
    namespace.delete(Address.of("topic", "sess"), now_ms)  # there may be two rules
    namespace.send(Address.of("queue"), [NewMessage(b""), NewMessage(b"", scheduled_ms=LATER + 1_000)], now_ms)
    namespace.send(Address.of("topic"), [NewMessage(b"")], now_ms)
    (delivery,) = namespace.receive(Address.of("topic", "sub"), 1, now_ms)
    grant = namespace.accept_session(Address.of("sessions"), "a", now_ms)
    assert grant is not None
    assert delivery.lock_token is not None
    address = use(operation, namespace, {"lock": delivery.lock_token, "session": grant.session_token})
    assert namespace.entity(address, LATER).accessed_ms == LATER
    of_topic = namespace.entity(Address.of(address.entity), LATER).accessed_ms
    assert of_topic == (now_ms if operation == "update" else LATER)
