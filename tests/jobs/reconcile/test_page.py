"""The documentation of reconciliation is complete."""

from __future__ import annotations

from pairbus.jobs.reconcile.reconciliation import (
    MEASURES,
    NEVER_DELIVERED,
    NOT_RESTORED,
    REMOVED_FROM_BACKLOG,
    UNREADABLE,
)
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

PAGE = ROOT / "docs" / "how-to" / "prove-that-nothing-was-lost.md"


def test_every_measure_is_documented() -> None:
    reported = [name for row in rows_of(PAGE, "what", "what it counts") for name in codes(row[0])]
    assert reported == [*MEASURES]


def test_every_cause_is_documented() -> None:
    reported = [code(cause) for cause, _ in rows_of(PAGE, "why", "what happened")]
    assert reported == [NOT_RESTORED, REMOVED_FROM_BACKLOG, NEVER_DELIVERED, UNREADABLE]
