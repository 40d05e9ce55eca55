"""Proof that every message accepted by a pair was received, from the ledgers of both namespaces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.jobs.reconcile.reconciliation import (
    LedgersMixedError,
    ReconcileError,
    ReconcileInputError,
    Reconciliation,
    reconcile,
)
from pairbus.jobs.reconcile.report import ReconcileReport, ReconcileVerdict, report
from pairbus.renamed import renamed

__all__ = [
    "LedgersMixedError",
    "ReconcileError",
    "ReconcileInputError",
    "ReconcileReport",
    "ReconcileVerdict",
    "Reconciliation",
    "reconcile",
    "report",
]

if not TYPE_CHECKING:  # type checkers see the new names alone
    __getattr__ = renamed(__name__, {"Report": "ReconcileReport", "Verdict": "ReconcileVerdict"})
