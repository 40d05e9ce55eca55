"""A reconciliation of a small ledger runs few Spark jobs: planning them takes most of its time (D4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pairbus.jobs.reconcile import ReconcileVerdict
from pairbus.jobs.reconcile.command import Reconcilable
from tests.jobs.ledger.written import operation, write
from tests.jobs.reconcile.model import PairModel
from tests.jobs.reconcile.test_reconcile import LIMIT_S

MESSAGES = 70
"""As many are sent to the primary, with three events each, as are diverted, with six: 630 rows."""

MOST_JOBS = 35

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]


def jobs_of(spark: SparkSession) -> int:
    """Return the number of jobs that the session has run."""
    count: int = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()
    return count


def test_d4_small_ledgers_take_few_jobs(spark: SparkSession, tmp_path: Path) -> None:
    model = PairModel()
    for number in range(MESSAGES):
        model.send("orders", f"direct {number}", f"s{number % 3}")
        model.divert("orders", f"diverted {number}", f"s{number % 3}")
    model.drain()
    model.receive_all()
    for book in (model.primary, model.secondary):
        book.write(tmp_path / book.namespace)
        write(tmp_path / book.namespace, [operation("2026-03-01T12:00", namespace=book.namespace)])
    pair = Reconcilable(
        primary=[str(tmp_path / "contoso")], secondary=[str(tmp_path / "fabrikam")], start=None, end=None, name=None
    )
    before = jobs_of(spark)
    found = pair.report("local[2]", 20)
    assert found.verdict is ReconcileVerdict.FINE
    assert found.total.counts["received"] == 2 * MESSAGES
    assert jobs_of(spark) - before <= MOST_JOBS
