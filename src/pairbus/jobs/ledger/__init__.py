"""Ledgers as Spark tables."""

from pairbus.jobs.ledger.tables import (
    DamagedFileError,
    LedgerReadError,
    NewerLedgerError,
    NotALedgerError,
    WrongColumnsError,
    check_ledgers,
    read_lives,
    read_operations,
)

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
