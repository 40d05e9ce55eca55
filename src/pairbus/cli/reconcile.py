"""``pairbus reconcile``: proves by the ledgers of a pair what became of its messages."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pairbus.cli.connection import USAGE, one_line
from pairbus.cli.durations import read_utc
from pairbus.cli.extra import extra_needed
from pairbus.cli.failure import fail
from pairbus.cli.interruption import run_on_spark

if TYPE_CHECKING:
    from pairbus.jobs.reconcile import Report

MISSING: Final = 1
UNKNOWN: Final = 3


class Format(Enum):
    """How the report is written."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


_PrimaryOption = Annotated[
    list[str],
    typer.Option(
        "--primary",
        metavar="LEDGER",
        show_default=False,
        help="the ledger of the namespace that the application uses: its directory; may be given several times",
    ),
]
_SecondaryOption = Annotated[
    list[str],
    typer.Option(
        "--secondary",
        metavar="LEDGER",
        show_default=False,
        help="the same of the namespace that has the backlog queues",
    ),
]
_FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="messages accepted from then on: 2026-03-01T12:00, in UTC"),
]
_ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="messages accepted before then")]
_NameOption = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="what the backlog queues call the primary; else its namespace"),
]
_FormatOption = Annotated[Format, typer.Option("--format", help="how the report is written")]
_OutOption = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="where the report goes; else to the output")
]
_ListOption = Annotated[int, typer.Option("--list", min=0, metavar="N", help="how many messages a list has at most")]
_MasterOption = Annotated[str, typer.Option("--master", metavar="MASTER", help="where Spark runs")]


def reconcile(
    primary: _PrimaryOption,
    secondary: _SecondaryOption,
    from_: _FromOption = None,
    to: _ToOption = None,
    name: _NameOption = None,
    format_: _FormatOption = Format.TABLE,
    out: _OutOption = None,
    list_: _ListOption = 20,
    master: _MasterOption = "local[*]",
) -> None:
    """Prove what became of the messages of a pair: what was received, what waits, what is missing.

    Ends with 0 if nothing is missing, 1 if something is, 2 if the ledgers or options are no good, 3 if it cannot be
    told: a ledger has gaps, or Spark does not start. Ctrl-C ends it with 130.

    The ledgers have to hold the lives of messages, not only operations.

    Example: pairbus reconcile --primary contoso/ledger --secondary fabrikam/ledger --format html --out report.html
    """
    start, end = read_utc("--from", from_), read_utc("--to", to)
    if start is not None and end is not None and start >= end:
        fail("--to is not after --from", USAGE)
    if out is not None:
        _check_writable(out)
    found = _report(primary, secondary, start, end, name, list_, master)
    _write(_rendered(found, format_), out)
    code = _exit_code(found)
    if out is not None:
        print(f"{_headline(found)}; the report is in {out}")
    if code:
        raise typer.Exit(code)


def _check_writable(out: Path) -> None:
    """What is wrong with it is told now, and not when all the work is done."""
    if out.is_dir():
        fail(f"--out: {out} is a directory; name a file", USAGE)
    if not out.parent.is_dir():
        fail(f"--out: there is no directory {out.parent}", USAGE)
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        fail(f"--out: {out} cannot be written", USAGE)


def _report(
    primary: list[str],
    secondary: list[str],
    start: datetime | None,
    end: datetime | None,
    name: str | None,
    listed: int,
    master: str,
) -> Report:
    with extra_needed("spark", code=UNKNOWN):
        from pairbus.jobs.reconcile.command import Reconcilable  # noqa: PLC0415 (Spark is not everywhere)
        from pairbus.jobs.reconcile.errors import ReconcileError  # noqa: PLC0415
    ledgers = Reconcilable(primary=primary, secondary=secondary, start=start, end=end, name=name)
    try:
        return run_on_spark(lambda: ledgers.report(master, listed))
    except ReconcileError as error:
        fail(one_line(error), USAGE if error.is_input else UNKNOWN)


def _exit_code(found: Report) -> int:
    from pairbus.jobs.reconcile import Verdict  # noqa: PLC0415

    return {Verdict.FINE: 0, Verdict.MISSING: MISSING, Verdict.UNKNOWN: UNKNOWN}[found.verdict]


def _headline(found: Report) -> str:
    from pairbus.jobs.reconcile.text import headline  # noqa: PLC0415

    return headline(found)


def _rendered(found: Report, format_: Format) -> str:
    from pairbus.jobs.reconcile.document import as_document  # noqa: PLC0415
    from pairbus.jobs.reconcile.page import as_page  # noqa: PLC0415
    from pairbus.jobs.reconcile.text import as_text  # noqa: PLC0415

    ways: dict[Format, Callable[[Report], str]] = {
        Format.TABLE: as_text,
        Format.JSON: lambda report: json.dumps(as_document(report), indent=2) + "\n",
        Format.HTML: as_page,
    }
    return ways[format_](found)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"the report cannot be written to {out}: {error.strerror}", USAGE)
