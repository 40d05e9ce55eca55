"""Why ledgers cannot be reconciled."""

from __future__ import annotations


class ReconcileError(Exception):
    """Ledgers cannot be reconciled."""

    is_input = False
    """Whether it is because of what was given."""


class ReconcileInputError(ReconcileError):
    """What was given cannot be reconciled; the text says why."""

    is_input = True


class LedgersMixedError(ReconcileInputError):
    """Ledgers of several namespaces where those of one belong, or of one namespace on both sides."""
