"""A ledger in a directory of this machine: where its files are, and what is still in its journals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

from pairbus.jobs.ledger.errors import LedgerReadError, NotALedgerError
from pairbus.jobs.ledger.period import Period
from pairbus.ledger import read_open
from pairbus.ledger.columns import LIVES, OPERATIONS

_OPEN: Final = "open"
_PLACE: Final = re.compile(r"day=(\d{4}-\d{2}-\d{2})/hour=([01]\d|2[0-3])/[^/]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerDirectory:
    """A ledger in a directory of this machine."""

    path: Path

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise NotALedgerError(f"there is no directory {self.path}")
        if not any((self.path / name).is_dir() for name in (OPERATIONS, LIVES, _OPEN)):
            raise NotALedgerError(f"{self.path} is no ledger: {self._advice()}")

    def _advice(self) -> str:
        if self.path.name in {OPERATIONS, LIVES} or self.path.name.startswith(("day=", "hour=")):
            return f"it is a part of one; name the directory that {OPERATIONS!r} is in"
        return f"it has neither {OPERATIONS!r} nor {LIVES!r} in it"

    def table(self, name: str) -> Path:
        """Where the files of a table are, if it has any."""
        return self.path / name

    def files(self, table: str, period: Period) -> Iterator[Path]:
        """The files of a table that may hold rows of a time range; what Spark does not see is left out."""
        root = self.table(table)
        for file in sorted(root.rglob("*.parquet")):
            place = file.relative_to(root)
            if any(part.startswith(("_", ".")) for part in place.parts):
                continue
            if period.has_hour(*_hour_of(file, place.as_posix())):
                yield file

    def journals(self, table: str) -> Mapping[str, Any]:
        """What is in journals that have not become files, by the names that these are going to have."""
        if not (self.path / _OPEN).is_dir():
            return {}
        try:
            journals = read_open(self.path, table)
        except OSError as error:
            raise LedgerReadError(f"the journals of {self.path} cannot be read: {error.strerror or error}") from error
        # Read first, listed then: where there are both, the file may hold rows that came after the journal was read.
        closed = {file.stem for file in self.table(table).rglob("*.parquet")}
        return {stem: rows for stem, rows in journals.items() if stem not in closed}


def _hour_of(file: Path, place: str) -> tuple[date, int]:
    found = _PLACE.fullmatch(place)
    try:
        if found is not None:
            return date.fromisoformat(found[1]), int(found[2])
    except ValueError:
        pass
    raise NotALedgerError(f"{file} is not where a ledger has its files: below day=YYYY-MM-DD/hour=HH")
