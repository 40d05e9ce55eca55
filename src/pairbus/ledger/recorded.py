"""Which events are in a ledger: what a process asks that does not know what the one before it has written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairbus.ledger.columns import LIVES
from pairbus.ledger.life import Life
from pairbus.ledger.open_journals import open_journals, tables_of
from pairbus.ledger.stem import Stem, hour_of

_log = logging.getLogger(__name__)


def recorded_ordinals(directory: Path, namespace: str, first: Life) -> AbstractSet[int]:
    """The ordinals of a namespace's events that are on disk, from one on. Files of earlier hours are not opened.

    What cannot be read is left out: a namespace has to start, and an event that is told twice is the lesser evil.
    """
    found: set[int] = set()
    for path, read in _files(directory, first):
        try:
            for table in read():
                found.update(_ordinals(table, namespace, first.ordinal))
        except Exception as error:  # noqa: BLE001 (of what is damaged, anything can be wrong)
            _log.warning("%s cannot be read, and is left as it is; what it has may be written again: %s", path, error)
    return found


def _files(directory: Path, first: Life) -> Iterator[tuple[Path, Callable[[], list[Any]]]]:
    """A journal that becomes a file meanwhile is read twice rather than not at all."""
    for path, stem in open_journals(directory, LIVES):
        yield path, partial(tables_of, path, stem)
    since = hour_of(first.at_ms)
    for path in sorted((directory / LIVES).glob("day=*/hour=*/*.parquet")):
        stem_of_file = Stem.parse(path.stem)
        if stem_of_file is not None and f"{stem_of_file.day}T{stem_of_file.hour}" >= since:
            yield path, partial(_table_from, path, first.ordinal)


def _table_from(path: Path, ordinal: int) -> list[Any]:
    columns = ["namespace", "ordinal"]
    return [pq.read_table(path, columns=columns, filters=[("ordinal", ">=", ordinal)], partitioning=None)]


def _ordinals(table: Any, namespace: str, first: int) -> list[int]:
    is_wanted = pc.and_(pc.equal(table["namespace"], namespace), pc.greater_equal(table["ordinal"], first))
    found: list[int] = table["ordinal"].filter(is_wanted).to_pylist()
    return found
