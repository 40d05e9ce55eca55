"""The options of ``pairbus cost``."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Final

import typer

from pairbus.jobs.cost.forecast import HOURS, Engine
from pairbus.jobs.cost.rate_card import CARD_NAMES
from pairbus.jobs.cost.statement import By


class Format(Enum):
    """How a bill is written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    HTML = "html"


BILL: Final = "Bill"
FORECAST: Final = "Forecast"
"""What an option is about, if not about both; the help has them in panels of these names."""

LedgerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--ledger", help="the directory of a ledger; once for each namespace", metavar="DIR", rich_help_panel=BILL
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
    str | None, typer.Option("--zone", help="a zone of the rate card, for the price of bandwidth", metavar="ZONE")
]
BeyondOption = Annotated[
    bool,
    typer.Option(
        "--beyond-allowances",
        help="count as if all that a month includes were used up, and its base charge paid: what more costs",
    ),
]
PrintOption = Annotated[
    bool, typer.Option("--print-card", help="print the file of the rate card, to make one of your own of it, and stop")
]
FormatOption = Annotated[Format, typer.Option("--format", help="how it is written; csv has the lines of a bill")]
ByOption = Annotated[
    By, typer.Option("--by", help="what the lines of the bill are put together by", rich_help_panel=BILL)
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="the first time that counts, such as 2026-03-01 or 2026-03-01T12:00 (UTC)", metavar="TIME",
        rich_help_panel=BILL,
    ),
]  # fmt: skip
ToOption = Annotated[
    str | None,
    typer.Option("--to", help="the first time that does not count any more", metavar="TIME", rich_help_panel=BILL),
]
MasterOption = Annotated[str, typer.Option("--master", help="where Spark runs", metavar="MASTER", rich_help_panel=BILL)]
ForecastOption = Annotated[
    bool, typer.Option("--forecast", help="say what pairing would cost; needs no ledger", rich_help_panel=FORECAST)
]
MessagesOption = Annotated[
    int | None, typer.Option("--messages-per-day", min=0, help="that are sent", rich_help_panel=FORECAST)
]
SizeOption = Annotated[
    int, typer.Option("--message-bytes", min=0, help="the size of a message, on average", rich_help_panel=FORECAST)
]
EntitiesOption = Annotated[
    int, typer.Option("--entities", min=1, help="queues and topics that are sent to", rich_help_panel=FORECAST)
]
SendersOption = Annotated[int, typer.Option("--senders", min=1, help="processes that send", rich_help_panel=FORECAST)]
ReceiversOption = Annotated[
    int, typer.Option("--receivers", min=0, help="processes that receive", rich_help_panel=FORECAST)
]
QueuesOption = Annotated[
    int, typer.Option("--backlog-queues", min=1, help="backlog queues of the pair", rich_help_panel=FORECAST)
]
OutageOption = Annotated[
    float,
    typer.Option(
        "--outage-hours", min=0, max=HOURS, help="how long the primary is down in a month", rich_help_panel=FORECAST
    ),
]
PingOption = Annotated[
    str, typer.Option("--ping-interval", help="how often it is asked then", metavar="TIME", rich_help_panel=FORECAST)
]
HostsOption = Annotated[
    int, typer.Option("--syphon-hosts", min=1, help="processes that run a syphon", rich_help_panel=FORECAST)
]
PollOption = Annotated[
    str,
    typer.Option(
        "--long-poll", help="how long a syphon waits at an empty backlog queue", metavar="TIME",
        rich_help_panel=FORECAST,
    ),
]  # fmt: skip
EngineOption = Annotated[
    Engine, typer.Option("--engine", help="what the syphon does its work on", rich_help_panel=FORECAST)
]
