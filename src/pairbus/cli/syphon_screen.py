"""A syphon in a terminal: a line for what happens, and below it how far it has come."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from pairbus.jobs.lines import Line, Progress

_UNKNOWN: Final = "looking at the backlog"
_EMPTY: Final = "nothing to bring home, waiting for messages"


class SyphonScreen:
    """A bar where the depth of the backlog is known, else a spinner."""

    def __init__(self, console: Console | None = None) -> None:
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=console or Console(highlight=False, markup=False),  # a path may have brackets
            transient=True,
        )
        self._task: TaskID = self._bars.add_task(_UNKNOWN, total=None)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rest()

    def rest(self) -> None:
        """Twice is fine."""
        self._bars.stop()

    def tell(self, line: Line) -> None:
        self._bars.console.print(line.text, style="yellow" if line.is_warning else None, soft_wrap=True)

    def show(self, progress: Progress) -> None:
        done, depth = progress.brought_home, progress.depth
        waiting = "" if depth is None else f", {depth:,} in the backlog"
        self._bars.update(
            self._task,
            description=f"{done:,} brought home{waiting}" if done or depth != 0 else _EMPTY,
            completed=done,
            total=done + depth if depth is not None and done + depth else None,
        )
