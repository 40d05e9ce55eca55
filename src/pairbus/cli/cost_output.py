"""How a bill or a forecast is written."""

from __future__ import annotations

import csv
import json
import sys
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairbus.cli.cost_options import Format
from pairbus.jobs.cost.page import html_page
from pairbus.jobs.cost.report import Report, Section
from pairbus.jobs.cost.statement import Statement

_WIDTH: Final = 200
"""Of tables that nobody looks at in a terminal."""


def show(report: Report, document: dict[str, Any], form: Format) -> None:
    if form is Format.JSON:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif form is Format.HTML:
        print(html_page(report), end="")
    else:
        _print_tables(report)


def _print_tables(report: Report) -> None:
    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH)
    console.print(report.heading, style="bold")
    for section in report.sections:
        console.print()
        console.print(_table(section))
        if section.note:
            console.print(section.note)
    console.print()
    for note in report.footnotes:
        console.print(note, style="dim", soft_wrap=True)


def _table(section: Section) -> Table:
    table = Table(
        title=section.title, title_justify="left", title_style="bold", show_footer=section.total is not None, box=None
    )
    footers = section.total or ("",) * len(section.columns)
    for place, (name, footer) in enumerate(zip(section.columns, footers, strict=True)):
        table.add_column(name, Text(footer), justify="left" if place < section.texts else "right", no_wrap=True)
    for row in section.rows:
        table.add_row(*map(Text, row))
    return table


def write_csv(bill: Statement) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((*bill.groups, "operations", "failed", "messages", "bytes", "units", "amount", "currency"))
    for line in bill.lines:
        counts = (line.operations, line.failed, line.messages, line.bytes, line.units)
        writer.writerow((*map(_cell, line.labels), *counts, f"{line.amount:f}", bill.card.currency))


def _cell(text: str) -> str:
    """A program that opens tables would take a name that begins so for a formula; anyone may have made it up."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
