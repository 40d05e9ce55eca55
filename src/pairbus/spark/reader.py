"""The readers that Spark calls: one for tables, and one for each kind of stream."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
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
from pairbus.spark.connections import factory_of, on_loop, reached
from pairbus.spark.consumption import Consumption
from pairbus.spark.depths import Depths
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.errors import EntityPatternError, reports_plainly
from pairbus.spark.filters import is_supported
from pairbus.spark.offset import ConsumeOffset, SingleNumberOffset, read_browse_offset
from pairbus.spark.options import SourceOptions
from pairbus.spark.partition import MessagePartition, PartitionGroup, pages_of, tasks
from pairbus.spark.record_batches import RecordBatches

_UNLIMITED = 2**31 - 1
S = TypeVar("S", Browsing, Consumption)


def _entities(options: SourceOptions) -> tuple[str, ...]:
    async def resolve() -> tuple[str, ...]:
        async with NamespaceManager.from_connection_string(options.connection.resolve()) as manager:
            return await resolve_entities(options.entities, manager)

    found = on_loop(resolve)
    options.check_entities(found)
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


def _read(
    options: SourceOptions, schema: StructType, partition: InputPartition, filters: Sequence[Filter] = ()
) -> Iterator[pa.RecordBatch]:
    match partition:
        case PartitionGroup():
            parts = partition.partitions
        case MessagePartition():
            parts = (partition,)
        case _ if partition.value is None:
            return  # Spark reads one partition even of a table that has none
        case _:
            raise TypeError(f"{partition!r:.100} is not a partition of messages")
    batches = RecordBatches(schema, filters)
    tokens = {id(part): {number: str(token) for number, token in part.tokens.items()} for part in parts}
    for part, page in pages_of(options.connection, parts, options.page_size):
        yield batches.of(part.entity, page, tokens[id(part)])


class _PushFilters:
    """The method ``pushFilters`` of a reader, whether Spark pushes filters down or not.

    Spark rejects a reader that has this method unless its configuration enables it, even if a query has no filters. It
    recognises a reader without one by the function of the method.
    """

    def __init__(self, reader: MessageReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


@reports_plainly
class MessageReader(DataSourceReader):
    """Reads all messages that exist, and leaves them in place."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: list[Filter] = []
        self.pushFilters = _PushFilters(self)  # type: ignore[method-assign]

    def take_filters(self, filters: Iterable[Filter]) -> Iterable[Filter]:
        """Apply the filters that it can, and return the others."""
        others: list[Filter] = []
        for one in filters:
            (self._filters if is_supported(one, self._schema) else others).append(one)
        return others

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        factory = reached(options.connection, options.connect_timeout)
        entities = _entities(options)
        browsing = Browsing(factory, entities, options)

        async def everything() -> list[InputPartition]:
            try:
                found = await browsing.everything(self._filters)
                return tasks(found or await _no_partitions(options, entities), options.min_partitions)
            finally:
                await browsing.close()

        return on_loop(everything)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition, self._filters)


@reports_plainly
class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[S]):
    """Base of both kinds of streams. A reader is pickled for its tasks: its source stays in the driver."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._source: S | None = None
        self._depths: Depths | None = None
        self._is_until_now = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_source": None, "_depths": None}

    def _read_depths(self) -> dict[str, int]:
        """Return the depth of the entities and the age of their messages, if the query asks for them."""
        options = self._options
        if self._source is None or options.metrics_interval is None:
            return {}
        if self._depths is None:
            self._depths = Depths(options.connection, self._source.entities, options.metrics_interval)
        return on_loop(self._depths.read, factory_of(options.connection))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        return ReadMaxRows(self._options.max_messages_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_until_now = True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._schema, partition)

    def stop(self) -> None:
        end_quietly()
        if self._source is not None:
            on_loop(self._source.close)


@reports_plainly
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
        if self._source is None:
            return {"receives": 0, "waiting": 0, "missing": []}
        return {**self._source.report(), **self._source.locks(), **self._read_depths()}

    def _start_once(self, known: ConsumeOffset) -> Consumption:
        if self._source is None:
            options = self._options
            factory = reached(options.connection, options.connect_timeout)
            source = Consumption(factory, _entities(options), options)
            on_loop(source.start, known, until_now=self._is_until_now)
            self._source = source
            release_locks_on_sigterm()
        return self._source

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        known = ConsumeOffset.from_json(end)
        found = self._start_once(known).partitions(known, with_tokens="lock_token" in self._schema.names)
        return tasks(found, self._options.min_partitions)


def end_quietly() -> None:
    """Print no traceback if Spark has closed the connection, which is how it ends a stream.

    Python's attempt to report the exception to it fails, and would print two tracebacks.
    """
    if isinstance(sys.exception(), EOFError | SystemExit):
        sys.excepthook = _ignore


def release_locks_on_sigterm() -> None:
    """Abandon locked messages when Spark ends the process of a stream, instead of letting the locks expire.

    Spark ends it with SIGTERM, at any point. The signal is turned into an exception, which leads to ``stop``.
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def _ignore(*_error: object) -> None:
    """Discard an exception: Spark, its only recipient, has closed the connection."""


@reports_plainly
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

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return counts for the progress of the query."""
        return {} if self._source is None else {"behind": self._source.behind, **self._read_depths()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        on_loop(self._start_once().until_now)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = self._start_once().partitions(read_browse_offset(start), read_browse_offset(end))
        return tasks(found, self._options.min_partitions)


def _max_messages(limit: ReadLimit) -> int:
    match limit:
        case ReadMaxRows(max_rows=maximum):
            return maximum
        case ReadAllAvailable():
            return _UNLIMITED
    raise ValueError(f"the read limit {limit!r} is not supported; use maxMessagesPerTrigger")
