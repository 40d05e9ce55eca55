"""Charts: positions stay inside the frame, and names are escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.html import (
    BAR_TABLE,
    COMPACT,
    WIDE,
    BarGroup,
    BarRow,
    Chart,
    ChartLayout,
    ChartSeries,
    bar_chart,
    bar_table,
    environment,
    line_chart,
)

LAYOUTS = st.sampled_from([COMPACT, WIDE])
VALUES = st.lists(st.floats(0, 1e9), max_size=50)


def svg(chart: Chart) -> str:
    return str(environment("pairbus.console").get_template("charts.html").module.svg(chart))  # type: ignore[attr-defined]


def points_of(text: str) -> Iterator[tuple[float, float]]:
    for line in re.findall(r'points="([^"]*)"', text):
        for each in line.split():
            x, y = each.split(",")
            yield float(x), float(y)


def is_inside(layout: ChartLayout, x: float, y: float) -> bool:
    return -0.1 <= x <= layout.width + 0.1 and -0.1 <= y <= layout.height + 0.1


@given(VALUES, VALUES, LAYOUTS)
def test_lines_stay_inside_the_chart(one: list[float], other: list[float], layout: ChartLayout) -> None:
    length = min(len(one), len(other))
    positions = [index / max(1, length - 1) for index in range(length)]
    series = [ChartSeries(name="one", values=one[:length]), ChartSeries(name="<two>", values=other[:length])]
    chart = svg(line_chart("chart", "<Messages>", "<described>", positions, series, [(0, "<start>")], layout))
    assert all(is_inside(layout, x, y) for x, y in points_of(chart))
    assert len([*points_of(chart)]) == 2 * length
    assert not re.search("<(two|Messages|described|start)>", chart)


@given(VALUES, LAYOUTS)
def test_bars_stay_inside_the_chart(values: list[float], layout: ChartLayout) -> None:
    names = [f"<{number}" for number in range(len(values))]
    bars = [*ET.fromstring(svg(bar_chart("bars", "Bars", "", values, names, layout))).iter("rect")]  # noqa: S314
    assert len(bars) == len(values)
    for bar in bars:
        x, y, width, height = (float(bar.get(name, "")) for name in ("x", "y", "width", "height"))
        assert is_inside(layout, x, y)
        assert is_inside(layout, x + width, y + height)


@given(st.lists(st.lists(st.floats(0, 1e9) | st.none(), min_size=3, max_size=3), max_size=5), st.integers(0, 3))
def test_bars_of_a_table_stay_in_their_columns(rows: list[list[float | None]], count: int) -> None:
    group = BarGroup(
        name="<group>",
        rows=[
            BarRow(name="<row>", values=[None if value is None else (value, "<text>") for value in row]) for row in rows
        ],
    )
    chart = bar_table("bars", "<Bars>", "", ["<column>"] * 3, [group] * count)
    drawn = svg(chart)
    bars = [*ET.fromstring(drawn).iter("rect")]  # noqa: S314
    assert len(bars) == count * sum(value is not None for row in rows for value in row)
    column = (BAR_TABLE.width - BAR_TABLE.left - BAR_TABLE.right) / 3
    for bar in bars:
        x, y, width, height = (float(bar.get(name, "")) for name in ("x", "y", "width", "height"))
        assert (x - BAR_TABLE.left) % column == pytest.approx(0, abs=0.2) or (
            x - BAR_TABLE.left
        ) % column > column - 0.2
        assert width <= column - 80
        assert is_inside(chart.layout, x + width, y + height)
    assert not re.search("<(row|text|column|group)>", drawn)


def test_longest_bar_of_each_column_has_the_full_width() -> None:
    rows = [BarRow(name="a", values=[(1, "1"), (50, "50")]), BarRow(name="b", values=[(4, "4"), (5, "5")])]
    chart = bar_table("bars", "Bars", "", ["one", "two"], [BarGroup(name="group", rows=rows)])
    widths = [float(bar.width) for bar in chart.bars]
    assert widths[1] == widths[2] == 4 * widths[0] == 10 * widths[3] > 0


def test_file_contains_its_style() -> None:
    chart = bar_table("bars", "Bars", "", ["one"], [])
    template = environment("pairbus.html").get_template("charts.html")
    drawn = ET.fromstring(str(template.module.svg(chart, is_file=True)))  # type: ignore[attr-defined]  # noqa: S314
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "prefers-color-scheme: dark" in "".join(drawn.itertext())
    assert "style" not in svg(chart)


@pytest.mark.parametrize(
    ("highest", "labels"),
    [
        (0, ["0", "0.5", "1"]),
        (7, ["0", "5", "10"]),
        (2_100, ["0", "1,250", "2,500"]),
        (45_000, ["0", "25 k", "50 k"]),
        (4_000_000, ["0", "2.5 M", "5 M"]),
    ],
)
def test_axis_ends_at_a_round_number(highest: float, labels: list[str]) -> None:
    chart = line_chart("chart", "Chart", "", [0], [ChartSeries(name="one", values=[highest])], [], COMPACT)
    assert [label.text for label in chart.labels] == labels


def test_legend_has_the_last_values() -> None:
    series = [ChartSeries(name="waiting", values=[7, 3.25]), ChartSeries(name="<none>", values=[])]
    module = environment("pairbus.console").get_template("charts.html").module
    chart = line_chart("chart", "Chart", "", [0, 1], series[:1], [])
    empty = line_chart("chart", "Chart", "", [], series[1:], [])
    assert "waiting <b>3.2</b>" in module.legend(chart, has_values=True)  # type: ignore[attr-defined]
    assert "&lt;none&gt; <b>none</b>" in module.legend(empty, has_values=True)  # type: ignore[attr-defined]
    assert "<b>" not in module.legend(chart)  # type: ignore[attr-defined]
