"""Errors of opening or reading a ledger. An open ledger raises nothing.

::

    LedgerError
    ├── LedgerDirectoryError      the directory cannot be created or is not writable
    ├── PyArrowMissingError       pyarrow, which reads and writes Parquet files, is not installed
    ├── LedgerSettingsError       a setting is out of range
    └── LedgerSystemError         the operating system does not support file locks as used here
"""

from __future__ import annotations

from pathlib import Path


class LedgerError(Exception):
    """A ledger cannot be opened or read."""


class LedgerDirectoryError(LedgerError):
    """The directory of a ledger cannot be created, or is not writable."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"the ledger in {path} cannot be written: {reason}. Name a directory that this process may write to"
        )
        self.path = path
        self.reason = reason


class PyArrowMissingError(LedgerError):
    """pyarrow, which reads and writes Parquet files, is not installed."""

    def __init__(self) -> None:
        super().__init__("a ledger requires pyarrow, which is not installed. Run: pip install 'pairbus[ledger]'")


class LedgerSettingsError(LedgerError, ValueError):
    """A setting is out of range; the message names it."""


class LedgerSystemError(LedgerError):
    """The operating system does not support file locks as the ledger uses them."""

    def __init__(self, system: str) -> None:
        super().__init__(f"a ledger requires a POSIX system, got {system}. Start the namespace without a ledger")
