"""Why a ledger cannot be read."""

from __future__ import annotations


class LedgerReadError(Exception):
    """A ledger cannot be read."""


class NotALedgerError(LedgerReadError):
    """There is no ledger at a place, or what is there is not laid out like one."""


class DamagedFileError(LedgerReadError):
    """A file of a ledger has no end, or one that makes no sense: it was cut off, or is no Parquet file."""


class WrongColumnsError(LedgerReadError):
    """A file of a ledger lacks a column, or has it with another type."""


class NewerLedgerError(LedgerReadError):
    """A file of a ledger was written by a newer version, with columns that may mean something else."""
