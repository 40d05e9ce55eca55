"""B3: storage that fails, stalls or is full is logged once, and reported by /health for as long as it lasts."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.wire import ACCEPTED, Condition, Link
from tests.server.amqp.test_failed_commits import condition_of
from tests.server.amqp.wire_client import WireClient, body_of, text_message
from tests.server.disks import MEGABYTE, UNJOURNALED, filled, fragile, frozen, mounted, slowed
from tests.server.served_process import ServedProcess, served_process
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LARGE: Final = 200_000
SMALL_STORE: Final = 40 * MEGABYTE
OK: Final = (200, "ok", "")
FAILING: Final = "the storage fails: nothing can be written"
FULL: Final = "the storage is full: sends are refused"
REPORTED_WITHIN_S: Final = 3.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def reported(served: ServedProcess) -> list[str]:
    """Return the log lines about the storage, without the name of the namespace."""
    return [line.replace(" namespace=contoso", "") for line in served.lines("storage ")]


def metric(served: ServedProcess, name: str) -> float:
    """Return the value of a metric, with its labels in its name; 0 if it does not exist."""
    found = re.search(rf"^pairbus_{re.escape(name)} (\S+)$", served.get("/metrics")[1], re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def refused(condition: str) -> str:
    return f'requests_refused_total{{condition="{condition}"}}'


class Orders:
    """Sends numbered messages, and records which were confirmed."""

    def __init__(self, client: WireClient, size: int = LARGE) -> None:
        self._client = client
        self._link = client.sender("orders")
        self._size = size
        self._count = 0
        self.confirmed: list[int] = []
        self.begun_s = 0.0
        """Time at which the last send began."""

    def reattach(self) -> None:
        self._link = self._client.sender("orders")

    def send(self) -> object:
        (state,) = self.send_many(1)
        return state

    def send_many(self, count: int) -> list[object]:
        """Send some messages at once; return their outcomes."""
        self.begun_s = time.monotonic()
        sent = {}
        for _ in range(count):
            self._count += 1
            payload = text_message(b"%d " % self._count + bytes(self._size), message_id=str(self._count))
            sent[self._count] = self._client.begin_send(self._link, payload)
        states = {number: self._client.outcome(delivery) for number, delivery in sent.items()}
        self.confirmed += [number for number, state in states.items() if state == ACCEPTED]
        return [*states.values()]

    def check_reported(self, served: ServedProcess, gauge: str, status: str, problems: str) -> None:
        """Check that /health and the metrics report the trouble that the last send met, in time."""
        eventually(lambda: served.health()[1:] == (status, problems))
        assert metric(served, gauge) == 1
        assert time.monotonic() - self.begun_s < REPORTED_WITHIN_S

    def check_stored(self) -> None:
        """Receive all messages: each that was confirmed, once and in order, and no other."""
        receiver = self._client.receiver("orders", credit=len(self.confirmed) + 100, deletes=True)
        received = self._client.receive(receiver, len(self.confirmed))
        assert [int(body_of(each).split()[0]) for each in received] == self.confirmed
        assert self._client.is_empty(receiver)


def send(client: WireClient, link: Link) -> object:
    return client.send(link, text_message(bytes(LARGE)))


def test_failing_commits_are_logged_once_and_health_recovers_without_sends(tmp_path: Path, place: Path) -> None:
    with fragile(place) as (disk, below), served_process(tmp_path, "--data", disk / "data") as served:
        with served.connect() as client:
            orders = Orders(client)
            assert orders.send() == ACCEPTED
            assert served.health() == OK
            with filled(below):
                while (state := orders.send()) == ACCEPTED:
                    pass
                orders.check_reported(served, "storage_failing", "unavailable", FAILING)
                assert metric(served, "commits_failed_total") > 0
                for _ in range(3):
                    assert condition_of(state) == Condition.INTERNAL_ERROR
                    state = orders.send()
                assert served.health() == (503, "unavailable", FAILING)
                eventually(lambda: reported(served))
            eventually(lambda: served.health() == OK)
            orders.reattach()
            assert orders.send() == ACCEPTED
            orders.check_stored()
        assert len(reported(served)) == 2
        assert reported(served)[0].startswith(f'storage failed reason="{FAILING}" error="')
        assert "Input/output error" in reported(served)[0]
        assert reported(served)[1] == "storage recovered"
        assert len(served.errors()) == 1
        assert len(served.lines("commit failed")) == 1


def test_full_disk_is_logged_once_and_health_recovers_without_sends(tmp_path: Path, place: Path) -> None:
    with mounted(place) as disk, served_process(tmp_path, "--data", disk / "data") as served:
        with served.connect() as client:
            orders = Orders(client)
            with filled(disk):
                while (state := orders.send()) == ACCEPTED:
                    assert served.health() == OK
                orders.check_reported(served, "storage_full", "unavailable", FULL)
                for _ in range(3):
                    assert condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
                    state = orders.send()
                assert served.health() == (503, "unavailable", FULL)
                eventually(lambda: reported(served))
            eventually(lambda: served.health() == OK)
            eventually(lambda: len(reported(served)) == 2)
            assert orders.send() == ACCEPTED
            orders.check_stored()
        assert reported(served) == [f'storage failed reason="{FULL}"', "storage recovered"]
        assert len(served.errors()) == 1


@pytest.mark.parametrize(("trouble", "gauge"), [("fails", "storage_failing"), ("is full", "storage_full")])
def test_sends_are_confirmed_and_stored_once_with_a_side_buffer_on_another_disk(
    tmp_path: Path, place: Path, trouble: str, gauge: str
) -> None:
    with ExitStack() as stack:
        if trouble == "fails":
            disk, victim = stack.enter_context(fragile(place))
        else:
            disk = victim = stack.enter_context(mounted(place))
        arguments = ["--data", disk / "data", "--side-buffer", tmp_path / "side"]
        served = stack.enter_context(served_process(tmp_path, *arguments))
        client = stack.enter_context(served.connect())
        orders = Orders(client)
        with filled(victim):
            while served.health() == OK:
                assert orders.send() == ACCEPTED
            orders.check_reported(served, gauge, "degraded", f"the storage {trouble}: sends go to the side buffer")
            assert metric(served, "side_buffer_messages") > 0
            assert orders.send_many(20) == [ACCEPTED] * 20
        eventually(lambda: served.health() == OK)
        eventually(lambda: not metric(served, "side_buffer_messages"))
        assert not metric(served, gauge)
        assert orders.send() == ACCEPTED
        orders.check_stored()


@pytest.mark.parametrize("is_buffered", [False, True], ids=["within the limit", "past the limit with a side buffer"])
def test_slow_disk_confirms_all_sends_and_stores_each_once(tmp_path: Path, place: Path, is_buffered: bool) -> None:
    buffered = ["--side-buffer", tmp_path / "side", "--storage-timeout-s", 0.3]
    with (
        mounted(place, 256, *UNJOURNALED) as disk,
        served_process(tmp_path, "--data", disk / "data", *(buffered if is_buffered else [])) as served,
        served.connect() as client,
    ):
        orders = Orders(client, size=100)

        def is_shown() -> bool:
            _, state, problems = served.health()
            stall = problems.startswith("the storage has not answered for") and metric(served, "storage_stalled") == 1
            return stall and state == "degraded" and problems.endswith("sends go to the side buffer")

        with slowed(disk, served.process.pid, 5 if is_buffered else 10):
            for _ in range(3):
                assert orders.send_many(10) == [ACCEPTED] * 10
                assert is_buffered or (served.health() == OK and not metric(served, "storage_stalled"))
            if is_buffered:  # for the time of each commit
                eventually(is_shown, step=orders.send)
            assert bool(served.lines("storage stalled")) == is_buffered
            assert bool(metric(served, "side_buffer_taken_total")) == is_buffered
        assert not metric(served, refused(ServiceBusCondition.SERVER_BUSY))
        eventually(lambda: served.health() == OK)
        eventually(lambda: not metric(served, "side_buffer_messages"))
        assert not metric(served, "storage_stalled")
        assert metric(served, "commit_seconds_count") > metric(served, 'commit_seconds_bucket{le="0.25"}')
        orders.check_stored()


def test_full_disk_that_is_frozen_stalls_and_health_answers(tmp_path: Path, place: Path) -> None:
    """Simulate a backup that freezes the disk of a server that refuses sends and keeps checking for space."""
    with (
        mounted(place) as disk,
        served_process(tmp_path, "--data", disk / "data") as served,
        served.connect() as client,
    ):
        link = client.sender("orders")
        with filled(disk, 2 * MEGABYTE):
            while send(client, link) == ACCEPTED:
                pass
            with frozen(disk):
                for _ in range(3):
                    assert condition_of(send(client, link)) in {
                        Condition.RESOURCE_LIMIT_EXCEEDED,
                        ServiceBusCondition.SERVER_BUSY,
                    }
                    assert served.health()[:2] == (503, "unavailable")
        eventually(lambda: served.health() == OK)
        assert send(client, link) == ACCEPTED


def test_full_store_and_full_side_buffer_are_logged_and_health_is_503_meanwhile(tmp_path: Path) -> None:
    arguments = ["--data", tmp_path / "data", "--side-buffer", tmp_path / "side", "--side-buffer-mb", 1]
    with served_process(tmp_path, *arguments, largest_file=SMALL_STORE) as served:
        with served.connect() as client:
            link = client.sender("orders")
            seen = []
            while (state := send(client, link)) == ACCEPTED:
                seen += [health for health in [served.health()] if health not in seen]
            assert condition_of(state) == Condition.RESOURCE_LIMIT_EXCEEDED
            assert seen == [OK, (200, "degraded", "the storage is full: sends go to the side buffer")]
            full = "the storage is full, and the side buffer takes no more: sends are refused"
            assert served.health() == (503, "unavailable", full)
            eventually(lambda: len(reported(served)) == 2)
            assert served.health() == (503, "unavailable", full)
            client.receive(client.receiver("orders", credit=50, deletes=True), 50)
            eventually(lambda: served.health() == OK)
            eventually(lambda: len(reported(served)) == 3)
            eventually(lambda: send(client, link) == ACCEPTED)
        assert reported(served) == [
            'storage failed reason="the storage is full: sends go to the side buffer"',
            f'storage failed reason="{full}"',
            "storage recovered",
        ]
        assert len(served.errors()) == 2


def test_growing_file_on_a_frozen_disk_does_not_block_health(tmp_path: Path, place: Path) -> None:
    with mounted(place) as disk, served_process(tmp_path, "--data", disk / "data") as served:
        clients = []
        with frozen(disk):
            refused = None
            while refused is None:
                clients.append(served.connect())
                link = clients[-1].sender("orders")
                sent = [clients[-1].begin_send(link, text_message(bytes(LARGE))) for _ in range(30)]
                clients[-1].flush()
                started_s = time.monotonic()
                assert served.health()[0] in {200, 503}
                assert time.monotonic() - started_s < 1.0
                clients[-1].barrier()
                refused = next((each for each in sent if each.settled), None)
            assert condition_of(refused.state) == ServiceBusCondition.SERVER_BUSY
            eventually(lambda: served.health()[:2] == (503, "unavailable"))
        for client in clients:
            client.hang_up()
        eventually(lambda: served.health() == (200, "ok", ""))
        eventually(lambda: len(served.lines("storage ")) == 2)
        reported = [line.partition(" namespace=")[0] for line in served.lines("storage ")]
        assert reported == ["storage stalled", "storage recovered"]
