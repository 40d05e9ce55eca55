"""A capture as a command: it runs until a signal stops it, or once, and returns an exit code."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event
from types import FrameType
from typing import Final, Self
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.backoff import Backoff
from pairbus.client.amqp.receiving_link import ReceiveOptions
from pairbus.client.errors import InvalidRequestError, MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.connection_string import parse_connection_string
from pairbus.dialect.paths import split_entity_path
from pairbus.jobs.capture.capture import Capture
from pairbus.jobs.capture.config import CaptureConfig, CaptureError, QueryFailedError, UncapturableError
from pairbus.jobs.capture.files import CapturedFile, CaptureDirectory, PieceWriter
from pairbus.jobs.capture.store import StoreCapture, with_batch_time
from pairbus.jobs.capture.window import CATCHES, Catch
from pairbus.jobs.lines import FAILED, WAITING, CommandResult, ProgressReporter, ReportLine, reason_of, reported_logs
from pairbus.spark.connections import CONNECT_TIMEOUT, ConnectionReference, reach
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.errors import SparkOptionError
from pairbus.spark.file_systems import FileSystemError, check_file_systems
from pairbus.spark.locks import active_messages, still_there
from pairbus.spark.offset import Portion
from pairbus.spark.options import ReadMode
from pairbus.spark.sequences import SequenceMarks, last_numbers_of
from pairbus.spark.session import LIGHT, ensured_session


def starting_line(config: CaptureConfig) -> ReportLine:
    names, to = ", ".join(config.entities), config.url or str(config.to.absolute())
    return ReportLine(event="starting", text=f"capturing {names} into {to}", facts={"entities": names, "to": to})


def spark_line(master: str) -> ReportLine:
    text = f"starting Spark on {master}, which takes some seconds"
    return ReportLine(event="spark", text=text, facts={"master": master})


def file_line(file: CapturedFile) -> ReportLine:
    return ReportLine(
        event="file",
        text=f"{file.path}: {file.messages:,} messages, {file.size_bytes:,} bytes",
        facts={
            "path": str(file.path),
            "entity": file.entity,
            "messages": file.messages,
            "bytes": file.size_bytes,
            "window_start": _iso_time(file.window_start_ms),
            "window_end": _iso_time(file.window_end_ms),
        },
    )


def retry_line(reason: str) -> ReportLine:
    text = f"restarting the query after an error: {reason}"
    return ReportLine(event="retry", text=text, facts={"reason": reason}, is_warning=True)


def waiting_line(entity: str, messages: int) -> ReportLine:
    text = f"{messages:,} messages of '{entity}' are locked by another receiver"
    return ReportLine(event="waiting", text=text, facts={"entity": entity, "messages": messages}, is_warning=True)


def stopping_line() -> ReportLine:
    return ReportLine(event="stopping", text="stopping after the current batch is written to files")


def ended_line(messages: int, files: int) -> ReportLine:
    text = f"{_quantity(messages, 'message')} captured, {_quantity(files, 'file')} written"
    return ReportLine(event="ended", text=text, facts={"messages": messages, "files": files})


def _quantity(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _iso_time(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1_000, UTC).isoformat(timespec="milliseconds")


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stopped_by_signals() -> Iterator[Event]:
    """Provide an event that the first signal sets; a second signal has its default effect."""
    stopped = Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        if stopped.is_set():  # a signal came while Spark was starting, which has restored this handler since
            signal.raise_signal(number)
        stopped.set()

    before = {each: signal.signal(each, stop) for each in _SIGNALS}
    try:
        yield stopped
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


_INTERVAL = timedelta(seconds=5)
"""Interval of batches while few messages arrive; when many arrive, the next batch follows at once."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def start_query(
    spark: SparkSession, config: CaptureConfig, capture: Capture | StoreCapture, checkpoint: str
) -> StreamingQuery:
    """Start the query. Each batch is in the state of the capture before Spark records its end."""

    def take(batch: DataFrame, number: int) -> None:
        if isinstance(capture, StoreCapture):
            capture.write(batch, number)
            return

        def write(writer: PieceWriter) -> Iterator[Catch]:
            for row in batch.mapInArrow(writer, CATCHES).collect():
                yield Catch.from_row(row.asDict())

        capture.take(write, now_ms)

    messages = _messages(spark, config)
    writer = (
        (with_batch_time(messages) if isinstance(capture, StoreCapture) else messages)
        .writeStream.foreachBatch(take)
        .queryName(f"pairbus-capture-{uuid4().hex[:8]}")
        .option("checkpointLocation", checkpoint)
    )
    if config.once:
        return writer.trigger(availableNow=True).start()
    interval = min(_INTERVAL, config.limits.length / 2)
    return writer.trigger(processingTime=f"{interval // timedelta(milliseconds=1)} milliseconds").start()


def _messages(spark: SparkSession, config: CaptureConfig) -> DataFrame:
    spark.dataSource.register(PairbusDataSource)
    mode = ReadMode.BROWSE if config.keep else ReadMode.CONSUME
    reader = (
        spark.readStream.format(PairbusDataSource.name())
        .option("connection", str(config.source))
        .option("entities", ",".join(config.entities))
        .option("mode", mode.value)
        .option("maxMessagesPerTrigger", str(config.max_messages))
    )
    if config.url is not None and config.limits.size_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", str(config.limits.size_bytes))
    return reader.load()


_PEEK_SIZE: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSnapshot:
    """The last sequence numbers of each entity at one time."""

    last: Mapping[str, SequenceMarks]

    @classmethod
    async def take(cls, connection: str, entities: Iterable[str], *, keep: bool) -> Self:
        """Take a snapshot. Raise ``MessagingError``, ``EntityPatternError`` or ``UncapturableError``."""
        async with (
            NamespaceManager.from_connection_string(connection) as manager,
            MessagingFactory.from_connection_string(connection) as factory,
        ):
            await reach(factory, CONNECT_TIMEOUT, hint="check that the namespace of --source is running")
            paths = await resolve_entities(entities, manager)
            for path in paths:
                await _expect_no_topic(manager, path)
                if not keep:
                    await _expect_receivable(factory, path)
            return cls(last={path: await last_numbers_of(factory, path) for path in paths})

    async def waiting(self, connection: str, limit: int | None = None) -> dict[str, int]:
        """Return how many of the messages are available or locked, by entity; counting stops at ``limit``."""
        found: dict[str, int] = {}
        async with MessagingFactory.from_connection_string(connection) as factory:
            for path, last in self.last.items():
                async with await factory.create_message_receiver(path) as receiver:
                    if count := await _count(receiver, last, limit):
                        found[path] = count
        return found


async def _expect_no_topic(manager: NamespaceManager, path: str) -> None:
    """Raise ``UncapturableError`` for a topic: it has no messages of its own, and would look like an empty queue."""
    found = split_entity_path(path)
    with suppress(UnauthorizedError):  # only a key with the Manage claim can check
        is_queue_name = found is not None and found.subscription is None and found.sub_queue is None
        if is_queue_name and await manager.topic_exists(path):
            raise UncapturableError(f"'{path}' is a topic; capture one of its subscriptions, {path}/Subscriptions/NAME")


async def _expect_receivable(factory: MessagingFactory, path: str) -> None:
    """Attach as the query will, without receiving. Raise ``UncapturableError`` if that is rejected."""
    try:
        link = await factory.open_receiving_link(path, ReceiveOptions())
    except InvalidRequestError as error:
        raise UncapturableError(
            f"'{path}' cannot be captured: {error}; an entity that requires sessions can be copied with --keep"
        ) from error
    await link.close()


async def are_gone(connection: str, portions: Mapping[str, Portion]) -> bool:
    """Return whether none of these messages exists any more."""
    async with MessagingFactory.from_connection_string(connection) as factory:
        for path, portion in portions.items():
            async with await factory.create_message_receiver(path) as receiver:
                if await still_there(receiver, portion):
                    return False
    return True


async def _count(receiver: MessageReceiver, last: SequenceMarks, limit: int | None) -> int:
    count = 0
    async with aclosing(active_messages(receiver, last.ranges, _PEEK_SIZE)) as found:
        async for _ in found:
            count += 1
            if count == limit:
                break
    return count


DONE: Final = 0
"""All existing messages are captured, or the command was stopped by a signal."""

_TICK_S: Final = 0.5
_BACKOFF: Final = Backoff(1.0, 60.0)
_STEADY_S: Final = 60.0
"""A query that ran this long did not fail because of its configuration."""

_REMOVAL_S: Final = 15.0


def run_capture(config: CaptureConfig, reporter: ProgressReporter) -> CommandResult:
    """Run a capture. The first signal ends it after the current batch, the second one immediately."""
    with reported_logs(reporter):
        try:
            with stopped_by_signals() as stopped:
                return CaptureCommand(config, reporter).run(stopped)
        except (MessagingError, CaptureError, FileSystemError, SparkOptionError) as error:
            return CommandResult(code=FAILED, reason=" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 (any error is reported in one line, and ends the command)
            return CommandResult(code=FAILED, reason=reason_of(error))


def _address_of(source: ConnectionReference) -> str:
    """Return the address of a namespace, which identifies it even if its keys change."""
    found = parse_connection_string(source.resolve())
    return f"{found.host}:{found.port}".lower()


class CaptureCommand:
    """Owns a directory, a Spark session and a query, and closes windows in time even if no message arrives."""

    def __init__(self, config: CaptureConfig, reporter: ProgressReporter) -> None:
        self._config = config
        self._reporter = reporter
        self._files = 0

    def run(self, stopped: Event) -> CommandResult:
        """Capture until ``stopped``, or once. Raise any error that prevents it."""
        config = self._config
        if config.url is not None:
            store = StoreCapture(config.url, config.limits, self._note)
            self._reporter.report(starting_line(config))
            return self._capture(store, stopped, config.checkpoint or store.checkpoint)
        directory = CaptureDirectory(config.to)
        try:
            self._reporter.report(starting_line(config))
            capture = Capture(directory, config.limits, self._note, _address_of(config.source))
            return self._capture(capture, stopped, config.checkpoint or str(directory.checkpoint))
        finally:
            directory.close()

    def _capture(self, capture: Capture | StoreCapture, stopped: Event, checkpoint: str) -> CommandResult:
        config = self._config
        snapshot = asyncio.run(CaptureSnapshot.take(config.source.resolve(), config.entities, keep=config.keep))
        waiting = (
            self._once(capture, stopped, checkpoint, snapshot)
            if config.once
            else self._run(capture, stopped, checkpoint)
        )
        capture.close_all(now_ms())
        self._reporter.report(ended_line(capture.messages, self._files))
        return self._result(waiting)

    def _note(self, file: CapturedFile) -> None:
        self._files += 1
        self._reporter.report(file_line(file))

    def _result(self, waiting: Mapping[str, int]) -> CommandResult:
        if not waiting:
            return CommandResult(code=DONE)
        for entity, messages in waiting.items():
            self._reporter.report(waiting_line(entity, messages))
        total = sum(waiting.values())
        return CommandResult(
            code=WAITING, reason=f"{total:,} messages are locked by another receiver; capture once more"
        )

    def _run(self, capture: Capture | StoreCapture, stopped: Event, checkpoint: str) -> Mapping[str, int]:
        """Run until stopped, and restart a query that fails after it has worked."""
        with self._session() as spark:
            pause_s = _BACKOFF.first_s
            while not stopped.is_set():
                began_s, before = time.monotonic(), capture.messages
                error = self._watch(start_query(spark, self._config, capture, checkpoint), capture, stopped)
                if stopped.is_set():
                    break
                reason = "the query ended" if error is None else reason_of(error)
                has_worked = capture.messages > before or time.monotonic() - began_s >= _STEADY_S
                if not has_worked and pause_s == _BACKOFF.first_s:
                    raise QueryFailedError(reason)
                self._reporter.report(retry_line(reason))
                pause_s = _BACKOFF.after(_BACKOFF.first_s if has_worked else pause_s)
                stopped.wait(pause_s)
        return {}

    def _once(
        self, capture: Capture | StoreCapture, stopped: Event, checkpoint: str, snapshot: CaptureSnapshot
    ) -> Mapping[str, int]:
        """Capture the existing messages, and return those left. Spark is not started if there are none."""
        config, connection = self._config, self._config.source.resolve()
        if config.keep or asyncio.run(snapshot.waiting(connection, limit=1)):
            with self._session() as spark:
                error = self._watch(start_query(spark, config, capture, checkpoint), capture, stopped)
            if error is not None and not stopped.is_set():
                raise QueryFailedError(reason_of(error))
        return {} if config.keep or stopped.is_set() else asyncio.run(snapshot.waiting(connection))

    @contextmanager
    def _session(self) -> Iterator[SparkSession]:
        master = self._config.master
        self._reporter.report(spark_line(master))
        config = LIGHT if master.startswith("local") else {}
        with ensured_session(master, app_name="pairbus capture", config=config) as spark:
            check_file_systems(spark, self._config.url, self._config.checkpoint)
            yield spark

    def _watch(self, query: StreamingQuery, capture: Capture | StoreCapture, stopped: Event) -> Exception | None:
        """Wait until a query ends or the command is stopped. Return the error of the query, if any."""
        try:
            while query.isActive and not stopped.wait(_TICK_S):
                capture.close_due(now_ms())
            if stopped.is_set():
                self._reporter.report(stopping_line())
                self._wait_for_removal(query, capture)
            return query.exception()
        finally:
            with suppress(PySparkException, Py4JError, OSError):  # Java may have exited
                query.stop()

    def _wait_for_removal(self, query: StreamingQuery, capture: Capture | StoreCapture) -> None:
        """Wait until Spark plans the next batch, which removes the last one: else others would receive it, too."""
        if self._config.keep or not capture.messages:
            return
        ends_s = time.monotonic() + _REMOVAL_S
        with (
            capture.at_rest() as state,
            suppress(MessagingError, PySparkException, Py4JError),
        ):  # the next run removes it
            while query.isActive and time.monotonic() < ends_s and not self._are_gone(state.taken):
                time.sleep(_TICK_S)

    def _are_gone(self, portions: Mapping[str, Portion]) -> bool:
        return asyncio.run(are_gone(self._config.source.resolve(), portions))
