"""E6: damage in the file of a running server is logged, counted, reported by /health, and leaves a stub."""

from __future__ import annotations

import json
import logging
import re
import time
from http.client import HTTPConnection
from pathlib import Path

import pytest

from pairbus.broker import Address, QueueDescription, QueuePart
from pairbus.broker.errors import DAMAGED
from pairbus.broker.message import DeliveredMessage
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.server.host import NamespaceHost
from pairbus.server.http.metrics import Metrics, Monitoring
from pairbus.server.messages import STUB_BODY, received_message
from pairbus.store.directory import DATA_FILE
from pairbus.store.errors import DamagedStoreError
from pairbus.store.lmdb import CHECKED_S
from pairbus.store.pages import verify
from pairbus.store.repair import repair
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, decode_message
from tests.server.amqp.test_failed_commits import FAILURE, Stage, condition_of, play
from tests.server.amqp.wire_client import body_of, connect, text_message
from tests.server.disks import frozen, mounted
from tests.waiting import eventually

ORDERS = Address.of("orders")
DEAD_LETTERS = ORDERS._replace(part=QueuePart.DEAD_LETTER)
MARK = b"the-body-that-is-damaged-"


def overwrite(path: Path, mark: bytes) -> None:
    """Overwrite 16 bytes after each occurrence of a mark in a file."""
    data = path.read_bytes()
    assert mark in data
    with path.open("r+b") as file:
        at = data.find(mark)
        while at >= 0:
            file.seek(at + len(mark))
            file.write(b"\xa5" * 16)
            at = data.find(mark, at + 1)


def fill(namespace: RunningNamespace) -> None:
    """Send so many messages that the pages of the store have a branch: a damaged root would be restored."""
    messages = [received_message(text_message("filler" * 50)) for _ in range(100)]

    def send(host: NamespaceHost) -> None:
        host.use_namespace().create_queue("filler", QueueDescription(), host.now_ms())
        host.use_namespace().send(Address.of("filler"), messages, host.now_ms())

    namespace.call(send)


PAGE = 4096
LARGE = 201


def send_large(namespace: RunningNamespace) -> None:
    """Send messages each of which has a page of its own."""
    messages = [received_message(text_message(mark_of(number) + bytes(3_000))) for number in range(1, LARGE + 1)]

    def send(host: NamespaceHost) -> None:
        for message in messages:
            host.use_namespace().send(ORDERS, [message], host.now_ms())

    namespace.call(send)


def mark_of(number: int) -> bytes:
    return b"message %03d" % number


def page_of(data: Path, number: int) -> int:
    return data.read_bytes().index(mark_of(number)) // PAGE


def zero(data: Path, *pages: int) -> None:
    with data.open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(bytes(PAGE))


def peeked(host: NamespaceHost) -> list[DeliveredMessage]:
    return host.use_namespace().peek(ORDERS, 0, 1_000, host.now_ms())


def ask(namespace: RunningNamespace, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", namespace.port, timeout=60)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def health(namespace: RunningNamespace) -> tuple[int, str, str]:
    status, body = ask(namespace, "/health")
    answer = json.loads(body)
    return status, answer["status"], " ".join(answer["problems"])


def test_e6_overwritten_body_is_logged_counted_and_leaves_a_stub(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        bodies = [b"%d" % number for number in range(100)]
        bodies[41] = MARK + bytes(1_000)
        messages = [received_message(text_message(body, message_id=f"id {n}")) for n, body in enumerate(bodies)]
        namespace.call(lambda host: host.use_namespace().send(ORDERS, messages, host.now_ms()))
        assert health(namespace) == (200, "ok", "")
        overwrite(tmp_path / "data" / DATA_FILE, MARK)
        with connect(namespace) as client:
            received = client.receive(client.receiver("orders", credit=200), 99)
            assert [body_of(each) for each in received] == [*bodies[:41], *bodies[42:]]
            (stub,) = client.receive(client.receiver("orders/$DeadLetterQueue", credit=5), 1)
        message = decode_message(stub.payload)
        assert message.application_properties is not None
        assert message.application_properties["DeadLetterReason"] == DAMAGED
        assert "message 42 of 'orders'" in str(message.application_properties["DeadLetterErrorDescription"])
        assert message.properties is not None
        assert message.properties.message_id == "id 41"
        assert body_of(stub) == b""
        assert health(namespace) == (200, "degraded", "damaged records were quarantined: 1")
        assert "pairbus_records_quarantined_total 1.0" in ask(namespace, "/metrics")[1]
        (line,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        assert line.startswith("record quarantined namespace=")
        assert 'entity=orders sequence=42 message_id="id 41" damaged=body key=42000000000000002a page=' in line
        offset = int(line.rpartition(" offset=")[2])
        assert MARK in (tmp_path / "data" / DATA_FILE).read_bytes()[offset:][:200], "the position of the value"
        caplog.clear()
        namespace.restart()
        assert "damaged=0 quarantined=1" in caplog.text
        assert len(namespace.call(lambda host: host.use_namespace().peek(DEAD_LETTERS, 0, 10, host.now_ms()))) == 1


def test_e6_damaged_page_of_a_large_body_is_named_with_the_page_that_refers_to_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data" / DATA_FILE
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        send_large(namespace)
        sent_s = time.monotonic()
        eventually(lambda: time.monotonic() > sent_s + CHECKED_S)  # until then, pages that were checked count as sound
        page = page_of(data, 106)
        zero(data, page)
        assert len(namespace.call(peeked)) == LARGE - 1
        eventually(lambda: [line for line in caplog.messages if line.startswith("page damaged")])
    (record,) = [line for line in caplog.messages if line.startswith("record quarantined")]
    (lost,) = [line for line in caplog.messages if line.startswith("page damaged")]
    found = re.search(r"sequence=106 .* page=(\d+) offset=(\d+) referred_from=(\d+)$", record)
    assert found is not None
    named, offset, source = map(int, found.groups())
    assert (named, offset // PAGE) == (page, page)
    assert f" page={page} referred_from={source} " in lost
    with pytest.raises(DamagedStoreError, match=f"page {page} is damaged: .* page {source} refers to"):
        verify(data)


def test_e6_repaired_directory_has_stubs_and_counts_at_its_first_start_without_a_read(tmp_path: Path) -> None:
    data = tmp_path / "data" / DATA_FILE
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        send_large(namespace)
    zero(data, *(page_of(data, number) for number in range(50, 91)), 0, 1)
    report = repair(tmp_path / "data", tmp_path / "repaired", 1)
    assert [lost.sequence for lost in report.lost] == [*range(50, 91)]

    def counts(host: NamespaceHost) -> tuple[int, int]:
        info = host.use_namespace().entity(ORDERS, host.now_ms())
        return info.active_count, info.dead_letter_count

    with running_namespace(data=tmp_path / "repaired") as namespace:
        eventually(lambda: namespace.call(counts) == (LARGE - 41, 41))
        eventually(lambda: health(namespace)[1:] == ("degraded", "damaged records were quarantined: 41"))


def test_e6_damage_that_is_found_at_the_start_is_logged_and_shown_by_health(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        messages = [received_message(text_message("one", message_id=MARK.decode() + "?" * 40))]
        namespace.call(lambda host: host.use_namespace().send(ORDERS, messages, host.now_ms()))
        namespace.call(lambda host: host.use_namespace().create_queue(MARK.decode(), QueueDescription(), host.now_ms()))
        namespace.stop()
        overwrite(tmp_path / "data" / DATA_FILE, MARK)
        caplog.clear()
        namespace.start()
        lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        assert sorted(line.partition(" namespace=")[2].split(" ", 1)[1].split(" key=")[0] for line in lines) == [
            "entity=orders sequence=1 damaged=record",
            "kind=entity entity_id=2",
        ]
        assert health(namespace) == (200, "degraded", "damaged records were quarantined: 2")
        (stub,) = namespace.call(lambda host: host.use_namespace().peek(DEAD_LETTERS, 0, 10, host.now_ms()))
        assert stub.body == STUB_BODY


def test_e6_damaged_session_state_is_an_error_and_not_an_empty_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_namespace(data=tmp_path / "data") as namespace:
        namespace.call(
            lambda host: host.use_namespace().create_queue(
                "visits", QueueDescription(requires_session=True), host.now_ms()
            )
        )
        fill(namespace)
        with connect(namespace) as client:
            link = client.session_receiver("visits", "one").name
            node = client.requests("visits/$management")
            state = {"session-id": "one", "session-state": MARK + bytes(100)}
            assert node.call(Operation.SET_SESSION_STATE, state, link=link).status == 200
            overwrite(tmp_path / "data" / DATA_FILE, MARK)
            answer = node.call(Operation.GET_SESSION_STATE, {"session-id": "one"}, link=link)
            assert (answer.status, "damaged" in answer.description) == (500, True)
            assert health(namespace)[1] == "degraded"
            assert f"entity=visits operation={Operation.GET_SESSION_STATE}" in caplog.text
            assert node.call(Operation.SET_SESSION_STATE, state, link=link).status == 200
            answer = node.call(Operation.GET_SESSION_STATE, {"session-id": "one"}, link=link)
            assert answer.body["session-state"] == state["session-state"]


def test_b3_commit_that_is_overdue_is_logged_and_shown_once_each_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pairbus.server.host")

    async def scene(stage: Stage) -> None:
        host = stage.host
        host.commit_overdue_s = 0.05
        metrics = Metrics(stage.services.counters, host.committer, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        assert host.stalled_s is None
        stage.shut()
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(3)]
        await peer.until(lambda: host.stalled_s is not None and host.stalled_s > 0.6)
        assert [condition_of(each.state) for each in sent] == [ServiceBusCondition.SERVER_BUSY] * 3
        assert monitoring.health().status_code == 503
        assert [line.partition(" namespace")[0] for line in caplog.messages] == ["storage stalled"]
        stage.store.gate.set()
        await peer.until(lambda: len(caplog.messages) > 1)
        await host.ready()
        assert caplog.messages[1] == "storage recovered namespace=contoso"
        assert monitoring.health().status_code == 200
        assert await peer.send(link, "after") == ACCEPTED

    play(scene)


def test_e5_health_is_503_while_commits_fail_or_sends_are_refused_for_lack_of_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "pairbus.server.host")

    async def scene(stage: Stage) -> None:
        host, store = stage.host, stage.store
        host.commit_overdue_s = 0.05
        metrics = Metrics(stage.services.counters, host.committer, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        link = await peer.sender()

        def reported() -> list[str]:
            return [line.partition(" namespace=")[0] for line in caplog.messages if line.startswith("storage ")]

        store.fail_next_run(FAILURE)
        assert condition_of(await peer.send(link, "lost")) == Condition.INTERNAL_ERROR
        await peer.until(lambda: reported() == ["storage failed"])
        assert monitoring.health().status_code == 503
        link = await peer.sender()
        assert await peer.send(link, "one") == ACCEPTED
        await peer.until(lambda: reported() == ["storage failed", "storage recovered"])
        assert monitoring.health().status_code == 200
        store.max_bytes = 1_000
        for _ in range(3):
            assert condition_of(await peer.send(link, "x" * 100_000)) == Condition.RESOURCE_LIMIT_EXCEEDED
        assert monitoring.health().status_code == 503
        await peer.until(lambda: len(reported()) == 3)
        store.max_bytes = None
        assert monitoring.health().status_code == 200, "also before anything is sent"
        assert await peer.send(link, "two") == ACCEPTED
        await peer.until(lambda: len(reported()) == 4)

    play(scene)


@pytest.mark.slow
def test_b3_frozen_disk_is_logged_and_shown_by_health_until_it_thaws(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path) as place, running_namespace(data=place / "data", queues=["orders"]) as namespace:
        with connect(namespace) as client:
            link = client.sender("orders")
            with frozen(place):
                sent = client.begin_send(link, text_message("frozen"))
                eventually(lambda: health(namespace)[:2] == (503, "unavailable"))
                assert "the storage has not answered" in health(namespace)[2]
                assert "pairbus_storage_stalled 1.0" in ask(namespace, "/metrics")[1]
                assert condition_of(client.outcome(sent)) == ServiceBusCondition.SERVER_BUSY
            eventually(lambda: health(namespace) == (200, "ok", ""))
            eventually(lambda: len(caplog.messages) > 1)
        assert [line.split(" namespace")[0] for line in caplog.messages] == [
            "storage stalled",
            "storage recovered",
        ]
        assert len(namespace.call(lambda host: host.use_namespace().peek(ORDERS, 0, 10, host.now_ms()))) == 1
