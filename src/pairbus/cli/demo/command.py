"""``pairbus demo``: the whole story of an outage, in a minute or so."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer
from rich.console import Console

from pairbus.cli.connection import FAILED
from pairbus.cli.extra import extra_needed

_WIDTH: Final = 120
"""Of what nobody looks at in a window."""

_SecondsOption = Annotated[
    float, typer.Option("--seconds", min=2, max=600, help="how long the primary is away", metavar="N")
]
_RateOption = Annotated[
    float, typer.Option("--rate", min=1, max=5_000, help="how many messages a second are sent", metavar="N")
]
_KeepOption = Annotated[
    bool, typer.Option("--keep", help="leave both namespaces running until Ctrl-C, and print how to get to them")
]


def demo(seconds: _SecondsOption = 10, rate: _RateOption = 200, keep: _KeepOption = False) -> None:
    """Kill the primary of a pair under an application that sends, and account for every message.

    Two namespaces are served on this machine, with a queue and a topic; what the outage leaves in the backlog is
    brought home by Spark, which then holds the ledgers of both namespaces against each other, and adds up the cost.

    It ends with 0 if nothing was lost, nothing was doubled, and the ledgers say so too.

    Example: pairbus demo --seconds 20 --keep
    """
    with extra_needed("server", "spark", code=FAILED):
        from pairbus.cli.demo.performance import Plan, perform  # noqa: PLC0415 (Spark is not everywhere)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _WIDTH)
    raise typer.Exit(perform(Plan(outage_s=seconds, rate=rate, is_kept=keep), console))
