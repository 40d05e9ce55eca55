"""The streaming source of the syphon: waits for messages in the backlog, and leaves them to the tasks of an epoch.

The driver only waits: a task that waited for messages would occupy a slot of the session, which applications share.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.errors import EntityNotFoundError, MessagingError
from pairbus.client.factory import MessagingFactory
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.connections import ConnectionReference, on_loop, reached
from pairbus.spark.data_source import PairbusDataSource
from pairbus.spark.errors import reports_plainly
from pairbus.spark.gathering import of_each
from pairbus.spark.locks import active_messages
from pairbus.spark.reader import end_quietly, release_locks_on_sigterm
from pairbus.spark.sequences import SequenceRanges, last_numbers_of

_log = logging.getLogger(__name__)

SHARES: Final = "queue string, messages long"
"""The columns of the source: a backlog queue, and how many of its messages the task may deliver."""

_ARROW: Final = pa.schema([("queue", pa.string()), ("messages", pa.int64())])
_VERSION: Final = 1
_CONNECT_TIMEOUT: Final = timedelta(seconds=10)
_BACKOFF: Final = Backoff(1.0, 30.0)
_MAX_WAIT_S: Final = 5.0
"""Maximum time for which planning waits for messages. A receive takes longer, and continues meanwhile."""

_LINGER_S: Final = 0.05
"""Time that the first queue of an epoch waits for others."""

_CLOSE_TIMEOUT_S: Final = 4.0
_PAUSE_S: Final = 1.0
_PAGE: Final = 100
_FRONT: Final = 20
"""Number of messages that show whether a queue has changed."""

_END_TIMEOUT_S: Final = 75.0
"""Time that the end of a run waits for messages locked elsewhere, perhaps by a process that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOptions:
    """The options of the source."""

    connection: ConnectionReference
    queues: tuple[str, ...]
    long_poll: timedelta
    max_messages: int
    """Maximum number of messages in an epoch."""

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> ShareOptions:
        return cls(
            connection=ConnectionReference.parse(options["connection"]),
            queues=tuple(options["queues"].split(",")),
            long_poll=timedelta(seconds=float(options["longPoll"])),
            max_messages=int(options["maxMessages"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareOffset:
    """The position of the source: a counter. The backlog itself records what has to be delivered."""

    epoch: int = 0
    queues: tuple[str, ...] = ()
    """The queues of the epoch that ends here."""

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "epoch": self.epoch, "queues": [*self.queues]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ShareOffset:
        """Parse an offset. One of an earlier version has no queues: its messages are in the backlog."""
        return cls(epoch=value.get("epoch", value.get("batch", 0)), queues=tuple(value.get("queues", ())))

    def next(self, queues: Sequence[str]) -> ShareOffset:
        return ShareOffset(epoch=self.epoch + 1, queues=tuple(queues))


class EpochPlanner(Protocol):
    """Finds out which queues have messages."""

    async def plan(self, start: ShareOffset) -> ShareOffset:
        """Return the next epoch, or ``start`` if there is none yet. Raise ``MessagingError``."""

    def report(self) -> dict[str, Any]:
        """Return the number of receives, and the missing queues."""

    async def close(self) -> None: ...


# A run without end.


class QueueWait:
    """Waits until a backlog queue has a message: with one pending receive, which outlives the epochs of other queues.

    The message is given back at once: tasks deliver it.
    """

    def __init__(self, receiver: MessageReceiver, long_poll: timedelta, changed: asyncio.Event) -> None:
        self.path: Final = receiver.path
        self.receives = 0
        self.is_due = False
        """True if the queue has messages."""

        self.is_missing = False
        self.error: MessagingError | None = None
        """The error that ended the wait."""

        self._receiver = receiver
        self._long_poll = long_poll
        self._changed = changed
        self._tasks = BackgroundTasks(self.path, expected=MessagingError)
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Wait for a message, unless that happens already or there is one."""
        if not self.is_due and self._waiting is None:
            self._waiting = self._tasks.start(self._run())

    async def _run(self) -> None:
        """Wait for a message. An outage is logged once; an error that is not transient ends the wait."""
        pause_s = _BACKOFF.first_s
        while not self.is_due:
            try:
                await (self._find() if self.is_missing else self._receive())
            except MessagingError as error:
                if isinstance(error, EntityNotFoundError):
                    self.is_missing = True
                elif not error.is_transient:
                    self.error = error
                    break
                level = logging.WARNING if pause_s == _BACKOFF.first_s else logging.DEBUG
                _log.log(level, 'receive failed, retrying entity=%s error="%s"', self.path, error)
                await asyncio.sleep(pause_s)
                pause_s = _BACKOFF.after(pause_s)
            else:
                pause_s = _BACKOFF.first_s
        self._waiting = None
        self._changed.set()

    async def _find(self) -> None:
        """Check that a missing queue exists again: a receive would notice only with the first message."""
        await self._receiver.peek(1, 0)
        self.is_missing = False
        _log.info("entity found again entity=%s", self.path)

    async def _receive(self) -> None:
        self.receives += 1
        received = await self._receiver.receive(1, self._long_poll)
        if received:
            self.is_due = True
            await self._receiver.abandon(received)

    async def close(self) -> None:
        await self._tasks.close()
        with suppress(MessagingError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._receiver.close()


class EndlessPlanner:
    """Plans an epoch whenever queues have messages."""

    def __init__(self, receivers: Sequence[MessageReceiver], long_poll: timedelta) -> None:
        self._max_wait_s = min(_MAX_WAIT_S, long_poll.total_seconds())
        self._changed = asyncio.Event()
        self._waits = [QueueWait(receiver, long_poll, self._changed) for receiver in receivers]

    @classmethod
    async def start(cls, factory: MessagingFactory, options: ShareOptions) -> EndlessPlanner:
        receivers = [await factory.create_message_receiver(path) for path in options.queues]
        return cls(receivers, options.long_poll)

    async def plan(self, start: ShareOffset) -> ShareOffset:
        """Return the next epoch, or ``start`` if no message arrives for a while. Raise ``MessagingError``.

        The tasks of the last epoch have ended: only now their queues are waited for again.
        """
        for wait in self._waits:
            wait.start()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._max_wait_s):
                while not any(wait.is_due for wait in self._waits):
                    self._raise_errors()
                    self._changed.clear()
                    await self._changed.wait()
                await asyncio.sleep(_LINGER_S)
        self._raise_errors()
        due = [wait for wait in self._waits if wait.is_due]
        for wait in due:
            wait.is_due = False
        return start.next([wait.path for wait in due]) if due else start

    def _raise_errors(self) -> None:
        for wait in self._waits:
            if wait.error is not None:
                raise wait.error

    def report(self) -> dict[str, Any]:
        return {
            "receives": sum(wait.receives for wait in self._waits),
            "missing": [wait.path for wait in self._waits if wait.is_missing],
        }

    async def close(self) -> None:
        await asyncio.gather(*(wait.close() for wait in self._waits))


# A run that ends.


class OncePlanner:
    """Plans epochs until the messages that existed at the start are delivered, parked or dead-lettered."""

    def __init__(self, receivers: Mapping[str, MessageReceiver], targets: Mapping[str, SequenceRanges]) -> None:
        self._receivers = receivers
        self._left = {path: numbers for path, numbers in targets.items() if numbers}
        """The numbers of each queue that may still have messages to deliver."""

        self._fronts: dict[str, list[int]] = {}
        self._moved_s: dict[str, float] = {}
        """The first messages of each queue, and since when they are the same."""

    @classmethod
    async def start(cls, factory: MessagingFactory, options: ShareOptions) -> OncePlanner:
        async def find(path: str) -> SequenceRanges:
            return (await last_numbers_of(factory, path)).ranges

        targets = await of_each(options.queues, find)
        return cls({path: await factory.create_message_receiver(path) for path in targets}, targets)

    async def plan(self, start: ShareOffset) -> ShareOffset:
        """Return the next epoch, or ``start`` if none of the messages can be delivered. Raise ``MessagingError``."""
        now_s = asyncio.get_running_loop().time()
        fronts = await of_each([*self._left], self._find_front)
        for path, front in fronts.items():
            self._note(path, front, now_s)
        if self._left and all(self._moved_s[path] < now_s for path in self._left):
            await asyncio.sleep(_PAUSE_S)  # other receivers have locked them, or had when they were killed
        return start.next([*self._left]) if self._left else start

    async def _find_front(self, path: str) -> list[int]:
        """Return the first messages that are available or locked. Those before them are gone, or parked for good."""
        front: list[int] = []
        async with aclosing(active_messages(self._receivers[path], self._left[path], _PAGE)) as messages:
            async for message in messages:
                front.append(message.sequence_number)
                if len(front) == _FRONT:
                    break
        if front:
            self._left[path] = self._left[path].since(front[0])
        return front

    def _note(self, path: str, front: list[int], now_s: float) -> None:
        if front and front != self._fronts.get(path):
            self._fronts[path], self._moved_s[path] = front, now_s
        elif not front or now_s - self._moved_s[path] >= _END_TIMEOUT_S:
            del self._left[path]

    def report(self) -> dict[str, Any]:
        return {"receives": 0, "missing": []}

    async def close(self) -> None:
        await asyncio.gather(*(receiver.close() for receiver in self._receivers.values()))


async def start_planner(factory: MessagingFactory, options: ShareOptions, *, once: bool) -> EpochPlanner:
    """Return a planner that runs endlessly, or (``once``) for the existing messages. Raise ``MessagingError``."""
    if once:
        return await OncePlanner.start(factory, options)
    return await EndlessPlanner.start(factory, options)


# What Spark calls.


@reports_plainly
class ShareReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans epochs. It is pickled for its tasks: its planner stays in the driver."""

    def __init__(self, options: ShareOptions) -> None:
        self._options = options
        self._planner: EpochPlanner | None = None
        self._is_once = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 (Spark's name)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._is_once = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return ShareOffset().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        return on_loop(self._start_once().plan, ShareOffset.from_json(start)).to_json()

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return counts for the progress of the query, which has no other place for them."""
        return {"receives": 0, "missing": []} if self._planner is None else self._planner.report()

    def _start_once(self) -> EpochPlanner:
        if self._planner is None:
            options = self._options
            factory = reached(options.connection, _CONNECT_TIMEOUT)
            self._planner = on_loop(start_planner, factory, options, once=self._is_once)
            release_locks_on_sigterm()
        return self._planner

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition for each queue of the epoch: one task delivers it, in order."""
        if start == end:
            return []
        queues = ShareOffset.from_json(end).queues
        return [InputPartition((queue, max(1, self._options.max_messages // len(queues)))) for queue in queues]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        queue, messages = partition.value
        yield pa.RecordBatch.from_pylist([{"queue": queue, "messages": messages}], schema=_ARROW)

    def stop(self) -> None:
        end_quietly()
        if self._planner is not None:
            on_loop(self._planner.close)


@reports_plainly
class ShareDataSource(PairbusDataSource):
    """The data source of the syphon's query."""

    @classmethod
    def name(cls) -> str:
        return f"{super().name()}-shares"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802 (Spark's name)
        return ShareReader(ShareOptions.from_options(self.options))
