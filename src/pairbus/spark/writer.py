"""What Spark calls to have rows sent, as a batch or as a stream."""

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
from pairbus.spark.message_ids import MessageIds, Scope
from pairbus.spark.options import SinkOptions
from pairbus.spark.outbox import Outbox
from pairbus.spark.outgoing import OutgoingMessages

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessages(WriterCommitMessage):
    """What a task has sent, all of it confirmed."""

    counts: Mapping[str, int]
    """How many messages, by entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """What each task of a write does; made on the driver, and handed to the executors."""

    options: SinkOptions
    schema: StructType
    is_stream: bool
    nonce: str

    def run(self, batches: Iterable[pa.RecordBatch]) -> SentMessages:
        """Send all rows; returns when everything is confirmed, and raises if something was not."""
        options = self.options
        messages = OutgoingMessages(self.schema, options.entity)
        scope = Scope.of_this_task(options.message_id_prefix, self.nonce, is_stream=self.is_stream)
        ids = MessageIds(scope)
        outbox = Outbox(options.connection, options.connect_timeout, options.batch_size)
        row = 0
        try:
            for batch in batches:
                for path, payload in messages.of(batch, ids):
                    outbox.add(path, payload)
                    row += 1
            return SentMessages(counts=outbox.finish())
        except InvalidMessageError as error:
            raise InvalidMessageError(
                f"row {row + 1:,} of partition {scope.partition} is no message that can be sent: {error.message}",
                entity=error.entity,
                hint="leave such rows out, with a filter, or put them right",
            ) from error
        finally:
            outbox.close()


def _task(options: SinkOptions, schema: StructType, *, is_stream: bool, overwrite: bool) -> _Task:
    """Raises ``SchemaError`` or ``SparkOptionError`` on the driver, before anything is sent."""
    if overwrite:
        way = "the output mode 'append' or 'update'" if is_stream else ".mode('append')"
        raise SparkOptionError(f"messages are added to what an entity holds, which cannot be replaced: use {way}")
    OutgoingMessages(schema, options.entity)
    return _Task(options=options, schema=schema, is_stream=is_stream, nonce=os.urandom(16).hex())


class MessageWriter(DataSourceArrowWriter):
    """Sends the rows of a table."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        self._task = _task(options, schema, is_stream=False, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.info("%s", _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _log.warning(
            "the write has failed, and what was sent stays sent: %s by the tasks that succeeded", _told(messages)
        )


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Sends the rows of a stream, batch by batch."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool = False) -> None:
        self._task = _task(options, schema, is_stream=True, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SentMessages:
        return self._task.run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.info("batch %d: %s", batchId, _told(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        _log.warning(
            "batch %d has failed, and what was sent stays sent: %s by the tasks that succeeded",
            batchId,
            _told(messages),
        )


def _told(messages: list[WriterCommitMessage | None]) -> str:
    total = sum([sum(one.counts.values()) for one in messages if isinstance(one, SentMessages)])
    return f"{total:,} messages were sent"
