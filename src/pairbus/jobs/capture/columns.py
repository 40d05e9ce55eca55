"""The columns of the files: those of a message, and those of the window that it was captured in."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pairbus.spark.schema import MESSAGE_SCHEMA, arrow_schema

_TIME: Final = pa.timestamp("us", tz="UTC")

MESSAGE_COLUMNS: Final[pa.Schema] = arrow_schema(MESSAGE_SCHEMA)
WINDOW_COLUMNS: Final[pa.Schema] = pa.schema([pa.field("window_start", _TIME), pa.field("window_end", _TIME)])
FILE_COLUMNS: Final[pa.Schema] = pa.schema([*MESSAGE_COLUMNS, *WINDOW_COLUMNS])


def with_window(batch: pa.RecordBatch, start_ms: int, end_ms: int) -> pa.RecordBatch:
    """Messages, with the window that they are in."""
    columns = [pa.repeat(pa.scalar(time_ms * 1_000, _TIME), batch.num_rows) for time_ms in (start_ms, end_ms)]
    return pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=FILE_COLUMNS)
