"""The syphon for ``spark-submit``, which runs a file: ``python -m pairbus.jobs.syphon.main`` does the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

from pairbus.client.validation import shown
from pairbus.jobs.lines import LineReporter
from pairbus.jobs.syphon.settings import LONG_POLL, SparkSyphonSettings, SyphonConfig
from pairbus.jobs.syphon.spark_syphon import spark_engine
from pairbus.jobs.syphon.standalone import run_syphon
from pairbus.pairing.syphon.interface import SyphonSettings, TimeToLive
from pairbus.spark.connections import ConnectionReference, ReferenceKind
from pairbus.spark.errors import ConnectionReferenceError

PRIMARY: Final = "env:PAIRBUS_PRIMARY"
SECONDARY: Final = "env:PAIRBUS_SECONDARY"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the syphon; return the exit code."""
    parser = _parser()
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.error(f"unknown argument {shown(unknown[0])}")  # it may be a connection string
    for reference in (given.primary, given.secondary):
        _check(parser, reference)
    config = SyphonConfig(
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
    reporter = LineReporter(as_json=given.json)
    result = run_syphon(config, spark_engine(settings, reporter), reporter)
    if result.reason is not None:
        print(f"pairbus: {result.reason}", file=sys.stderr)
    return result.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pairbus.jobs.syphon.main",
        description="Deliver the backlog of a pair on Spark.",
        allow_abbrev=False,
    )
    defaults = SparkSyphonSettings()
    add = parser.add_argument
    where = "reference to the connection string of the {}, for driver and executors: env:NAME or file:/path"
    add("--primary", type=_reference, default=PRIMARY, help=where.format("primary"), metavar="CONNECTION")
    add("--secondary", type=_reference, default=SECONDARY, help=where.format("secondary"), metavar="CONNECTION")
    add("--name", help="name of the primary in the paths of its backlog queues")
    add("--backlog-queues", type=_count, metavar="N", help="number of backlog queues; default: all that exist")
    add("--master", default=defaults.master, help="Spark master; the --master of spark-submit takes precedence")
    add("--checkpoint", help="checkpoint directory, which driver and executors share")
    add(
        "--once",
        action="store_true",
        help="deliver the existing messages and exit with 0, or with 3 if messages are left",
    )
    add(
        "--time-to-live",
        type=TimeToLive,
        default=TimeToLive.FULL,
        metavar="full|remaining",
        help="whether a time to live starts again at delivery, or the time in the backlog counts",
    )
    add("--long-poll", type=_long_poll, default="15m", help="timeout of a receive from an empty backlog queue")
    add(
        "--max-messages",
        type=_count,
        default=defaults.max_messages,
        metavar="N",
        help="maximum number of messages in a batch",
    )
    add("--json", action="store_true", help="one JSON object per line instead of key=value")
    return parser


def _reference(text: str) -> ConnectionReference:
    # A connection string would be in the list of processes, and among what Spark shows of its environment.
    try:
        found = ConnectionReference.parse(f"file:{Path(text[1:]).absolute()}" if text.startswith("@") else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if found.place is ReferenceKind.OPTION:
        raise argparse.ArgumentTypeError(
            "must be a reference to a connection string, not the string itself: env:NAME or file:/path"
        )
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
        raise argparse.ArgumentTypeError(f"must be {LONG_POLL.text}, got {text!r}") from None
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000_000:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 10,000,000, got {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
