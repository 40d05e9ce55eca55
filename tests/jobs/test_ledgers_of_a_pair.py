"""D3: what the ledgers of a pair say of an outage is what the namespaces have counted themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from tests.jobs.outage import outage
from tests.server.books import operations_in, rows_of

MESSAGES = 3_000


def test_d3_the_totals_are_those_that_the_namespaces_have_counted(tmp_path: Path) -> None:
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


def test_d3_every_diverted_message_has_its_four_charges(tmp_path: Path) -> None:
    with outage(tmp_path) as pair:
        asyncio.run(pair.live_through(MESSAGES))
        diverted = pair.diverted
    home, away = (operations_in(ledger, "kind", "stage") for ledger in pair.ledgers)
    assert away["send", "backlog"] == diverted
    assert away["receive", "syphon"] >= diverted
    assert home["send", "syphon"] == home["receive", "returned"] == diverted
    assert home["send", "direct"] == home["receive", "direct"] == MESSAGES - diverted
    assert home["send", "ping"] >= 1
