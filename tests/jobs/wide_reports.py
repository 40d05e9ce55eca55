"""Reports that are hard to lay out: long names, every measure, large numbers, many minutes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pairbus.jobs.reconcile.reconciliation import MEASURES
from pairbus.jobs.reconcile.report import EDGES, EntityTotals, ReconcileReport
from tests.jobs.reconcile.sample import SAMPLE, counts, point

LONG: Final = "contoso.warehouse/orders-by-region_europe/subscriptions/everything-that-was-paid"
ID: Final = "0123456789abcdef" * 4

_USUAL: Final = counts(
    accepted=1_234_567,
    diverted=45_678,
    syphoned=45_678,
    routed=1_234_567,
    received=1_280_245,
    completed=1_280_245,
    waiting=12,
    missing=1,
    duplicated=1,
)


def wide_report(*, every_measure: bool = False) -> ReconcileReport:
    """Return a report of a busy pair; with every measure it has more columns than a screen."""
    found = dict.fromkeys(MEASURES, 1_234_567_890) if every_measure else _USUAL
    return replace(
        SAMPLE,
        primary="a-namespace-with-a-name-of-fifty-characters-or-so",
        total=EntityTotals(entity="", counts=found),
        entities=tuple(EntityTotals(entity=name, counts=found) for name in ("orders", LONG)),
        missing=tuple(replace(SAMPLE.missing[0], entity=LONG, message_id=name) for name in (ID, "plain-id")),
        duplicated=(replace(SAMPLE.duplicated[0], entity=LONG, message_id=ID),),
        waits=replace(SAMPLE.waits, histogram=tuple(2_500_000 * number for number in range(len(EDGES) + 1))),
        timeline=tuple(point(minute, direct=1_000_000 + minute, received=900_000) for minute in range(240)),
    )
