"""Why a ledger cannot be opened, one class a kind; once it is open it raises nothing.

::

    LedgerError
    ├── LedgerDirectoryError      its directory cannot be made, or not be written
    ├── PyArrowMissingError       what writes and reads Parquet files is not installed
    ├── LedgerSettingsError       a setting that makes no sense
    └── UnsupportedSystemError    an operating system on which files cannot be locked yet
"""

from __future__ import annotations

from pathlib import Path


class LedgerError(Exception):
    """A ledger cannot be opened or read."""


class LedgerDirectoryError(LedgerError):
    """The directory of a ledger cannot be made, or nothing can be written there."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"a ledger cannot be written in {path}: {reason}. Name a directory that this process may write to"
        )
        self.path = path
        self.reason = reason


class PyArrowMissingError(LedgerError):
    """What writes and reads Parquet files is not installed."""

    def __init__(self) -> None:
        super().__init__("a ledger needs pyarrow, which is not installed: pip install 'pairbus[ledger]'")


class LedgerSettingsError(LedgerError, ValueError):
    """A setting that makes no sense; says which."""


class UnsupportedSystemError(LedgerError):
    """An operating system on which the files of a ledger cannot be locked yet."""

    def __init__(self, system: str) -> None:
        super().__init__(f"a ledger needs a POSIX system, and this is {system}")
