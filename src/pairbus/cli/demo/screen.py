"""What a person sees of the demo: a live table in a terminal, else plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pairbus.cli.demo.reading import EntityReading, Reading
from pairbus.pairing import EntityState

_PLAIN_EVERY_S: Final = 2.0
_FRAMES_A_SECOND: Final = 4
"""Drawing takes time that others need."""

_STYLES: Final = {
    EntityState.HEALTHY: "green",
    EntityState.FAILING: "yellow",
    EntityState.FAILED_OVER: "red",
    EntityState.HELD_OVER: "red",
}


class Screen(Protocol):
    """Takes what is to be seen."""

    def begin(self, act: str) -> None: ...

    def end(self, act: str, seconds: float) -> None: ...

    def tell(self, text: str) -> None:
        """One sentence about something that has happened."""

    def show(self, reading: Reading) -> None: ...

    def advance(self, done: float, total: float) -> None:
        """How far the act has come."""


class PlainScreen:
    """Lines, for pipes and files."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = -_PLAIN_EVERY_S

    def begin(self, act: str) -> None:
        self._print(f"== {act}")

    def end(self, act: str, seconds: float) -> None:  # noqa: ARG002
        self._print(f"   it took {seconds:.1f} s")

    def tell(self, text: str) -> None:
        self._print(f"   {text}")

    def show(self, reading: Reading) -> None:
        if reading.elapsed_s - self._shown_s >= _PLAIN_EVERY_S:
            self._shown_s = reading.elapsed_s
            self._print(f"   {reading.elapsed_s:5.1f} s  {reading}")

    def advance(self, done: float, total: float) -> None:
        """A line has no bars."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class LiveScreen:
    """A table that changes, below it a line for each act, and above it what has happened."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._acts = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            console=live.console,
        )
        self._task: TaskID | None = None
        self._table: RenderableType = ""

    def begin(self, act: str) -> None:
        self._task = self._acts.add_task(act, total=None)
        self._draw()

    def end(self, act: str, seconds: float) -> None:
        if self._task is not None:
            self._acts.update(self._task, total=1, completed=1, description=f"{act} ({seconds:.1f} s)")
        self._draw()

    def tell(self, text: str) -> None:
        self._live.console.print(text, markup=False, soft_wrap=True)

    def show(self, reading: Reading) -> None:
        self._table = reading_tables(reading)
        self._draw()

    def advance(self, done: float, total: float) -> None:
        if self._task is not None:
            self._acts.update(self._task, completed=min(done, total), total=max(total, 1))

    def _draw(self) -> None:
        self._live.update(Group(self._table, self._acts))


@contextmanager
def opened_screen(console: Console) -> Iterator[Screen]:
    """The screen that fits what is written to."""
    if not console.is_terminal:
        yield PlainScreen(console)
        return
    with Live(console=console, refresh_per_second=_FRAMES_A_SECOND, redirect_stderr=False) as live:
        yield LiveScreen(live)


def reading_tables(reading: Reading) -> Columns:
    """The entities, and beside them what is counted of all."""
    return Columns([_entity_table(reading), _count_table(reading)])


def _entity_table(reading: Reading) -> Table:
    table = Table()
    table.add_column("entity")
    table.add_column("state", min_width=len(EntityState.FAILED_OVER.value))
    for heading in ("diverted", "pings"):
        table.add_column(heading, justify="right")
    for one in reading.entities:
        table.add_row(one.path, _state(one), f"{one.diverted:,}", f"{one.pings:,}")
    return table


def _count_table(reading: Reading) -> Table:
    table = Table()
    table.add_column(f"after {reading.elapsed_s:.0f} s")
    for heading in ("messages", "a second"):
        table.add_column(heading, justify="right", min_width=8)
    for name, count, rate in (
        ("sent", reading.sent, reading.sent_rate),
        ("in the backlog", reading.backlog, None),
        ("brought home", reading.syphoned, reading.syphon_rate),
        ("received", reading.received, reading.received_rate),
    ):
        table.add_row(name, f"{count:,}", "" if rate is None else f"{rate:,.0f}")
    return table


def _state(one: EntityReading) -> str:
    style = _STYLES[one.state]
    return f"[{style}]{one.state.value}[/{style}]"
