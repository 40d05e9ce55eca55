"""Charts as SVG that stands in a page: no scripts, colours by the page's style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Final

from pairbus.jobs.reconcile.durations import told
from pairbus.jobs.reconcile.report import TimelinePoint
from pairbus.jobs.reconcile.timeline import LINES
from pairbus.jobs.reconcile.waits import EDGES

_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 46
_ROW = 14
"""From one row of labels to the next."""

_PREFIXES: Final = ((10**9, 10**9, " G"), (10**6, 10**6, " M"), (10**4, 10**3, " k"))
"""Large numbers are short on an axis; the table has the figures."""

_ROUND: Final = (1, 2, 2.5, 5, 10)
_GRID: Final = 4


def timeline_chart(points: Sequence[TimelinePoint], step: timedelta) -> str:
    """A line for each way that messages took."""
    filled = _without_holes(points, step)
    top = _round_up(max((getattr(point, name) for point in filled for name in LINES), default=1))
    title = "Messages over time"
    spans = f"from {filled[0].at:%Y-%m-%d %H:%M} to {filled[-1].at:%Y-%m-%d %H:%M} UTC" if filled else "none"
    body = [*_grid(top), *_times(filled)]
    for name in LINES:
        line = " ".join(
            f"{_x(number, len(filled)):.1f},{_y(getattr(point, name), top):.1f}" for number, point in enumerate(filled)
        )
        body.append(f'<polyline class="line {name}" points="{line}"/>')
    return _svg("timeline", title, f"{title} in steps of {told(step)}, {spans}; the table has the figures.", body)


def waits_chart(histogram: Sequence[int]) -> str:
    """A bar for each length of time. Their names are in two rows, or they would run into each other."""
    top = _round_up(max(histogram, default=1))
    width = (_WIDTH - _LEFT - _RIGHT) / len(histogram)
    body = [*_grid(top)]
    for number, count in enumerate(histogram):
        left, y = _LEFT + number * width, _y(count, top)
        height = _HEIGHT - _BOTTOM - y
        body.append(
            f'<rect class="bar" x="{left + 2:.1f}" y="{y:.1f}" width="{width - 4:.1f}" height="{height:.1f}"/>'
            f'<text class="tick" x="{left + width / 2:.1f}" y="{_label_y(number % 2)}" text-anchor="middle">'
            f"{escape(bar_name(number))}</text>"
        )
    title = "Time from diverted to delivered"
    return _svg("waits", title, f"{title}: how many messages took how long; the table has the figures.", body)


def bar_name(number: int) -> str:
    """What a bar of the histogram stands for."""
    return f"<{told(EDGES[number])}" if number < len(EDGES) else f"≥{told(EDGES[-1])}"


def _without_holes(points: Sequence[TimelinePoint], step: timedelta) -> list[TimelinePoint]:
    """A stretch in which nothing happened is a point, too."""
    filled: list[TimelinePoint] = []
    for point in points:
        while filled and filled[-1].at + step < point.at:
            filled.append(TimelinePoint(at=filled[-1].at + step, direct=0, diverted=0, syphoned=0, received=0))
        filled.append(point)
    return filled


def _svg(name: str, title: str, description: str, body: Sequence[str]) -> str:
    return (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{''.join(body)}</svg>"
    )


def _grid(top: float) -> Iterator[str]:
    for number in range(_GRID + 1):
        value = top * number / _GRID
        y = _y(value, top)
        yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(value)}</text>'


def _times(points: Sequence[TimelinePoint]) -> Iterator[str]:
    last = len(points) - 1
    for number in sorted({0, last // 3, last * 2 // 3, last} if points else set()):
        anchor = "start" if number == 0 else "end" if number == last else "middle"
        yield (
            f'<text class="tick" x="{_x(number, len(points)):.1f}" y="{_label_y()}" '
            f'text-anchor="{anchor}">{_hour(points[number].at)}</text>'
        )


def _label_y(row: int = 0) -> int:
    """Where the names below the horizontal axis stand."""
    return _HEIGHT - _BOTTOM + 18 + row * _ROW


def _short(value: float) -> str:
    for least, unit, prefix in _PREFIXES:
        if value >= least:
            return f"{value / unit:,.10g}{prefix}"
    return f"{value:,.10g}"


def _hour(time: datetime) -> str:
    return f"{time:%d %b %H:%M}"


def _x(number: int, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (number / max(1, count - 1))


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * value / top


def _round_up(value: float) -> float:
    """The next number that is easily read."""
    power = 1.0
    while value > 10 * power:
        power *= 10
    return max(1.0, next(step * power for step in _ROUND if step * power >= value))
