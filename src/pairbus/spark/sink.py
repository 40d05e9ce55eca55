"""Sends rows to their entities, in order for each entity: the writers that Spark calls, and their tasks."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.sending_link_factory import SendingLinkFactory
from pairbus.spark.connections import ConnectionReference, on_loop, reached
from pairbus.spark.errors import MessageSendError, SparkOptionError, reports_plainly
from pairbus.spark.options import SinkOptions
from pairbus.spark.outgoing import MessageIds, OutgoingMessages, Scope

_MAX_IDLE: Final = 256
"""Maximum number of idle links kept open; a connection has room for some thousand."""


class IdleLinks:
    """The links of a factory that are not in use."""

    def __init__(self, factory: SendingLinkFactory, max_idle: int = _MAX_IDLE) -> None:
        self._factory = factory
        self._max_idle = max_idle
        self._idle: OrderedDict[str, EntityLink] = OrderedDict()
        """The most recently used last."""

    def take(self, path: str) -> EntityLink:
        """Return a link for exclusive use, until it is given back."""
        return self._idle.pop(path.lower(), None) or EntityLink(self._factory, path)

    async def give_back(self, link: EntityLink) -> None:
        key = link.path.lower()
        spare = self._idle.pop(key, None)  # two links to one entity may have been in use
        self._idle[key] = link
        if spare is None and len(self._idle) > self._max_idle:
            _, spare = self._idle.popitem(last=False)
        if spare is not None:
            await spare.close()


_IDLE_LINKS: Final[dict[MessagingFactory, IdleLinks]] = {}


def idle_links_of(factory: MessagingFactory) -> IdleLinks:
    """Return the idle links of a factory that lives as long as the process. Call it on the event loop."""
    for closed in [one for one in _IDLE_LINKS if one.is_closed]:
        del _IDLE_LINKS[closed]
    return _IDLE_LINKS.setdefault(factory, IdleLinks(factory))


_MAX_BYTES: Final = 4 << 20
"""Maximum number of bytes in flight."""

_MAX_SENDS: Final = 64
"""Maximum number of entities sent to concurrently."""

_MAX_NAMED: Final = 5


class MessageWriteError(MessageSendError):
    """Some messages of a task were not sent, so the task failed."""

    def __init__(self, causes: Mapping[str, Exception], sent: Mapping[str, int]) -> None:
        super().__init__(_describe(causes, sent))
        self.causes = dict(causes)
        """Errors by entity."""

        self.sent = dict(sent)
        """Confirmed messages by entity."""


class Dispatch:
    """Sends to several entities concurrently, and to each of them in the order of the calls.

    The next messages of an entity are sent once the previous ones are confirmed, so that none overtakes another that is
    retried. After a failure no further send is started. Use it on the event loop of its links.
    """

    def __init__(self, links: IdleLinks) -> None:
        self._links = links
        self._sent: Counter[str] = Counter()
        self._causes: dict[str, Exception] = {}
        self._last: dict[str, asyncio.Task[None]] = {}
        """The last send of each entity with sends in flight."""

        self._tasks = BackgroundTasks("sends of a Spark task")
        self._slots = asyncio.Semaphore(_MAX_SENDS)
        self._room = asyncio.Event()
        self._bytes = 0

    async def put(self, path: str, payloads: list[bytes]) -> None:
        """Start a send once there is room for it. Raise ``MessageWriteError`` if an earlier send failed."""
        size_bytes = sum(map(len, payloads))
        while self._bytes and self._bytes + size_bytes > _MAX_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._causes:
            await self.finish()
        self._bytes += size_bytes
        key = path.lower()  # entity paths are case-insensitive
        sending = self._send(self._last.get(key), path, payloads, size_bytes)
        self._last[key] = self._tasks.start(sending, is_due=True)

    async def finish(self) -> dict[str, int]:
        """Wait for all confirmations, and return message counts by entity. Raise ``MessageWriteError``."""
        await self._tasks.finish()
        if self._causes:
            raise MessageWriteError(self._causes, self._sent) from next(iter(self._causes.values()))
        return dict(self._sent)

    async def close(self) -> None:
        """Cancel all sends; messages that are not confirmed yet may or may not have been sent."""
        await self._tasks.close()

    async def _send(self, before: asyncio.Task[None] | None, path: str, payloads: list[bytes], size_bytes: int) -> None:
        key = path.lower()
        try:
            if before is not None:
                await asyncio.wait((before,))
            async with self._slots:
                if not self._causes:
                    await self._deliver(path, payloads)
        except Exception as error:  # noqa: BLE001 (any error is reported by finish)
            self._causes[path] = error
        finally:
            self._bytes -= size_bytes
            self._room.set()
            if self._last.get(key) is asyncio.current_task():
                del self._last[key]

    async def _deliver(self, path: str, payloads: list[bytes]) -> None:
        link = self._links.take(path)
        batch = SendBatch(payloads)
        batch.in_turn = True
        try:
            await link.send(batch)
        except MessagingError as error:
            raise error.at(path) from error.__cause__
        finally:
            self._sent[path] += len(payloads) - len(batch.unconfirmed)
            await self._links.give_back(link)


def _describe(causes: Mapping[str, Exception], sent: Mapping[str, int]) -> str:
    reasons = "; ".join(str(error) for error in [*causes.values()][:_MAX_NAMED])
    more = f"; and {len(causes) - _MAX_NAMED:,} more entities" if len(causes) > _MAX_NAMED else ""
    total = sum(sent.values())
    before = ", ".join(f"{count:,} to '{path}'" for path, count in Counter(sent).most_common(_MAX_NAMED) if count)
    return (
        f"not all messages of the task were sent: {reasons}{more}."
        f" {total:,} were sent{f' ({before})' if before else ''}. A retry of the task starts with its first row and"
        " sends these again, which has no effect where duplicate detection is enabled. If a retry does not help, fix"
        " the cause and restart the query"
    )


_BATCH_BYTES: Final = 256 << 10
"""Maximum size of a batch in a Standard namespace."""

_MAX_BUFFERED_BYTES: Final = 2 << 20
"""Maximum number of buffered bytes, over all entities."""


@dataclass(slots=True)
class _EntityBuffer:
    """Buffered messages of one entity."""

    path: str
    payloads: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class SinkBuffer:
    """Buffers messages in the thread of the task, while earlier ones are sent on the event loop."""

    def __init__(self, connection: ConnectionReference, connect_timeout: timedelta, batch_size: int) -> None:
        self._connection = connection
        self._connect_timeout = connect_timeout
        self._batch_size = batch_size
        self._buffers: dict[str, _EntityBuffer] = {}
        self._size_bytes = 0
        self._dispatch: Dispatch | None = None

    def add(self, path: str, payload: bytes) -> None:
        """Send a message, now or with later ones. Raise ``MessageWriteError`` if an earlier one was not sent."""
        key = path.lower()  # entity paths are case-insensitive
        buffer = self._buffers.get(key)
        if buffer is None:
            buffer = self._buffers[key] = _EntityBuffer(path)
        buffer.payloads.append(payload)
        buffer.size_bytes += len(payload)
        self._size_bytes += len(payload)
        if len(buffer.payloads) >= self._batch_size or buffer.size_bytes >= _BATCH_BYTES:
            self._put(self._buffers.pop(key))
        elif self._size_bytes >= _MAX_BUFFERED_BYTES:
            self._put_all()

    def finish(self) -> dict[str, int]:
        """Send the buffered messages, wait for all confirmations, and return message counts by entity."""
        self._put_all()
        return {} if self._dispatch is None else on_loop(self._dispatch.finish)

    def close(self) -> None:
        if self._dispatch is not None:
            on_loop(self._dispatch.close)

    def _put_all(self) -> None:
        while self._buffers:
            self._put(self._buffers.pop(next(iter(self._buffers))))

    def _put(self, buffer: _EntityBuffer) -> None:
        self._size_bytes -= buffer.size_bytes
        if self._dispatch is None:  # a task without rows needs no connection
            self._dispatch = Dispatch(idle_links_of(reached(self._connection, self._connect_timeout, once=True)))
        on_loop(self._dispatch.put, buffer.path, buffer.payloads)


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


@reports_plainly
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


@reports_plainly
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
