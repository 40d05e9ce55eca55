"""``pairbus demo``: start everything the demo needs, run its steps, and stop everything again."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, TypeVar

from rich.console import Console

from pairbus.cli.demo.namespace import DemoNamespace, NamespaceStartError
from pairbus.cli.demo.outage import ENTITIES, SETTLED_S, DemoError, Outage, Plan
from pairbus.cli.demo.outcome import DemoOutcome
from pairbus.cli.demo.screen import DemoTimeline, Screen, opened_screen
from pairbus.cli.demo.spark_work import Ledgers, SparkWork
from pairbus.cli.failure import FAILED, STOPPED
from pairbus.client import MessagingError
from pairbus.jobs.ledger.tables import LedgerReadError
from pairbus.jobs.syphon.outcome import BatchReport
from pairbus.spark.java import JavaNotFoundError
from pairbus.spark.session import SparkStartError

_STDERR: Final = 2


@contextmanager
def errors_to(file: Path) -> Iterator[None]:
    """Redirect standard error to a file by its descriptor, so that child processes such as Java write to it too."""
    sys.stderr.flush()
    before = os.dup(_STDERR)
    try:
        with file.open("ab") as log:
            os.dup2(log.fileno(), _STDERR)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        os.close(before)


T = TypeVar("T")

__all__ = ["Plan", "perform"]

_LAST_LINES: Final = 20
_LIKE_CTRL_C: Final = (signal.SIGTERM, signal.SIGHUP)
_EXPECTED: Final = (
    DemoError,
    JavaNotFoundError,
    LedgerReadError,
    MessagingError,
    NamespaceStartError,
    SparkStartError,
)


def perform(plan: Plan, console: Console) -> int:
    """Run the demo and return its exit status. Remove everything it created, however it ends."""
    with TemporaryDirectory(prefix="pairbus-demo-", ignore_cleanup_errors=True) as directory:
        log = Path(directory) / "log.txt"
        try:
            with _signals_as_interrupt(), errors_to(log):
                return _Performance(plan, console, Path(directory)).run()
        except KeyboardInterrupt:
            print("pairbus: stopped", file=sys.stderr)
            return STOPPED
        except _EXPECTED as error:
            _print_failure(str(error), log)
        except Exception:  # noqa: BLE001 (any error ends the demo and is printed)
            _print_failure(traceback.format_exc(), log)
    return FAILED


class _Performance:
    """Two namespaces, Spark, and the steps that use them."""

    def __init__(self, plan: Plan, console: Console, directory: Path) -> None:
        self._plan = plan
        self._console = console
        self._primary = DemoNamespace("contoso", directory, ENTITIES)
        self._secondary = DemoNamespace("fabrikam", directory)
        self._spark = SparkWork()

    def run(self) -> int:
        with ExitStack() as stack:
            for each in (self._primary, self._secondary, self._spark):
                stack.enter_context(each)
            with opened_screen(self._console) as screen:
                outcome = asyncio.run(announce_stop(self._play(screen), screen))
            outcome.print(self._console)
            if self._plan.is_kept:
                self._spark.stop()
                keep(self._primary, self._secondary, self._console)
        return 0 if outcome.is_fine else FAILED

    async def _play(self, screen: Screen) -> DemoOutcome:
        acts = DemoTimeline(screen)
        with acts.act("Start two namespaces and Spark"):
            await self._open(screen)

        def report(batch: BatchReport) -> None:
            screen.report(f"The syphon: {batch}.")

        aftermath = await Outage(
            self._primary, self._secondary, screen, acts, self._plan, self._spark.engine(report)
        ).run()
        ledgers = Ledgers(primary=self._primary.ledger, secondary=self._secondary.ledger)
        with acts.act("Reconcile the ledgers"):
            await asyncio.sleep(SETTLED_S)
            proof = await self._on_spark(lambda: self._spark.prove(ledgers))
        with acts.act("Compute the cost"):
            statement = await self._on_spark(lambda: self._spark.bill(ledgers, aftermath.killed_at))
        return DemoOutcome(aftermath=aftermath, proof=proof, statement=statement, seconds=acts.seconds)

    async def _open(self, screen: Screen) -> None:
        screen.report("Everything runs on this machine and is removed afterwards.")
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in (self._primary, self._secondary, self._spark)))
        for each in (self._primary, self._secondary):
            screen.report(f"Namespace {each.name} runs as process {each.process_id}; console: {each.console}")

    async def _on_spark(self, work: Callable[[], T]) -> T:
        """Run work in a thread; if it is cancelled, stop Spark, so that the thread ends."""
        try:
            return await asyncio.to_thread(work)
        except asyncio.CancelledError:
            self._spark.stop()
            raise


async def announce_stop(work: Coroutine[Any, Any, T], screen: Screen) -> T:
    """Run work, and report at once that Ctrl-C was pressed: work such as the start of Spark takes time to end."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        screen.report("Stopping; this may take a few seconds …")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()


def keep(primary: DemoNamespace, secondary: DemoNamespace, console: Console) -> None:
    """Print the addresses of the namespaces and the paths of their ledgers, and wait for Ctrl-C."""
    for each in (primary, secondary):
        console.print(f"\n{each.name}: {each.console}", soft_wrap=True)
        console.print(each.connection_string, soft_wrap=True, markup=False)
        console.print(f"ledger: {each.ledger}", soft_wrap=True, markup=False)
    ledgers = [shlex.quote(str(each.ledger)) for each in (primary, secondary)]
    console.print("\nTo account for every message and its cost, run in another terminal:")
    for command in (
        f"pairbus reconcile --primary {ledgers[0]} --secondary {ledgers[1]}",
        f"pairbus cost --ledger {ledgers[0]} --ledger {ledgers[1]} --beyond-allowances",
    ):
        console.print(command, soft_wrap=True, markup=False)
    with suppress(KeyboardInterrupt):
        console.print("\nBoth namespaces run until you press Ctrl-C.")
        while True:
            signal.pause()


@contextmanager
def _signals_as_interrupt() -> Iterator[None]:
    """Handle other signals that end a process like Ctrl-C, so that child processes are ended first."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    # SIGINT too: a shell ignores it for a command that it starts in the background.
    handlers = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(_LIKE_CTRL_C, stop)}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _print_failure(reason: str, log: Path) -> None:
    with suppress(OSError):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]:
            print(line, file=sys.stderr)
    print(f"pairbus: {reason}", file=sys.stderr)
