"""A syphon that runs on its own, without a pair, in a process that sends nothing else: its command and its progress."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pairbus.client.errors import EntityNotFoundError, MessagingError, UnauthorizedError
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.jobs.lines import (
    DONE,
    FAILED,
    WAITING,
    CommandResult,
    Fact,
    Progress,
    ProgressReporter,
    ReportLine,
    reported_logs,
)
from pairbus.jobs.syphon.backlog_report import BacklogDepth, BacklogReport, BacklogSnapshot, find_backlog_queues
from pairbus.jobs.syphon.settings import SyphonConfig
from pairbus.pairing.events import PairEvent
from pairbus.pairing.guarantee import NOT_LOOKED_UP, DestinationGuarantee
from pairbus.pairing.pair import end_together
from pairbus.pairing.primary_names import await_final_names, find_primary_names
from pairbus.pairing.status import SyphonStatus
from pairbus.pairing.syphon.destination import NamespaceHealth
from pairbus.pairing.syphon.interface import Syphon, SyphonContext
from pairbus.pairing.syphon.runner import InProcessSyphon

T = TypeVar("T")

_ATTEMPT_S: Final = 5.0
_ANYWHERE: Final = "x-pairbus-syphon"
"""A path without an entity: any response shows that the namespace is reachable."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_MAX_TEXT: Final = 1_000
_POLL_S: Final = 5.0
_LINE_S: Final = 10.0
"""Shortest time between two lines of progress."""

_DRAIN_POLL_S: Final = 0.25
_QUIET_S: Final = 7.0
"""Time without a delivery after which none is expected: a destination that does not respond times out after 5 s."""


class DrainableSyphon(Syphon, Protocol):
    """A syphon that can end on its own."""

    @property
    def uncounted_batches(self) -> int:
        """Number of interrupted batches, whose messages the status does not count."""

    async def finish(self) -> None:
        """Wait for the current batch, and start no other."""

    async def drain(self) -> None:
        """Deliver the existing messages, and return; messages that cannot be delivered at the moment stay."""


Engine = Callable[[SyphonContext], DrainableSyphon]


# The command.


def run_syphon(config: SyphonConfig, engine: Engine, reporter: ProgressReporter) -> CommandResult:
    """Run a syphon. The first signal ends it after the messages under way, the second one ends the process."""
    with reported_logs(reporter):
        try:
            left = asyncio.run(_run(config, engine, reporter))
        except MessagingError as error:
            return CommandResult(code=FAILED, reason=_one_line(str(error)))
        except Exception as error:  # noqa: BLE001 (any error is reported in one line, and ends the command)
            return CommandResult(code=FAILED, reason=_first_line(error))
    return _result(left, reporter)


async def _run(config: SyphonConfig, engine: Engine, reporter: ProgressReporter) -> BacklogReport:
    return await StandaloneSyphon(config, engine, reporter).run(_stop_on_signals(reporter))


def _stop_on_signals(reporter: ProgressReporter) -> asyncio.Event:
    """Return an event that the first signal sets.

    The next signal has its default effect and ends the process, so the terminal is restored before.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        stopped.set()
        reporter.rest()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        reporter.report(ReportLine(event="stopping", text="stopping after the messages under way"))

    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    return stopped


def _result(left: BacklogReport, reporter: ProgressReporter) -> CommandResult:
    if not left:
        return CommandResult(code=DONE)
    for path, count in left.counts.items():
        cause = left.cause_of(path)
        facts: dict[str, Fact] = {"destination": path, "messages": count, "cause": cause}
        text = f"{count:,} messages for '{path}' wait: {cause}"
        reporter.report(ReportLine(event="waiting", text=text, facts=facts, is_warning=True))
    return CommandResult(code=WAITING, reason=left.summary)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _first_line(error: Exception) -> str:
    """Return the first line of an error: those of Spark are pages long."""
    return _one_line(str(error).strip().partition("\n")[0])[:_MAX_TEXT] or type(error).__name__


class StandaloneSyphon:
    """Provides what a pair provides for its syphon: two factories that are closed together, and the backlog queues."""

    def __init__(self, config: SyphonConfig, engine: Engine, reporter: ProgressReporter) -> None:
        self._config = config
        self._engine = engine
        self._reporter = reporter

    async def run(self, stopped: asyncio.Event) -> BacklogReport:
        """Deliver messages until ``stopped``, or once; return what is left. Raise ``MessagingError``."""
        config = self._config
        first, second = config.primary.resolve(), config.secondary.resolve()
        async with (
            _factory(second) as secondary,
            _factory(first) as primary,
            NamespaceManager.from_connection_string(second) as manager,
            _beside(self._greet(secondary), self._greet(primary)) as greetings,
        ):
            find = partial(find_backlog_queues, manager, secondary, count=config.backlog_queues)
            names = await _unless(stopped, find_primary_names(primary, manager, config.name))
            queues = None if names is None else await _unless(stopped, find(names))
            if names is None or queues is None:
                return self._end_early("nothing was delivered")
            context = SyphonContext(
                primary=primary,
                secondary=secondary,
                backlog_queues=queues,
                settings=config.settings,
                is_held=_is_held,
                publish=_ignore,
            )
            self._report_start(context)
            if (
                not names.is_final and not config.once
            ):  # the backlog queues are known once the primary has announced its name
                names = await _unless(stopped, await_final_names(primary))
                queues = None if names is None else await _unless(stopped, find(names))
                if queues is None:
                    return self._end_early("nothing was delivered")
                context = replace(context, backlog_queues=queues)
            watch = DepthWatch(self._reporter, BacklogDepth(manager, queues))
            try:
                if config.once:
                    return await self._once(context, watch, stopped, greetings)
                return await self._run(context, watch, stopped)
            except MessagingError as error:
                raise _explained(error, context) from error

    async def _greet(self, factory: MessagingFactory) -> None:
        """Report soon that a namespace does not respond; a failed connection is logged by the factory."""
        with suppress(MessagingError):  # the request that needs the namespace reports the error
            try:
                async with asyncio.timeout(_ATTEMPT_S):
                    await factory.greet(_ANYWHERE)
            except TimeoutError:
                self._warn("silent", f"{factory.endpoint} has not responded within {_ATTEMPT_S:g} s; retrying", factory)
            except UnauthorizedError as error:  # while the backlog is empty, no other request would show it
                text = f"{factory.endpoint} rejects the key: {error.message}; a key of single entities may still work"
                self._warn("refused", text, factory)

    def _warn(self, event: str, text: str, factory: MessagingFactory) -> None:
        self._reporter.report(
            ReportLine(event=event, text=text, facts={"namespace": str(factory.endpoint)}, is_warning=True)
        )

    async def _run(self, context: SyphonContext, watch: DepthWatch, stopped: asyncio.Event) -> BacklogReport:
        syphon = self._engine(context)
        async with _closing(syphon):
            await _unless(stopped, syphon.start())
            await self._attend(context, watch.follow(syphon), stopped.wait())
            await syphon.finish()
        watch.end(syphon.status, syphon.uncounted_batches)
        return BacklogReport()

    async def _once(
        self,
        context: SyphonContext,
        watch: DepthWatch,
        stopped: asyncio.Event,
        greetings: Collection[asyncio.Future[None]],
    ) -> BacklogReport:
        snapshot = await _unless(stopped, BacklogSnapshot.take(context.secondary, context.backlog_queues))
        if not snapshot:
            await _unless(stopped, asyncio.wait(greetings))  # no other request would show that a key is wrong
            return self._end_early("nothing was delivered" if snapshot is None else "the backlog is empty")
        unreachable = await _unreachable(context.primary)
        if unreachable is not None:
            return await snapshot.report({"": unreachable})
        syphon = self._engine(context)
        async with _closing(syphon):
            await self._attend(context, watch.follow(syphon), stopped.wait(), syphon.drain())
            waiting = syphon.status.waiting
            await syphon.finish()
        watch.end(syphon.status, syphon.uncounted_batches)
        causes = {path: _with_advice(cause, "--primary", "Send") for path, cause in waiting.items()}
        return await snapshot.report(causes)

    async def _attend(
        self, context: SyphonContext, watching: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, object]
    ) -> None:
        """Wait until one of ``ends`` returns. Raise ``MessagingError`` if a factory is closed before."""
        ending = asyncio.ensure_future(end_together(context.primary, context.secondary))
        background = asyncio.ensure_future(watching)
        tasks = [asyncio.ensure_future(end) for end in ends]
        try:
            await asyncio.wait([ending, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if ending.done():
                raise MessagingError(
                    f"the factory of {context.primary.endpoint} or {context.secondary.endpoint} was closed"
                )
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in (ending, background, *tasks):
                task.cancel()
            await asyncio.gather(ending, background, *tasks, return_exceptions=True)

    def _end_early(self, text: str) -> BacklogReport:
        self._report("ended", text, **_totals(0, 0))
        return BacklogReport()

    def _report_start(self, context: SyphonContext) -> None:
        count = len(context.backlog_queues)
        self._report(
            "starting",
            f"delivering the messages of {count:,} backlog {'queue' if count == 1 else 'queues'} of"
            f" {context.secondary.endpoint} to {context.primary.endpoint}",
            primary=str(context.primary.endpoint),
            secondary=str(context.secondary.endpoint),
            backlog_queues=count,
        )

    def _report(self, event: str, text: str, **facts: str | int) -> None:
        self._reporter.report(ReportLine(event=event, text=text, facts=facts))


@asynccontextmanager
async def _factory(connection_string: str) -> AsyncIterator[MessagingFactory]:
    async with MessagingFactory.from_connection_string(connection_string) as factory:
        factory.limit_send_attempts(_ATTEMPT_S)
        yield factory


@asynccontextmanager
async def _beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[Collection[asyncio.Future[None]]]:
    """Run coroutines during the block, and cancel them at its end."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _unless(stopped: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of ``work``; ``None`` if it was cancelled because of a signal."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((doing, stopping), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, stopping):
            task.cancel()
        await asyncio.gather(doing, stopping, return_exceptions=True)


@asynccontextmanager
async def _closing(syphon: Syphon) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await syphon.close()


def _explained(error: MessagingError, context: SyphonContext) -> MessagingError:
    """Return the error with advice on the options of the command."""
    if error.entity not in context.backlog_queues:
        return error
    if isinstance(error, EntityNotFoundError):
        return EntityNotFoundError(
            f"{context.secondary.endpoint} has no backlog queue '{error.entity}': omit --backlog-queues to read"
            " those that exist, check that --primary and --secondary are not swapped, or create them with pairbus pair",
            entity=error.entity,
        )
    return _with_advice(error, "--secondary", "Listen")


def _with_advice(error: MessagingError, option: str, claim: str) -> MessagingError:
    if not isinstance(error, UnauthorizedError):
        return error
    advised = error.copy()
    advised.hint = f"check the key of {option}, and that it has the claim {claim}"
    return advised


async def _unreachable(primary: MessagingFactory) -> MessagingError | None:
    """Return why the primary namespace is unreachable; ``None`` if it is reachable."""
    health = NamespaceHealth(primary, lambda: None)
    await health.doubt(_ANYWHERE, asyncio.get_running_loop().time())
    cause = health.cause
    await health.close()
    return cause


def _is_held(path: str) -> bool:
    return False  # without a pair no entity is held


def _ignore(event: PairEvent) -> None:
    """Ignore events: they are logged as well."""


# Progress.


class DepthWatch:
    """Reports the progress of a syphon. It reads the depth of the backlog only after a change, as reads are billed."""

    def __init__(self, reporter: ProgressReporter, depth: BacklogDepth) -> None:
        self._reporter = reporter
        self._depth = depth
        self._guarantees: dict[str, DestinationGuarantee] = {}
        """The reported guarantees of destinations, by path."""

    async def follow(self, syphon: Syphon) -> None:
        """Report progress until cancelled."""
        loop = asyncio.get_running_loop()
        shown: tuple[object, ...] | None = None
        reported, reported_s = (0, 0), loop.time()
        while True:
            status = syphon.status
            self._report_guarantees({path: one for path, one in status.guarantees.items() if one is not NOT_LOOKED_UP})
            moved = (status.syphoned, status.dead_lettered)
            if (seen := (*moved, *sorted(status.waiting))) != shown:
                shown = seen
                progress = Progress(delivered=moved[0], dead_lettered=moved[1], depth=await self._read_depth())
                self._reporter.show(progress)
                if moved != reported and loop.time() - reported_s >= _LINE_S:
                    reported, reported_s = moved, loop.time()
                    self._reporter.report(_progress_line(progress))
            await asyncio.sleep(_POLL_S)

    def _report_guarantees(self, found: Mapping[str, DestinationGuarantee]) -> None:
        """Report destinations that are new, or whose guarantee has become known."""
        for path, guarantee in found.items():
            if self._guarantees.get(path) != guarantee:
                self._guarantees[path] = guarantee
                facts: dict[str, Fact] = {"destination": path, **guarantee.facts}
                text = f"'{path}' gets each message {guarantee}"
                self._reporter.report(ReportLine(event="destination", text=text, facts=facts))

    async def _read_depth(self) -> int | None:
        try:
            return await self._depth.read()
        except MessagingError:
            return None  # the next poll may succeed

    def end(self, status: SyphonStatus, uncounted_batches: int) -> None:
        """Report the totals, which are a minimum if batches were interrupted."""
        self._report_guarantees(status.guarantees)
        text = f"{status.syphoned:,} messages were delivered, {status.dead_lettered:,} dead-lettered"
        facts: dict[str, Fact] = {**_totals(status.syphoned, status.dead_lettered)}
        if uncounted_batches:
            text += f"; {uncounted_batches:,} batches were interrupted, and their messages are not counted"
            facts["uncounted_batches"] = uncounted_batches
            if status.repeats_at_most is not None:
                text += f"; up to {status.repeats_at_most:,} of them may have been sent and are sent again"
                facts["repeats_at_most"] = status.repeats_at_most
        self._reporter.report(ReportLine(event="ended", text=text, facts=facts, is_warning=uncounted_batches > 0))


def _progress_line(progress: Progress) -> ReportLine:
    depth = "" if progress.depth is None else f", {progress.depth:,} in the backlog"
    return ReportLine(
        event="progress",
        text=f"{progress.delivered:,} delivered{depth}",
        facts={**_totals(progress.delivered, progress.dead_lettered), "backlog": progress.depth},
    )


def _totals(delivered: int, dead_lettered: int) -> dict[str, int]:
    """Return the totals of a line. ``brought_home`` is the former name of ``delivered``."""
    return {"delivered": delivered, "dead_lettered": dead_lettered, "brought_home": delivered}


# The engine without Spark.


class DrainingSyphon(InProcessSyphon):
    """The in-process syphon, which can also end when no more messages can be delivered."""

    def __init__(self, context: SyphonContext) -> None:
        super().__init__(context)
        self._secondary = context.secondary
        self._queues = context.backlog_queues

    @property
    def uncounted_batches(self) -> int:
        """0: there are no batches, and each message is counted when it is settled."""
        return 0

    async def finish(self) -> None:
        """Do nothing: ``close`` settles the messages under way."""

    async def drain(self) -> None:
        """Deliver the existing messages, and return. Messages that cannot be delivered at the moment stay parked."""
        snapshot = await BacklogSnapshot.take(self._secondary, self._queues)
        await self.start()
        loop = asyncio.get_running_loop()
        moved, moved_s = 0, loop.time()
        while not await snapshot.is_gone():
            status = self.status
            if moved != status.syphoned + status.dead_lettered:
                moved, moved_s = status.syphoned + status.dead_lettered, loop.time()
            elif loop.time() - moved_s >= _QUIET_S:
                break
            await asyncio.sleep(_DRAIN_POLL_S)
        await self._guarantees.settle()
