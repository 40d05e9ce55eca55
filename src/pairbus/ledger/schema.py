"""The columns of the ledger as Arrow knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from pairbus.ledger.columns import COLUMNS, NUMBER, TEXT, TIME, VERSION, VERSION_KEY

TYPES: Final[Mapping[str, Any]] = {
    TIME: pa.timestamp("ms", tz="UTC"),
    TEXT: pa.string(),
    NUMBER: pa.int64(),
}

_NULLABLE: Final = frozenset({"session_id", "destination"})


def _schema_of(columns: Mapping[str, str]) -> Any:
    fields = [pa.field(name, TYPES[kind], nullable=name in _NULLABLE) for name, kind in columns.items()]
    return pa.schema(fields, metadata={VERSION_KEY: str(VERSION)})


SCHEMAS: Final[Mapping[str, Any]] = {table: _schema_of(columns) for table, columns in COLUMNS.items()}
