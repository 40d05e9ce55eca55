"""D4: reconciliation lists the faults that were injected, since they explain an outage."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.jobs.reconcile.command import Reconcilable, fault_note
from pairbus.jobs.reconcile.page import as_text
from pairbus.testing import FaultKind, running_namespace

pytestmark = pytest.mark.slow


def record(ledger: Path, name: str, *kinds: FaultKind) -> Path:
    """Run a namespace that records its operations, inject faults into its queue, and clear them."""
    with running_namespace(name, queues=["orders"], ledger=ledger, ledger_lives=True) as namespace:
        for kind in kinds:
            with namespace.faults.engaged(kind, "orders"):
                pass
    return ledger


def test_d4_report_lists_injected_faults(spark: SparkSession, tmp_path: Path) -> None:
    primary = record(tmp_path / "contoso", "contoso", FaultKind.CANNOT_SEND)
    secondary = record(tmp_path / "fabrikam", "fabrikam")
    pair = Reconcilable(primary=[str(primary)], secondary=[str(secondary)], start=None, end=None, name=None)
    (line,) = [line for line in as_text(pair.report("local[2]", 10)).splitlines() if "injected faults" in line]
    facts = "namespace=contoso entity=orders key=pairbus.testing"
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", line) == (
        f"note: injected faults: TIME cannot-send engaged id=1 {facts}; TIME cannot-send cleared id=1 {facts}"
    )


def test_d4_faults_outside_the_time_range_are_not_listed(spark: SparkSession, tmp_path: Path) -> None:
    ledger = str(record(tmp_path / "contoso", "contoso", FaultKind.CANNOT_SEND, FaultKind.SERVER_BUSY))
    now, hour = datetime.now(UTC), timedelta(hours=1)
    assert fault_note(spark, [ledger], now + hour, None) is None
    assert fault_note(spark, [ledger], None, now - hour) is None
    first = fault_note(spark, [ledger], now - hour, now + hour, listed=1)
    assert first is not None
    assert first.endswith("; and more")
    assert first.count("engaged") == 1


def test_d4_damaged_operations_do_not_prevent_a_report(spark: SparkSession, tmp_path: Path) -> None:
    ledger = record(tmp_path / "contoso", "contoso", FaultKind.CANNOT_SEND)
    (file,) = (ledger / "operations").rglob("*.parquet")
    file.write_bytes(b"damaged")
    note = fault_note(spark, [str(ledger)], None, None)
    assert note is not None
    assert note.startswith("injected faults are unknown, since the operations of a ledger cannot be read: ")
    assert str(file) in note
