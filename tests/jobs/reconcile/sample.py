"""A sample report with all kinds of content, for tests of its output."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from pairbus.jobs.ledger.tables import Period
from pairbus.jobs.reconcile.reconciliation import MEASURES, ClockComparison, OutageSpan
from pairbus.jobs.reconcile.report import (
    EDGES,
    DisorderedMessage,
    DuplicatedMessage,
    EntityTotals,
    MissingMessage,
    ReconcileReport,
    ReconcileVerdict,
    TimelinePoint,
    Waits,
)
from tests.jobs.reconcile.books import BEGIN

MINUTE: Final = timedelta(minutes=1)


def counts(**found: int) -> dict[str, int]:
    return dict.fromkeys(MEASURES, 0) | found


def point(minutes: int, direct: int = 0, diverted: int = 0, syphoned: int = 0, received: int = 0) -> TimelinePoint:
    return TimelinePoint(
        at=BEGIN + minutes * MINUTE, direct=direct, diverted=diverted, syphoned=syphoned, received=received
    )


SAMPLE: Final = ReconcileReport(
    primary="contoso",
    secondary="fabrikam",
    period=Period(start=BEGIN, end=BEGIN + timedelta(hours=1)),
    looked_until=(BEGIN + timedelta(hours=2), None),
    verdict=ReconcileVerdict.MISSING,
    notes=("the clocks differ <by a bit>",),
    total=EntityTotals(entity="", counts=counts(accepted=1_200, diverted=3, missing=1, duplicated=1)),
    entities=(
        EntityTotals(entity="orders & more", counts=counts(accepted=1_200, diverted=3, missing=1, duplicated=1)),
    ),
    missing=(
        MissingMessage(
            entity="orders & more",
            message_id="<script>alert(1)</script>\x1b[2J",
            session_id=None,
            accepted_at=BEGIN,
            cause="not restored",
            last_place="contoso/x-servicebus-transfer/0",
            sequence=7,
        ),
    ),
    duplicated=(
        DuplicatedMessage(
            entity="orders & more",
            message_id="twice",
            session_id="s",
            diverted_at=BEGIN,
            restored_at=BEGIN + MINUTE,
            sequence=9,
        ),
    ),
    disordered=(
        DisorderedMessage(
            entity="orders & more",
            sequence=9,
            message_id="late",
            session_id="s",
            sent_at=BEGIN,
            received_at=BEGIN + MINUTE,
            is_within_session=True,
        ),
    ),
    diversion=OutageSpan(first_at=BEGIN, last_at=BEGIN + MINUTE, last_restored_at=BEGIN + 9 * MINUTE),
    waits=Waits(
        messages=3,
        p50=timedelta(seconds=1.5),
        p99=timedelta(minutes=90),
        longest=timedelta(days=2),
        histogram=(0, 0, 0, 2, *[0] * (len(EDGES) - 4), 1),
    ),
    timeline=(point(0, direct=1_200, received=90), point(5, diverted=3), point(9, syphoned=2, received=2)),
    step=MINUTE,
    clocks=ClockComparison(
        pairs=2, at_least=timedelta(seconds=-1), at_most=timedelta(seconds=1), correction=timedelta(), agrees=True
    ),
)
