"""A report as one page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from pairbus.jobs.cost.report import Report, Section
from pairbus.jobs.markup import markup

_STYLE: Final = """\
:root { color-scheme: light dark; --line: #c8ccd2; --soft: #f3f4f6; --text: #1b1f24; --back: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --line: #4a5058; --soft: #23272d; --text: #e6e8eb; --back: #15181c; }
}
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; }
.wide { overflow-x: auto; }
* { box-sizing: border-box; }
h1, p { overflow-wrap: break-word; }
table { border-collapse: collapse; margin: 0 0 1rem; }
caption { text-align: left; font-size: 1.2rem; font-weight: 600; padding: 1rem 0 .5rem; }
th, td { padding: .25rem .75rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
thead th, tfoot th, tfoot td { background: var(--soft); font-weight: 600; }
tbody th { font-weight: 400; }
footer { font-size: .875rem; }
"""


def html_page(report: Report) -> str:
    """The page, from its first line to its last."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.heading)}</title>",
        f"<style>\n{_STYLE}</style>",
        "</head>",
        "<body>",
        "<main>",
        f"<h1>{escape(report.heading)}</h1>",
        *(line for section in report.sections for line in _section(section)),
        "</main>",
        "<footer>",
        *(f"<p>{markup(note)}</p>" for note in report.footnotes),
        "</footer>",
        "</body>",
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f'<div class="wide" role="region" aria-label="{escape(section.title)}" tabindex="0">'
    yield "<table>"
    yield f"<caption>{escape(section.title)}</caption>"
    yield "<thead>"
    yield f"<tr>{''.join(_head(section))}</tr>"
    yield "</thead>"
    yield "<tbody>"
    for row in section.rows:
        yield f"<tr>{''.join(_cells(row, section.texts))}</tr>"
    yield "</tbody>"
    if section.total is not None:
        yield f"<tfoot><tr>{''.join(_cells(section.total, section.texts))}</tr></tfoot>"
    yield "</table>"
    yield "</div>"
    if section.note:
        yield f"<p>{escape(section.note)}</p>"


def _head(section: Section) -> Iterator[str]:
    for place, column in enumerate(section.columns):
        yield f'<th scope="col"{_kind(place, section.texts)}>{escape(column)}</th>'


def _cells(row: Sequence[str], texts: int) -> Iterator[str]:
    for place, cell in enumerate(row):
        if place == 0:
            yield f'<th scope="row">{markup(cell)}</th>'
        elif place < texts:
            yield f"<td>{markup(cell)}</td>"
        else:
            yield f'<td class="number">{escape(cell)}</td>'


def _kind(place: int, texts: int) -> str:
    return "" if place < texts else ' class="number"'
