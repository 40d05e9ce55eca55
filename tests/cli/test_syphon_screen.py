"""What a terminal shows of a syphon."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from pairbus.cli.syphon_screen import SyphonScreen
from pairbus.jobs.lines import Line, Progress

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Screen:
    """A syphon's screen on a terminal that keeps all that was written."""

    def __init__(self) -> None:
        self._file = StringIO()
        console = Console(file=self._file, force_terminal=True, width=120, highlight=False, markup=False)
        self.syphon = SyphonScreen(console)

    @property
    def text(self) -> str:
        return self._file.getvalue()

    def after(self, brought_home: int, depth: int | None) -> str:
        """What it shows of a progress."""
        with self.syphon:
            self.syphon.show(Progress(brought_home=brought_home, dead_lettered=0, depth=depth))
        return self.text


@pytest.fixture
def screen() -> Iterator[Screen]:
    made = Screen()
    yield made
    made.syphon.rest()


@pytest.mark.parametrize(
    ("brought_home", "depth", "said"),
    [
        (0, 0, "nothing to bring home, waiting for messages"),
        (0, 5, "0 brought home, 5 in the backlog"),
        (1_200, 0, "1,200 brought home, 0 in the backlog"),
        (0, None, "0 brought home"),
        (7, None, "7 brought home"),
    ],
)
def test_c19_it_says_how_far_the_syphon_has_come(
    screen: Screen, brought_home: int, depth: int | None, said: str
) -> None:
    assert said in screen.after(brought_home, depth)


def test_it_leaves_the_terminal_as_it_was_when_it_rests_and_still_tells(screen: Screen) -> None:
    with screen.syphon:
        assert screen.text.rfind(HIDE) > screen.text.rfind(SHOW)
        screen.syphon.rest()
        assert screen.text.rfind(SHOW) > screen.text.rfind(HIDE)
        screen.syphon.tell(Line(event="stopping", text="[stopping]"))
        screen.syphon.show(Progress(brought_home=1, dead_lettered=0, depth=None))
    assert screen.text.endswith("[stopping]\n")
    assert screen.text.count(SHOW) == 1
