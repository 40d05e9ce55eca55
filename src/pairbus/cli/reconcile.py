"""``pairbus reconcile``: account for the messages of a pair from its ledgers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pairbus.cli.arguments import HERE, ConfOption, MasterOption, PackagesOption, read_utc
from pairbus.cli.connection import one_line
from pairbus.cli.failure import USAGE, extra_needed, fail
from pairbus.cli.interruption import run_on_spark

if TYPE_CHECKING:
    from pairbus.jobs.reconcile import ReconcileReport
    from pairbus.jobs.reconcile.command import Reconcilable

MISSING: Final = 1
UNKNOWN: Final = 3


class ReconcileFormat(Enum):
    """The output format of the report."""

    TABLE = "table"
    JSON = "json"
    HTML = "html"


_PrimaryOption = Annotated[
    list[str],
    typer.Option(
        "--primary",
        metavar="LEDGER",
        show_default=False,
        help="the ledger directory of the primary namespace; may be repeated",
    ),
]
_SecondaryOption = Annotated[
    list[str],
    typer.Option(
        "--secondary",
        metavar="LEDGER",
        show_default=False,
        help="the ledger directory of the secondary namespace; may be repeated",
    ),
]
_FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="the start of the time range in UTC, such as 2026-03-01T12:00; by the time a message was accepted",
    ),
]
_ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="the end of the time range, exclusive")]
_NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="the name of the primary in the paths of the backlog queues; by default the name of its namespace",
    ),
]
_FormatOption = Annotated[ReconcileFormat, typer.Option("--format", help="the output format")]
_OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="the file to write the report to; by default standard output"),
]
_TablesOption = Annotated[
    str | None,
    typer.Option(
        "--tables", metavar="PLACE", help="the directory or address that Spark writes the tables of the result to"
    ),
]
_TableFormatOption = Annotated[
    str,
    typer.Option(
        "--table-format", metavar="FORMAT", help="parquet, or a format that the Spark session can write to a directory"
    ),
]
_StateOption = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="PLACE",
        help="the directory or address for the messages that are open at the end; the next time range begins with them",
    ),
]
_ListOption = Annotated[
    int, typer.Option("--list", min=0, metavar="N", help="the maximum number of messages in a list")
]


def reconcile(
    primary: _PrimaryOption,
    secondary: _SecondaryOption,
    from_: _FromOption = None,
    to: _ToOption = None,
    name: _NameOption = None,
    format_: _FormatOption = ReconcileFormat.TABLE,
    out: _OutOption = None,
    list_: _ListOption = 20,
    tables: _TablesOption = None,
    table_format: _TableFormatOption = "parquet",
    state: _StateOption = None,
    master: MasterOption = HERE,
    conf: ConfOption = None,
    packages: PackagesOption = None,
) -> None:
    """Account for every message of a pair: received, waiting, missing.

    Exits with 0 if nothing is missing, with 1 if messages are missing, with 2 if the ledgers or options are invalid,
    with 3 if the result is unknown because a ledger has gaps or Spark does not start, and with 130 on Ctrl-C.

    The ledgers must record the lives of messages, not only operations.

    Example: pairbus reconcile --primary contoso/ledger --secondary fabrikam/ledger --format html --out report.html
    """
    start, end = read_utc("--from", from_), read_utc("--to", to)
    if start is not None and end is not None and start >= end:
        fail("--to must be after --from", USAGE)
    if out is not None:
        _check_writable(out)
    with extra_needed("spark", code=UNKNOWN):
        from pairbus.jobs.reconcile.command import Outputs, Reconcilable  # noqa: PLC0415 (Spark is optional)
    outputs = Outputs(tables=tables, table_format=table_format, state=state)
    found = _report(
        Reconcilable(primary=primary, secondary=secondary, start=start, end=end, name=name, outputs=outputs),
        list_,
        master,
    )
    _write(_rendered(found, format_), out)
    code = _exit_code(found)
    if out is not None:
        print(f"{_headline(found)}; report written to {out}")
    if code:
        raise typer.Exit(code)


def _check_writable(out: Path) -> None:
    """End the command if the file cannot be written, before Spark does all the work."""
    if out.is_dir():
        fail(f"--out: {out} is a directory; name a file", USAGE)
    if not out.parent.is_dir():
        fail(f"--out: the directory {out.parent} does not exist", USAGE)
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        fail(f"--out: {out} cannot be written", USAGE)


def _report(ledgers: Reconcilable, listed: int, master: str) -> ReconcileReport:
    from pairbus.jobs.reconcile.reconciliation import ReconcileError  # noqa: PLC0415

    try:
        return run_on_spark(lambda: ledgers.report(master, listed))
    except ReconcileError as error:
        fail(one_line(error), USAGE if error.is_input else UNKNOWN)


def _exit_code(found: ReconcileReport) -> int:
    from pairbus.jobs.reconcile import ReconcileVerdict  # noqa: PLC0415

    return {ReconcileVerdict.FINE: 0, ReconcileVerdict.MISSING: MISSING, ReconcileVerdict.UNKNOWN: UNKNOWN}[
        found.verdict
    ]


def _headline(found: ReconcileReport) -> str:
    from pairbus.jobs.reconcile.page import headline  # noqa: PLC0415

    return headline(found)


def _rendered(found: ReconcileReport, format_: ReconcileFormat) -> str:
    from pairbus.jobs.reconcile.page import as_document, as_page, as_text  # noqa: PLC0415

    renderers: dict[ReconcileFormat, Callable[[ReconcileReport], str]] = {
        ReconcileFormat.TABLE: as_text,
        ReconcileFormat.JSON: lambda report: json.dumps(as_document(report), indent=2) + "\n",
        ReconcileFormat.HTML: as_page,
    }
    return renderers[format_](found)


def _write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(text)
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"the report cannot be written to {out}: {error.strerror}", USAGE)
