"""How a ledger is doing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStatus:
    """A look at a ledger. What it counts as written is on disk."""

    operations_written: int
    """Rows, not operations."""

    lives_written: int
    lives_waiting: int
    lives_missed: int
    """Events that there was no room for while the disk took none."""

    files_closed: int
    """Parquet files that are complete, with those that an earlier process had begun."""

    error: str | None
    """Why nothing can be written at the moment; nothing while all is well."""

    @property
    def rows_written(self) -> int:
        return self.operations_written + self.lives_written
