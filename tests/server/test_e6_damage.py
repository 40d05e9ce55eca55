"""E6: whatever is damaged in the file of a running server is logged, counted, shown by /health, and leaves a stub."""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from pairbus.broker import Address, Part, QueueDescription
from pairbus.broker.reasons import DAMAGED
from pairbus.dialect.management import Operation
from pairbus.server.http.metrics import Metrics
from pairbus.server.http.monitoring import Monitoring
from pairbus.server.messages import STUB_BODY, received_message
from pairbus.store.directory import DATA_FILE
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, decode_message
from tests.server.amqp.test_failed_commits import FAILURE, Stage, condition_of, play
from tests.server.amqp.wire_client import body_of, connect, eventually, text_message

ORDERS = Address.of("orders")
DEAD_LETTERS = ORDERS._replace(part=Part.DEAD_LETTER)
MARK = b"the-body-that-is-damaged-"


def overwrite(path: Path, mark: bytes) -> None:
    """Write 16 other bytes behind each place where a mark stands in a file."""
    data = path.read_bytes()
    assert mark in data
    with path.open("r+b") as file:
        at = data.find(mark)
        while at >= 0:
            file.seek(at + len(mark))
            file.write(b"\xa5" * 16)
            at = data.find(mark, at + 1)


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
        namespace.call(lambda host: host.namespace.send(ORDERS, messages, host.now_ms()))
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
        assert "entity='orders' sequence=42 message_id='id 41' damaged=body" in line
        caplog.clear()
        namespace.restart()
        assert "damaged=0 quarantined=1" in caplog.text
        assert len(namespace.call(lambda host: host.namespace.peek(DEAD_LETTERS, 0, 10, host.now_ms()))) == 1


def test_e6_damage_that_is_found_at_the_start_is_logged_and_shown_by_health(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_namespace(data=tmp_path / "data", queues=["orders"]) as namespace:
        messages = [received_message(text_message("one", message_id=MARK.decode() + "?" * 40))]
        namespace.call(lambda host: host.namespace.send(ORDERS, messages, host.now_ms()))
        namespace.call(lambda host: host.namespace.create_queue(MARK.decode(), QueueDescription(), host.now_ms()))
        namespace.stop()
        overwrite(tmp_path / "data" / DATA_FILE, MARK)
        caplog.clear()
        namespace.start()
        lines = [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]
        assert sorted(line.partition(" namespace=")[2].split(" ", 1)[1].split(" key=")[0] for line in lines) == [
            "entity='orders' sequence=1 damaged=record",
            "kind='entity' entity_id=2",
        ]
        assert health(namespace) == (200, "degraded", "damaged records were quarantined: 2")
        (stub,) = namespace.call(lambda host: host.namespace.peek(DEAD_LETTERS, 0, 10, host.now_ms()))
        assert stub.body == STUB_BODY


def test_e6_damaged_session_state_is_an_error_and_not_an_empty_state(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_namespace(data=tmp_path / "data") as namespace:
        namespace.call(
            lambda host: host.namespace.create_queue("visits", QueueDescription(requires_session=True), host.now_ms())
        )
        with connect(namespace) as client:
            link = client.session_receiver("visits", "one").name
            node = client.requests("visits/$management")
            state = {"session-id": "one", "session-state": MARK + bytes(100)}
            assert node.call(Operation.SET_SESSION_STATE, state, link=link).status == 200
            overwrite(tmp_path / "data" / DATA_FILE, MARK)
            answer = node.call(Operation.GET_SESSION_STATE, {"session-id": "one"}, link=link)
            assert (answer.status, "damaged" in answer.description) == (500, True)
            assert health(namespace)[1] == "degraded"
            assert f"entity='visits' operation={Operation.GET_SESSION_STATE}" in caplog.text
            assert node.call(Operation.SET_SESSION_STATE, state, link=link).status == 200
            answer = node.call(Operation.GET_SESSION_STATE, {"session-id": "one"}, link=link)
            assert answer.body["session-state"] == state["session-state"]


def test_b3_commit_that_is_overdue_is_logged_and_shown_once_each_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pairbus.server.host")

    async def scene(stage: Stage) -> None:
        host = stage.host
        host.commit_overdue_s = 0.05
        metrics = Metrics(stage.services.counters, host.commits, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        assert host.stalled_s is None
        stage.shut()
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(3)]
        await peer.until(lambda: host.stalled_s is not None and host.stalled_s > 0.6)
        assert not any(each.settled for each in sent)
        assert monitoring.health().status_code == 503
        assert [line.split(" ", 2)[:2] for line in caplog.messages] == [["storage", "stalled"]]
        stage.store.gate.set()
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 3
        await peer.until(lambda: len(caplog.messages) > 1)
        assert caplog.messages[1:] == ["storage recovered namespace=contoso"]
        assert monitoring.health().status_code == 200

    play(scene)


def test_e5_health_is_503_while_commits_fail_or_sends_are_refused_for_lack_of_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "pairbus.server.host")

    async def scene(stage: Stage) -> None:
        host, store = stage.host, stage.store
        host.commit_overdue_s = 0.05
        metrics = Metrics(stage.services.counters, host.commits, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        link = await peer.sender()

        def told() -> list[str]:
            return [line.partition(" namespace=")[0] for line in caplog.messages if line.startswith("storage ")]

        store.fail_next_run(FAILURE)
        assert condition_of(await peer.send(link, "lost")) == Condition.INTERNAL_ERROR
        await peer.until(lambda: told() == ["storage in trouble"])
        assert monitoring.health().status_code == 503
        link = await peer.sender()
        assert await peer.send(link, "one") == ACCEPTED
        await peer.until(lambda: told() == ["storage in trouble", "storage works again"])
        assert monitoring.health().status_code == 200
        store.max_bytes = 1_000
        for _ in range(3):
            assert condition_of(await peer.send(link, "x" * 100_000)) == Condition.RESOURCE_LIMIT_EXCEEDED
        assert monitoring.health().status_code == 503
        await peer.until(lambda: len(told()) == 3)
        store.max_bytes = None
        assert monitoring.health().status_code == 200, "also before anything is sent"
        assert await peer.send(link, "two") == ACCEPTED
        await peer.until(lambda: len(told()) == 4)

    play(scene)


@contextmanager
def mounted(directory: Path) -> Iterator[Path]:
    """A file system of its own that can be frozen, where the system lets the tests mount one."""
    image, place = directory / "image", directory / "mounted"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(256 << 20)
    for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, place]):
        try:
            subprocess.run([*map(str, command)], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
def test_b3_frozen_disk_is_logged_and_shown_by_health_until_it_thaws(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with mounted(tmp_path) as place, running_namespace(data=place / "data", queues=["orders"]) as namespace:
        with connect(namespace) as client:
            link = client.sender("orders")
            subprocess.run(["fsfreeze", "--freeze", place], check=True)
            try:
                sent = client.begin_send(link, text_message("frozen"))
                eventually(lambda: health(namespace)[:2] == (503, "unavailable"))
                assert "the storage has not answered" in health(namespace)[2]
                assert "pairbus_storage_stalled 1.0" in ask(namespace, "/metrics")[1]
                assert not sent.settled
            finally:
                subprocess.run(["fsfreeze", "--unfreeze", place], check=True)
            assert client.outcome(sent) == ACCEPTED
            eventually(lambda: health(namespace) == (200, "ok", ""))
            eventually(lambda: len(caplog.messages) > 1)
        assert [line.split(" namespace")[0] for line in caplog.messages] == ["storage stalled", "storage recovered"]
        assert len(namespace.call(lambda host: host.namespace.peek(ORDERS, 0, 10, host.now_ms()))) == 1
