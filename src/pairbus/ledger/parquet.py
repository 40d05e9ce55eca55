"""A journal's rows as a Parquet file, in its place among the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from pairbus.durable import make_directory, put_in_place
from pairbus.ledger.columns import COLUMNS, LIVES, OPERATIONS, TEXT

_ROW_GROUP: Final = 128 * 1024
"""Rows of a group: whoever looks for a minute skips the others."""

_ORDER: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    OPERATIONS: [("at", "ascending")],
    LIVES: [("at", "ascending"), ("ordinal", "ascending")],
}

_UNIQUE: Final = "message_id"
"""A dictionary of what is different in each row would only take room."""

_DICTIONARIES: Final = {
    table: [name for name, kind in columns.items() if kind == TEXT and name != _UNIQUE]
    for table, columns in COLUMNS.items()
}


def write_parquet(path: Path, table: str, tables: Sequence[Any]) -> None:
    """Write a file that is complete when it has its name. Raises ``OSError``."""
    rows = pa.concat_tables(tables).sort_by(_ORDER[table])
    make_directory(path.parent)
    temporary = path.with_name(f"_{path.stem}.writing")  # of no interest to Spark, by its first character
    try:
        pq.write_table(
            rows, temporary, row_group_size=_ROW_GROUP, compression="zstd", use_dictionary=_DICTIONARIES[table]
        )
        put_in_place(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
