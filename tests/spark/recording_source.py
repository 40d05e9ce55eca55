"""A data source that reads and writes nothing, and records the options that Spark passed."""

# ruff: noqa: ARG002 (Spark defines these names)

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pairbus.spark.options import SinkOptions, SourceOptions

LOG: Final = "log"
"""The option with the path of the record; not an option of pairbus."""


class RecordingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "telling"

    def schema(self) -> str:
        return "id bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        self._record(SourceOptions.from_options(self._ours(), is_stream=False))
        return _Reader()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        self._record(SourceOptions.from_options(self._ours()))
        return _StreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        self._record(SinkOptions.from_options(self._ours()))
        return _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        self._record(SinkOptions.from_options(self._ours()))
        return _StreamWriter()

    def _ours(self) -> dict[str, str]:
        return {name: value for name, value in self.options.items() if name != LOG}

    def _record(self, options: object) -> None:
        with Path(self.options[LOG]).open("a") as log:
            log.write(f"{options!r}\n")


class _Reader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (1,)


class _StreamReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def latestOffset(self, *_limits: Any) -> dict[str, int]:  # noqa: N802
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (1,)


class _Writer(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _StreamWriter(DataSourceStreamWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return _Writer().write(iterator)
