"""The writers that Spark calls to send rows, as a batch or as a stream."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.client.errors import InvalidMessageError
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.options import SinkOptions
from pairbus.spark.outgoing import MessageIds, OutgoingMessages, Scope
from pairbus.spark.sink import SinkBuffer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessages(WriterCommitMessage):
    """The result of a task: all its messages are confirmed."""

    counts: Mapping[str, int]
    """Number of messages by entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """The work of each task of a write; created on the driver, and sent to the executors."""

    options: SinkOptions
    schema: StructType
    is_stream: bool
    nonce: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> SentMessages:
        """Send all rows, and return once everything is confirmed. Raise ``MessageWriteError`` otherwise."""
        options = self.options
        messages = OutgoingMessages(self.schema, options.entity)
        scope = Scope.of_this_task(options.message_id_prefix, self.nonce, is_stream=self.is_stream)
        ids = MessageIds(scope)
        buffer = SinkBuffer(options.connection, options.connect_timeout, options.batch_size)
        row = 0
        try:
            for batch in batches:
                for path, payload in messages.of(batch, ids):
                    buffer.add(path, payload)
                    row += 1
            return SentMessages(counts=buffer.finish())
        except InvalidMessageError as error:
            raise InvalidMessageError(
                f"row {row + 1:,} of partition {scope.partition} cannot be sent: {error.message}",
                entity=error.entity,
                hint="filter out such rows, or correct them",
            ) from error
        finally:
            buffer.close()


def _task(options: SinkOptions, schema: StructType, *, is_stream: bool, overwrite: bool) -> _Task:
    """Return the task of a write. Raise ``SchemaError`` or ``SparkOptionError`` on the driver, before any send."""
    if overwrite:
        way = "the output mode 'append' or 'update'" if is_stream else ".mode('append')"
        raise SparkOptionError(f"the messages of an entity cannot be replaced, only added to: use {way}")
    OutgoingMessages(schema, options.entity)
    return _Task(options=options, schema=schema, is_stream=is_stream, nonce=os.urandom(16).hex())


class MessageWriter(DataSourceArrowWriter):
    """Sends the rows of a table."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        self._task = _task(options, schema, is_stream=False, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.info("write committed messages=%d", _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.warning("write failed, sent messages are not withdrawn messages=%d", _total(messages))


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream, batch by batch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        self._task = _task(options, schema, is_stream=True, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.info("batch committed batch=%d messages=%d", batchId, _total(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.warning("batch failed, sent messages are not withdrawn batch=%d messages=%d", batchId, _total(messages))


def _total(messages: list[WriterCommitMessage | None]) -> int:
    """Return the number of messages sent by the tasks that succeeded."""
    return sum([sum(one.counts.values()) for one in messages if isinstance(one, SentMessages)])
