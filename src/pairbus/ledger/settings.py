"""Settings, status and errors of a ledger. An open ledger raises nothing."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Settings of a ledger. Raise ``LedgerSettingsError`` if a value is out of range."""

    flush_s: float = 0.4
    """Seconds during which rows are gathered before they are flushed. Including the write it stays below a second."""

    close_s: float = 300.0
    """Age in seconds at which a journal is converted to a Parquet file."""

    close_bytes: int = 64 * 1024 * 1024
    """Size in bytes at which a journal is converted to a Parquet file, regardless of its age."""

    most_waiting: int = 500_000
    """Maximum number of events kept in memory while the disk accepts no writes; the rest are only counted."""

    most_operations: int = 100_000
    """Maximum number of operation rows kept in memory while the disk accepts no writes; later ones are merged."""

    retry_s: float = 5.0
    """Seconds to wait after a failed write."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value <= 0:
                raise LedgerSettingsError(f"{name} must be > 0, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatus:
    """Snapshot of a ledger. Everything counted as written is on disk."""

    operations_written: int
    """Rows, not operations."""

    events_written: int
    events_waiting: int
    events_missed: int
    """Events dropped because the memory was full while the disk accepted no writes."""

    files_closed: int
    """Completed Parquet files, including those whose journal an earlier process had started."""

    error: str | None
    """Reason why nothing can be written at the moment; ``None`` if there is none."""

    @property
    def rows_written(self) -> int:
        return self.operations_written + self.events_written
