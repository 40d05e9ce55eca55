"""The terminal output of a syphon."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from pairbus.cli.syphon import SyphonScreen
from pairbus.jobs.lines import Progress, ReportLine

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """The screen of a syphon on a terminal that records all output."""

    def __init__(self) -> None:
        self._file = StringIO()
        console = Console(file=self._file, force_terminal=True, width=120, highlight=False, markup=False)
        self.syphon = SyphonScreen(console)

    @property
    def text(self) -> str:
        return self._file.getvalue()

    def after(self, delivered: int, depth: int | None) -> str:
        """Return what the screen shows for a progress."""
        with self.syphon:
            self.syphon.show(Progress(delivered=delivered, dead_lettered=0, depth=depth))
        return self.text


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.syphon.rest()


@pytest.mark.parametrize(
    ("delivered", "depth", "said"),
    [
        (0, 0, "backlog empty, waiting for messages"),
        (0, 5, "0 delivered, 5 in the backlog"),
        (1_200, 0, "1,200 delivered, 0 in the backlog"),
        (0, None, "0 delivered"),
        (7, None, "7 delivered"),
    ],
)
def test_c19_screen_shows_the_progress_of_the_syphon(
    screen: Screen, delivered: int, depth: int | None, said: str
) -> None:
    assert said in screen.after(delivered, depth)


def test_stopped_screen_restores_the_terminal_and_still_prints(screen: Screen) -> None:
    with screen.syphon:
        assert screen.text.rfind(HIDE) > screen.text.rfind(SHOW)
        screen.syphon.rest()
        assert screen.text.rfind(SHOW) > screen.text.rfind(HIDE)
        screen.syphon.report(ReportLine(event="stopping", text="[stopping]"))
        screen.syphon.show(Progress(delivered=1, dead_lettered=0, depth=None))
    assert screen.text.endswith("[stopping]\n")
    assert screen.text.count(SHOW) == 1
