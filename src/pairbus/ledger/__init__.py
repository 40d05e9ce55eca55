"""What a namespace has done, for those who pay and those who want to know: a book in Parquet files."""

from __future__ import annotations

from pairbus.ledger.columns import COLUMNS, LIVES, OPERATIONS, PARTITIONS, VERSION, VERSION_KEY
from pairbus.ledger.errors import (
    LedgerDirectoryError,
    LedgerError,
    LedgerSettingsError,
    PyArrowMissingError,
    UnsupportedSystemError,
)
from pairbus.ledger.ledger import Ledger, read_open
from pairbus.ledger.life import Event, Life
from pairbus.ledger.operation import SUCCEEDED, UNIT_BYTES, Kind, Sort, Stage, Tally, units_of
from pairbus.ledger.settings import LedgerSettings
from pairbus.ledger.status import LedgerStatus

__all__ = [
    "COLUMNS",
    "LIVES",
    "OPERATIONS",
    "PARTITIONS",
    "SUCCEEDED",
    "UNIT_BYTES",
    "VERSION",
    "VERSION_KEY",
    "Event",
    "Kind",
    "Ledger",
    "LedgerDirectoryError",
    "LedgerError",
    "LedgerSettings",
    "LedgerSettingsError",
    "LedgerStatus",
    "Life",
    "PyArrowMissingError",
    "Sort",
    "Stage",
    "Tally",
    "UnsupportedSystemError",
    "read_open",
    "units_of",
]
