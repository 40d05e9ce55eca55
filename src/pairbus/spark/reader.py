"""The readers that Spark calls: one for tables, and one for each kind of stream."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pairbus.client.errors import UnauthorizedError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.paths import split_entity_path
from pairbus.spark.browsing import Browsing
from pairbus.spark.connections import on_loop, reached
from pairbus.spark.consumption import Consumption
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.errors import EntityPatternError
from pairbus.spark.offset import ConsumeOffset, SingleNumberOffset, read_browse_offset
from pairbus.spark.options import SourceOptions
from pairbus.spark.partition import MessagePartition, pages
from pairbus.spark.record_batches import RecordBatches, is_reference

_UNLIMITED = 2**31 - 1
S = TypeVar("S", Browsing, Consumption)


def _entities(options: SourceOptions) -> tuple[str, ...]:
    async def resolve() -> tuple[str, ...]:
        async with NamespaceManager.from_connection_string(options.connection.resolve()) as manager:
            return await resolve_entities(options.entities, manager)

    found = on_loop(resolve)
    options.starting_offsets.check(found)
    return found


async def _no_partitions(options: SourceOptions, entities: tuple[str, ...]) -> list[MessagePartition]:
    """Return no partitions, but raise ``EntityPatternError`` for a topic: it has no messages of its own to peek."""
    with suppress(UnauthorizedError):  # only a key with the Manage claim can check
        async with NamespaceManager.from_connection_string(options.connection.resolve()) as manager:
            for path in entities:
                found = split_entity_path(path)
                if found is None or found.subscription is not None or found.sub_queue is not None:
                    continue
                if await manager.topic_exists(path):
                    raise EntityPatternError(
                        f"'{path}' is a topic; read one of its subscriptions, such as {path}/subscriptions/NAME"
                    )
    return []


def _read(options: SourceOptions, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, MessagePartition):
        if partition.value is None:
            return  # Spark reads one partition even of a table that has none
        raise TypeError(f"{partition!r:.100} is not a partition of messages")
    batches = RecordBatches(schema)
    tokens = {number: str(token) for number, token in partition.tokens.items()}
    if is_reference(schema) and len(tokens) == len(partition.portion.numbers):
        yield batches.of_locked(partition.entity, tokens)  # all are locked, and no content is needed
        return
    for page in pages(options.connection, partition, options.page_size):
        yield batches.of(partition.entity, page, tokens)


class MessageReader(DataSourceReader):
    """Reads all messages that exist, and leaves them in place."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        factory = reached(options.connection, options.connect_timeout)
        entities = _entities(options)
        browsing = Browsing(factory, entities, options)

        async def everything() -> list[MessagePartition]:
            try:
                return await browsing.everything() or await _no_partitions(options, entities)
            finally:
                await browsing.close()

        return on_loop(everything)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[S]):
    """Base of both kinds of streams. A reader is pickled for its tasks: its source stays in the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._source: S | None = None
        self._is_until_now = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_until_now = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def stop(self) -> None:
        if isinstance(sys.exception(), EOFError | SystemExit):
            # Spark has closed the connection, which is how it ends a stream. Python's attempt to report the exception
            # to it fails, and would print two tracebacks.
            sys.excepthook = _ignore
        if self._source is not None:
            on_loop(self._source.close)


class ConsumingStreamReader(_StreamReader[Consumption]):
    """Consumes messages as a receiver does; they are removed when their batch is committed.

    Spark calls ``commit`` for a batch when the next one is planned, and never for the last. But it calls
    ``latestOffset`` soon after each batch with its end: everything before that is in the checkpoint.
    """

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return ConsumeOffset().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = ConsumeOffset.from_json(start)
        consumption = self._start_once(known)
        return on_loop(consumption.plan, known, _max_messages(limit)).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return counts for the progress of the query, which has no other place for them."""
        return {"receives": 0, "waiting": 0, "missing": []} if self._source is None else self._source.report()

    def _start_once(self, known: ConsumeOffset) -> Consumption:
        if self._source is None:
            options = self._options
            factory = reached(options.connection, options.connect_timeout)
            source = Consumption(factory, _entities(options), options)
            on_loop(source.start, known, until_now=self._is_until_now)
            self._source = source
            _release_locks_on_sigterm()
        return self._source

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        known = ConsumeOffset.from_json(end)
        return self._start_once(known).partitions(known)


def _release_locks_on_sigterm() -> None:
    """Abandon locked messages when Spark ends the process of a stream, instead of letting the locks expire.

    Spark ends it with SIGTERM, at any point. The signal is turned into an exception, which leads to ``stop``.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _ignore(*_error: object) -> None:
    """Discard an exception: Spark, its only recipient, has closed the connection."""


class BrowsingStreamReader(_StreamReader[Browsing]):
    """Peeks messages as they arrive, and removes none."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return on_loop(self._start_once().beginning).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        known = read_browse_offset(start)
        if isinstance(known, SingleNumberOffset):
            return on_loop(self._start_once().upgraded, known).to_json()
        return on_loop(self._start_once().plan, known, _max_messages(limit)).to_json()

    def _start_once(self) -> Browsing:
        if self._source is None:
            options = self._options
            factory = reached(options.connection, options.connect_timeout)
            self._source = Browsing(factory, _entities(options), options)
        return self._source

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        on_loop(self._start_once().until_now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._start_once().partitions(read_browse_offset(start), read_browse_offset(end))


def _max_messages(limit: ReadLimit) -> int:
    match limit:
        case ReadMaxRows(max_rows=maximum):
            return maximum
        case ReadAllAvailable():
            return _UNLIMITED
    raise ValueError(f"the read limit {limit!r} is not supported; use maxMessagesPerTrigger")
