"""The chart of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.figures import (
    COMPILED,
    PLAIN,
    SHOWN_WORKLOADS,
    Comparison,
    Summary,
    mark,
    milliseconds,
    size_name,
)
from pairbus.html import BarGroup, BarRow, bar_table, environment

TITLE: Final = "pairbus beside RabbitMQ and NATS JetStream"
BUSY_NOTE: Final = "! The machine was too busy to trust this figure."
_OURS: Final = frozenset({COMPILED, PLAIN})

Figure = Callable[[Summary], tuple[float, str]]
"""The length of a bar, and the text at its end."""


def picture(comparison: Comparison) -> str:
    """Return an SVG file: the rates, and the slowest of 100 sends at the highest fixed rate; a column for each size."""
    groups = [
        _group(
            comparison, f"{workload[0].upper()}{workload[1:]}: messages a second (longer is better)", _rate(workload)
        )
        for workload in SHOWN_WORKLOADS
    ]
    if comparison.rates:
        per_s = max(comparison.rates)
        name = f"99 of 100 sends are confirmed within, at {per_s:,} a second (shorter is better)"
        groups.append(_group(comparison, name, _latency(per_s)))
    chart = bar_table(
        "comparison",
        TITLE,
        "Bars for each client and broker, with the medians of all rounds.",
        [size_name(body_bytes) for body_bytes in comparison.sizes],
        groups,
        "" if all(each.is_trusted for each in _summaries(comparison)) else BUSY_NOTE,
    )
    return str(environment("pairbus.html").get_template("charts.html").module.svg(chart, is_file=True))  # type: ignore[attr-defined]


def _summaries(comparison: Comparison) -> Iterator[Summary]:
    for name in comparison.names:
        for body_bytes in comparison.sizes:
            summary = comparison.summary(name, body_bytes)
            if summary is not None:
                yield summary


def _group(comparison: Comparison, name: str, figure: Figure) -> BarGroup:
    def value(contestant: str, body_bytes: int) -> tuple[float, str] | None:
        summary = comparison.summary(contestant, body_bytes)
        if summary is None:
            return None
        length, text = figure(summary)
        return length, text + mark(summary)

    rows = [
        BarRow(name=one, values=[value(one, size) for size in comparison.sizes], is_faint=one not in _OURS)
        for one in comparison.names
    ]
    return BarGroup(name=name, rows=rows)


def _rate(workload: str) -> Figure:
    def figure(summary: Summary) -> tuple[float, str]:
        per_s = summary.rate(workload).per_s
        return per_s, f"{per_s:,.0f}"

    return figure


def _latency(per_s: int) -> Figure:
    def figure(summary: Summary) -> tuple[float, str]:
        p99_ms = summary.latency(per_s).p99_ms
        return p99_ms, f"{milliseconds(p99_ms)} ms"

    return figure
