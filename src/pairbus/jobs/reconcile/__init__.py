"""Whether every message that a pair has taken has come to its receivers, by the ledgers of both namespaces."""

from pairbus.jobs.reconcile.errors import LedgersMixedError, ReconcileError, ReconcileInputError
from pairbus.jobs.reconcile.reconciliation import Reconciliation, reconcile
from pairbus.jobs.reconcile.report import Report, report
from pairbus.jobs.reconcile.verdict import Verdict

__all__ = [
    "LedgersMixedError",
    "ReconcileError",
    "ReconcileInputError",
    "Reconciliation",
    "Report",
    "Verdict",
    "reconcile",
    "report",
]
