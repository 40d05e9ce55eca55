"""``pairbus cost``: print a bill from the ledgers of namespaces, or a forecast of the cost of pairing."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperOption

from pairbus.cli.arguments import HERE, conf_option, master_option, packages_option, read_utc
from pairbus.cli.failure import FAILED, USAGE, extra_needed, fail
from pairbus.cli.interruption import run_on_spark
from pairbus.client.validation import shown
from pairbus.jobs.cost.forecast import HOURS, Engine, Workload, WorkloadError, forecast
from pairbus.jobs.cost.month import AmountError, beyond_allowances
from pairbus.jobs.cost.rate_card import CARD_NAMES, RateCard, RateCardError, load_rate_card, rate_card_text, with_zone
from pairbus.jobs.cost.report import (
    CostReport,
    Section,
    forecast_document,
    forecast_report,
    html_page,
    statement_document,
    statement_report,
)
from pairbus.jobs.cost.statement import GroupBy, Statement
from pairbus.jobs.syphon.settings import LONG_POLL
from pairbus.pairing.pair import LEAST_PING_INTERVAL, MOST_PING_INTERVAL
from pairbus.spark.options import OptionForm, duration


class CostFormat(Enum):
    """The output format of a bill or forecast."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


BILL: Final = "Bill"
FORECAST: Final = "Forecast"
"""Panels of the help, for options that apply to a bill or to a forecast only."""

LedgerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger", help="the directory of a ledger, one for each namespace", metavar="DIR", rich_help_panel=BILL
    ),
]
RatesOption = Annotated[
    str,
    typer.Option(
        "--rates",
        help="the rate card: standard, premium, basic, or a file",
        metavar="CARD",
        autocompletion=lambda: [*CARD_NAMES],
    ),
]
ZoneOption = Annotated[
    str | None,
    typer.Option("--zone", help="the zone of the rate card that sets the price of bandwidth", metavar="ZONE"),
]
BeyondOption = Annotated[
    bool,
    typer.Option(
        "--beyond-allowances",
        help="charge as if the allowances of the month were used up and its base charge paid: the marginal cost",
    ),
]
PrintOption = Annotated[
    bool, typer.Option("--print-card", help="print the rate card as a file that you can edit, and exit")
]
FormatOption = Annotated[CostFormat, typer.Option("--format", help="the output format; csv is for bills only")]
ByOption = Annotated[GroupBy, typer.Option("--by", help="the grouping of the lines of the bill", rich_help_panel=BILL)]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="the start of the time range, such as 2026-03-01 or 2026-03-01T12:00 (UTC)", metavar="TIME",
        rich_help_panel=BILL,
    ),
]  # fmt: skip
ToOption = Annotated[
    str | None,
    typer.Option("--to", help="the end of the time range, exclusive", metavar="TIME", rich_help_panel=BILL),
]
MasterOption = Annotated[str, master_option(BILL)]
ConfOption = Annotated[list[str] | None, conf_option(BILL)]
PackagesOption = Annotated[str | None, packages_option(BILL)]
ForecastOption = Annotated[
    bool, typer.Option("--forecast", help="forecast the cost of pairing; needs no ledger", rich_help_panel=FORECAST)
]
MessagesOption = Annotated[
    int | None, typer.Option("--messages-per-day", min=0, help="messages sent per day", rich_help_panel=FORECAST)
]
SizeOption = Annotated[
    int, typer.Option("--message-bytes", min=0, help="the average size of a message", rich_help_panel=FORECAST)
]
EntitiesOption = Annotated[
    int,
    typer.Option(
        "--entities", min=1, help="the number of queues and topics that applications send to", rich_help_panel=FORECAST
    ),
]
SendersOption = Annotated[
    int, typer.Option("--senders", min=1, help="the number of sending processes", rich_help_panel=FORECAST)
]
ReceiversOption = Annotated[
    int, typer.Option("--receivers", min=0, help="the number of receiving processes", rich_help_panel=FORECAST)
]
QueuesOption = Annotated[
    int,
    typer.Option("--backlog-queues", min=1, help="the number of backlog queues of the pair", rich_help_panel=FORECAST),
]
OutageOption = Annotated[
    float,
    typer.Option(
        "--outage-hours", min=0, max=HOURS, help="hours per month that the primary is down", rich_help_panel=FORECAST
    ),
]
PingOption = Annotated[
    str,
    typer.Option(
        "--ping-interval", help="the interval between pings during an outage", metavar="TIME", rich_help_panel=FORECAST
    ),
]
HostsOption = Annotated[
    int,
    typer.Option("--syphon-hosts", min=1, help="the number of processes that run a syphon", rich_help_panel=FORECAST),
]
PollOption = Annotated[
    str,
    typer.Option(
        "--long-poll", help="the time that a receive of the syphon waits at an empty backlog queue", metavar="TIME",
        rich_help_panel=FORECAST,
    ),
]  # fmt: skip
EngineOption = Annotated[Engine, typer.Option("--engine", help="the engine of the syphon", rich_help_panel=FORECAST)]


_WIDTH: Final = 200
"""The width of tables when standard output is not a terminal."""


def show(report: CostReport, document: dict[str, Any], form: CostFormat) -> None:
    if form is CostFormat.JSON:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif form is CostFormat.HTML:
        print(html_page(report), end="")
    else:
        _print_tables(report)


def _print_tables(report: CostReport) -> None:
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
    """Escape a name that a spreadsheet would evaluate as a formula: any client can choose the names of entities."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


_PING_INTERVAL: Final = duration(
    LEAST_PING_INTERVAL, MOST_PING_INTERVAL, "a time from 1 second to 30 minutes, such as 30s or 5m"
)
_OF_A_CARD: Final = frozenset({"rates", "prints_card"})


def cost(
    context: typer.Context,
    ledger: LedgerOption = None,
    rates: RatesOption = "standard",
    zone: ZoneOption = None,
    is_beyond: BeyondOption = False,
    prints_card: PrintOption = False,
    form: FormatOption = CostFormat.TABLE,
    by: ByOption = GroupBy.STAGE,
    start: FromOption = None,
    end: ToOption = None,
    master: MasterOption = HERE,
    conf: ConfOption = None,
    packages: PackagesOption = None,
    is_forecast: ForecastOption = False,
    messages_per_day: MessagesOption = None,
    message_bytes: SizeOption = 1_000,
    entities: EntitiesOption = 1,
    senders: SendersOption = 1,
    receivers: ReceiversOption = 1,
    backlog_queues: QueuesOption = 10,
    outage_hours: OutageOption = 1.0,
    ping_interval: PingOption = "1m",
    syphon_hosts: HostsOption = 1,
    long_poll: PollOption = "15m",
    engine: EngineOption = Engine.SPARK,
) -> None:
    """Print what namespaces have cost, from their ledgers, or forecast what pairing would cost.

    For a pair, name the ledgers of both namespaces: each diverted message is charged four times, twice in each of them.

    Example: pairbus cost --ledger contoso/ledger --ledger fabrikam/ledger --rates standard --by stage

    Example: pairbus cost --ledger contoso/ledger --ledger fabrikam/ledger --beyond-allowances --from 2026-03-01T12:00

    Example: pairbus cost --forecast --messages-per-day 1000000 --outage-hours 2
    """
    card = _card(rates, zone, is_beyond=is_beyond)
    given = [*_given(context)]
    if prints_card:
        _refuse((one for one in given if one.name not in _OF_A_CARD), "cannot be combined with --print-card")
        sys.stdout.write(rate_card_text(rates))
        return
    if not is_forecast:
        _refuse((one for one in given if one.rich_help_panel == FORECAST), "applies to a forecast only: add --forecast")
        if not ledger:
            fail("name a ledger with --ledger, or add --forecast", USAGE)
        bill = _bill(ledger, card, by, read_utc("--from", start), read_utc("--to", end), master)
        if form is CostFormat.CSV:
            write_csv(bill)
        else:
            show(statement_report(bill), statement_document(bill), form)
        return
    _refuse((one for one in given if one.rich_help_panel == BILL), "applies to a bill only: remove it or --forecast")
    if messages_per_day is None:
        fail("--forecast requires --messages-per-day", USAGE)
    if form is CostFormat.CSV:
        fail("--format must be table, json or html with --forecast, got csv", USAGE)
    try:
        workload = Workload(
            messages_per_day=messages_per_day,
            message_bytes=message_bytes,
            entities=entities,
            senders=senders,
            receivers=receivers,
            backlog_queues=backlog_queues,
            outage_hours=Decimal(str(outage_hours)),
            ping_interval=_interval("--ping-interval", ping_interval, _PING_INTERVAL),
            syphon_hosts=syphon_hosts,
            long_poll=_interval("--long-poll", long_poll, LONG_POLL),
            engine=engine,
        )
        found = forecast(workload, card)
    except (WorkloadError, AmountError) as error:
        fail(str(error), USAGE)
    show(forecast_report(found), forecast_document(found), form)


# Options.


def _given(context: typer.Context) -> Iterator[TyperOption]:
    """Yield the options that were given on the command line."""
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if isinstance(one, TyperOption) and source is not None and source.name == "COMMANDLINE":
            yield one


def _refuse(options: Iterable[TyperOption], reason: str) -> None:
    """End the command with an error if there is such an option: it would have no effect."""
    for one in options:
        fail(f"{one.opts[0]} {reason}", USAGE)


def _card(rates: str, zone: str | None, *, is_beyond: bool) -> RateCard:
    try:
        card = load_rate_card(rates)
        card = card if zone is None else with_zone(card, zone)
    except RateCardError as error:
        fail(str(error), USAGE)
    return beyond_allowances(card) if is_beyond else card


def _interval(option: str, text: str, form: OptionForm) -> timedelta:
    try:
        found: timedelta = form.read(text.strip())
    except ValueError:
        fail(f"{option} must be {form.text}, got {shown(text)}", USAGE)
    return found


# Ledgers.


def _bill(
    ledgers: Sequence[str], card: RateCard, by: GroupBy, start: datetime | None, end: datetime | None, master: str
) -> Statement:
    if start is not None and end is not None and start >= end:
        fail("--to must be after --from", USAGE)
    with extra_needed("spark", code=FAILED):
        from pairbus.jobs.cost.bill import statement  # noqa: PLC0415 (Spark is optional)
        from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_operations  # noqa: PLC0415
        from pairbus.jobs.ledger.tables import (  # noqa: PLC0415
            FAILURES,
            failure_line,
            session_config,
        )
        from pairbus.spark.java import JavaNotFoundError  # noqa: PLC0415
        from pairbus.spark.session import SparkStartError, ensured_session  # noqa: PLC0415

    def job() -> Statement:
        with ensured_session(master, app_name="pairbus cost", config=session_config(ledgers, {})) as spark:
            return statement(read_operations(spark, ledgers, start, end), card, by)

    try:
        check_ledgers(ledgers)
        return run_on_spark(job)
    except (LedgerReadError, JavaNotFoundError, SparkStartError, AmountError) as error:
        fail(str(error), FAILED)
    except FAILURES as error:
        fail(f"Spark could not read the ledgers: {failure_line(error)}", FAILED)
