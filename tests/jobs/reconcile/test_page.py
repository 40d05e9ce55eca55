"""What the pages on reconciling say is complete."""

from __future__ import annotations

from pairbus.jobs.reconcile.reconciliation import NOT_HOME, PASSED_OVER, REMOVED_FROM_BACKLOG, SET_ASIDE
from pairbus.jobs.reconcile.totals import MEASURES
from tests.docs.snippets import ROOT
from tests.docs.tables import code, codes, rows_of

PAGE = ROOT / "docs" / "how-to" / "prove-that-nothing-was-lost.md"


def test_every_measure_is_explained() -> None:
    told = [name for row in rows_of(PAGE, "what", "what it counts") for name in codes(row[0])]
    assert told == [*MEASURES]


def test_every_cause_is_explained() -> None:
    told = [code(cause) for cause, _ in rows_of(PAGE, "why", "what happened")]
    assert told == [NOT_HOME, REMOVED_FROM_BACKLOG, PASSED_OVER, SET_ASIDE]
