"""HTML pages from Jinja2 templates, with charts as SVG; used by the console and by the reports of jobs."""

from __future__ import annotations

from pairbus.html.charts import (
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
    line_chart,
)
from pairbus.html.environment import breakable, compile_templates, environment, stylesheet

__all__ = [
    "BAR_TABLE",
    "COMPACT",
    "WIDE",
    "BarGroup",
    "BarRow",
    "Chart",
    "ChartLayout",
    "ChartSeries",
    "bar_chart",
    "bar_table",
    "breakable",
    "compile_templates",
    "environment",
    "line_chart",
    "stylesheet",
]
