"""B1: faults on demand, on a real server: what each kind does, when it ends, and who may inject it."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pairbus.broker import Address, InvalidOperationError, MessageNotFoundError, QueueDescription, QueuePart
from pairbus.broker.errors import DAMAGED
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.dialect.sas import make_sas_token
from pairbus.ledger import OPERATIONS
from pairbus.server.errors import BadRequestError, FaultsNotAllowedError
from pairbus.server.host import NamespaceHost
from pairbus.store import LmdbStore
from pairbus.store.faulty import FaultyStore
from pairbus.testing import CrashComponent, FaultKind, RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    Condition,
    DispositionReceived,
    Link,
    Message,
    Properties,
    Rejected,
    Timestamp,
    decode_message,
    encode_message,
)
from tests.server.amqp.clocked_namespace import ClockedNamespace, clocked_namespace
from tests.server.amqp.wire_client import DEADLINE_S, LinkRefusedError, WireClient, body_of, connect, text_message
from tests.server.ledger_rows import rows_of
from tests.server.test_e6_damage import health
from tests.waiting import eventually

ORDERS = Address.of("orders")
DEAD_LETTERS = ORDERS._replace(part=QueuePart.DEAD_LETTER)
LATENCY = timedelta(milliseconds=250)
LONG_MS = 3_600_000


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders", "others"], topics={"news": ["all", "some"]}) as namespace:
        yield namespace


@pytest.fixture
def client(contoso: RunningNamespace) -> Iterator[WireClient]:
    with connect(contoso) as connected:
        yield connected


def condition(state: object) -> str:
    assert isinstance(state, Rejected)
    assert state.error is not None
    return state.error.condition


def bodies(namespace: RunningNamespace, address: Address = ORDERS) -> list[bytes]:
    """Return the messages in a queue, locked ones too."""

    def peek(host: NamespaceHost) -> list[bytes]:
        found = host.use_namespace().peek(address, 0, 1_000, host.now_ms())
        return [b"".join(decode_message(each.body).body) for each in found]

    return namespace.call(peek)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.getMessage().startswith("fault ")]


def ask(
    namespace: RunningNamespace, method: str, path: str = "/$faults", document: object = None, body: str | None = None
) -> tuple[int, Any]:
    """Ask the HTTP API with the root key; return the status, and the document or the text of the response."""
    token = make_sas_token("http://localhost/", "RootManageSharedAccessKey", namespace.key, 2**31)
    connection = http.client.HTTPConnection("localhost", namespace.port, timeout=DEADLINE_S)
    try:
        content = json.dumps(document) if document is not None else body
        connection.request(method, path, content, {"Authorization": token})
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if text.startswith("{") else text
    finally:
        connection.close()


# Server busy


def test_server_busy_denies_requests_and_lets_attached_receivers_receive(
    contoso: RunningNamespace, client: WireClient
) -> None:
    sender, other, receiver = client.sender("orders"), client.sender("others"), client.receiver("orders", credit=5)
    assert client.send(sender, text_message("one")) == ACCEPTED
    with contoso.faults.engaged(FaultKind.SERVER_BUSY, "orders"):
        assert condition(client.send(sender, text_message("two"))) == ServiceBusCondition.SERVER_BUSY
        assert client.send(other, text_message("two")) == ACCEPTED
        assert [body_of(each) for each in client.receive(receiver)] == [b"one"]
        assert ask(contoso, "GET", "/orders")[0] == 503
        assert ask(contoso, "GET", "/others")[0] == 200
        with pytest.raises(LinkRefusedError, match="server-busy"):
            client.sender("orders")
    assert client.send(sender, text_message("two")) == ACCEPTED
    assert bodies(contoso) == [b"one", b"two"]


# Slow


def took_s(since: float) -> float:
    """Return the time since then, and a millisecond: timers of the event loop may be early by their resolution."""
    return time.monotonic() - since + 0.001


def test_slow_delays_confirmations_deliveries_and_settlements(contoso: RunningNamespace, client: WireClient) -> None:
    sender, other = client.sender("orders"), client.sender("others")
    receiver = client.receiver("orders")
    with contoso.faults.engaged(FaultKind.SLOW, "orders", latency=LATENCY):
        began = time.monotonic()
        late = sender.send(text_message("one"), tag=b"late")
        soon = other.send(text_message("two"), tag=b"soon")
        client.flush()
        assert [client.outcome(each) for each in (late, soon)] == [ACCEPTED] * 2
        settled = [delivery for event in client.seen(DispositionReceived) for delivery in event.deliveries]
        assert settled == [soon, late], "the other queue is not slow"
        assert took_s(began) >= LATENCY.total_seconds()
        began = time.monotonic()
        receiver.flow(1)
        (delivery,) = client.receive(receiver)
        assert took_s(began) >= LATENCY.total_seconds()
        began = time.monotonic()
        assert client.settle(delivery, ACCEPTED) == ACCEPTED
        assert took_s(began) >= LATENCY.total_seconds()
    assert bodies(contoso) == []


def test_slow_delays_messages_that_arrive_for_a_waiting_receiver(contoso: RunningNamespace, client: WireClient) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=10, deletes=True)
    with contoso.faults.engaged(FaultKind.SLOW, "orders", latency=LATENCY):
        for number in range(3):
            began = time.monotonic()
            sent = client.begin_send(sender, text_message(str(number)))
            client.receive(receiver, number + 1)
            assert took_s(began) >= LATENCY.total_seconds() / 2, "the delay begins with the message before it, at most"
            assert client.outcome(sent) == ACCEPTED
    assert [body_of(each) for each in client.deliveries(receiver)] == [b"0", b"1", b"2"]


def test_slow_delays_requests_over_amqp_and_http(contoso: RunningNamespace, client: WireClient) -> None:
    node = client.requests("orders/$management")
    with contoso.faults.engaged(FaultKind.SLOW, latency=LATENCY):
        began = time.monotonic()
        assert node.call(Operation.PEEK_MESSAGE, {"from-sequence-number": 0, "message-count": 1}).status == 204
        assert took_s(began) >= LATENCY.total_seconds()
        began = time.monotonic()
        assert ask(contoso, "GET", "/orders")[0] == 200
        assert took_s(began) >= LATENCY.total_seconds()


def test_receiver_that_is_detached_during_the_delay_takes_no_message(
    contoso: RunningNamespace, client: WireClient
) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=1, deletes=True)
    with contoso.faults.engaged(FaultKind.SLOW, "orders", latency=timedelta(milliseconds=50)):
        sent = client.begin_send(sender, text_message("one"))
        client.detach(receiver)
        assert client.outcome(sent) == ACCEPTED
    assert bodies(contoso) == [b"one"]
    assert body_of(client.receive(client.receiver("orders", credit=1))[0]) == b"one"


# Receivers


def test_cannot_receive_detaches_the_receivers_of_one_subscription(
    contoso: RunningNamespace, client: WireClient
) -> None:
    sender = client.sender("news")
    ours, theirs = (
        client.receiver("news/Subscriptions/all", credit=1),
        client.receiver("news/Subscriptions/some", credit=1),
    )
    with contoso.faults.engaged(FaultKind.CANNOT_RECEIVE, "news/Subscriptions/all"):
        assert client.detached(ours).condition == ServiceBusCondition.TIMEOUT
        with pytest.raises(LinkRefusedError, match="cannot-receive"):
            client.receiver("news/Subscriptions/all")
        assert client.send(sender, text_message("one")) == ACCEPTED
        assert body_of(client.receive(theirs)[0]) == b"one"
    assert body_of(client.receive(client.receiver("news/Subscriptions/all", credit=1))[0]) == b"one"


def test_cannot_receive_ends_the_wait_for_a_session(contoso: RunningNamespace, client: WireClient) -> None:
    contoso.call(
        lambda host: host.use_namespace().create_queue("visits", QueueDescription(requires_session=True), host.now_ms())
    )
    waiting = client.begin_session_receiver("visits", None)
    client.barrier()
    with contoso.faults.engaged(FaultKind.CANNOT_RECEIVE, "visits"), pytest.raises(LinkRefusedError, match="cannot-"):
        client.attached(waiting)


# Storage


def accepted(client: WireClient, link: Link, *texts: str) -> None:
    for text in texts:
        assert client.send(link, text_message(text)) == ACCEPTED


def test_storage_error_fails_commits_and_loses_nothing(contoso: RunningNamespace, client: WireClient) -> None:
    sender = client.sender("orders")
    accepted(client, sender, "one", "two")
    with contoso.faults.engaged(FaultKind.STORAGE_ERROR):
        assert condition(client.send(sender, text_message("three"))) == Condition.INTERNAL_ERROR
        eventually(lambda: health(contoso)[:2] == (503, "unavailable"))
        assert "the storage fails: nothing can be written" in health(contoso)[2]
    eventually(lambda: health(contoso)[0] == 200)
    accepted(client, sender, "four")
    assert bodies(contoso) == [b"one", b"two", b"four"]
    contoso.restart()
    assert bodies(contoso) == [b"one", b"two", b"four"]


def test_storage_full_refuses_sends_and_lets_receivers_free_space(
    contoso: RunningNamespace, client: WireClient
) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders")
    accepted(client, sender, "one", "two")
    with contoso.faults.engaged(FaultKind.STORAGE_FULL):
        assert condition(client.send(sender, text_message("three"))) == Condition.RESOURCE_LIMIT_EXCEEDED
        eventually(lambda: health(contoso)[:2] == (503, "unavailable"))
        assert client.settle(client.receive_one(receiver), ACCEPTED) == ACCEPTED
    accepted(client, sender, "four")
    eventually(lambda: health(contoso)[0] == 200)
    assert bodies(contoso) == [b"two", b"four"]


def watch_closely(host: NamespaceHost) -> None:
    host.commit_overdue_s = 0.05


def test_storage_stall_delays_commits_until_it_is_cleared(contoso: RunningNamespace, client: WireClient) -> None:
    contoso.call(watch_closely)
    sender, two = (
        client.sender("orders"),
        encode_message(Message(properties=Properties(message_id="2"), body=(b"two",))),
    )
    accepted(client, sender, "one")
    with contoso.faults.engaged(FaultKind.STORAGE_STALL):
        sent = client.begin_send(sender, two)
        eventually(lambda: health(contoso)[1] != "ok" and "storage" in health(contoso)[2])
        assert sent.state != ACCEPTED
        assert len(contoso.faults.list()) == 1
    assert condition(client.outcome(sent)) == ServiceBusCondition.SERVER_BUSY
    eventually(lambda: health(contoso)[0] == 200)
    assert client.send(sender, two) == ACCEPTED  # the retry is recognised: the first one is stored
    assert bodies(contoso) == [b"one", b"two"]


def test_server_stops_while_its_storage_stalls(contoso: RunningNamespace, client: WireClient) -> None:
    sender = client.sender("orders")
    contoso.faults.engage(FaultKind.STORAGE_STALL)
    sent = client.begin_send(sender, text_message("one"))
    client.barrier()
    contoso.restart()
    assert contoso.faults.list() == []
    client.until_hung_up()
    assert bodies(contoso) == ([b"one"] if sent.state == ACCEPTED else [])


@pytest.mark.parametrize("kind", [FaultKind.STORAGE_ERROR, FaultKind.STORAGE_FULL])
def test_b3_side_buffer_takes_sends_during_a_storage_fault_and_merges_them(tmp_path: Path, kind: FaultKind) -> None:
    with running_namespace(queues=["orders"], side_buffer=tmp_path / "buffer") as contoso, connect(contoso) as client:
        sender = client.sender("orders")
        accepted(client, sender, "one")
        with contoso.faults.engaged(kind):
            accepted(client, sender, "two", "three")
        accepted(client, sender, "four")
        eventually(lambda: bodies(contoso) == [b"one", b"two", b"three", b"four"])


# Crashes


def engage_crash(namespace: RunningNamespace, component: CrashComponent) -> None:
    namespace.faults.engage(FaultKind.COMPONENT_CRASH, component=component)
    assert [fault.request.component for fault in namespace.faults.list()] == [component]


def crashed(namespace: RunningNamespace, caplog: pytest.LogCaptureFixture) -> bool:
    return namespace.faults.list() == [] and any(line.startswith("fault done ") for line in lines(caplog))


def test_crash_of_the_dispatcher_loses_no_message(
    contoso: RunningNamespace, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
    engage_crash(contoso, CrashComponent.DISPATCHER)
    accepted(client, sender, "one")
    eventually(lambda: crashed(contoso, caplog))
    accepted(client, sender, "two")
    assert [body_of(each) for each in client.receive(receiver, 2)] == [b"one", b"two"]
    eventually(lambda: "component restarted namespace=contoso component=dispatcher" in caplog.text)
    assert "crashes the component 'dispatcher'" in caplog.text


def test_crash_of_the_timers_loses_no_message(
    contoso: RunningNamespace, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
    engage_crash(contoso, CrashComponent.TIMERS)
    soon = {"x-opt-scheduled-enqueue-time": Timestamp(int(time.time() * 1_000) + 50)}
    scheduled = Message(message_annotations=soon, body=(b"one",))
    assert client.send(sender, encode_message(scheduled)) == ACCEPTED
    eventually(lambda: crashed(contoso, caplog))
    accepted(client, sender, "two")
    assert {body_of(each) for each in client.receive(receiver, 2)} == {b"one", b"two"}


def test_crash_of_the_ledger_loses_no_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = tmp_path / "ledger"
    with running_namespace(queues=["orders"], ledger=ledger) as contoso, connect(contoso) as client:
        engage_crash(contoso, CrashComponent.LEDGER)
        accepted(client, client.sender("orders"), "one", "two")
        eventually(lambda: crashed(contoso, caplog))
    sends = [row for row in rows_of(ledger, OPERATIONS) if row["kind"] == "send"]
    assert sum(row["messages"] for row in sends) == 2


def test_crash_of_the_side_buffer_loses_no_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_namespace(queues=["orders"], side_buffer=tmp_path / "buffer") as contoso:
        with connect(contoso) as client, contoso.faults.engaged(FaultKind.STORAGE_FULL):
            engage = contoso.faults.engage(FaultKind.COMPONENT_CRASH, component=CrashComponent.SIDE_BUFFER)
            accepted(client, client.sender("orders"), "one", "two")
            eventually(lambda: engage not in contoso.faults.list())
        assert any("done" in line and "side-buffer" in line for line in lines(caplog))
        contoso.restart()
        eventually(lambda: bodies(contoso) == [b"one", b"two"])


def test_crash_of_the_commit_thread_loses_no_message(
    contoso: RunningNamespace, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    sender = client.sender("orders")
    engage_crash(contoso, CrashComponent.COMMIT_THREAD)
    accepted(client, sender, "one", "two")
    assert crashed(contoso, caplog)
    assert "component restarted namespace=contoso component=commit-thread restarts=1" in caplog.text
    assert bodies(contoso) == [b"one", b"two"]


def test_crash_of_the_listener_closes_no_connection(
    contoso: RunningNamespace, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    sender = client.sender("orders")
    engage_crash(contoso, CrashComponent.LISTENER)
    with socket.create_connection(("127.0.0.1", contoso.port), timeout=60) as refused:
        assert refused.recv(1) == b""
    eventually(lambda: crashed(contoso, caplog))
    accepted(client, sender, "one")
    eventually(lambda: "component restarted namespace=contoso component=listener restarts=1" in caplog.text)
    with connect(contoso) as other:
        accepted(other, other.sender("orders"), "two")
    assert bodies(contoso) == [b"one", b"two"]


@pytest.mark.parametrize("component", [CrashComponent.SIDE_BUFFER, CrashComponent.LEDGER, CrashComponent.CONSOLE])
def test_component_that_the_server_does_not_have_cannot_crash(
    contoso: RunningNamespace, component: CrashComponent
) -> None:
    with pytest.raises(BadRequestError, match=r"this server has no .* that could crash"):
        contoso.faults.engage(FaultKind.COMPONENT_CRASH, component=component)
    assert contoso.faults.list() == []


# Quarantine


def test_e6_quarantined_message_leaves_a_stub_in_the_dead_letter_queue(
    contoso: RunningNamespace, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    sender = client.sender("orders")
    for number in range(1, 4):
        assert client.send(sender, text_message(str(number), message_id=f"id {number}")) == ACCEPTED
    contoso.faults.engage(FaultKind.QUARANTINE, "orders", sequence_number=2)
    assert contoso.faults.list() == []
    received = client.receive(client.receiver("orders", credit=5), 2)
    assert [body_of(each) for each in received] == [b"1", b"3"]
    (stub,) = client.receive(client.receiver("orders/$DeadLetterQueue", credit=5))
    message = decode_message(stub.payload)
    assert (message.application_properties or {})["DeadLetterReason"] == DAMAGED
    assert message.properties is not None
    assert message.properties.message_id == "id 2"
    assert health(contoso) == (200, "degraded", "damaged records were quarantined: 1")
    assert "record quarantined namespace=contoso entity=orders sequence=2" in caplog.text
    contoso.restart()
    assert bodies(contoso) == [b"1", b"3"]
    assert len(bodies(contoso, DEAD_LETTERS)) == 1


def test_locked_or_missing_message_cannot_be_quarantined(contoso: RunningNamespace, client: WireClient) -> None:
    accepted(client, client.sender("orders"), "one")
    client.receive(client.receiver("orders", credit=1))
    with pytest.raises(InvalidOperationError, match="message 1 of 'orders' is locked"):
        contoso.faults.engage(FaultKind.QUARANTINE, "orders", sequence_number=1)
    with pytest.raises(MessageNotFoundError, match="'orders' has no message 2"):
        contoso.faults.engage(FaultKind.QUARANTINE, "orders", sequence_number=2)
    assert (bodies(contoso), bodies(contoso, DEAD_LETTERS)) == ([b"one"], [])


# Time


@pytest.fixture
def clocked() -> Iterator[ClockedNamespace]:
    with clocked_namespace(allow_faults=True) as namespace:
        namespace.call(lambda host: host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()))
        yield namespace


def test_fault_ends_by_the_clock(clocked: ClockedNamespace, caplog: pytest.LogCaptureFixture) -> None:
    with connect(clocked) as client:
        sender = client.sender("orders")
        clocked.faults.engage(FaultKind.CANNOT_SEND, "orders", duration=timedelta(hours=1))
        assert condition(client.send(sender, text_message("one"))) == ServiceBusCondition.TIMEOUT
        clocked.clock.advance(LONG_MS)
        accepted(client, sender, "two")
        assert clocked.faults.list() == []
    assert [line.split(" ", 2)[1] for line in lines(caplog)] == ["engaged", "expired"]


def test_stall_ends_by_the_clock_without_another_request(clocked: ClockedNamespace) -> None:
    with connect(clocked) as client:
        sender = client.sender("orders")
        clocked.faults.engage(FaultKind.STORAGE_STALL, duration=timedelta(hours=1))
        sent = client.begin_send(sender, text_message("one"))
        client.barrier()
        clocked.clock.advance(LONG_MS)
        confirmed = [b"one"] if client.outcome(sent) == ACCEPTED else []
    assert bodies(clocked) == confirmed


# The administration


def test_faults_are_added_listed_and_cleared_over_http(
    contoso: RunningNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    status, fault = ask(
        contoso, "POST", document={"kind": "slow", "entity": "Orders", "latency_ms": 5, "duration_ms": LONG_MS}
    )
    assert status == 201
    assert (fault["id"], fault["kind"], fault["entity"], fault["latency_ms"]) == (1, "slow", "Orders", 5)
    assert fault["key"] == "RootManageSharedAccessKey"
    assert fault["peer"].startswith("127.0.0.1:")
    assert fault["engaged_at"] < fault["until"]
    assert ask(contoso, "POST", document={"kind": "cannot-send"})[1]["until"] is None
    assert [each["id"] for each in ask(contoso, "GET")[1]["faults"]] == [1, 2]
    assert ask(contoso, "DELETE", "/$faults/1") == (200, {"faults": [fault]})
    assert [each["id"] for each in ask(contoso, "DELETE")[1]["faults"]] == [2]
    assert ask(contoso, "GET") == (200, {"faults": []})
    who = "key=RootManageSharedAccessKey peer=127.0.0.1"
    assert [line.rpartition(":")[0] for line in lines(caplog)] == [  # without the port
        f"fault engaged namespace=contoso id=1 kind=slow entity=orders duration_ms={LONG_MS} latency_ms=5 {who}",
        f"fault engaged namespace=contoso id=2 kind=cannot-send {who}",
        f"fault cleared namespace=contoso id=1 kind=slow entity=orders duration_ms={LONG_MS} latency_ms=5 {who}",
        f"fault cleared namespace=contoso id=2 kind=cannot-send {who}",
    ]


@pytest.mark.parametrize(
    "kind", [FaultKind.CANNOT_MANAGE, FaultKind.CANNOT_CONNECT, FaultKind.SERVER_BUSY, FaultKind.STORAGE_STALL]
)
def test_faults_can_be_cleared_during_any_of_them(contoso: RunningNamespace, kind: FaultKind) -> None:
    contoso.faults.engage(kind)
    assert [fault["kind"] for fault in ask(contoso, "GET", "/%24Faults")[1]["faults"]] == [kind]
    assert ask(contoso, "DELETE", "/$faults")[0] == 200
    assert ask(contoso, "GET", "/orders")[0] == 200


def test_cannot_connect_resets_requests_for_anything_else(contoso: RunningNamespace) -> None:
    with contoso.faults.engaged(FaultKind.CANNOT_CONNECT):
        for path in ("/orders", "/health", "/$faultsx", "/orders?$faults", f"/{'x' * 2_000}"):
            with pytest.raises((ConnectionError, http.client.BadStatusLine)):
                ask(contoso, "GET", path)


@pytest.mark.parametrize(
    ("document", "status", "reason"),
    [
        ({"kind": "broken"}, 400, "kind must be one of cannot-send"),
        ({"kind": "cannot-send", "entity": "absent"}, 404, "absent"),
        ({"kind": "cannot-receive", "entity": "news/Subscriptions/absent"}, 404, "absent"),
        ({"kind": "cannot-send", "entity": "news/Subscriptions/all"}, 400, "cannot-send applies to the namespace or a"),
        (
            {"kind": "cannot-connect", "entity": "orders"},
            400,
            "cannot-connect applies to the namespace, not to a queue",
        ),
        ({"kind": "storage-error", "entity": "orders"}, 400, "storage-error applies to the namespace"),
        ({"kind": "cannot-send", "entity": "orders/$DeadLetterQueue"}, 400, "is not a queue, a topic, or TOPIC/Subsc"),
        ({"kind": "cannot-send", "entity": "orders/$management"}, 400, "is not a queue"),
        ({"kind": "quarantine", "entity": "news", "sequence_number": 1}, 400, "topic"),
        ({"kind": "quarantine", "entity": "orders", "sequence_number": 9}, 404, "has no message 9"),
        ([1], 400, "a fault must be a JSON object"),
    ],
)
def test_invalid_fault_is_rejected(
    contoso: RunningNamespace, document: object, status: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = ask(contoso, "POST", document=document)
    assert answer[0] == status
    assert reason in answer[1]
    assert contoso.faults.list() == []
    assert lines(caplog) == []


@pytest.mark.parametrize("body", ["", "{", "[" * 10_000, "\ufeff{}", "null"])
def test_body_that_is_no_document_is_rejected(contoso: RunningNamespace, body: str) -> None:
    status, text = ask(contoso, "POST", body=body.encode().decode("latin-1"))
    assert (status, "the fault cannot be injected" in text) == (400, True)


@pytest.mark.parametrize("identity", ["7", "x", "-1", "1" * 30])
def test_fault_that_does_not_exist_cannot_be_cleared(contoso: RunningNamespace, identity: str) -> None:
    status, text = ask(contoso, "DELETE", f"/$faults/{identity}")
    assert status == (404 if identity == "7" else 400)
    assert "fault" in text


def test_health_shows_how_many_faults_are_injected(contoso: RunningNamespace) -> None:
    with contoso.faults.engaged(FaultKind.CANNOT_SEND, "orders"):
        assert health(contoso) == (200, "degraded", "injected faults: 1")
    assert health(contoso) == (200, "ok", "")


# Without the option


def test_faults_are_not_allowed_by_default() -> None:
    with running_namespace(queues=["orders"], allow_faults=False) as contoso:
        for method, path in (
            ("GET", "/$faults"),
            ("POST", "/$faults"),
            ("DELETE", "/$faults"),
            ("DELETE", "/$faults/1"),
        ):
            status, text = ask(contoso, method, path, document={"kind": "cannot-send"})
            assert (status, "start it with --allow-faults" in text) == (400, True)
        with pytest.raises(FaultsNotAllowedError):
            contoso.faults.engage(FaultKind.CANNOT_SEND)
        with pytest.raises(FaultsNotAllowedError):
            contoso.faults.list()


def test_requests_cost_nothing_more_while_faults_are_not_allowed() -> None:
    called: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name = Path(frame.f_code.co_filename).stem
        if event == "call" and name in {"faults", "faulty", "fault_injection", "fault_kinds"}:
            called.append(name)

    with running_namespace(queues=["orders"], allow_faults=False) as contoso, connect(contoso) as client:
        assert isinstance(contoso.call(lambda host: host.committer._store), LmdbStore)
        contoso.call(lambda _host: sys.setprofile(note))
        sender, receiver = client.sender("orders"), client.receiver("orders", credit=5)
        accepted(client, sender, "one")
        (delivery,) = client.receive(receiver)
        assert client.settle(delivery, ACCEPTED) == ACCEPTED
        contoso.call(lambda _host: sys.setprofile(None))
    assert called == []
    with running_namespace() as allowing:
        assert isinstance(allowing.call(lambda host: host.committer._store), FaultyStore)
