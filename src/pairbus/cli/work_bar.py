"""How far a command has come with many messages, for whoever looks on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

Advance = Callable[[int, int], None]
"""Is told how many messages are done, and how much of the whole that is."""


@contextmanager
def work_bar(verb: str, total: int | None, *, is_wanted: bool = True) -> Iterator[Advance]:
    """A bar on the terminal's own line, where there is one; else nothing."""
    if not is_wanted or not sys.stderr.isatty():
        yield lambda _done, _part: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True, highlight=False, markup=False), transient=True) as bars:
        task = bars.add_task(f"0 {verb}", total=total)

        def advance(done: int, part: int) -> None:
            bars.update(task, description=f"{done:,} {verb}", completed=part)

        yield advance
