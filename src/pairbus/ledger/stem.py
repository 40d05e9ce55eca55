"""The name that a journal and the Parquet file that becomes of it have in common."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple, Self

from pairbus.ledger.columns import COLUMNS

HOUR_MS: Final = 3_600_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEM: Final = re.compile(rf"({'|'.join(COLUMNS)})-(\d{{4}}-\d\d-\d\d)T(\d\d)-\d+-[0-9a-f]+")


def hour_of(at_ms: int) -> str:
    """The hour that a time is in, as ``2026-11-16T04``. Raises ``OverflowError`` where no calendar has it."""
    return (_EPOCH + timedelta(milliseconds=at_ms)).isoformat()[:13]


class Stem(NamedTuple):
    """Says which table, and which hour, a file is of."""

    name: str
    table: str
    day: str
    hour: str

    @classmethod
    def of_hour(cls, table: str, hour: str, now_ms: int) -> Self:
        """A new one, that nobody else has."""
        return cls(f"{table}-{hour}-{now_ms}-{secrets.token_hex(4)}", table, *hour.split("T"))

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a name says; nothing if it is not one of ours."""
        found = _STEM.fullmatch(name)
        return None if found is None else cls(name, found[1], found[2], found[3])

    def is_over(self, now_ms: int) -> bool:
        """Whether it is of an hour that has passed."""
        return f"{self.day}T{self.hour}" < hour_of(now_ms)

    def parquet_file(self, directory: Path) -> Path:
        """Where the Parquet file of this name is, once it is complete."""
        return directory / self.table / f"day={self.day}" / f"hour={self.hour}" / f"{self.name}.parquet"
