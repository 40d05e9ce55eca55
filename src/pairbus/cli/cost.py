"""``pairbus cost``: what namespaces have cost, by their ledgers, or what pairing would cost."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pairbus.cli.connection import FAILED, USAGE
from pairbus.cli.serve import fail
from pairbus.jobs.cost.card_section import RateCardError
from pairbus.jobs.cost.document import forecast_document, statement_document
from pairbus.jobs.cost.forecast import HOURS, Workload, forecast
from pairbus.jobs.cost.page import html_page
from pairbus.jobs.cost.rate_card import RateCard, load_rate_card, with_zone
from pairbus.jobs.cost.report import Report, Section, forecast_report, statement_report
from pairbus.jobs.cost.statement import By, Statement
from pairbus.spark.option import duration

_INTERVAL: Final = duration(
    timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s, 15m or 1h"
)
_WIDTH: Final = 200
"""Of tables that nobody looks at in a terminal."""


class Format(Enum):
    """How a bill is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


_BILL: Final = "Bill"
_FORECAST: Final = "Forecast"

_LedgerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger", help="the directory of a ledger; once for each namespace", metavar="DIR", rich_help_panel=_BILL
    ),
]
_RatesOption = Annotated[
    str, typer.Option("--rates", help="the rate card: standard, premium, basic, or a file", metavar="CARD")
]
_ZoneOption = Annotated[
    str | None, typer.Option("--zone", help="a zone of the rate card, for the price of bandwidth", metavar="ZONE")
]
_FormatOption = Annotated[Format, typer.Option("--format", help="how it is written; csv has the lines of a bill")]
_ByOption = Annotated[
    By, typer.Option("--by", help="what the lines of the bill are put together by", rich_help_panel=_BILL)
]
_FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="the first time that counts, such as 2026-03-01 or 2026-03-01T12:00 (UTC)", metavar="TIME",
        rich_help_panel=_BILL,
    ),
]  # fmt: skip
_ToOption = Annotated[
    str | None,
    typer.Option("--to", help="the first time that does not count any more", metavar="TIME", rich_help_panel=_BILL),
]
_MasterOption = Annotated[
    str, typer.Option("--master", help="where Spark runs", metavar="MASTER", rich_help_panel=_BILL)
]
_ForecastOption = Annotated[
    bool, typer.Option("--forecast", help="say what pairing would cost; needs no ledger", rich_help_panel=_FORECAST)
]
_MessagesOption = Annotated[
    int | None, typer.Option("--messages-per-day", min=0, help="that are sent", rich_help_panel=_FORECAST)
]
_SizeOption = Annotated[
    int, typer.Option("--message-bytes", min=0, help="the size of a message, on average", rich_help_panel=_FORECAST)
]
_EntitiesOption = Annotated[
    int, typer.Option("--entities", min=1, help="queues and topics that are sent to", rich_help_panel=_FORECAST)
]
_SendersOption = Annotated[int, typer.Option("--senders", min=1, help="processes that send", rich_help_panel=_FORECAST)]
_ReceiversOption = Annotated[
    int, typer.Option("--receivers", min=0, help="processes that receive", rich_help_panel=_FORECAST)
]
_QueuesOption = Annotated[
    int, typer.Option("--backlog-queues", min=1, help="backlog queues of the pair", rich_help_panel=_FORECAST)
]
_OutageOption = Annotated[
    float,
    typer.Option(
        "--outage-hours", min=0, max=HOURS, help="how long the primary is down in a month", rich_help_panel=_FORECAST
    ),
]
_PingOption = Annotated[
    str, typer.Option("--ping-interval", help="how often it is asked then", metavar="TIME", rich_help_panel=_FORECAST)
]
_HostsOption = Annotated[
    int, typer.Option("--syphon-hosts", min=1, help="processes that run a syphon", rich_help_panel=_FORECAST)
]
_PollOption = Annotated[
    str,
    typer.Option(
        "--long-poll", help="how long a syphon waits at an empty backlog queue", metavar="TIME",
        rich_help_panel=_FORECAST,
    ),
]  # fmt: skip


def cost(
    ledger: _LedgerOption = None,
    rates: _RatesOption = "standard",
    zone: _ZoneOption = None,
    form: _FormatOption = Format.TABLE,
    by: _ByOption = By.STAGE,
    start: _FromOption = None,
    end: _ToOption = None,
    master: _MasterOption = "local[*]",
    is_forecast: _ForecastOption = False,
    messages_per_day: _MessagesOption = None,
    message_bytes: _SizeOption = 1_000,
    entities: _EntitiesOption = 1,
    senders: _SendersOption = 1,
    receivers: _ReceiversOption = 1,
    backlog_queues: _QueuesOption = 10,
    outage_hours: _OutageOption = 1.0,
    ping_interval: _PingOption = "1m",
    syphon_hosts: _HostsOption = 1,
    long_poll: _PollOption = "15m",
) -> None:
    """Say what namespaces have cost, by their ledgers; or what pairing would cost.

    Of a pair, name the ledgers of both: each diverted message is charged four times, twice in each of them.

    Example: pairbus cost --ledger contoso/ledger --ledger fabrikam/ledger --rates standard --by stage

    Example: pairbus cost --forecast --messages-per-day 1000000 --outage-hours 2
    """
    card = _card(rates, zone)
    if is_forecast:
        if ledger or messages_per_day is None or form is Format.CSV:
            fail("--forecast goes with --messages-per-day, without --ledger, and not into csv", USAGE)
        workload = Workload(
            messages_per_day=messages_per_day,
            message_bytes=message_bytes,
            entities=entities,
            senders=senders,
            receivers=receivers,
            backlog_queues=backlog_queues,
            outage_hours=Decimal(str(outage_hours)),
            ping_interval=_interval("--ping-interval", ping_interval),
            syphon_hosts=syphon_hosts,
            long_poll=_interval("--long-poll", long_poll),
        )
        found = forecast(workload, card)
        _show(forecast_report(found), forecast_document(found), form)
        return
    if not ledger:
        fail("name a ledger with --ledger, or say --forecast", USAGE)
    bill = _bill(ledger, card, by, _time("--from", start), _time("--to", end), master)
    if form is Format.CSV:
        _write_csv(bill)
    else:
        _show(statement_report(bill), statement_document(bill), form)


# What the options say.


def _card(rates: str, zone: str | None) -> RateCard:
    try:
        card = load_rate_card(rates)
        return card if zone is None else with_zone(card, zone)
    except RateCardError as error:
        fail(str(error), USAGE)


def _interval(option: str, text: str) -> timedelta:
    try:
        found: timedelta = _INTERVAL.read(text.strip())
    except ValueError:
        fail(f"{option} is no such time; it is {_INTERVAL.text}", USAGE)
    return found


def _time(option: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} is no such time; it is like 2026-03-01 or 2026-03-01T12:00", USAGE)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


# What the ledgers say.


def _bill(
    ledgers: Sequence[str], card: RateCard, by: By, start: datetime | None, end: datetime | None, master: str
) -> Statement:
    if start is not None and end is not None and start >= end:
        fail("--to is not after --from", USAGE)
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 (Spark is not everywhere)

        from pairbus.jobs.cost.bill import statement  # noqa: PLC0415
        from pairbus.jobs.ledger import LedgerReadError, read_operations  # noqa: PLC0415
        from pairbus.spark.java import JavaNotFoundError  # noqa: PLC0415
        from pairbus.spark.session import SparkStartError, ensured_session  # noqa: PLC0415
    except ImportError as error:
        if (error.name or "").startswith("pairbus"):
            raise  # that would be our own mistake
        fail(f"{error}; install pairbus with its extra, 'pairbus[spark]'", FAILED)
    try:
        with Console(stderr=True).status("reading ledgers"), ensured_session(master, app_name="pairbus cost") as spark:
            return statement(read_operations(spark, ledgers, start, end), card, by)
    except (LedgerReadError, JavaNotFoundError, SparkStartError) as error:
        fail(str(error), FAILED)
    except PySparkException as error:
        fail(f"Spark could not read the ledgers: {str(error).splitlines()[0]}", FAILED)


# How it is shown.


def _show(report: Report, document: dict[str, Any], form: Format) -> None:
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


def _write_csv(bill: Statement) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((*bill.groups, "operations", "failed", "messages", "bytes", "units", "amount", "currency"))
    for line in bill.lines:
        counts = (line.operations, line.failed, line.messages, line.bytes, line.units)
        writer.writerow((*line.labels, *counts, f"{line.amount:f}", bill.card.currency))
