"""The syphon whose work is done on Spark; an engine that a pair can have."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pairbus.jobs.reason import reason_of
from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.jobs.syphon.connection_files import ConnectionFiles
from pairbus.jobs.syphon.outcome import Kind, Outcome
from pairbus.jobs.syphon.query import Obstacles, SyphonQuery, is_processing, is_remote, receives_of, reports_of
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.pairing.events import MessageDeadLettered
from pairbus.pairing.pump.stragglers import Stragglers
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon import SyphonContext
from pairbus.spark.session import LIGHT, ensured_session, is_alive, is_local

_log = logging.getLogger(__name__)
T = TypeVar("T")

SPARK: Final = "spark"
"""The engine, as ``syphon_engine`` names it."""

_LOOPBACK: Final = ("spark://127.", "spark://localhost:", "spark://[::1]:")
_ANYWHERE: Final = "x-pairbus-syphon"
"""A path of the primary at which nothing is; that we are told so shows that it answers."""

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_QUIET_S: Final = 10.0
_HEAR_S: Final = 1.0
_END_S: Final = 1
"""How long one wait for the end of a query lasts."""

_HELD_S: Final = 60.0
_LOOK_S: Final = 3_600.0
"""How often idle queues are looked at for what somebody else has parked."""

_FAREWELL_S: Final = 30.0


class SessionLostError(RuntimeError):
    """The Spark session that a syphon was given has ended."""


class SyphonQueryError(RuntimeError):
    """The query of a syphon has failed."""


class SparkSyphon:
    """Runs the streaming query, and starts it again if it fails; what is parked is brought home in this process.

    All that it knows is in the backlog: it may die at any point, with or without its checkpoint.
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
        self._stragglers = Stragglers(context)
        self._files = ConnectionFiles()
        self._counts: Counter[Kind] = Counter()
        self._receives = 0
        self._heard = -1
        self._received_before = 0
        """By queries that have ended."""

        self._lease: AbstractContextManager[SparkSession] | None = None
        self._session: SparkSession | None = None
        self._query: StreamingQuery | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._worked_s = self._loop.time()
        self._delivered_s = -math.inf
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._is_finishing = False
        self._uncounted = 0
        self._is_draining = False
        self._doing: asyncio.Future[Any] | None = None
        self._missed: str | None = None
        """A destination whose messages were given back because the primary namespace was away."""

        self._closing: asyncio.Task[None] | None = None

    @property
    def status(self) -> SyphonStatus:
        parked = self._stragglers.status
        return SyphonStatus(
            engine=SPARK,
            receives=self._receives,
            syphoned=self._counts[Kind.DELIVERED] + self._counts[Kind.UNREMOVED] + parked.syphoned,
            dead_lettered=self._counts[Kind.DEAD_LETTERED] + parked.dead_lettered,
            waiting=parked.waiting,
        )

    @property
    def counts(self) -> dict[Kind, int]:
        """What became of the messages of all batches so far."""
        return dict(self._counts)

    @property
    def uncounted_batches(self) -> int:
        """How many batches ended without a report. What they brought home is in no count."""
        return self._uncounted

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            raise RuntimeError("it has not been started")
        return self._session

    def resume(self, path: str) -> None:
        """The pair sends to an entity again that was held."""
        self._stragglers.resume(path)

    # Running.

    async def start(self) -> None:
        """Begin; raises what makes that impossible. A session that has to be started first takes its time."""
        await self._open()
        self._supervision = self._loop.create_task(self._supervise())

    async def drain(self) -> None:
        """Bring home what is there now, and end. What cannot be delivered at the moment stays parked."""
        await self._open()
        self._is_draining = True
        try:
            await self._attend(await self._in_thread(partial(self._start_query, once=True)))
        except (PySparkException, Py4JError) as error:
            raise SyphonQueryError(reason_of(error)) from None  # Spark's own goes on for pages, and needs its Java
        await self._stragglers.look()
        await self._stragglers.rest()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Have something done that cannot be interrupted: whoever stops waiting for it leaves it to ``close``."""
        doing = self._doing = self._loop.run_in_executor(None, work)
        return await asyncio.shield(doing)

    async def _open(self) -> None:
        try:
            await self._stragglers.start()
            await self._in_thread(self._open_session)
            self._describe()  # what is wrong with it is told now
        except BaseException:
            await self.close()
            raise

    def _open_session(self) -> None:
        settings = self._settings
        if settings.session is not None:
            self._session = settings.session
            return
        config = {**(LIGHT if settings.master.startswith("local") else {}), **settings.config}
        self._lease = ensured_session(settings.master, app_name="pairbus syphon", config=config)
        self._session = self._lease.__enter__()

    @property
    def _is_here(self) -> bool:
        """Whether everything runs on this machine."""
        if is_remote(self._spark):
            return False
        master = self._spark.sparkContext.master or ""
        return is_local(master) or master.startswith(_LOOPBACK)

    def _renew_session(self) -> None:
        """Java has died, or somebody has stopped the session."""
        if self._settings.session is not None:
            raise SessionLostError("the Spark session that the syphon was given has ended; give it another one")
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
                "executors on other machines have to find the connection strings for themselves: say where,"
                " with SparkSyphonSettings(primary='env:NAME', secondary='env:NAME') or file:/path"
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
        self._on_loop(self._stragglers.look_ahead())
        self._received_before = self._receives
        self._heard = -1
        query = self._describe()
        if is_remote(self._spark):
            self._query = query.start_remotely(self._spark, once=once)
        else:
            self._query = query.start(self._spark, self._obstacles, self._note, once=once)
        return self._query

    async def _attend(self, query: StreamingQuery) -> None:
        """Wait until a query ends; raises why, if it was not to."""
        hearing = self._loop.create_task(self._hear_often(query))
        try:
            # In short waits: whoever ends its loop without closing this waits for one of them, and not for the query.
            while not await asyncio.to_thread(query.awaitTermination, _END_S):
                pass
        finally:
            hearing.cancel()
            await asyncio.wait((hearing,))
        await self._hear(query)

    async def _hear_often(self, query: StreamingQuery) -> None:
        while True:
            await asyncio.sleep(_HEAR_S if is_remote(self._spark) else _QUIET_S)
            with suppress(PySparkException, Py4JError, OSError):  # it ends
                await self._hear(query)

    async def _hear(self, query: StreamingQuery) -> None:
        """Ask a query how it goes, which takes a moment. One that runs elsewhere tells of its batches only so."""
        progresses = await asyncio.to_thread(lambda: query.recentProgress)
        if not progresses:
            return
        self._receives = self._received_before + receives_of(progresses[-1])
        for report in reports_of(progresses, self._heard):
            self._heard = report.batch
            self._report(report)
            if report.counts[Kind.PARKED]:
                await self._stragglers.look()
            if report.counts[Kind.GIVEN_BACK]:
                self._leave(_ANYWHERE)

    async def _supervise(self) -> None:
        """Keep the query running; what ends it is told, and does not end the syphon."""
        pause_s = _FIRST_PAUSE_S
        looking = self._loop.create_task(self._watch())
        try:
            while True:
                started_s = self._loop.time()
                is_failed = True
                try:
                    await self._attend(await self._in_thread(self._start_query))
                    is_failed = False
                except (PySparkException, Py4JError, OSError) as error:
                    _log.warning("the query of the syphon starts again after: %s", reason_of(error))
                except SessionLostError as error:
                    _log.warning("nothing is brought home: %s", error)
                except Exception:  # noqa: BLE001 (whatever it is, the backlog has to be brought home)
                    _log.exception("the query of the syphon starts again after an unexpected error")
                self._abandon_batch()
                if self._closing is not None or self._is_finishing:
                    return
                if self._missed is not None:
                    await self._stragglers.wait_for_primary(self._missed)
                    self._missed = None
                if self._delivered_s > started_s:
                    pause_s = _FIRST_PAUSE_S
                elif is_failed and pause_s > _FIRST_PAUSE_S and self._checkpoint is not None:
                    _log.warning("the checkpoint %s is not used any more; nothing depends on it", self._checkpoint)
                    self._checkpoint = None
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            looking.cancel()

    async def _watch(self) -> None:
        """When nothing comes any more, see what others have left parked; and now and then after that."""
        looked_s = -_LOOK_S
        while True:
            await asyncio.sleep(_QUIET_S)
            now_s = self._loop.time()
            if self._at_rest.is_set() and now_s - self._worked_s >= _QUIET_S and now_s - looked_s >= _LOOK_S:
                looked_s = now_s
                await self._stragglers.look()

    # Batches. Spark calls these two in a thread of its own.

    def _obstacles(self) -> Obstacles | None:
        return self._on_loop(self._see_obstacles())

    def _note(self, number: int, outcomes: list[Outcome], seconds: float) -> None:
        self._on_loop(self._take_note(number, outcomes, seconds))

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _see_obstacles(self) -> Obstacles | None:
        """What must not be sent; ``None`` if nothing is to be sent any more.

        While the pair holds all that it knows, there is no hurry to park everything.
        """
        ends_s = self._loop.time() + _HELD_S
        held = self._context.held()
        while held.is_all and self._loop.time() < ends_s and not self._is_finishing:
            await asyncio.sleep(_HEAR_S)
            held = self._context.held()
        if self._missed is not None or self._is_finishing:
            return None
        self._at_rest.clear()
        return Obstacles(held=held, busy=self._stragglers.busy)

    async def _take_note(self, number: int, outcomes: list[Outcome], seconds: float) -> None:
        """Tell what has happened. If the primary namespace is away, this query ends."""
        for outcome in outcomes:
            if outcome.kind in (Kind.PARKED, Kind.FOUND):
                self._adopt(outcome)
            elif outcome.kind is Kind.DEAD_LETTERED:
                self._tell_dead_letter(outcome)
        dead = Counter((one.queue, one.description) for one in outcomes if one.kind is Kind.DEAD_LETTERED)
        for (queue, description), count in dead.items():
            _log.warning("%d messages of '%s' were dead-lettered: %s", count, queue, description)
        self._report(BatchReport.of(number, outcomes, seconds))
        self._at_rest.set()
        given_back = next((one.destination for one in outcomes if one.kind is Kind.GIVEN_BACK), None)
        if given_back is not None:
            self._leave(given_back)

    def _report(self, report: BatchReport) -> None:
        self._counts.update(report.counts)
        self._worked_s = self._loop.time()
        if report.delivered:
            self._delivered_s = self._worked_s
        _log.info("%s", report)
        if self._on_batch is not None:
            self._on_batch(report)

    def _leave(self, path: str) -> None:
        """The primary namespace is away. What was given back has to come before what waits already, and nothing is to
        be kept locked meanwhile: so the query ends, and begins anew when there is somewhere to go.
        """
        if self._query is not None and self._missed is None and self._closing is None:
            self._missed = path
            self._loop.run_in_executor(None, self._query.stop)

    def _adopt(self, outcome: Outcome) -> None:
        for number in outcome.numbers:
            self._stragglers.adopt(outcome.queue, outcome.destination or "", number, outcome.session_id)

    def _tell_dead_letter(self, outcome: Outcome) -> None:
        self._context.tell(
            MessageDeadLettered(
                at=datetime.now(UTC),
                backlog_queue=outcome.queue,
                message_id=outcome.message_id or "",
                path=outcome.destination,
                reason=outcome.reason or "",
                description=outcome.description or "",
            )
        )

    # The end.

    async def finish(self) -> None:
        """Wait for the batch under way, however long it takes, and start no other: its messages are counted then."""
        self._is_finishing = True
        with suppress(PySparkException, Py4JError, OSError):  # Java may be gone
            await (self._finish_remote_batch() if self._is_elsewhere else self._finish_batch())

    async def _finish_batch(self) -> None:
        """Wait for the report of the batch under way; if its query fails there is none."""
        while not self._at_rest.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._at_rest.wait(), _END_S)
            if not self._at_rest.is_set() and not await asyncio.to_thread(self._is_active):
                self._abandon_batch()

    def _is_active(self) -> bool:
        try:
            return self._query is not None and bool(self._query.isActive)
        except (PySparkException, Py4JError, OSError):  # Java is gone
            return False

    def _abandon_batch(self) -> None:
        """Note that no report of the batch under way will come."""
        if not self._at_rest.is_set():
            self._uncounted += 1
            self._at_rest.set()
            _log.warning("batch ended without a report: the messages that it brought home are not counted")

    @property
    def _is_elsewhere(self) -> bool:
        """Whether the query runs on a Spark Connect server."""
        return self._session is not None and is_remote(self._session)

    async def _finish_remote_batch(self) -> None:
        """Wait for the progress of the batch under way. Spark Connect cannot be kept from starting another one."""
        query, heard = self._query, self._heard
        while query is not None and self._heard == heard and await asyncio.to_thread(is_processing, query):
            await asyncio.sleep(_HEAR_S)
            await self._hear(query)

    async def close(self) -> None:
        """Stop; a batch that is under way is finished, if that takes no more than half a minute.

        To close twice is fine.
        """
        self._is_finishing = True
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._finish_batch(), _FAREWELL_S)
        self._abandon_batch()
        async with AsyncExitStack() as steps:  # each is done, whatever becomes of the others; the last one first
            steps.callback(self._files.close)
            steps.push_async_callback(asyncio.to_thread, self._release_session)
            steps.push_async_callback(self._stragglers.close)
            steps.push_async_callback(self._end_supervision)
            steps.push_async_callback(self._stop_query)
            steps.push_async_callback(self._finish_doing)

    async def _finish_doing(self) -> None:
        """What is being started may come up after all, and has to be stopped then."""
        if self._supervision is not None:
            self._supervision.cancel()
        if self._doing is not None:
            await asyncio.wait((self._doing,))
            if not self._doing.cancelled():
                self._doing.exception()

    async def _stop_query(self) -> None:
        query = self._query
        if query is None:
            return
        with suppress(PySparkException, Py4JError, OSError):  # Java may be gone
            is_cut_short = self._is_elsewhere and await asyncio.to_thread(is_processing, query)
            await asyncio.to_thread(query.stop)
            if is_cut_short:
                self._uncounted += 1
            if self._is_elsewhere:
                await self._hear(query)

    async def _end_supervision(self) -> None:
        if self._supervision is not None:
            self._supervision.cancel()
            await asyncio.wait((self._supervision,))
