"""What is in the journals of a ledger that somebody may be writing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from pairbus.ledger.journal import OPEN, SUFFIX, NewerJournalError, read_journal
from pairbus.ledger.stem import Stem

_log = logging.getLogger(__name__)


def read_open_journals(directory: Path, table: str) -> Mapping[str, Any]:
    """Their complete chunks, by their stems; one that has none is left out. Raises ``OSError``."""
    found: dict[str, Any] = {}
    for path, stem in open_journals(directory, table):
        tables = tables_of(path, stem)
        if tables:
            found[stem.name] = pa.concat_tables(tables)
    return found


def open_journals(directory: Path, table: str) -> Iterator[tuple[Path, Stem]]:
    """The journals of a table."""
    for path in sorted((directory / OPEN).glob("*" + SUFFIX)):
        stem = Stem.parse(path.stem)
        if stem is not None and stem.table == table:
            yield path, stem


def tables_of(path: Path, stem: Stem) -> list[Any]:
    """The complete chunks of a journal. Raises ``OSError``."""
    try:
        return read_journal(path, stem).tables
    except FileNotFoundError:  # it has just become a Parquet file
        return []
    except NewerJournalError as error:
        _log.warning("%s is left out: %s", path, error)
        return []
