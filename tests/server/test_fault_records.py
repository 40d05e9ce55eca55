"""Storage trouble and injected faults are visible in metrics, and faults in the ledger."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest

from pairbus.ledger import LIVES, OPERATIONS
from pairbus.testing import FaultKind, RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, Rejected
from tests.server.amqp.wire_client import DEADLINE_S, WireClient, connect, text_message
from tests.server.ledger_rows import rows_of
from tests.server.test_b1_faults import ask
from tests.waiting import eventually

NOTICED_WITHIN_S: Final = 3.0
COUNTS: Final = ("operations", "messages", "bytes", "units", "request_units", "connections")
TESTING: Final = "pairbus.testing"
INSTANT: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace(queues=["orders"]) as namespace:
        yield namespace


@pytest.fixture
def client(contoso: RunningNamespace) -> Iterator[WireClient]:
    with connect(contoso) as connected:
        yield connected


def metric(namespace: RunningNamespace, sample: str) -> float:
    """Return a sample of the metrics that a client without a key sees."""
    with urlopen(f"http://localhost:{namespace.port}/metrics", timeout=DEADLINE_S) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    assert found is not None, sample
    return float(found[1])


def storage(namespace: RunningNamespace) -> tuple[float, float, float]:
    """Return whether the storage fails, is full, and is stalled."""
    failing, full, stalled = (metric(namespace, f"pairbus_storage_{state}") for state in ("failing", "full", "stalled"))
    return failing, full, stalled


# Metrics of the storage


def test_failing_storage_is_in_the_metrics_within_3_seconds(contoso: RunningNamespace, client: WireClient) -> None:
    sender = client.sender("orders")
    assert client.send(sender, text_message("before")) == ACCEPTED
    assert storage(contoso) == (0, 0, 0)
    assert metric(contoso, "pairbus_commits_failed_total") == 0
    began_s = time.monotonic()
    with contoso.faults.engaged(FaultKind.STORAGE_ERROR):
        state = client.send(sender, text_message("refused"))
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == Condition.INTERNAL_ERROR
        assert storage(contoso) == (1, 0, 0)
        assert time.monotonic() - began_s < NOTICED_WITHIN_S
        failed = metric(contoso, "pairbus_commits_failed_total")
        assert failed >= 1
        assert metric(contoso, 'pairbus_requests_refused_total{condition="amqp:internal-error"}') == 1
    eventually(lambda: storage(contoso) == (0, 0, 0))
    assert client.send(sender, text_message("after")) == ACCEPTED
    assert metric(contoso, "pairbus_commits_failed_total") >= failed


def test_full_storage_is_in_the_metrics_and_does_not_count_as_failing(
    contoso: RunningNamespace, client: WireClient
) -> None:
    sender = client.sender("orders")
    with contoso.faults.engaged(FaultKind.STORAGE_FULL):
        assert isinstance(client.send(sender, text_message("refused")), Rejected)
        assert storage(contoso) == (0, 1, 0)
    eventually(lambda: storage(contoso) == (0, 0, 0))


def test_failing_storage_is_in_the_metrics_while_a_side_buffer_confirms_sends(tmp_path: Path) -> None:
    with (
        running_namespace(queues=["orders"], side_buffer=tmp_path / "side") as contoso,
        connect(contoso) as client,
        contoso.faults.engaged(FaultKind.STORAGE_ERROR),
    ):
        assert client.send(client.sender("orders"), text_message("buffered")) == ACCEPTED
        assert storage(contoso) == (1, 0, 0)


def test_first_internal_error_increases_a_counter_that_was_there_before(contoso: RunningNamespace) -> None:
    """A counter that appears with its first value increases nothing, so no alert would notice it."""
    assert metric(contoso, f'pairbus_requests_refused_total{{condition="{Condition.INTERNAL_ERROR}"}}') == 0


# Metrics of faults


def engaged(namespace: RunningNamespace) -> dict[str, float]:
    """Return the number of engaged faults of each kind that has some."""
    counts = {kind.value: metric(namespace, f'pairbus_faults_engaged{{kind="{kind}"}}') for kind in FaultKind}
    return {kind: count for kind, count in counts.items() if count}


def test_engaged_faults_are_counted_by_kind(contoso: RunningNamespace) -> None:
    assert engaged(contoso) == {}
    contoso.faults.engage(FaultKind.CANNOT_SEND, "orders")
    contoso.faults.engage(FaultKind.CANNOT_SEND)
    contoso.faults.engage(FaultKind.SLOW, latency=timedelta(milliseconds=1), duration=timedelta(milliseconds=1))
    eventually(lambda: engaged(contoso) == {"cannot-send": 2})
    contoso.faults.clear()
    assert engaged(contoso) == {}


# The ledger


def changes(ledger: Path) -> list[tuple[str, str, str]]:
    """Return the entity, the change and the key of each row about a fault, without the times."""
    rows = [row for row in rows_of(ledger, OPERATIONS) if row["kind"] == "fault"]
    assert not any(row[name] for row in rows for name in COUNTS)
    return [(row["entity"], re.sub(INSTANT, "TIME", row["result"]), row["who"]) for row in rows]


def test_ledger_records_who_engages_and_clears_a_fault(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with running_namespace(queues=["Orders"], topics={"news": ["All"]}, ledger=ledger) as contoso:
        fault: dict[str, Any] = {"kind": "cannot-send", "entity": "Orders", "duration_ms": 60_000}
        assert ask(contoso, "POST", document=fault)[0] == 201
        assert ask(contoso, "DELETE", "/$faults/1")[0] == 200
        contoso.faults.engage(FaultKind.CANNOT_RECEIVE, "news/Subscriptions/All")
        contoso.faults.clear()
    root = "RootManageSharedAccessKey"
    assert sorted(changes(ledger)) == sorted(
        [
            ("orders", "cannot-send engaged id=1 until=TIME", root),
            ("orders", "cannot-send cleared id=1 until=TIME", root),
            ("news/subscriptions/all", "cannot-receive engaged id=2", TESTING),
            ("news/subscriptions/all", "cannot-receive cleared id=2", TESTING),
        ]
    )


def test_ledger_records_the_expiry_of_a_fault_and_its_end_with_the_server(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with running_namespace(queues=["orders"], ledger=ledger) as contoso:
        contoso.faults.engage(FaultKind.SERVER_BUSY, duration=timedelta(milliseconds=1))
        eventually(lambda: not contoso.faults.list())
        contoso.faults.engage(FaultKind.CANNOT_MANAGE)
    assert sorted(change for _, change, _ in changes(ledger)) == [
        "cannot-manage engaged id=2",
        "cannot-manage stopped id=2",
        "server-busy engaged id=1 until=TIME",
        "server-busy expired id=1 until=TIME",
    ]


def test_ledger_records_a_fault_that_makes_all_commits_fail(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    with running_namespace(queues=["orders"], ledger=ledger, ledger_lives=True) as contoso, connect(contoso) as client:
        contoso.faults.engage(FaultKind.STORAGE_ERROR)
        assert isinstance(client.send(client.sender("orders"), text_message("refused")), Rejected)
        eventually(lambda: changes(ledger) == [("", "storage-error engaged id=1", TESTING)])
        contoso.faults.clear()
    events = {row["event"] for row in rows_of(ledger, LIVES)}
    assert events <= {"started", "stopped"}, "a fault is not an event of a message"
