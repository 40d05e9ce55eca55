"""Messages as a stream provides them, and as read from the captured files."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.dataset

from pairbus.jobs.capture.files import MESSAGE_COLUMNS

DAY_MS: Final = 1_794_787_200_000
"""2026-11-16, at midnight."""


def messages(numbers: Iterable[int], entity: str = "orders", *, body: bytes = b"one", at_ms: int = 0) -> pa.RecordBatch:
    """Return messages enqueued at a time after that midnight."""
    enqueued = datetime.fromtimestamp((DAY_MS + at_ms) / 1_000, UTC)
    rows = [
        {
            "entity": entity,
            "sequence_number": number,
            "enqueued_time": enqueued,
            "body": body,
            "message_id": f"{entity}-{number}",
            "application_properties": [("n", f"{number}")],
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, schema=MESSAGE_COLUMNS)


def captured(root: Path) -> pa.Table:
    """Read the files as a reader does that does not know captures."""
    return pyarrow.dataset.dataset(root, format="parquet").to_table()


def ids(root: Path) -> list[str]:
    """Return the ids of all captured messages, in order."""
    found = captured(root)
    return sorted(found.column("message_id").to_pylist()) if found.num_columns else []


def files(root: Path) -> list[Path]:
    """Return the files that a reader sees."""
    return sorted(map(Path, pyarrow.dataset.dataset(root, format="parquet").files))
