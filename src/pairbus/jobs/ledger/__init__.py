"""Ledgers as tables of Spark."""

from pairbus.jobs.ledger.errors import (
    DamagedFileError,
    LedgerReadError,
    NewerLedgerError,
    NotALedgerError,
    WrongColumnsError,
)
from pairbus.jobs.ledger.tables import check_ledgers, read_lives, read_operations

__all__ = [
    "DamagedFileError",
    "LedgerReadError",
    "NewerLedgerError",
    "NotALedgerError",
    "WrongColumnsError",
    "check_ledgers",
    "read_lives",
    "read_operations",
]
