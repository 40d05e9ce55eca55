"""``pairbus cost``: what namespaces have cost, by their ledgers, or what pairing would cost."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

import typer
from typer.core import TyperOption

from pairbus.cli.connection import FAILED, USAGE
from pairbus.cli.cost_options import (
    BILL,
    FORECAST,
    BeyondOption,
    ByOption,
    EngineOption,
    EntitiesOption,
    ForecastOption,
    Format,
    FormatOption,
    FromOption,
    HostsOption,
    LedgerOption,
    MasterOption,
    MessagesOption,
    OutageOption,
    PingOption,
    PollOption,
    PrintOption,
    QueuesOption,
    RatesOption,
    ReceiversOption,
    SendersOption,
    SizeOption,
    ToOption,
    ZoneOption,
)
from pairbus.cli.cost_output import show, write_csv
from pairbus.cli.durations import read_utc
from pairbus.cli.extra import extra_needed
from pairbus.cli.failure import fail
from pairbus.cli.interruption import run_on_spark
from pairbus.client.validation import shown
from pairbus.jobs.cost.allowances import beyond_allowances
from pairbus.jobs.cost.card_section import RateCardError
from pairbus.jobs.cost.document import forecast_document, statement_document
from pairbus.jobs.cost.forecast import Engine, Workload, WorkloadError, forecast
from pairbus.jobs.cost.month import AmountError
from pairbus.jobs.cost.rate_card import RateCard, load_rate_card, rate_card_text, with_zone
from pairbus.jobs.cost.report import forecast_report, statement_report
from pairbus.jobs.cost.statement import By, Statement
from pairbus.jobs.syphon.order import LONG_POLL
from pairbus.pairing.settings import LEAST_PING_INTERVAL, MOST_PING_INTERVAL
from pairbus.spark.option import Form, duration

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
    form: FormatOption = Format.TABLE,
    by: ByOption = By.STAGE,
    start: FromOption = None,
    end: ToOption = None,
    master: MasterOption = "local[*]",
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
    """Say what namespaces have cost, by their ledgers; or what pairing would cost.

    Of a pair, name the ledgers of both: each diverted message is charged four times, twice in each of them.

    Example: pairbus cost --ledger contoso/ledger --ledger fabrikam/ledger --rates standard --by stage

    Example: pairbus cost --ledger contoso/ledger --ledger fabrikam/ledger --beyond-allowances --from 2026-03-01T12:00

    Example: pairbus cost --forecast --messages-per-day 1000000 --outage-hours 2
    """
    card = _card(rates, zone, is_beyond=is_beyond)
    given = [*_given(context)]
    if prints_card:
        _refuse((one for one in given if one.name not in _OF_A_CARD), "does not go with --print-card")
        sys.stdout.write(rate_card_text(rates))
        return
    if not is_forecast:
        _refuse(
            (one for one in given if one.rich_help_panel == FORECAST), "is about a forecast: say --forecast as well"
        )
        if not ledger:
            fail("name a ledger with --ledger, or say --forecast", USAGE)
        bill = _bill(ledger, card, by, read_utc("--from", start), read_utc("--to", end), master)
        if form is Format.CSV:
            write_csv(bill)
        else:
            show(statement_report(bill), statement_document(bill), form)
        return
    _refuse((one for one in given if one.rich_help_panel == BILL), "is about a bill: leave it out with --forecast")
    if messages_per_day is None:
        fail("--forecast needs --messages-per-day", USAGE)
    if form is Format.CSV:
        fail("a forecast is not written as csv; --format is table, json or html with --forecast", USAGE)
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


# What the options say.


def _given(context: typer.Context) -> Iterator[TyperOption]:
    """The options that somebody has typed."""
    for one in context.command.params:
        source = context.get_parameter_source(one.name or "")
        if isinstance(one, TyperOption) and source is not None and source.name == "COMMANDLINE":
            yield one


def _refuse(options: Iterable[TyperOption], reason: str) -> None:
    """What would be passed over in silence."""
    for one in options:
        fail(f"{one.opts[0]} {reason}", USAGE)


def _card(rates: str, zone: str | None, *, is_beyond: bool) -> RateCard:
    try:
        card = load_rate_card(rates)
        card = card if zone is None else with_zone(card, zone)
    except RateCardError as error:
        fail(str(error), USAGE)
    return beyond_allowances(card) if is_beyond else card


def _interval(option: str, text: str, form: Form) -> timedelta:
    try:
        found: timedelta = form.read(text.strip())
    except ValueError:
        fail(f"{option} is {shown(text)}; it is {form.text}", USAGE)
    return found


# What the ledgers say.


def _bill(
    ledgers: Sequence[str], card: RateCard, by: By, start: datetime | None, end: datetime | None, master: str
) -> Statement:
    if start is not None and end is not None and start >= end:
        fail("--to is not after --from", USAGE)
    with extra_needed("spark", code=FAILED):
        from pairbus.jobs.cost.bill import statement  # noqa: PLC0415 (Spark is not everywhere)
        from pairbus.jobs.ledger import LedgerReadError, check_ledgers, read_operations  # noqa: PLC0415
        from pairbus.jobs.ledger.failure import FAILURES, failure_line  # noqa: PLC0415
        from pairbus.jobs.ledger.workload import session_config  # noqa: PLC0415
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
