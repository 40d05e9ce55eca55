"""What a task has found in its share of a batch, as it tells the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pairbus.jobs.capture.piece import Piece
from pairbus.spark.offset import Portion
from pairbus.spark.schema import arrow_schema
from pairbus.spark.sequence_ranges import SequenceRanges

CATCHES: Final = StructType(
    [
        StructField("entity", StringType()),
        StructField("numbers", StringType()),
        StructField("until_ms", LongType()),
        StructField("name", StringType()),
        StructField("messages", LongType()),
        StructField("size_bytes", LongType()),
        StructField("first", LongType()),
    ]
)

_ARROW: Final = arrow_schema(CATCHES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """Messages of one entity: in a piece that was written of them, or in one that was written before."""

    entity: str
    portion: Portion
    piece: Piece | None
    """``None`` for what an earlier run has captured already."""

    def to_batch(self) -> pa.RecordBatch:
        piece = self.piece
        row: dict[str, Any] = {
            "entity": self.entity,
            "numbers": str(self.portion.numbers),
            "until_ms": self.portion.until_ms,
            "name": piece and piece.name,
            "messages": piece and piece.messages,
            "size_bytes": piece and piece.size_bytes,
            "first": piece and piece.first,
        }
        return pa.RecordBatch.from_pylist([row], schema=_ARROW)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        piece = None
        if row["name"] is not None:
            piece = Piece(name=row["name"], messages=row["messages"], size_bytes=row["size_bytes"], first=row["first"])
        portion = Portion(numbers=SequenceRanges.parse(row["numbers"]), until_ms=row["until_ms"])
        return cls(entity=row["entity"], portion=portion, piece=piece)
