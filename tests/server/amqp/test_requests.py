"""E3: ``$management``: the response of each operation on success and on failure, to the type of each field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from pairbus.broker import Address, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.server.amqp.management.node import OPERATIONS
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RECEIVER,
    SENDER,
    Array,
    Condition,
    Described,
    Int,
    Link,
    Message,
    Modified,
    Properties,
    Source,
    Symbol,
    Target,
    Timestamp,
    UInt,
    ULong,
    decode_message,
    encode,
    encode_message,
)
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import (
    Answer,
    Requests,
    WireClient,
    connect,
    failures,
    fresh_queue,
    messages_in,
    text_message,
)

DEFERRED = Modified(undeliverable_here=True)
FAR_MS = 253_402_300_800_000
MISSING_TOKEN = UUID(int=77)


@pytest.fixture(scope="module")
def namespace() -> Iterator[ClockedNamespace]:
    with clocked_namespace() as served:
        served.call(
            lambda host: [
                host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()),
                host.use_namespace().create_queue("visits", QueueDescription(requires_session=True), host.now_ms()),
                host.use_namespace().create_topic("news", TopicDescription(), host.now_ms()),
                host.use_namespace().create_subscription("news", "all", SubscriptionDescription(), host.now_ms()),
            ]
        )
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


@pytest.fixture
def queue(namespace: ClockedNamespace) -> str:
    return fresh_queue(namespace)


@pytest.fixture
def node(client: WireClient, queue: str) -> Requests:
    return client.requests(f"{queue}/$management")


def careless_node(client: WireClient, entity: str) -> Requests:
    """Return a node for requests of any size."""
    node = client.requests(f"{entity}/$management")
    node.asking.remote_max_message_size = 0
    return node


def send(client: WireClient, queue: str, *bodies: str, **properties: Any) -> None:
    link = client.sender(queue)
    for body in bodies:
        assert client.send(link, text_message(body, **properties)) == ACCEPTED


def check_form(answer: Answer) -> None:
    """Check the fields of every response, to the type."""
    words = answer.message.application_properties or {}
    assert type(words["statusCode"]) is Int
    assert type(words["statusDescription"]) is str
    assert words.keys() <= {"statusCode", "statusDescription", "errorCondition"}
    if "errorCondition" in words:
        assert type(words["errorCondition"]) is Symbol
    assert answer.message.body_kind == AMQP_VALUE
    assert isinstance(answer.body, dict)
    assert all(type(name) is str for name in answer.body)


def succeeded(answer: Answer) -> Mapping[str, Any]:
    check_form(answer)
    assert (answer.status, answer.condition) == (200, None), answer.description
    assert isinstance(answer.body, dict)
    return answer.body


def failed(answer: Answer) -> tuple[int, str | None]:
    check_form(answer)
    assert answer.description
    assert answer.body == {}
    return answer.status, answer.condition


def deferred(client: WireClient, queue: str) -> int:
    """Defer a message; return its sequence number."""
    send(client, queue, "aside")
    delivery = client.receive_one(client.receiver(queue))
    number = (decode_message(delivery.payload).message_annotations or {})["x-opt-sequence-number"]
    assert client.settle(delivery, DEFERRED) == DEFERRED
    assert isinstance(number, int)
    return number


def locked(client: WireClient, queue: str, body: str = "locked") -> UUID:
    send(client, queue, body)
    return UUID(bytes_le=client.receive_one(client.receiver(queue)).delivery_tag)


ARGUMENT = (400, ServiceBusCondition.ARGUMENT_ERROR)
NOT_FOUND = (404, ServiceBusCondition.MESSAGE_NOT_FOUND)
LOCK_LOST = (410, ServiceBusCondition.MESSAGE_LOCK_LOST)
SESSION_LOST = (410, ServiceBusCondition.SESSION_LOCK_LOST)
NOT_ALLOWED = (400, Condition.NOT_ALLOWED)


# Requests and responses.


@pytest.mark.parametrize(
    "identity",
    ["text", "", UUID(int=9), ULong(9), ULong(0), ULong(2**64 - 1), b"bytes", b""],
    ids=["text", "empty", "uuid", "small", "zero", "large", "bytes", "none"],
)
def test_correlation_id_is_the_message_id_with_its_type(node: Requests, identity: object) -> None:
    answer = node.call(Operation.PEEK_MESSAGE, message_id=identity)
    found = answer.message.properties.correlation_id
    assert (type(found), found) == (type(identity), identity)


def test_request_is_accepted_before_it_is_answered(client: WireClient, node: Requests) -> None:
    asked = node.ask(Operation.PEEK_MESSAGE, message_id="one")
    assert client.outcome(asked) == ACCEPTED
    assert client.until(lambda: node.answer_to("one")).status == 204


def test_response_is_presettled(client: WireClient, node: Requests) -> None:
    node.call(Operation.PEEK_MESSAGE)
    assert [delivery.settled for delivery in client.deliveries(node.replies)] == [True]


def test_responses_are_sent_without_credit(client: WireClient, queue: str) -> None:
    replies = client.attach(
        RECEIVER, source=Source(address=f"{queue}/$management"), target=Target(address="mine"), name="replies"
    )
    asking = client.attach(SENDER, source=Source(), target=Target(address=f"{queue}/$management"))
    client.until(lambda: asking.credit)
    assert Requests(client, asking, replies, "replies").call(Operation.PEEK_MESSAGE).status == 204


def test_many_requests_at_once_are_answered_each(client: WireClient, node: Requests) -> None:
    for number in range(500):
        node.ask(Operation.PEEK_MESSAGE, message_id=ULong(number))
    answers = [client.until(lambda number=number: node.answer_to(ULong(number))) for number in range(500)]  # type: ignore[misc]
    assert {answer.status for answer in answers} == {204}


def reply_link(client: WireClient, queue: str, name: str, target: str, session: Any = None) -> Link:
    link = client.attach(
        RECEIVER,
        source=Source(address=f"{queue}/$management"),
        target=Target(address=target),
        name=name,
        session=session,
    )
    link.flow(100)
    return link


def ask(client: WireClient, asking: Link, identity: str, reply_to: str | None) -> None:
    message = Message(
        properties=Properties(message_id=identity, reply_to=reply_to),
        application_properties={"operation": Operation.PEEK_MESSAGE.value},
        body=({},),
        body_kind=AMQP_VALUE,
    )
    client.begin_send(asking, encode_message(message))


def answered(client: WireClient, link: Link) -> list[object]:
    return [decode_message(each.payload).properties.correlation_id for each in client.deliveries(link)]


def test_named_reply_link_gets_the_response(client: WireClient, queue: str) -> None:
    assert client.first_session.is_mapped
    elsewhere = client.session()
    by_name = reply_link(client, queue, "first", "x")
    by_target = reply_link(client, queue, "second", "there")
    beside = reply_link(client, queue, "third", "y", elsewhere)
    target = Target(address=f"{queue}/$management")
    asking = client.attach(SENDER, source=Source(), target=target, session=elsewhere)
    client.until(lambda: asking.credit)
    for identity, reply_to in (("a", "first"), ("b", "there"), ("c", None), ("d", "unknown")):
        ask(client, asking, identity, reply_to)
    client.until(lambda: answered(client, beside) == ["c", "d"])
    assert (answered(client, by_name), answered(client, by_target)) == (["a"], ["b"])
    client.detach(beside)
    ask(client, asking, "e", None)
    client.until(lambda: "e" in answered(client, by_name) + answered(client, by_target))


def test_response_is_not_sent_to_a_link_of_another_node(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    wrong = reply_link(client, fresh_queue(namespace), "same", "same")
    asking = client.attach(SENDER, source=Source(), target=Target(address=f"{queue}/$management"))
    client.until(lambda: asking.credit)
    ask(client, asking, "a", "same")
    client.barrier()
    namespace.call(lambda _host: None)
    client.barrier()
    assert answered(client, wrong) == []


def test_request_without_a_reply_link_is_executed(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    asking = client.attach(SENDER, source=Source(), target=Target(address=f"{queue}/$management"))
    client.until(lambda: asking.credit)
    message = Message(
        properties=Properties(message_id="one"),
        application_properties={"operation": Operation.SCHEDULE_MESSAGE.value},
        body=({"messages": [{"message": scheduled(FAR_MS)}]},),
        body_kind=AMQP_VALUE,
    )
    assert client.send(asking, encode_message(message)) == ACCEPTED
    assert messages_in(namespace, Address.of(queue)) == [(b"later", 0)]


@pytest.mark.parametrize(
    "operation", ["", "peek-message", "com.microsoft:unknown", "COM.MICROSOFT:PEEK-MESSAGE", "put-token"]
)
def test_unknown_operation_is_refused(node: Requests, operation: str) -> None:
    answer = node.call(operation)
    assert answer.status == 501


@pytest.mark.parametrize(
    "payload",
    [b"", b"garbage", text_message("x"), encode_message(Message(application_properties={"operation": 5}, body=(b"",)))],
    ids=["nothing", "garbage", "no operation", "a number"],
)
def test_invalid_request_is_ignored(client: WireClient, node: Requests, payload: bytes) -> None:
    client.send(node.asking, payload)
    assert node.call(Operation.PEEK_MESSAGE).status == 204


@pytest.mark.parametrize("body", [None, [], "x", 5, b"x"], ids=lambda body: type(body).__name__)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.partition(":")[2])
def test_body_of_another_type_counts_as_an_empty_map(node: Requests, operation: str, body: object) -> None:
    message = Message(
        properties=Properties(message_id="odd"),
        application_properties={"operation": str(operation)},
        body=(body,),
        body_kind=AMQP_VALUE,
    )
    node._client.begin_send(node.asking, encode_message(message))
    answer = node._client.until(lambda: node.answer_to("odd"))
    assert answer.status in {204, 400, 410}


ODD = [
    None,
    True,
    -1,
    2**63 - 1,
    Int(-(2**31)),
    1.5,
    "x",
    b"x",
    [],
    [None],
    [[1]],
    {},
    {1: 2},
    Array((1,)),
    UUID(int=1),
]
FIELDS = {
    Operation.PEEK_MESSAGE: ("from-sequence-number", "message-count", "session-id"),
    Operation.SCHEDULE_MESSAGE: ("messages",),
    Operation.CANCEL_SCHEDULED_MESSAGE: ("sequence-numbers",),
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: ("sequence-numbers", "receiver-settle-mode", "session-id"),
    Operation.UPDATE_DISPOSITION: (
        "disposition-status",
        "lock-tokens",
        "deadletter-reason",
        "deadletter-description",
        "properties-to-modify",
        "session-id",
    ),
    Operation.RENEW_LOCK: ("lock-tokens",),
    Operation.BATCH_DELETE_MESSAGES: ("message-count", "enqueued-time-utc", "session-id"),
    Operation.RENEW_SESSION_LOCK: ("session-id",),
    Operation.GET_SESSION_STATE: ("session-id",),
    Operation.SET_SESSION_STATE: ("session-id", "session-state"),
    Operation.GET_MESSAGE_SESSIONS: ("last-updated-time", "skip", "top"),
    Operation.ENUMERATE_RULES: ("skip", "top"),
    Operation.ADD_RULE: ("rule-name", "rule-description"),
    Operation.REMOVE_RULE: ("rule-name",),
}
GOOD: dict[str, dict[str, Any]] = {
    Operation.RECEIVE_BY_SEQUENCE_NUMBER: {"sequence-numbers": [1], "receiver-settle-mode": UInt(1)},
    Operation.UPDATE_DISPOSITION: {"disposition-status": "completed", "lock-tokens": [MISSING_TOKEN]},
    Operation.BATCH_DELETE_MESSAGES: {"message-count": Int(1), "enqueued-time-utc": Timestamp(5)},
    Operation.ADD_RULE: {"rule-name": "$Default", "rule-description": {"sql-filter": {"expression": "1=1"}}},
}


def test_unusual_requests_cover_every_operation() -> None:
    assert FIELDS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("operation", FIELDS, ids=lambda operation: operation.partition(":")[2])
@pytest.mark.parametrize("entity", ["orders", "visits", "news/Subscriptions/all"])
def test_invalid_fields_are_refused_and_harm_nothing(client: WireClient, operation: str, entity: str) -> None:
    """Check that any field value gets a response, which is not an internal error."""
    holding = client.session_receiver("visits", f"held-{uuid4()}") if entity == "visits" else None
    name = None if holding is None else holding.name
    node = client.requests(f"{entity}/$management")
    for field in FIELDS[Operation(operation)]:
        for value in ODD:
            answer = node.call(operation, {**GOOD.get(operation, {}), field: value}, link=name)
            check_form(answer)
            assert answer.status in {200, 204, 400, 403, 404, 409, 410}, (field, value, answer.description)


@pytest.mark.parametrize("link", [5, None, b"x", [], "unknown"], ids=["number", "nothing", "bytes", "list", "unknown"])
def test_unknown_associated_link_is_refused(node: Requests, link: object) -> None:
    answer = node.call(
        Operation.RECEIVE_BY_SEQUENCE_NUMBER,
        {"sequence-numbers": Array((5,))},
        properties={"associated-link-name": link} if not isinstance(link, list) else {},
    )
    assert failed(answer) == NOT_FOUND


# Peek.


def test_peek(client: WireClient, queue: str, node: Requests) -> None:
    asked = {"from-sequence-number": 0, "message-count": Int(10)}
    assert failed(node.call(Operation.PEEK_MESSAGE, asked)) == (204, ServiceBusCondition.MESSAGE_NOT_FOUND)
    send(client, queue, "a", "b", "c")
    found = succeeded(node.call(Operation.PEEK_MESSAGE, {"from-sequence-number": 2, "message-count": Int(1)}))
    assert found.keys() == {"messages"}
    assert isinstance(found["messages"], list)
    ((seen,),) = [[each["message"]] for each in found["messages"]]
    assert type(seen) is bytes
    message = decode_message(seen)
    annotations = message.message_annotations or {}
    assert {str(name): type(value) for name, value in annotations.items()} == {
        "x-opt-enqueued-time": Timestamp,
        "x-opt-sequence-number": int,
    }
    assert annotations["x-opt-sequence-number"] == 2
    assert message.body == (b"b",)
    assert message.delivery_annotations is None


def test_peek_shows_messages_in_all_states(client: WireClient, queue: str, node: Requests) -> None:
    deferred(client, queue)
    locked(client, queue)
    send(client, queue, "active")
    assert client.send(client.sender(queue), scheduled(FAR_MS)) == ACCEPTED
    found = succeeded(node.call(Operation.PEEK_MESSAGE, {"from-sequence-number": 0, "message-count": Int(10)}))
    states = [decode_message(each["message"]).message_annotations for each in found["messages"]]
    assert [(each or {}).get("x-opt-message-state") for each in states] == [1, None, None, 2]


def test_peek_beyond_the_limit_is_truncated(client: WireClient, queue: str, node: Requests) -> None:
    send(client, queue, *("x" * 200_000 for _ in range(10)))
    found = succeeded(node.call(Operation.PEEK_MESSAGE, {"from-sequence-number": 0, "message-count": Int(10)}))
    assert 1 <= len(found["messages"]) < 10


def test_peek_of_one_session(client: WireClient) -> None:
    send(client, "visits", "one", group_id="peeked")
    node = client.requests("visits/$management")
    asked = {"from-sequence-number": 0, "message-count": Int(10), "session-id": "peeked"}
    assert len(succeeded(node.call(Operation.PEEK_MESSAGE, asked))["messages"]) == 1
    asked["session-id"] = "none such"
    assert failed(node.call(Operation.PEEK_MESSAGE, asked)) == (204, ServiceBusCondition.MESSAGE_NOT_FOUND)


# Scheduling.


def scheduled(when_ms: int, body: bytes = b"later") -> bytes:
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(when_ms)}
    return encode_message(Message(message_annotations=annotations, body=(body,)))


def test_schedule_and_cancel(namespace: ClockedNamespace, queue: str, node: Requests) -> None:
    when_ms = namespace.clock() + 1_000_000
    asked = {"messages": [{"message": scheduled(when_ms), "message-id": "a"} for _ in range(2)]}
    answer = node.call(Operation.SCHEDULE_MESSAGE, asked)
    numbers = succeeded(answer)["sequence-numbers"]
    assert isinstance(numbers, Array)
    assert numbers.items == (1, 2)
    # In eight bytes each: the SDK for JavaScript reads no others.
    raw = answer.message.body[0]["sequence-numbers"]
    assert {type(number) for number in raw.items} == {int}
    assert len(messages_in(namespace, Address.of(queue))) == 2
    assert succeeded(node.call(Operation.CANCEL_SCHEDULED_MESSAGE, {"sequence-numbers": Array((1,), b"\x81")})) == {}
    assert len(messages_in(namespace, Address.of(queue))) == 1
    cancel = {"sequence-numbers": Array((1, 2))}
    assert failed(node.call(Operation.CANCEL_SCHEDULED_MESSAGE, cancel)) == NOT_FOUND
    assert len(messages_in(namespace, Address.of(queue))) == 1


def test_sequence_numbers_of_scheduled_messages_have_eight_bytes(client: WireClient, node: Requests) -> None:
    when_ms = FAR_MS
    succeeded(node.call(Operation.SCHEDULE_MESSAGE, {"messages": [{"message": scheduled(when_ms)}]}))
    payload = client.deliveries(node.replies)[-1].payload
    assert encode(Array((1,), b"\x81")) in payload


def test_schedule_refuses_what_cannot_be_sent(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    node = careless_node(client, queue)
    good = {"message": scheduled(FAR_MS)}
    for messages, expected in (
        ([{"message": scheduled(FAR_MS, bytes(300_000))}], (403, Condition.MESSAGE_SIZE_EXCEEDED)),
        ([good, {"message": text_message("at no time")}], ARGUMENT),
        ([good, {"message": "text"}], ARGUMENT),
        ([good, {}], ARGUMENT),
        ([good, 5], ARGUMENT),
    ):
        assert failed(node.call(Operation.SCHEDULE_MESSAGE, {"messages": messages})) == expected
    answer = node.call(Operation.SCHEDULE_MESSAGE, {"messages": [good, {"message": b"garbage"}]})
    assert failed(answer)[0] == 400
    assert messages_in(namespace, Address.of(queue)) == []
    visits = client.requests("visits/$management")
    assert failed(visits.call(Operation.SCHEDULE_MESSAGE, {"messages": [good]})) == NOT_ALLOWED


# Deferred messages.


def test_receive_by_sequence_number(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    node = client.requests(f"{queue}/$management")
    number = deferred(client, queue)
    asked = {"sequence-numbers": Array((number,), b"\x81"), "receiver-settle-mode": UInt(1)}
    (found,) = succeeded(node.call(Operation.RECEIVE_BY_SEQUENCE_NUMBER, asked))["messages"]
    assert found.keys() == {"lock-token", "message"}
    token = found["lock-token"]
    assert type(token) is UUID
    message = decode_message(found["message"])
    assert message.delivery_annotations == {Symbol("x-opt-lock-token"): token}
    annotations = message.message_annotations or {}
    assert (annotations["x-opt-message-state"], type(annotations["x-opt-locked-until"])) == (1, Timestamp)
    # It is locked now.
    assert failed(node.call(Operation.RECEIVE_BY_SEQUENCE_NUMBER, asked))[0] in {404, 410}
    settled = {"disposition-status": "completed", "lock-tokens": Array((token,))}
    assert succeeded(node.call(Operation.UPDATE_DISPOSITION, settled)) == {}
    assert messages_in(namespace, Address.of(queue)) == []


def test_receive_and_delete_by_sequence_number(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    node = client.requests(f"{queue}/$management")
    number = deferred(client, queue)
    asked = {"sequence-numbers": Array((number,)), "receiver-settle-mode": UInt(0)}
    (found,) = succeeded(node.call(Operation.RECEIVE_BY_SEQUENCE_NUMBER, asked))["messages"]
    assert type(found["lock-token"]) is UUID
    assert messages_in(namespace, Address.of(queue)) == []


def test_receive_by_an_unknown_sequence_number_locks_nothing(
    namespace: ClockedNamespace, client: WireClient, queue: str
) -> None:
    node = client.requests(f"{queue}/$management")
    number = deferred(client, queue)
    send(client, queue, "active")
    for wrong in (number + 1, 999):
        asked = {"sequence-numbers": Array((number, wrong)), "receiver-settle-mode": UInt(0)}
        assert failed(node.call(Operation.RECEIVE_BY_SEQUENCE_NUMBER, asked)) == NOT_FOUND
    assert len(messages_in(namespace, Address.of(queue))) == 2
    asked = {"sequence-numbers": Array((number,)), "receiver-settle-mode": UInt(1)}
    assert len(succeeded(node.call(Operation.RECEIVE_BY_SEQUENCE_NUMBER, asked))["messages"]) == 1


# Settlement by lock token.


@pytest.mark.parametrize("status", ["completed", "abandoned", "defered", "suspended"])
def test_update_disposition(namespace: ClockedNamespace, client: WireClient, queue: str, status: str) -> None:
    node = client.requests(f"{queue}/$management")
    tokens = Array(tuple(locked(client, queue, str(number)) for number in range(3)))
    asked = {
        "disposition-status": status,
        "lock-tokens": tokens,
        "deadletter-reason": "why",
        "deadletter-description": "more",
        "properties-to-modify": {"mine": Int(1)},
    }
    assert succeeded(node.call(Operation.UPDATE_DISPOSITION, asked)) == {}
    left = 0 if status in {"completed", "suspended"} else 3
    assert len(messages_in(namespace, Address.of(queue))) == left
    assert failed(node.call(Operation.UPDATE_DISPOSITION, asked)) == LOCK_LOST
    if status == "suspended":
        dead = client.receive_one(client.receiver(f"{queue}/$DeadLetterQueue"))
        assert decode_message(dead.payload).application_properties == {
            "DeadLetterReason": "why",
            "DeadLetterErrorDescription": "more",
            "mine": 1,
        }


def test_update_disposition_is_all_or_none(namespace: ClockedNamespace, client: WireClient, queue: str) -> None:
    node = client.requests(f"{queue}/$management")
    token = locked(client, queue)
    asked = {"disposition-status": "completed", "lock-tokens": Array((token, MISSING_TOKEN))}
    assert failed(node.call(Operation.UPDATE_DISPOSITION, asked)) == LOCK_LOST
    assert messages_in(namespace, Address.of(queue)) == [(b"locked", 0)]
    asked["lock-tokens"] = Array((token,))
    succeeded(node.call(Operation.UPDATE_DISPOSITION, asked))


@pytest.mark.parametrize("status", ["", "complete", "COMPLETED", "released"])
def test_update_disposition_with_an_unknown_status_is_refused(
    client: WireClient, node: Requests, queue: str, status: str
) -> None:
    asked = {"disposition-status": status, "lock-tokens": Array((locked(client, queue),))}
    assert failed(node.call(Operation.UPDATE_DISPOSITION, asked)) == ARGUMENT


def test_message_settled_elsewhere_is_lost_to_the_link(client: WireClient, queue: str, node: Requests) -> None:
    send(client, queue, "one")
    delivery = client.receive_one(client.receiver(queue))
    token = UUID(bytes_le=delivery.delivery_tag)
    asked = {"disposition-status": "completed", "lock-tokens": Array((token,))}
    succeeded(node.call(Operation.UPDATE_DISPOSITION, asked))
    state: Any = client.settle(delivery, ACCEPTED)
    assert state.error.condition == ServiceBusCondition.MESSAGE_LOCK_LOST


# Locks.


def test_renew_lock(namespace: ClockedNamespace, client: WireClient, queue: str, node: Requests) -> None:
    tokens = tuple(locked(client, queue) for _ in range(2))
    namespace.clock.advance(30_000)
    before_ms = namespace.clock()
    ends = succeeded(node.call(Operation.RENEW_LOCK, {"lock-tokens": Array(tokens)}))["expirations"]
    assert isinstance(ends, Array)
    assert [type(end) for end in ends.items] == [Timestamp, Timestamp]
    assert all(before_ms + 60_000 <= int(end) <= namespace.clock() + 60_000 for end in ends.items)  # type: ignore[call-overload]
    namespace.clock.advance(40_000)
    settled = {"disposition-status": "completed", "lock-tokens": Array(tokens)}
    succeeded(node.call(Operation.UPDATE_DISPOSITION, settled))
    assert failed(node.call(Operation.RENEW_LOCK, {"lock-tokens": Array(tokens)})) == LOCK_LOST


def test_expired_lock_cannot_be_renewed(
    namespace: ClockedNamespace, client: WireClient, queue: str, node: Requests
) -> None:
    token = locked(client, queue)
    namespace.clock.advance(60_001)
    assert failed(node.call(Operation.RENEW_LOCK, {"lock-tokens": Array((token,))})) == LOCK_LOST


# Sessions.


@pytest.fixture
def session(client: WireClient) -> str:
    return f"session-{uuid4()}"


def test_renew_session_lock(namespace: ClockedNamespace, client: WireClient, session: str) -> None:
    link = client.session_receiver("visits", session)
    node = client.requests("visits/$management")
    before_ms = namespace.clock()
    body = succeeded(node.call(Operation.RENEW_SESSION_LOCK, {"session-id": session}, link=link.name))
    end = body["expiration"]
    assert type(end) is Timestamp
    assert before_ms + 60_000 <= end <= namespace.clock() + 60_000


def test_session_state(client: WireClient, session: str) -> None:
    link = client.session_receiver("visits", session)
    node = careless_node(client, "visits")
    asked: dict[str, Any] = {"session-id": session}

    def state() -> object:
        return succeeded(node.call(Operation.GET_SESSION_STATE, asked, link=link.name))["session-state"]

    assert state() is None
    for value in (b"state", b"", None):
        changed = {**asked, "session-state": value}
        assert succeeded(node.call(Operation.SET_SESSION_STATE, changed, link=link.name)) == {}
        assert state() == value
    large = {**asked, "session-state": bytes(262_145)}
    assert failed(node.call(Operation.SET_SESSION_STATE, large, link=link.name)) == ARGUMENT


@pytest.mark.parametrize(
    "operation", [Operation.RENEW_SESSION_LOCK, Operation.GET_SESSION_STATE, Operation.SET_SESSION_STATE]
)
def test_session_operations_need_the_link_that_holds_the_session(
    namespace: ClockedNamespace, client: WireClient, session: str, operation: str
) -> None:
    holding = client.session_receiver("visits", session)
    another = client.session_receiver("visits", f"{session}-b")
    body = {"session-id": session, "session-state": b"forged"}
    node = client.requests("visits/$management")
    for name in (None, "unknown", another.name):
        assert failed(node.call(operation, body, link=name)) == SESSION_LOST
    with connect(namespace) as other:
        assert failed(other.requests("visits/$management").call(operation, body, link=holding.name)) == SESSION_LOST
    elsewhere = fresh_queue(namespace, requires_session=True)
    assert failed(client.requests(f"{elsewhere}/$management").call(operation, body, link=holding.name)) == SESSION_LOST
    orders = client.requests("orders/$management")
    assert failed(orders.call(operation, body, link=holding.name)) == SESSION_LOST
    client.detach(holding)
    assert failed(node.call(operation, body, link=holding.name)) == SESSION_LOST


def test_lost_session_cannot_be_renewed(namespace: ClockedNamespace, client: WireClient, session: str) -> None:
    link = client.session_receiver("visits", session)
    node = client.requests("visits/$management")
    namespace.clock.advance(60_001)
    assert failed(node.call(Operation.RENEW_SESSION_LOCK, {"session-id": session}, link=link.name)) == SESSION_LOST


def test_get_message_sessions(namespace: ClockedNamespace, client: WireClient) -> None:
    queue = fresh_queue(namespace, requires_session=True)
    node = client.requests(f"{queue}/$management")
    asked = {"last-updated-time": Timestamp(FAR_MS), "skip": Int(0), "top": Int(2)}
    none = (204, ServiceBusCondition.SESSION_NOT_FOUND)
    assert failed(node.call(Operation.GET_MESSAGE_SESSIONS, asked)) == none
    for name in ("a", "b", "c"):
        send(client, queue, "one", group_id=name)
    seen: list[object] = []
    while (answer := node.call(Operation.GET_MESSAGE_SESSIONS, asked)).status == 200:
        body = succeeded(answer)
        assert body.keys() == {"skip", "sessions-ids"}
        assert type(body["skip"]) is Int
        assert isinstance(body["sessions-ids"], Array)
        seen += body["sessions-ids"].items
        asked["skip"] = body["skip"]
    assert seen == ["a", "b", "c"]
    assert failed(answer) == none


def test_get_message_sessions_by_their_states(namespace: ClockedNamespace, client: WireClient) -> None:
    queue = fresh_queue(namespace, requires_session=True)
    link = client.session_receiver(queue, "stateful")
    node = client.requests(f"{queue}/$management")
    before_ms = namespace.clock() - 1
    succeeded(node.call(Operation.SET_SESSION_STATE, {"session-id": "stateful", "session-state": b"x"}, link=link.name))
    asked = {"last-updated-time": Timestamp(before_ms), "skip": Int(0), "top": Int(10)}
    assert succeeded(node.call(Operation.GET_MESSAGE_SESSIONS, asked))["sessions-ids"].items == ("stateful",)
    asked["last-updated-time"] = Timestamp(namespace.clock() + 1_000)
    assert node.call(Operation.GET_MESSAGE_SESSIONS, asked).status == 204


def test_session_operations_of_an_entity_without_sessions_are_refused(node: Requests) -> None:
    asked = {"last-updated-time": Timestamp(FAR_MS), "skip": Int(0), "top": Int(10)}
    assert failed(node.call(Operation.GET_MESSAGE_SESSIONS, asked)) == NOT_ALLOWED


# Rules.


RULES: dict[str, tuple[dict[str, Any], Described]] = {
    "true": ({}, Described(ULong(0x1370000007), [])),
    "sql": (
        {"sql-filter": {"expression": "a = 1"}},
        Described(ULong(0x1370000006), ["a = 1", Int(20)]),
    ),
    "correlation": (
        {"correlation-filter": {"label": "l", "to": None, "properties": {"p": Int(5), "q": "r"}}},
        Described(ULong(0x1370000009), [None, None, None, None, "l", None, None, None, {"p": 5, "q": "r"}]),
    ),
}


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("action", [None, "SET a = 1"], ids=["no action", "action"])
def test_rules(namespace: ClockedNamespace, client: WireClient, kind: str, action: str | None) -> None:
    node = client.requests("news/Subscriptions/all/$management")
    description, expected = RULES[kind]
    before_ms = namespace.clock()
    words = {**description, "sql-rule-action": None if action is None else {"expression": action}}
    added = {"rule-name": "mine", "rule-description": words}
    assert succeeded(node.call(Operation.ADD_RULE, added)) == {}
    assert failed(node.call(Operation.ADD_RULE, added)) == (409, ServiceBusCondition.ENTITY_ALREADY_EXISTS)
    first = succeeded(node.call(Operation.ENUMERATE_RULES, {"skip": Int(0), "top": Int(1)}))["rules"]
    second = succeeded(node.call(Operation.ENUMERATE_RULES, {"skip": Int(1), "top": Int(1)}))["rules"]
    assert node.call(Operation.ENUMERATE_RULES, {"skip": Int(2), "top": Int(1)}).status == 204
    described = {each["rule-description"].value[2]: each["rule-description"] for each in [*first, *second]}
    assert described.keys() == {"$Default", "mine"}
    assert {each.descriptor for each in described.values()} == {0x13700000004}
    filtered, acted, name, created = described["mine"].value
    assert filtered == expected
    assert name == "mine"
    assert type(created) is Timestamp
    assert before_ms <= created <= namespace.clock()
    if action is None:
        assert acted == Described(ULong(0x13700000005), [])
    else:
        assert acted == Described(ULong(0x13700000006), [action, Int(20)])
    assert succeeded(node.call(Operation.REMOVE_RULE, {"rule-name": "mine"})) == {}
    assert failed(node.call(Operation.REMOVE_RULE, {"rule-name": "mine"})) == (404, Condition.NOT_FOUND)


@pytest.mark.parametrize("operation", [Operation.ADD_RULE, Operation.REMOVE_RULE, Operation.ENUMERATE_RULES])
def test_only_subscriptions_have_rules(client: WireClient, operation: str) -> None:
    for entity in ("orders", "news"):
        node = client.requests(f"{entity}/$management")
        assert failed(node.call(operation, {"rule-name": "a", "rule-description": {}})) == NOT_ALLOWED


@pytest.mark.parametrize(
    "rule",
    [
        {"sql-filter": {"expression": "a ="}},
        {"sql-filter": {"expression": "x" * 1_025}},
        {"sql-filter": {}},
        {"sql-filter": "1=1"},
        {"sql-rule-action": {"expression": "nonsense"}},
        {"sql-rule-action": 5},
    ],
    ids=["broken", "long", "empty", "text", "action", "number"],
)
def test_invalid_rules_are_refused(client: WireClient, rule: dict[str, Any]) -> None:
    node = client.requests("news/Subscriptions/all/$management")
    assert failed(node.call(Operation.ADD_RULE, {"rule-name": "bad", "rule-description": rule})) == ARGUMENT


# Batch deletion.


def test_batch_delete(namespace: ClockedNamespace, client: WireClient, queue: str, node: Requests) -> None:
    asked = {"message-count": Int(2), "enqueued-time-utc": Timestamp(namespace.clock() + 1_000)}
    none = (204, ServiceBusCondition.MESSAGE_NOT_FOUND)
    assert failed(node.call(Operation.BATCH_DELETE_MESSAGES, asked)) == none
    send(client, queue, "a", "b", "c")
    count = succeeded(node.call(Operation.BATCH_DELETE_MESSAGES, asked))["message-count"]
    assert (type(count), count) == (Int, 2)
    assert messages_in(namespace, Address.of(queue)) == [(b"c", 0)]
    asked["enqueued-time-utc"] = Timestamp(5)
    assert failed(node.call(Operation.BATCH_DELETE_MESSAGES, asked)) == none


# Deleted entities and busy servers.


def test_management_node_of_a_deleted_entity_returns_an_error(namespace: ClockedNamespace, client: WireClient) -> None:
    queue = fresh_queue(namespace)
    node = client.requests(f"{queue}/$management")
    namespace.call(lambda host: host.use_namespace().delete(Address.of(queue), host.now_ms()))
    assert failed(node.call(Operation.PEEK_MESSAGE)) == (404, Condition.NOT_FOUND)


def test_busy_server_refuses_requests(namespace: ClockedNamespace, node: Requests) -> None:
    namespace.server_busy = True
    try:
        assert failed(node.call(Operation.PEEK_MESSAGE)) == (503, ServiceBusCondition.SERVER_BUSY)
    finally:
        namespace.server_busy = False


# Tokens.


@pytest.mark.parametrize(
    ("token", "properties"),
    [
        ("SharedAccessSignature sr=x", {"name": "orders"}),
        ("", {"name": "orders"}),
        ("nonsense", {"name": "orders"}),
        (5, {"name": "orders"}),
        (None, {"name": "orders"}),
        ("SharedAccessSignature sr=x", {}),
        ("SharedAccessSignature sr=x", {"name": 5}),
    ],
    ids=["half", "empty", "nonsense", "number", "nothing", "no name", "a number for a name"],
)
def test_invalid_tokens_are_refused(client: WireClient, token: object, properties: dict[str, Any]) -> None:
    node = client.requests("$cbs")
    answer = node.call(Operation.PUT_TOKEN, token, properties=properties)
    words = answer.message.application_properties or {}
    assert words.keys() == {"status-code", "status-description"}
    assert type(words["status-code"]) is Int
    assert answer.status in {400, 401}
    assert answer.description


def test_tokens_are_answered_on_the_link_that_asked(client: WireClient) -> None:
    """Attach like the SDK for JavaScript: no address at its own ends, and the link's name to reply to."""
    replies = client.attach(RECEIVER, source=Source(address="$cbs"), target=Target(), name="cbs-1")
    other = client.attach(RECEIVER, source=Source(address="$cbs"), target=Target(), name="cbs-2")
    asking = client.attach(SENDER, source=Source(), target=Target(address="$cbs"))
    client.until(lambda: asking.credit)
    node = Requests(client, asking, other, "cbs-2")
    assert node.call(Operation.PUT_TOKEN, "nonsense", properties={"name": "orders"}).status == 401
    assert client.deliveries(replies) == []
