"""The demo from its first act to its last, with everything that it needs started and ended."""

from __future__ import annotations

import asyncio
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

from pairbus.cli.connection import FAILED, STOPPED
from pairbus.cli.demo.acts import Acts
from pairbus.cli.demo.namespace import Namespace, NamespaceStartError
from pairbus.cli.demo.outage import ENTITIES, SETTLED_S, DemoError, Outage, Plan
from pairbus.cli.demo.outcome import Outcome
from pairbus.cli.demo.screen import Screen, opened_screen
from pairbus.cli.demo.silence import errors_to
from pairbus.cli.demo.spark_work import Ledgers, SparkWork
from pairbus.client import MessagingError
from pairbus.jobs.ledger.errors import LedgerReadError
from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.spark.java import JavaNotFoundError
from pairbus.spark.session import SparkStartError

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
    """The whole demo; gives the exit status. Nothing is left of it, however it ends."""
    with TemporaryDirectory(prefix="pairbus-demo-", ignore_cleanup_errors=True) as directory:
        log = Path(directory) / "log.txt"
        try:
            with _stopped_alike(), errors_to(log):
                return _Performance(plan, console, Path(directory)).run()
        except KeyboardInterrupt:
            print("pairbus: stopped", file=sys.stderr)
            return STOPPED
        except _EXPECTED as error:
            _complain(str(error), log)
        except Exception:  # noqa: BLE001 (whatever it is, the demo is over, and says why)
            _complain(traceback.format_exc(), log)
    return FAILED


class _Performance:
    """Two namespaces, Spark, and what is done with them."""

    def __init__(self, plan: Plan, console: Console, directory: Path) -> None:
        self._plan = plan
        self._console = console
        self._primary = Namespace("contoso", directory, ENTITIES)
        self._secondary = Namespace("fabrikam", directory)
        self._spark = SparkWork()

    def run(self) -> int:
        with ExitStack() as stack:
            for each in (self._primary, self._secondary, self._spark):
                stack.enter_context(each)
            with opened_screen(self._console) as screen:
                outcome = asyncio.run(told_when_stopped(self._play(screen), screen))
            outcome.print(self._console)
            if self._plan.is_kept:
                self._spark.stop()
                keep(self._primary, self._secondary, self._console)
        return 0 if outcome.is_fine else FAILED

    async def _play(self, screen: Screen) -> Outcome:
        acts = Acts(screen)
        with acts.act("Two namespaces and Spark are started"):
            await self._open(screen)

        def tell(batch: BatchReport) -> None:
            screen.tell(f"The syphon: {batch}.")

        aftermath = await Outage(
            self._primary, self._secondary, screen, acts, self._plan, self._spark.engine(tell)
        ).live_through()
        ledgers = Ledgers(primary=self._primary.ledger, secondary=self._secondary.ledger)
        with acts.act("The ledgers are held against each other"):
            await asyncio.sleep(SETTLED_S)
            proof = await self._on_spark(lambda: self._spark.prove(ledgers))
        with acts.act("The cost is added up"):
            statement = await self._on_spark(lambda: self._spark.bill(ledgers, aftermath.killed_at))
        return Outcome(aftermath=aftermath, proof=proof, statement=statement, seconds=acts.seconds)

    async def _open(self, screen: Screen) -> None:
        screen.tell("Everything runs on this machine, and nothing is left of it afterwards.")
        await asyncio.gather(*(asyncio.to_thread(each.start) for each in (self._primary, self._secondary, self._spark)))
        for each in (self._primary, self._secondary):
            screen.tell(f"The namespace {each.name} is process {each.process_id}; its console: {each.console}")

    async def _on_spark(self, work: Callable[[], T]) -> T:
        """In a thread, and not for longer than somebody waits for it."""
        try:
            return await asyncio.to_thread(work)
        except asyncio.CancelledError:
            self._spark.stop()
            raise


async def told_when_stopped(work: Coroutine[Any, Any, T], screen: Screen) -> T:
    """Say so as soon as somebody presses Ctrl-C: what is under way, such as the start of Spark, takes time to end."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        screen.tell("Stopping; this may take some seconds …")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()


def keep(primary: Namespace, secondary: Namespace, console: Console) -> None:
    """Show how to get to the namespaces and their ledgers, and wait for Ctrl-C."""
    for each in (primary, secondary):
        console.print(f"\n{each.name}: {each.console}", soft_wrap=True)
        console.print(each.connection_string, soft_wrap=True, markup=False)
        console.print(f"its ledger: {each.ledger}", soft_wrap=True, markup=False)
    ledgers = [shlex.quote(str(each.ledger)) for each in (primary, secondary)]
    console.print("\nWhat became of every message, and what it cost, in another terminal:")
    for command in (
        f"pairbus reconcile --primary {ledgers[0]} --secondary {ledgers[1]}",
        f"pairbus cost --ledger {ledgers[0]} --ledger {ledgers[1]} --beyond-allowances",
    ):
        console.print(command, soft_wrap=True, markup=False)
    with suppress(KeyboardInterrupt):
        console.print("\nBoth go on until Ctrl-C.")
        while True:
            signal.pause()


@contextmanager
def _stopped_alike() -> Iterator[None]:
    """Have other signals that end a process do what Ctrl-C does: there are processes to be ended first."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    # Where a shell has started it in the background, Ctrl-C itself would be ignored.
    handlers = {signal.SIGINT: signal.default_int_handler, **dict.fromkeys(_LIKE_CTRL_C, stop)}
    before = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _complain(reason: str, log: Path) -> None:
    with suppress(OSError):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]:
            print(line, file=sys.stderr)
    print(f"pairbus: {reason}", file=sys.stderr)
