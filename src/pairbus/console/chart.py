"""Lines over time, as SVG that a style sheet colours and a screen reader can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pairbus.console.markup import Markup, fill, join
from pairbus.console.timeline import KEPT_MS
from pairbus.console.wording import clock_time, number

_WIDTH: Final = 720
_HEIGHT: Final = 180
_LEFT: Final = 76
_RIGHT: Final = 8
_TOP: Final = 16
_BOTTOM: Final = 32
_NAMES: Final = ("a", "b", "c")
"""The classes of lines; the style sheet has a colour and a dash for each."""

_FEWEST_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A name and a value for each time."""

    name: str
    values: Sequence[float]


def draw(title: str, identity: str, times_ms: Sequence[int], lines: Sequence[Line]) -> Markup:
    """A chart. The time axis is as long as what there is to show, and an hour at most."""
    top = _ceiling(max((value for line in lines for value in line.values), default=0))
    told = "; ".join(f"{line.name} {_told(line.values)}" for line in lines)
    return fill(
        '<figure class="chart"><figcaption id="$id-title">$title</figcaption>'
        '<svg viewBox="0 0 $width $height" role="img" aria-labelledby="$id-title $id-told">'
        '<desc id="$id-told">$told</desc>$grid$paths</svg>$legend</figure>',
        id=identity,
        title=title,
        width=_WIDTH,
        height=_HEIGHT,
        told=told,
        grid=_grid(top, times_ms),
        paths=join(
            _path(name, times_ms, line.values, top)
            for name, line in zip(_NAMES, lines, strict=False)
            if len(times_ms) > 1
        ),
        legend=_legend(lines),
    )


def _told(values: Sequence[float]) -> str:
    return f"is {_figure(values[-1])} now, at most {_figure(max(values))}" if values else "has no values yet"


def _figure(value: float) -> str:
    return f"{value:.1f}" if value != int(value) else number(int(value))


def _ceiling(most: float) -> float:
    """The next round number, so that the axis does not jump with every point."""
    ceiling = 1.0
    steps = (2.0, 2.5, 2.0)
    index = 0
    while ceiling < most:
        ceiling *= steps[index % len(steps)]
        index += 1
    return ceiling


def _x(at_ms: int, first_ms: int, last_ms: int) -> float:
    span = max(last_ms - first_ms, _FEWEST_MS)
    return _WIDTH - _RIGHT - (last_ms - at_ms) / span * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)


def _path(name: str, times_ms: Sequence[int], values: Sequence[float], top: float) -> Markup:
    first_ms, last_ms = max(times_ms[0], times_ms[-1] - KEPT_MS), times_ms[-1]
    points = (
        f"{_x(at_ms, first_ms, last_ms):.1f},{_y(value, top):.1f}"
        for at_ms, value in zip(times_ms, values, strict=True)
    )
    return fill('<polyline class="line $name" points="$points"/>', name=name, points=" ".join(points))


def _grid(top: float, times_ms: Sequence[int]) -> Markup:
    lines = join(
        fill(
            '<line class="grid" x1="$left" x2="$right" y1="$y" y2="$y"/>'
            '<text class="tick" x="$x" y="$text_y">$v</text>',
            left=_LEFT,
            right=_WIDTH - _RIGHT,
            y=f"{_y(value, top):.1f}",
            x=_LEFT - 6,
            text_y=f"{_y(value, top) + 6:.1f}",
            v=_figure(value),
        )
        for value in (0, top / 2, top)
    )
    if not times_ms:
        return lines
    ends = ((_LEFT, "start", times_ms[-1] - max(times_ms[-1] - times_ms[0], _FEWEST_MS)), (_WIDTH, "end", times_ms[-1]))
    times = (
        fill('<text class="time $p" x="$x" y="$y">$at UTC</text>', p=place, x=x, y=_HEIGHT - 4, at=clock_time(at_ms))
        for x, place, at_ms in ends
    )
    return join([lines, *times])


def _legend(lines: Sequence[Line]) -> Markup:
    items = join(
        fill(
            '<li><svg class="key" viewBox="0 0 24 8" aria-hidden="true">'
            '<polyline class="line $name" points="0,4 24,4"/></svg> $label <b>$now</b></li>',
            name=name,
            label=line.name,
            now=_figure(line.values[-1]) if line.values else "none",
        )
        for name, line in zip(_NAMES, lines, strict=False)
    )
    return fill('<ul class="legend">$items</ul>', items=items)
