"""Deprecated: the errors of a ledger are in ``pairbus.ledger.settings``, and in ``pairbus.ledger``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.renamed import moved

if not TYPE_CHECKING:  # type checkers only see the new module
    __getattr__ = moved(
        __name__,
        {
            "LedgerError": "pairbus.ledger.settings",
            "LedgerDirectoryError": "pairbus.ledger.settings",
            "PyArrowMissingError": "pairbus.ledger.settings",
            "LedgerSettingsError": "pairbus.ledger.settings",
            "LedgerSystemError": "pairbus.ledger.settings",
        },
    )
