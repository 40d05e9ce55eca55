"""Line and bar charts: the positions of everything in them, for the macros of ``charts.html``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

_ROUND: Final = (1, 2, 2.5, 5, 10)
_PREFIXES: Final = ((10**9, 10**9, " G"), (10**6, 10**6, " M"), (10**4, 10**3, " k"))
"""Large numbers are abbreviated on an axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLayout:
    """The size of a chart and of its margins, in the units of its view box."""

    name: str
    """The class of the SVG element; the style sheet has a font size for it."""

    width: int
    height: int
    left: int
    right: int
    top: int
    bottom: int
    intervals: int
    """Number of intervals between the lines of the grid."""

    line_height: int
    """Distance between rows of labels below the horizontal axis."""


COMPACT: Final = ChartLayout(
    name="compact", width=720, height=180, left=76, right=8, top=16, bottom=32, intervals=2, line_height=22
)
"""Several of these fit side by side."""

WIDE: Final = ChartLayout(
    name="wide-chart", width=760, height=260, left=64, right=12, top=14, bottom=46, intervals=4, line_height=14
)
"""One of these fills the width of a page."""


BAR_TABLE: Final = ChartLayout(
    name="bar-table", width=900, height=0, left=196, right=4, top=34, bottom=12, intervals=0, line_height=18
)
"""Bars that lie in rows, in the columns of a table. The height is that of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """A line of a chart: its name, and a value for each position."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of the chart."""

    name: str
    points: str
    last: str
    """The last value, for the legend; "none" if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    x: str
    y: str
    width: str
    height: str
    is_faint: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    x: str
    y: str
    anchor: str
    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with all positions computed. Numbers are formatted, so that a template only inserts them."""

    id: str
    title: str
    description: str
    layout: ChartLayout
    grid: tuple[str, ...]
    """Vertical positions of the lines of the grid."""

    labels: tuple[_Label, ...]
    lines: tuple[_Line, ...] = ()
    bars: tuple[_Bar, ...] = ()


def line_chart(
    chart_id: str,
    title: str,
    description: str,
    positions: Sequence[float],
    series: Sequence[ChartSeries],
    labels: Sequence[tuple[float, str]],
    layout: ChartLayout = WIDE,
) -> Chart:
    """Return a chart with a line for each series.

    Positions on the horizontal axis, of values and of labels, are fractions of its length.
    """
    top = _round_up(max((value for one in series for value in one.values), default=0))
    return Chart(
        id=chart_id,
        title=title,
        description=description,
        layout=layout,
        grid=_grid(layout, top),
        labels=(*_value_labels(layout, top), *(_position_label(layout, *label) for label in labels)),
        lines=tuple(_line(layout, top, positions, one) for one in series),
    )


def bar_chart(
    chart_id: str,
    title: str,
    description: str,
    values: Sequence[float],
    names: Sequence[str],
    layout: ChartLayout = WIDE,
) -> Chart:
    """Return a chart with a named bar for each value. Names are in two rows, so that they do not overlap."""
    top = _round_up(max(values, default=0))
    width = (layout.width - layout.left - layout.right) / max(1, len(values))
    lefts = [layout.left + number * width for number in range(len(values))]
    bottom = layout.height - layout.bottom
    return Chart(
        id=chart_id,
        title=title,
        description=description,
        layout=layout,
        grid=_grid(layout, top),
        labels=(
            *_value_labels(layout, top),
            *(
                _Label(x=f"{left + width / 2:.1f}", y=_label_y(layout, number % 2), anchor="middle", text=name)
                for number, (left, name) in enumerate(zip(lefts, names, strict=True))
            ),
        ),
        bars=tuple(
            _Bar(
                x=f"{left + 2:.1f}",
                y=f"{(y := _y(layout, top, value)):.1f}",
                width=f"{width - 4:.1f}",
                height=f"{bottom - y:.1f}",
            )
            for left, value in zip(lefts, values, strict=True)
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BarRow:
    """A row of a table of bars."""

    name: str
    values: Sequence[tuple[float, str] | None]
    """In each column the length of the bar, and the text at its end; ``None`` if there is no value."""

    is_faint: bool = False
    """True for a row that is there for comparison."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarGroup:
    """Rows that are compared with each other. The longest bar of a column has its full width."""

    name: str
    rows: Sequence[BarRow]


_HEADING_HEIGHT: Final = 30
_BAR_HEIGHT: Final = 12
_BAR_TEXT_WIDTH: Final = 92
"""The space for the text at the end of the longest bar."""


def bar_table(
    chart_id: str,
    title: str,
    description: str,
    columns: Sequence[str],
    groups: Sequence[BarGroup],
    note: str = "",
    layout: ChartLayout = BAR_TABLE,
) -> Chart:
    """Return a table of horizontal bars with their values, so that it needs no axis and no legend.

    A note is below the last row.
    """
    width = (layout.width - layout.left - layout.right) / max(1, len(columns))
    lefts = [layout.left + number * width for number in range(len(columns))]
    labels = [
        _Label(x=f"{left:.1f}", y=f"{layout.top - 12}", anchor="start", text=name, is_heading=True)
        for left, name in zip(lefts, columns, strict=True)
    ]
    bars: list[_Bar] = []
    y = layout.top
    for group in groups:
        labels.append(_Label(x="8", y=f"{y + 20}", anchor="start", text=group.name, is_heading=True))
        y += _HEADING_HEIGHT
        tops = [max(_lengths(group, column), default=0.0) for column in range(len(columns))]
        for row in group.rows:
            text_y = f"{y + _BAR_HEIGHT - 1}"
            labels.append(_Label(x=f"{layout.left - 8}", y=text_y, anchor="end", text=row.name))
            for left, top, found in zip(lefts, tops, row.values, strict=True):
                length = (width - _BAR_TEXT_WIDTH) * found[0] / top if found and top else 0.0
                text = found[1] if found else "none"
                labels.append(_Label(x=f"{left + length + 6:.1f}", y=text_y, anchor="start", text=text))
                if found:
                    bar = _Bar(x=f"{left:.1f}", y=f"{y}", width=f"{length:.1f}", height=f"{_BAR_HEIGHT}")
                    bars.append(replace(bar, is_faint=row.is_faint))
            y += layout.line_height
    if note:
        y += layout.line_height
        labels.append(_Label(x="8", y=f"{y}", anchor="start", text=note))
    return Chart(
        id=chart_id,
        title=title,
        description=description,
        layout=replace(layout, height=y + layout.bottom),
        grid=(),
        labels=tuple(labels),
        bars=tuple(bars),
    )


def _lengths(group: BarGroup, column: int) -> Iterator[float]:
    return (found[0] for row in group.rows if (found := row.values[column]))


def _line(layout: ChartLayout, top: float, positions: Sequence[float], series: ChartSeries) -> _Line:
    points = (
        f"{_x(layout, position):.1f},{_y(layout, top, value):.1f}"
        for position, value in zip(positions, series.values, strict=True)
    )
    last = format_value(series.values[-1]) if series.values else "none"
    return _Line(name=series.name, points=" ".join(points), last=last)


def _grid(layout: ChartLayout, top: float) -> tuple[str, ...]:
    return tuple(f"{_y(layout, top, value):.1f}" for value in _grid_values(layout, top))


def _value_labels(layout: ChartLayout, top: float) -> list[_Label]:
    return [
        _Label(x=f"{layout.left - 6}", y=f"{_y(layout, top, value) + 4:.1f}", anchor="end", text=_short(value))
        for value in _grid_values(layout, top)
    ]


def _grid_values(layout: ChartLayout, top: float) -> list[float]:
    return [top * number / layout.intervals for number in range(layout.intervals + 1)]


def _position_label(layout: ChartLayout, position: float, text: str) -> _Label:
    anchor = "start" if position <= 0 else "end" if position >= 1 else "middle"
    return _Label(x=f"{_x(layout, position):.1f}", y=_label_y(layout), anchor=anchor, text=text)


def _label_y(layout: ChartLayout, row: int = 0) -> str:
    """Return the position of a label below the horizontal axis."""
    return str(layout.height - layout.bottom + layout.line_height + 4 + row * layout.line_height)


def _x(layout: ChartLayout, position: float) -> float:
    return layout.left + (layout.width - layout.left - layout.right) * position


def _y(layout: ChartLayout, top: float, value: float) -> float:
    return layout.height - layout.bottom - (layout.height - layout.top - layout.bottom) * value / top


def _round_up(value: float) -> float:
    """Return the next round number, so that the axis does not change with every value."""
    power = 1.0
    while value > 10 * power:
        power *= 10
    return max(1.0, next(step * power for step in _ROUND if step * power >= value))


def _short(value: float) -> str:
    for minimum, unit, prefix in _PREFIXES:
        if value >= minimum:
            return f"{value / unit:,.10g}{prefix}"
    return f"{value:,.10g}"


def format_value(value: float) -> str:
    """Format a value with at most one decimal."""
    return f"{value:,.1f}" if value != int(value) else f"{int(value):,}"
