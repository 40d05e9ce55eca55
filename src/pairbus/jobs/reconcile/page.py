"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from html import escape
from string import Template
from typing import Final, TypeAlias

from pairbus.jobs.markup import markup
from pairbus.jobs.reconcile.chart import bar_name, timeline_chart, waits_chart
from pairbus.jobs.reconcile.durations import told
from pairbus.jobs.reconcile.report import Report
from pairbus.jobs.reconcile.text import headline, moment, outage, scope, shown, told_measures
from pairbus.jobs.reconcile.timeline import LINES
from pairbus.jobs.reconcile.totals import MEASURES

_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>$headline: $pair</title>
<style>
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --soft: #59636e; --rule: #d1d9e0;
  --direct: #0b62c4; --diverted: #b3400b; --syphoned: #6f35b5; --received: #14702f; --bad: #b11f2b; }
@media (prefers-color-scheme: dark) { :root { --text: #e8edf2; --back: #12161b; --soft: #a3adb8; --rule: #3a434d;
  --direct: #6cb0ff; --diverted: #ff9a5c; --syphoned: #c79bff; --received: #63d283; --bad: #ff8289; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 80rem; padding: 0 1rem; background: var(--back); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; }
h1, p, li { max-width: 60rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } h3 { font-size: 1rem; }
.verdict-missing h1, .verdict-unknown h1, td.bad { color: var(--bad); }
.scope { color: var(--soft); margin-top: 0; }
table { border-collapse: collapse; font-size: .9375rem; }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid var(--rule); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number, td.time { white-space: nowrap; } th, td { overflow-wrap: normal; hyphens: manual; }
.wide { overflow-x: auto; } .wide > svg { width: 100%; min-width: 40rem; max-width: 60rem; height: auto; }
.grid { stroke: var(--rule); } .tick { fill: var(--soft); font-size: 11px; }
.line { fill: none; stroke-width: 2; } .bar { fill: var(--direct); }
.direct { stroke: var(--direct); } .diverted { stroke: var(--diverted); stroke-dasharray: 7 3; }
.syphoned { stroke: var(--syphoned); stroke-dasharray: 2 3; } .received { stroke: var(--received); stroke-width: 1; }
ul.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; }
.legend svg { width: 2.2rem; height: .7rem; margin-right: .4rem; }
</style>
</head>
<body class="verdict-$verdict">
<main>
<h1>$headline</h1>
<p class="scope">$scope</p>
$notes
$sections
</main>
</body>
</html>
""")

_Cell: TypeAlias = str | int | datetime | None

_MOST_COLUMNS: Final = 11
"""So many counts fit side by side on a page of 1,280 pixels, with seven digits each."""

_LINE_NAMES: Final = {
    "direct": "accepted by the primary",
    "diverted": "diverted to the backlog",
    "syphoned": "brought home",
    "received": "received",
}


def as_page(report: Report) -> str:
    return _PAGE.substitute(
        headline=escape(headline(report).capitalize()),
        pair=escape(f"{report.primary or 'a primary'} and {report.secondary or 'a secondary'}"),
        scope=escape(scope(report)),
        verdict=report.verdict.value,
        notes="".join(f"<p>{escape(note)}</p>" for note in report.notes),
        sections="\n".join(_sections(report)),
    )


def _sections(report: Report) -> Iterator[str]:
    measures = told_measures(report)
    yield "<h2>In all</h2>"
    yield _table(("what", "messages"), ((MEASURES[name], report.total.counts[name]) for name in measures))
    if report.diversion.first_at is not None:
        yield f"<p>{escape(outage(report))}</p>"
    if report.missing:
        yield f"<h2>Missing ({len(report.missing):,} of {report.total.counts['missing']:,})</h2>"
        yield _table(
            ("entity", "message id", "session", "accepted (UTC)", "why"),
            ((m.entity, m.message_id, m.session_id, m.accepted_at, m.cause) for m in report.missing),
        )
    if report.duplicated:
        yield f"<h2>Duplicated ({len(report.duplicated):,} of {report.total.counts['duplicated']:,})</h2>"
        yield _table(
            ("entity", "message id", "session", "diverted (UTC)", "came home again (UTC)"),
            ((m.entity, m.message_id, m.session_id, m.diverted_at, m.home_at) for m in report.duplicated),
        )
    if report.timeline:
        yield from _timeline(report)
    if report.waits.messages:
        yield from _waits(report)
    yield "<h2>By entity</h2>"
    yield from _by_entity(report, [name for name in measures if report.total.counts[name]])


def _by_entity(report: Report, measures: Sequence[str]) -> Iterator[str]:
    """A row for each entity, or, where a screen has no room for the columns, a table for each."""
    if len(measures) <= _MOST_COLUMNS:
        yield _table(
            ("entity", *(MEASURES[name] for name in measures)),
            ((one.entity, *(one.counts[name] for name in measures)) for one in report.entities),
        )
        return
    for one in report.entities:
        yield f"<h3>{markup(shown(one.entity))}</h3>"
        yield _table(
            ("what", "messages"), ((MEASURES[name], one.counts[name]) for name in measures if one.counts[name])
        )


def _timeline(report: Report) -> Iterator[str]:
    yield f"<h2>Over time, in steps of {escape(told(report.step))}</h2>"
    yield '<ul class="legend">'
    for name in LINES:
        sample = f'<svg viewBox="0 0 36 10" aria-hidden="true"><line class="line {name}" x2="36" y1="5" y2="5"/></svg>'
        yield f"<li>{sample}{_LINE_NAMES[name]}</li>"
    yield "</ul>"
    yield _wide("Messages over time", timeline_chart(report.timeline, report.step))
    yield _folded(
        "The same as a table",
        _table(
            ("from (UTC)", *(_LINE_NAMES[name] for name in LINES)),
            ((point.at, *(getattr(point, name) for name in LINES)) for point in report.timeline),
        ),
    )


def _waits(report: Report) -> Iterator[str]:
    waits = report.waits
    yield "<h2>From diverted to delivered</h2>"
    yield (
        f"<p>{waits.messages:,} messages: half of them within {escape(told(waits.p50))}, "
        f"99 of 100 within {escape(told(waits.p99))}, all within {escape(told(waits.longest))}.</p>"
    )
    yield _wide("Time from diverted to delivered", waits_chart(waits.histogram))
    rows = ((bar_name(number), count) for number, count in enumerate(waits.histogram))
    yield _folded("The same as a table", _table(("took", "messages"), rows))


def _folded(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _wide(name: str, inside: str) -> str:
    """What may be wider than the page, in a box that scrolls."""
    return f'<div class="wide" role="region" aria-label="{escape(name)}" tabindex="0">{inside}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[_Cell]]) -> str:
    body = list(rows)
    numeric = [all(isinstance(row[number], int) for row in body) for number in range(len(head))]
    names = "".join(
        f'<th scope="col"{_class(is_number)}>{escape(name)}</th>' for name, is_number in zip(head, numeric, strict=True)
    )
    lines = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in body)
    return _wide(", ".join(head[:2]), f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>")


def _cell(cell: _Cell) -> str:
    match cell:
        case int():
            return f'<td class="number">{cell:,}</td>'
        case datetime():
            return f'<td class="time">{moment(cell).removesuffix(" UTC")}</td>'
        case _:
            return f"<td>{markup(shown(cell))}</td>"


def _class(is_number: bool) -> str:
    return ' class="number"' if is_number else ""
