"""The Spark syphon: runs the streaming query and restarts it; an engine that a pair can use."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.errors import MessagingError
from pairbus.jobs.lines import Fact, ProgressReporter, ReportLine, reason_of
from pairbus.jobs.syphon.delivery_task import MAX_REPEATS
from pairbus.jobs.syphon.outcome import BatchReport, DeliveryOutcome, OutcomeKind
from pairbus.jobs.syphon.query import (
    Obstacles,
    SyphonQuery,
    is_processing,
    is_remote,
    missing_of,
    parallelism,
    receives_of,
    reports_of,
)
from pairbus.jobs.syphon.settings import ConnectionFiles, SparkSyphonSettings
from pairbus.jobs.syphon.standalone import Engine
from pairbus.pairing.events import MessageDeadLettered
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon.interface import SyphonContext
from pairbus.pairing.syphon.runner import DeferredDrainer
from pairbus.pairing.syphon.send_limit import SendLimit
from pairbus.pairing.syphon.source import log_dead_letters
from pairbus.spark.file_systems import check_file_systems
from pairbus.spark.session import LIGHT, ensured_session, is_alive, is_local

_log = logging.getLogger(__name__)
T = TypeVar("T")

SPARK: Final = "spark"
"""The name of the engine for ``syphon_engine``."""

_LOOPBACK: Final = ("spark://127.", "spark://localhost:", "spark://[::1]:")
_ANYWHERE: Final = "x-pairbus-syphon"
"""A path of the primary without an entity: any response shows that it is reachable."""

_BACKOFF: Final = Backoff(1.0, 60.0)
_QUIET_S: Final = 10.0
_POLL_S: Final = 1.0
_WAIT_S: Final = 1
"""Timeout of one wait for the end of a query."""

_HELD_S: Final = 60.0
_SCAN_S: Final = 3_600.0
"""Time between two scans of idle queues for messages that other syphons have deferred."""

_CLOSE_S: Final = 30.0


class SessionLostError(RuntimeError):
    """The Spark session that a syphon was given has ended."""


class SyphonQueryError(RuntimeError):
    """The streaming query of a syphon has failed."""


class SparkSyphon:
    """Runs the streaming query, and restarts it if it fails; parked messages are delivered by this process.

    All state is in the backlog: the process may be killed at any time, with or without its checkpoint.
    """

    def __init__(
        self,
        context: SyphonContext,
        settings: SparkSyphonSettings | None = None,
        on_batch: Callable[[BatchReport], None] | None = None,
    ) -> None:
        self._context = context
        self._settings = settings or SparkSyphonSettings()
        self._checkpoint = self._settings.checkpoint
        self._on_batch = on_batch
        self._drainer = DeferredDrainer(context, SendLimit(MAX_REPEATS))
        self._repeats_at_most: int | None = None
        self._files = ConnectionFiles()
        self._counts: Counter[OutcomeKind] = Counter()
        self._receives = 0
        self._last_batch = -1
        self._received_before = 0
        """Number of receives of the queries that have ended."""

        self._lease: AbstractContextManager[SparkSession] | None = None
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._tasks = BackgroundTasks("spark syphon", expected=MessagingError)
        self._supervision: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._worked_s = self._loop.time()
        self._delivered_s = -math.inf
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_finishing = False
        self._uncounted = 0
        self._is_draining = False
        self._thread_work: asyncio.Future[Any] | None = None
        self._missing: frozenset[str] = frozenset()
        """The backlog queues that do not exist, and that the query waits for."""

        self._unreached: str | None = None
        """A destination whose messages were given back because the primary namespace was unreachable."""

        self._closing: asyncio.Task[None] | None = None

    @property
    def status(self) -> SyphonStatus:
        parked = self._drainer.status
        return SyphonStatus(
            engine=SPARK,
            receives=self._receives,
            syphoned=self._counts[OutcomeKind.DELIVERED] + self._counts[OutcomeKind.UNREMOVED] + parked.syphoned,
            dead_lettered=self._counts[OutcomeKind.DEAD_LETTERED] + parked.dead_lettered,
            waiting=parked.waiting,
            guarantees=parked.guarantees,
            repeats_at_most=self._repeats_at_most,
        )

    @property
    def counts(self) -> dict[OutcomeKind, int]:
        """Number of messages of all batches so far by outcome."""
        return dict(self._counts)

    @property
    def uncounted_batches(self) -> int:
        """Number of batches that ended without a report; the messages that they delivered are not counted."""
        return self._uncounted

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("the syphon is not started; call start() first")
        return self._session

    def resume(self, path: str) -> None:
        """Deliver the messages of an entity that was held, and that the pair sends to again."""
        self._drainer.resume(path)

    # Running.

    async def start(self) -> None:
        """Start; raise what makes that impossible. A new Spark session takes some seconds."""
        await self._open()
        self._supervision = self._tasks.start(self._supervise())

    async def drain(self) -> None:
        """Deliver the existing messages, and return. Messages that cannot be delivered at the moment stay parked."""
        await self._open()
        self._is_draining = True
        try:
            await self._run_query(await self._in_thread(partial(self._start_query, once=True)))
        except (PySparkException, Py4JError) as error:
            raise SyphonQueryError(reason_of(error)) from None  # Spark's own error is pages long, and needs its JVM
        await self._drainer.scan()
        await self._drainer.rest()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Run a function that cannot be interrupted in a thread; ``close`` waits for it if the caller is cancelled."""
        running = self._thread_work = self._loop.run_in_executor(None, work)
        return await asyncio.shield(running)

    async def _open(self) -> None:
        try:
            await self._drainer.start()
            await self._in_thread(self._open_session)
            self._describe()  # raise errors of the settings now
        except BaseException:
            await self.close()
            raise

    def _open_session(self) -> None:
        settings = self._settings
        if settings.session is not None:
            self._session = settings.session
        else:
            config = {**(LIGHT if settings.master.startswith("local") else {}), **settings.config}
            self._lease = ensured_session(settings.master, app_name="pairbus syphon", config=config)
            self._session = self._lease.__enter__()
        check_file_systems(self._session, self._checkpoint)

    @property
    def _is_here(self) -> bool:
        """True if driver and executors run on this machine."""
        if is_remote(self._spark):
            return False
        master = self._spark.sparkContext.master or ""
        return is_local(master) or master.startswith(_LOOPBACK)

    def _renew_session(self) -> None:
        """Replace a session that was stopped, or whose JVM has ended."""
        if self._settings.session is not None:
            raise SessionLostError("the Spark session of the settings has ended; start the syphon with another one")
        self._release_session()
        self._open_session()

    def _release_session(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.__exit__(None, None, None)

    def _describe(self) -> SyphonQuery:
        settings, context = self._settings, self._context
        if not self._is_here and (settings.primary is None or settings.secondary is None):
            raise ValueError(
                "executors on other machines need references to the connection strings: set"
                " SparkSyphonSettings(primary='env:NAME', secondary='env:NAME'), or file:/path"
            )
        return SyphonQuery(
            primary=settings.primary or self._files.reference(context.primary, "primary"),
            secondary=settings.secondary or self._files.reference(context.secondary, "secondary"),
            backlog_queues=context.backlog_queues,
            time_to_live=context.settings.time_to_live,
            long_poll=context.settings.long_poll,
            max_messages=settings.max_messages,
            checkpoint=str(self._checkpoint or self._files.directory / f"checkpoint-{uuid4().hex}"),
        )

    def _start_query(self, *, once: bool = False) -> StreamingQuery:
        if not is_alive(self._spark):
            self._renew_session()
        tasks = parallelism(self._spark)
        self._repeats_at_most = None if tasks is None else MAX_REPEATS * (tasks + 1)  # the driver delivers, too
        self._on_loop(self._drainer.scan_front())
        self._received_before = self._receives
        self._last_batch = -1
        query = self._describe()
        if is_remote(self._spark):
            self._query = query.start_remotely(self._spark, once=once)
        else:
            self._query = query.start(self._spark, self._obstacles, self._note, once=once)
        return self._query

    async def _run_query(self, query: StreamingQuery) -> None:
        """Wait until a query ends; raise the error that ended it."""
        polling = self._tasks.start(self._poll_often(query))
        try:
            # In short waits: an event loop that ends without close() waits for one of them, and not for the query.
            while not await asyncio.to_thread(query.awaitTermination, _WAIT_S):
                pass
        finally:
            polling.cancel()
            await asyncio.wait((polling,))
        await self._poll(query)

    async def _poll_often(self, query: StreamingQuery) -> None:
        while True:
            await asyncio.sleep(_POLL_S if is_remote(self._spark) else _QUIET_S)
            with suppress(PySparkException, Py4JError, OSError):  # the query is ending
                await self._poll(query)

    async def _poll(self, query: StreamingQuery) -> None:
        """Read the progress of a query; with Spark Connect it is the only report of its batches."""
        progresses = await asyncio.to_thread(lambda: query.recentProgress)
        if not progresses:
            return
        self._receives = self._received_before + receives_of(progresses[-1])
        await self._note_missing(missing_of(progresses[-1]))
        for report in reports_of(progresses, self._last_batch):
            self._last_batch = report.batch
            self._report(report)
            if report.counts[OutcomeKind.PARKED]:
                await self._drainer.scan()
            if report.counts[OutcomeKind.GIVEN_BACK]:
                self._pause_query(_ANYWHERE)

    async def _note_missing(self, missing: frozenset[str]) -> None:
        """Report backlog queues that the query waits for, and those that it has found again."""
        for path in sorted(self._missing - missing):
            _log.info("backlog queue found again entity=%s", path)
        new, self._missing = sorted(missing - self._missing), missing
        for path in new:
            _log.warning("backlog queue not found, waiting for it entity=%s", path)
            await self._drainer.check(path)

    async def _supervise(self) -> None:
        """Restart the query whenever it ends; its errors are logged."""
        pause_s, primary = _BACKOFF.first_s, self._context.primary.endpoint
        scanning = self._tasks.start(self._scan_when_idle())
        try:
            while True:
                started_s = self._loop.time()
                is_failed = True
                try:
                    await self._run_query(await self._in_thread(self._start_query))
                    is_failed = False
                except (PySparkException, Py4JError, OSError) as error:
                    _log.warning('syphon query failed, restarting primary=%s error="%s"', primary, reason_of(error))
                except SessionLostError as error:
                    _log.warning('syphon stopped delivering primary=%s error="%s"', primary, error)
                except Exception:  # noqa: BLE001 (after any error the backlog has to be delivered)
                    _log.exception("syphon query failed unexpectedly, restarting primary=%s", primary)
                self._abandon_batch()
                if self._closing is not None or self._is_finishing:
                    return
                if self._unreached is not None:
                    await self._drainer.wait_for_primary(self._unreached)
                    self._unreached = None
                if self._delivered_s > started_s:
                    pause_s = _BACKOFF.first_s
                elif is_failed and pause_s > _BACKOFF.first_s and self._checkpoint is not None:
                    _log.warning("checkpoint abandoned, no data depends on it path=%s", self._checkpoint)
                    self._checkpoint = None
                await asyncio.sleep(pause_s)
                pause_s = _BACKOFF.after(pause_s)
        finally:
            scanning.cancel()

    async def _scan_when_idle(self) -> None:
        """Find messages that other syphons have deferred, when the queues become idle and regularly after that."""
        scanned_s = -_SCAN_S
        while True:
            await asyncio.sleep(_QUIET_S)
            now_s = self._loop.time()
            if self._is_idle.is_set() and now_s - self._worked_s >= _QUIET_S and now_s - scanned_s >= _SCAN_S:
                scanned_s = now_s
                await self._drainer.scan()

    # Batches. Spark calls these two in its own thread.

    def _obstacles(self) -> Obstacles | None:
        return self._on_loop(self._read_obstacles())

    def _note(self, number: int, outcomes: list[DeliveryOutcome], seconds: float) -> None:
        self._on_loop(self._record(number, outcomes, seconds))

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _read_obstacles(self) -> Obstacles | None:
        """Return what must not be sent; ``None`` if the query is to end.

        While the pair holds all entities, wait: there is no hurry to park the whole backlog.
        """
        ends_s = self._loop.time() + _HELD_S
        held = self._context.held()
        while held.is_all and self._loop.time() < ends_s and not self._is_finishing:
            await asyncio.sleep(_POLL_S)
            held = self._context.held()
        if self._unreached is not None or self._is_finishing:
            return None
        self._is_idle.clear()
        return Obstacles(held=held, busy=self._drainer.busy)

    async def _record(self, number: int, outcomes: list[DeliveryOutcome], seconds: float) -> None:
        """Record the outcomes of a batch. If the primary namespace is unreachable, stop the query."""
        for outcome in outcomes:
            if outcome.kind in (OutcomeKind.PARKED, OutcomeKind.FOUND):
                self._adopt(outcome)
            elif outcome.kind is OutcomeKind.DEAD_LETTERED:
                self._publish_dead_letter(outcome)
        dead = Counter(
            (one.queue, one.reason, one.description) for one in outcomes if one.kind is OutcomeKind.DEAD_LETTERED
        )
        for (queue, reason, description), count in dead.items():
            log_dead_letters(queue, count, reason or "", description or "")
        self._report(BatchReport.of(number, outcomes, seconds))
        self._is_idle.set()
        given_back = next((one.destination for one in outcomes if one.kind is OutcomeKind.GIVEN_BACK), None)
        if given_back is not None:
            self._pause_query(given_back)

    def _report(self, report: BatchReport) -> None:
        report = replace(report, repeats_at_most=self._repeats_at_most)
        self._counts.update(report.counts)
        self._worked_s = self._loop.time()
        if report.delivered:
            self._delivered_s = self._worked_s
        for path in report.destinations:
            self._drainer.note_delivery(path)
        _log.info(
            'batch completed primary=%s batch=%d delivered=%d outcomes="%s" seconds=%.1f',
            self._context.primary.endpoint,
            report.batch,
            report.delivered,
            report.outcomes,
            report.seconds,
        )
        if self._on_batch is not None:
            self._on_batch(report)

    def _pause_query(self, path: str) -> None:
        """Stop the query until the primary namespace is reachable.

        Messages that were given back have to be received before those that the query holds, and no message should stay
        locked meanwhile.
        """
        if self._query is not None and self._unreached is None and self._closing is None:
            self._unreached = path
            self._tasks.start(self._stop(self._query))

    async def _stop(self, query: StreamingQuery) -> None:
        with suppress(PySparkException, Py4JError, OSError):  # the JVM may have ended
            await asyncio.to_thread(query.stop)

    def _adopt(self, outcome: DeliveryOutcome) -> None:
        for number in outcome.numbers:
            self._drainer.adopt(outcome.queue, outcome.destination or "", number, outcome.session_id)

    def _publish_dead_letter(self, outcome: DeliveryOutcome) -> None:
        self._context.publish(
            MessageDeadLettered(
                at=datetime.now(UTC),
                backlog_queue=outcome.queue,
                message_id=outcome.message_id or "",
                path=outcome.destination,
                reason=outcome.reason or "",
                description=outcome.description or "",
            )
        )

    # Close.

    async def finish(self) -> None:
        """Wait for the current batch, however long it takes, so that its messages are counted; start no other."""
        self._is_finishing = True
        with suppress(PySparkException, Py4JError, OSError):  # the JVM may have ended
            await (self._finish_remote_batch() if self._is_remote else self._finish_batch())

    async def _finish_batch(self) -> None:
        """Wait for the report of the current batch; if its query fails there is none."""
        while not self._is_idle.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_idle.wait(), _WAIT_S)
            if not self._is_idle.is_set() and not await asyncio.to_thread(self._is_active):
                self._abandon_batch()

    def _is_active(self) -> bool:
        try:
            return self._query is not None and bool(self._query.isActive)
        except (PySparkException, Py4JError, OSError):  # the JVM has ended
            return False

    def _abandon_batch(self) -> None:
        """Note that the current batch will not report."""
        if not self._is_idle.is_set():
            self._uncounted += 1
            self._is_idle.set()
            _log.warning(
                "batch ended without a report, its messages are not counted primary=%s", self._context.primary.endpoint
            )

    @property
    def _is_remote(self) -> bool:
        """True if the query runs on a Spark Connect server."""
        return self._session is not None and is_remote(self._session)

    async def _finish_remote_batch(self) -> None:
        """Wait for the progress of the current batch. Spark Connect cannot be kept from starting another one."""
        query, last_batch = self._query, self._last_batch
        while query is not None and self._last_batch == last_batch and await asyncio.to_thread(is_processing, query):
            await asyncio.sleep(_POLL_S)
            await self._poll(query)

    async def close(self) -> None:
        """Stop, after the current batch if it ends within half a minute. Idempotent."""
        self._is_finishing = True
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._finish_batch(), _CLOSE_S)
        self._abandon_batch()
        async with AsyncExitStack() as steps:  # each step is taken, even if another one fails; the last one first
            steps.callback(self._files.close)
            steps.push_async_callback(asyncio.to_thread, self._release_session)
            steps.push_async_callback(self._drainer.close)
            steps.push_async_callback(self._tasks.close)
            steps.push_async_callback(self._stop_query)
            steps.push_async_callback(self._finish_thread_work)

    async def _finish_thread_work(self) -> None:
        """Wait for a query that is being started, so that it can be stopped."""
        if self._supervision is not None:
            self._supervision.cancel()
        if self._thread_work is not None:
            await asyncio.wait((self._thread_work,))
            if not self._thread_work.cancelled():
                self._thread_work.exception()

    async def _stop_query(self) -> None:
        query = self._query
        if query is None:
            return
        with suppress(PySparkException, Py4JError, OSError):  # the JVM may have ended
            is_interrupted = self._is_remote and await asyncio.to_thread(is_processing, query)
            await asyncio.to_thread(query.stop)
            if is_interrupted:
                self._uncounted += 1
            if self._is_remote:
                await self._poll(query)


def spark_engine(settings: SparkSyphonSettings, reporter: ProgressReporter) -> Engine:
    """Return an engine whose syphons report each batch."""

    def report(batch: BatchReport) -> None:
        reporter.report(batch_line(batch))

    def create(context: SyphonContext) -> SparkSyphon:
        text = f"starting Spark on {settings.master}, which takes some seconds"
        reporter.report(ReportLine(event="spark", text=text, facts={"master": settings.master}))
        return SparkSyphon(context, settings, report)

    return create


def batch_line(report: BatchReport) -> ReportLine:
    counts: dict[str, Fact] = {
        kind.value.replace(" ", "_").replace("-", "_"): report.counts.get(kind, 0) for kind in OutcomeKind
    }
    facts: dict[str, Fact] = {"batch": report.batch, **counts, "seconds": round(report.seconds, 3)}
    if report.repeats_at_most is not None:
        facts["repeats_at_most"] = report.repeats_at_most
    return ReportLine(event="batch", text=str(report), facts=facts)
