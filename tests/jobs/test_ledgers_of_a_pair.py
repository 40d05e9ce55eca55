"""D3, D4: the ledgers of a pair agree with the actual traffic of an outage."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from pairbus.jobs.ledger.tables import read_lives
from pairbus.jobs.reconcile.command import SESSION
from pairbus.jobs.reconcile.reconciliation import reconcile
from pairbus.jobs.reconcile.report import ReconcileVerdict, report
from pairbus.spark.session import ensured_session
from tests.jobs.outage import outage
from tests.server.ledger_rows import operations_in, rows_of

MESSAGES = 3_000


def test_d3_totals_match_the_metrics_of_the_namespaces(tmp_path: Path) -> None:
    with outage(tmp_path) as pair:
        asyncio.run(pair.live_through(MESSAGES))
        diverted, counted, received = pair.diverted, pair.counted, pair.received
    assert diverted >= MESSAGES // 3
    assert received.total() == MESSAGES
    for name, ledger in zip(("contoso", "fabrikam"), pair.ledgers, strict=True):
        rows = rows_of(ledger, "operations")
        sums: Counter[str] = Counter()
        for row in rows:
            if row["result"] == "ok":
                sums[f"{row['kind']} messages"] += row["messages"]
                sums[f"{row['kind']} bytes"] += row["bytes"]
        assert {what: sums[what] for what in counted[name]} == counted[name]


def test_d3_diverted_messages_have_four_charges(tmp_path: Path) -> None:
    with outage(tmp_path) as pair:
        asyncio.run(pair.live_through(MESSAGES))
        diverted = pair.diverted
    home, away = (operations_in(ledger, "kind", "stage") for ledger in pair.ledgers)
    assert away["send", "backlog"] == diverted
    assert away["receive", "syphon"] >= diverted
    assert home["send", "syphon"] == home["receive", "returned"] == diverted
    assert home["send", "direct"] == home["receive", "direct"] == MESSAGES - diverted
    assert home["send", "ping"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_d4_no_message_of_40_000_is_missing_after_an_outage(tmp_path: Path) -> None:
    with outage(tmp_path) as pair:
        asyncio.run(pair.live_through(40_000))
        diverted = pair.diverted
    with ensured_session("local[2]", config=SESSION) as spark:
        primary, secondary = (read_lives(spark, [ledger]) for ledger in pair.ledgers)
        found = report(reconcile(primary, secondary), 10)
    assert found.verdict is ReconcileVerdict.FINE
    assert not found.missing
    assert not found.duplicated
    counts = found.total.counts
    assert counts["diverted"] == counts["syphoned"] == diverted
    assert counts["received"] == counts["completed"] == 40_000
