"""``pairbus demo``: an outage from the first failed send to the bill."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.failure import FAILED, extra_needed

_WIDTH: Final = 120
"""The width of tables when standard output is not a terminal."""


_SecondsOption = Annotated[
    float, typer.Option("--seconds", min=2, max=600, help="the duration of the outage in seconds", metavar="N")
]
_RateOption = Annotated[
    float, typer.Option("--rate", min=1, max=5_000, help="the number of messages sent per second", metavar="N")
]
_KeepOption = Annotated[
    bool, typer.Option("--keep", help="keep both namespaces running until Ctrl-C, and print their addresses")
]


def demo(seconds: _SecondsOption = 10, rate: _RateOption = 200, keep: _KeepOption = False) -> None:
    """Kill the primary of a pair while an application sends, and account for every message.

    The demo serves two namespaces on this machine, with a queue and a topic. Spark delivers the backlog of the outage,
    reconciles the ledgers of both namespaces, and computes the cost.

    Exits with 0 if nothing was lost or duplicated and the ledgers confirm it.

    Example: pairbus demo --seconds 20 --keep
    """
    with extra_needed("server", "spark", code=FAILED):
        from pairbus.cli.demo.performance import Plan, perform  # noqa: PLC0415 (Spark is optional)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    raise typer.Exit(perform(Plan(outage_s=seconds, rate=rate, is_kept=keep), console))
