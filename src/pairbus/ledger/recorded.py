"""Which events are in a ledger: what a process asks that does not know what the one before it has written."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pairbus.ledger.columns import LIVES
from pairbus.ledger.life import Life
from pairbus.ledger.open_journals import read_open_journals
from pairbus.ledger.stem import Stem, hour_of

_log = logging.getLogger(__name__)


def recorded_ordinals(directory: Path, namespace: str, first: Life) -> AbstractSet[int]:
    """The ordinals of a namespace's events that are on disk, from one on. Files of earlier hours are not opened."""
    found: set[int] = set()
    for table in _tables(directory, first):
        is_wanted = pc.and_(pc.equal(table["namespace"], namespace), pc.greater_equal(table["ordinal"], first.ordinal))
        found.update(table["ordinal"].filter(is_wanted).to_pylist())
    return found


def _tables(directory: Path, first: Life) -> Iterator[Any]:
    """A journal that becomes a file meanwhile is read twice rather than not at all."""
    yield from read_open_journals(directory, LIVES).values()
    since = hour_of(first.at_ms)
    for path in sorted((directory / LIVES).glob("day=*/hour=*/*.parquet")):
        stem = Stem.parse(path.stem)
        if stem is not None and f"{stem.day}T{stem.hour}" >= since:
            try:
                yield pq.read_table(
                    path,
                    columns=["namespace", "ordinal"],
                    filters=[("ordinal", ">=", first.ordinal)],
                    partitioning=None,
                )
            except pa.ArrowException as error:
                _log.warning("%s cannot be read, and is left as it is: %s", path, error)
