"""The syphon for ``spark-submit``, which runs a file: ``python -m pairbus.jobs.syphon.main`` does the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from pairbus.client.validation import shown
from pairbus.jobs.lines import LineTeller
from pairbus.jobs.syphon.command import run_syphon
from pairbus.jobs.syphon.order import LONG_POLL, SyphonOrder
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_engine import spark_engine
from pairbus.pairing.syphon import SyphonSettings, TimeToLive
from pairbus.spark.connection_reference import ConnectionReference, Place
from pairbus.spark.errors import ConnectionReferenceError

PRIMARY: Final = "env:PAIRBUS_PRIMARY"
SECONDARY: Final = "env:PAIRBUS_SECONDARY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it to its end; gives the exit code."""
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"there is no argument {shown(unknown[0])}")  # it may be a connection string
    for reference in (given.primary, given.secondary):
        _check(parser, reference)
    order = SyphonOrder(
        primary=given.primary,
        secondary=given.secondary,
        name=given.name,
        backlog_queues=given.backlog_queues,
        settings=SyphonSettings(long_poll=given.long_poll, time_to_live=given.time_to_live),
        once=given.once,
    )
    settings = SparkSyphonSettings(
        master=given.master,
        checkpoint=given.checkpoint,
        primary=str(given.primary),
        secondary=str(given.secondary),
        max_messages=given.max_messages,
    )
    teller = LineTeller(as_json=given.json)
    ending = run_syphon(order, spark_engine(settings, teller), teller)
    if ending.reason is not None:
        print(f"pairbus: {ending.reason}", file=sys.stderr)
    return ending.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pairbus.jobs.syphon.main",
        description="Bring home what lies in the backlog of a pair, on Spark.",
        allow_abbrev=False,
    )
    usual = SparkSyphonSettings()
    add = parser.add_argument
    where = "where the connection string of the {} is, for the driver and all executors: env:NAME or file:/path"
    add("--primary", type=_reference, default=PRIMARY, help=where.format("primary"), metavar="CONNECTION")
    add("--secondary", type=_reference, default=SECONDARY, help=where.format("secondary"), metavar="CONNECTION")
    add("--name", help="what the backlog queues call the primary; else the first part of its host name")
    add("--backlog-queues", type=_count, metavar="N", help="how many backlog queues there are; else all that are found")
    add("--master", default=usual.master, help="where Spark runs; spark-submit has a --master of its own, which holds")
    add("--checkpoint", help="where the query keeps its place: a directory that driver and executors share")
    add("--once", action="store_true", help="bring home what is there, and end: with 0, or with 3 if messages wait")
    add(
        "--time-to-live",
        type=TimeToLive,
        default=TimeToLive.FULL,
        metavar="full|remaining",
        help="whether it begins anew at home, or the time in the backlog counts",
    )
    add("--long-poll", type=_long_poll, default="15m", help="how long a receive waits at an empty backlog queue")
    add("--max-messages", type=_count, default=usual.max_messages, metavar="N", help="how many a batch holds at most")
    add("--json", action="store_true", help="one JSON object a line, instead of key=value")
    return parser


def _reference(text: str) -> ConnectionReference:
    # A connection string would be in the list of processes, and among what Spark shows of its environment.
    try:
        found = ConnectionReference.parse(f"file:{Path(text[1:]).absolute()}" if text.startswith("@") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found.place is Place.OPTION:
        raise argparse.ArgumentTypeError("it is a connection string; say where one is: env:NAME or file:/path")
    return found


def _check(parser: argparse.ArgumentParser, reference: ConnectionReference) -> None:
    try:
        reference.resolve()
    except ConnectionReferenceError as error:
        parser.error(str(error).replace("the option 'connection'", "a connection"))


def _long_poll(text: str) -> timedelta:
    try:
        found: timedelta = LONG_POLL.read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it is {LONG_POLL.text}") from None
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError("it is a number from 1 on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
