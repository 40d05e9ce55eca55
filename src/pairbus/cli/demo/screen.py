"""The output of the demo: a live table in a terminal, else plain lines."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pairbus.pairing import EntityState

_SPAN_S: Final = 2.0
"""The time window of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityReading:
    """The state of an entity of the primary namespace."""

    path: str
    state: EntityState
    diverted: int
    pings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReading:
    """The values that the table shows."""

    elapsed_s: float
    entities: tuple[EntityReading, ...]
    sent: int
    sent_rate: float
    received: int
    received_rate: float
    backlog: int
    syphoned: int
    syphon_rate: float

    @property
    def diverted(self) -> int:
        return sum(one.diverted for one in self.entities)

    @property
    def pings(self) -> int:
        return sum(one.pings for one in self.entities)

    def __str__(self) -> str:
        states = ", ".join(f"{one.path} {one.state.value}" for one in self.entities)
        return (
            f"{states}; sent {self.sent:,} ({self.sent_rate:,.0f}/s), diverted {self.diverted:,}, "
            f"in the backlog {self.backlog:,}, delivered {self.syphoned:,} ({self.syphon_rate:,.0f}/s), "
            f"received {self.received:,} ({self.received_rate:,.0f}/s), pings {self.pings:,}"
        )


class RateMeter:
    """The rate at which a count grows."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def per_second(self, now_s: float, count: int) -> float:
        """Return the rate over the calls of the last two seconds."""
        self._seen.append((now_s, count))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - _SPAN_S:
            self._seen.popleft()
        first_s, first = self._seen[0]
        return (count - first) / (now_s - first_s) if now_s > first_s else 0.0


_PLAIN_EVERY_S: Final = 2.0
_FRAMES_A_SECOND: Final = 4
"""Low, because drawing takes processor time from the demo."""

_STYLES: Final = {
    EntityState.HEALTHY: "green",
    EntityState.FAILING: "yellow",
    EntityState.FAILED_OVER: "red",
    EntityState.HELD_OVER: "red",
}


class Screen(Protocol):
    """The output of the demo."""

    def begin(self, act: str) -> None: ...

    def end(self, act: str, seconds: float) -> None: ...

    def report(self, text: str) -> None:
        """Print one sentence about an event."""

    def show(self, reading: DemoReading) -> None: ...

    def advance(self, done: float, total: float) -> None:
        """Update the progress of the current step."""


class PlainScreen:
    """Prints lines, for pipes and files."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = -_PLAIN_EVERY_S

    def begin(self, act: str) -> None:
        self._print(f"== {act}")

    def end(self, act: str, seconds: float) -> None:  # noqa: ARG002
        self._print(f"   done in {seconds:.1f} s")

    def report(self, text: str) -> None:
        self._print(f"   {text}")

    def show(self, reading: DemoReading) -> None:
        if reading.elapsed_s - self._shown_s >= _PLAIN_EVERY_S:
            self._shown_s = reading.elapsed_s
            self._print(f"   {reading.elapsed_s:5.1f} s  {reading}")

    def advance(self, done: float, total: float) -> None:
        """Do nothing: lines have no progress bar."""

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


class LiveScreen:
    """Draws a live table, with a line for each step below it and the events above it."""

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

    def report(self, text: str) -> None:
        self._live.console.print(text, markup=False, soft_wrap=True)

    def show(self, reading: DemoReading) -> None:
        self._table = reading_tables(reading)
        self._draw()

    def advance(self, done: float, total: float) -> None:
        if self._task is not None:
            self._acts.update(self._task, completed=min(done, total), total=max(total, 1))

    def _draw(self) -> None:
        self._live.update(Group(self._table, self._acts))


@contextmanager
def opened_screen(console: Console) -> Iterator[Screen]:
    """Open a live screen if the console is a terminal, else a plain one."""
    if not console.is_terminal:
        yield PlainScreen(console)
        return
    with Live(console=console, refresh_per_second=_FRAMES_A_SECOND, redirect_stderr=False) as live:
        yield LiveScreen(live)


def reading_tables(reading: DemoReading) -> Columns:
    """Return the table of the entities and, beside it, the table of the counts."""
    return Columns([_entity_table(reading), _count_table(reading)])


def _entity_table(reading: DemoReading) -> Table:
    table = Table()
    table.add_column("entity")
    table.add_column("state", min_width=len(EntityState.FAILED_OVER.value))
    for heading in ("diverted", "pings"):
        table.add_column(heading, justify="right")
    for one in reading.entities:
        table.add_row(one.path, _state(one), f"{one.diverted:,}", f"{one.pings:,}")
    return table


def _count_table(reading: DemoReading) -> Table:
    table = Table()
    table.add_column(f"after {reading.elapsed_s:.0f} s")
    for heading in ("messages", "per second"):
        table.add_column(heading, justify="right", min_width=8)
    for name, count, rate in (
        ("sent", reading.sent, reading.sent_rate),
        ("in the backlog", reading.backlog, None),
        ("delivered", reading.syphoned, reading.syphon_rate),
        ("received", reading.received, reading.received_rate),
    ):
        table.add_row(name, f"{count:,}", "" if rate is None else f"{rate:,.0f}")
    return table


def _state(one: EntityReading) -> str:
    style = _STYLES[one.state]
    return f"[{style}]{one.state.value}[/{style}]"


class DemoTimeline:
    """Measures the duration of each step."""

    def __init__(self, screen: Screen) -> None:
        self.seconds: dict[str, float] = {}
        self._screen = screen

    @contextmanager
    def act(self, title: str) -> Iterator[None]:
        """Report and measure a step; a step that fails has no end."""
        began_s = time.monotonic()
        self._screen.begin(title)
        yield
        self.seconds[title] = seconds = time.monotonic() - began_s
        self._screen.end(title, seconds)
