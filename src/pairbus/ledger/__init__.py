"""The ledger of a namespace: its billable operations and message lifecycle events, in Parquet files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pairbus.ledger.events import (
    COLUMNS,
    LIVES,
    OPERATIONS,
    PARTITIONS,
    SUCCEEDED,
    UNIT_BYTES,
    VERSION,
    VERSION_KEY,
    LedgerEvent,
    LifecycleEvent,
    OperationCounts,
    OperationKey,
    OperationKind,
    Stage,
    units_of,
)
from pairbus.ledger.ledger import Ledger, read_open
from pairbus.ledger.settings import (
    LedgerDirectoryError,
    LedgerError,
    LedgerSettings,
    LedgerSettingsError,
    LedgerStatus,
    LedgerSystemError,
    PyArrowMissingError,
)
from pairbus.renamed import renamed

__all__ = [
    "COLUMNS",
    "LIVES",
    "OPERATIONS",
    "PARTITIONS",
    "SUCCEEDED",
    "UNIT_BYTES",
    "VERSION",
    "VERSION_KEY",
    "Ledger",
    "LedgerDirectoryError",
    "LedgerError",
    "LedgerEvent",
    "LedgerSettings",
    "LedgerSettingsError",
    "LedgerStatus",
    "LedgerSystemError",
    "LifecycleEvent",
    "OperationCounts",
    "OperationKey",
    "OperationKind",
    "PyArrowMissingError",
    "Stage",
    "read_open",
    "units_of",
]

if not TYPE_CHECKING:  # type checkers see the new names alone
    __getattr__ = renamed(
        __name__,
        {
            "Event": "LedgerEvent",
            "Kind": "OperationKind",
            "Life": "LifecycleEvent",
            "Sort": "OperationKey",
            "Tally": "OperationCounts",
            "UnsupportedSystemError": "LedgerSystemError",
        },
    )
