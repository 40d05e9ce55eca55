"""Settings and status of a ledger."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.ledger.errors import LedgerSettingsError


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
