"""How a ledger is written."""

from __future__ import annotations

from dataclasses import dataclass

from pairbus.ledger.errors import LedgerSettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """What can be set. Raises ``LedgerSettingsError`` where one makes no sense."""

    flush_s: float = 0.4
    """How long rows are gathered before they are put on disk. With the writing itself it stays below a second."""

    close_s: float = 300.0
    """After so long a journal becomes a Parquet file."""

    close_bytes: int = 64 * 1024 * 1024
    """When it has become so large, it does so at once."""

    most_waiting: int = 500_000
    """How many events of messages are kept while the disk takes none; the rest is counted."""

    most_operations: int = 100_000
    """How many rows of operations are kept apart while the disk takes none; later ones are counted together."""

    retry_s: float = 5.0
    """How long to wait after the disk has refused something."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value <= 0:
                raise LedgerSettingsError(f"{name} is {value}; it has to be more than 0")
