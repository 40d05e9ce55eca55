"""Run the demo and save its output as pictures for the README: ``python docs/picture.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from pairbus.cli.demo import performance
from pairbus.cli.demo.screen import DemoReading, Screen, reading_tables

IMAGES = Path(__file__).parent / "images"
WIDTH = 124
SHOWN = {"Kill the primary", "Deliver the backlog"}
"""The steps at whose end the table is shown."""

SVG = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""As Rich has it, without the fonts that it would fetch from another server."""


class Album:
    """A screen that shows the table at the end of some steps, not each change."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._reading: DemoReading | None = None

    def begin(self, act: str) -> None:
        self._console.print(f"[bold]{act}[/bold]")

    def end(self, act: str, seconds: float) -> None:
        if self._reading is not None and act in SHOWN:
            self._console.print(reading_tables(self._reading))
        self._console.print(f"  [dim]done in {seconds:.1f} s[/dim]")

    def report(self, text: str) -> None:
        if not text.startswith("The syphon:"):  # one batch is like another
            self._console.print(f"  {text}", markup=False)

    def show(self, reading: DemoReading) -> None:
        self._reading = reading

    def advance(self, done: float, total: float) -> None:
        """Do nothing: a picture has no progress bar."""


def main() -> int:
    """Write the pictures, and return the exit status of the demo."""
    story, outcome = (
        Console(record=True, width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False)
        for _ in range(2)
    )

    @contextmanager
    def opened_album(console: Console) -> Iterator[Screen]:
        yield Album(story)

    performance.opened_screen = opened_album  # type: ignore[attr-defined]  # where it takes its screen from
    status = performance.perform(performance.Plan(), outcome)
    if status == 0:
        printed = outcome.export_text(clear=False).splitlines()
        for line in printed[next(number for number, line in enumerate(printed) if line.startswith("sent ")) :]:
            story.print(line, markup=False, soft_wrap=True)
        for name, console in (("demo", story), ("demo-outcome", outcome)):
            console.save_svg(str(IMAGES / f"{name}.svg"), title="make demo", code_format=SVG, unique_id=name)
    return status


if __name__ == "__main__":
    sys.exit(main())
