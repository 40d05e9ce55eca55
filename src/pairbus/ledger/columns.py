"""Tables and columns of a ledger; importable without pyarrow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VERSION: Final = 1
"""Version of the columns, stored in the metadata of every file under the key below."""

VERSION_KEY: Final = "pairbus.ledger.version"

OPERATIONS: Final = "operations"
LIVES: Final = "lives"
"""The two tables: directories of Parquet files below ``day=YYYY-MM-DD/hour=HH``, in UTC."""

TIME: Final = "time"
TEXT: Final = "text"
NUMBER: Final = "number"

COLUMNS: Final[Mapping[str, Mapping[str, str]]] = {
    OPERATIONS: {
        "at": TIME,
        "namespace": TEXT,
        "kind": TEXT,
        "stage": TEXT,
        "entity": TEXT,
        "result": TEXT,
        "who": TEXT,
        "operations": NUMBER,
        "messages": NUMBER,
        "bytes": NUMBER,
        "units": NUMBER,
        "request_units": NUMBER,
        "connections": NUMBER,
    },
    LIVES: {
        "at": TIME,
        "namespace": TEXT,
        "ordinal": NUMBER,
        "event": TEXT,
        "stage": TEXT,
        "entity": TEXT,
        "sequence": NUMBER,
        "original_sequence": NUMBER,
        "message_id": TEXT,
        "session_id": TEXT,
        "destination": TEXT,
        "size": NUMBER,
    },
}
"""Times are UTC in milliseconds, numbers have 64 bits. A row of operations counts the operations of one key within a
second; a row of lives is one lifecycle event. Only ``session_id`` and ``destination`` may be null."""

PARTITIONS: Final = ("day", "hour")

HOUR_MS: Final = 3_600_000
