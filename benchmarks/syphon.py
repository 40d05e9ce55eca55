"""How fast a backlog comes home: the syphon on Spark and the one in the process, beside RabbitMQ's shovel.

Both namespaces and whoever moves the messages share this machine. Engines take turns, each in a process of its own. A
rate is taken in the steady state: from the end of the first batch, or of the first tenth, to the last message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.brokers.shovel_node import missing
from benchmarks.server import serving
from benchmarks.shovel import measure_shovel
from benchmarks.transfer import COMPILED, HERE
from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, PairEvent
from pairbus.client.lane import Lane
from pairbus.client.message import encode_brokered
from pairbus.client.parcel import Parcel
from pairbus.dialect.transfer import divert
from pairbus.jobs.syphon.batch_report import BatchReport
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.backlog import backlog_path, ensure_backlog_queues
from pairbus.pairing.pump import InProcessSyphon
from pairbus.pairing.syphon import SyphonContext, SyphonSettings

QUEUES: Final = 10
DESTINATIONS: Final = 40
BODY: Final = b"x" * 1024
_NAME: Final = "contoso"
_MASTER: Final = "local[2]"
_AT_ONCE: Final = 200
_START_UP: Final = 0.1
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How much is measured."""

    messages: int = 100_000
    rounds: int = 3
    tenfold: int = 10
    """How many times as much the large backlog is; 0 for none."""


FULL: Final = Extent()
QUICK: Final = Extent(messages=20_000, rounds=1, tenfold=0)


# The backlog


async def fill(primary: str, secondary: str, messages: int) -> None:
    """Make the destinations, and a backlog as senders leave it that have diverted everything."""
    async with (
        NamespaceManager.from_connection_string(primary) as home,
        NamespaceManager.from_connection_string(secondary) as away,
        MessagingFactory.from_connection_string(secondary) as factory,
    ):
        for number in range(DESTINATIONS):
            await home.create_queue(_destination(number))
        await ensure_backlog_queues(away, _NAME, QUEUES)
        await asyncio.gather(*(_fill_queue(factory, queue, messages // QUEUES) for queue in range(QUEUES)))


async def _fill_queue(factory: MessagingFactory, queue: int, messages: int) -> None:
    lane = Lane(factory, backlog_path(_NAME, queue))
    for start in range(0, messages, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, messages))
        await lane.send(Parcel([_diverted(queue, number) for number in numbers]))
    await lane.close()


def _diverted(queue: int, number: int) -> bytes:
    message = BrokeredMessage(BODY, message_id=f"{queue}-{number}", application_properties={"number": number})
    return divert(encode_brokered(message), _destination(number % DESTINATIONS))


def _destination(number: int) -> str:
    return f"orders-{number}"


# What moves it, in a process of its own: it prints what it has measured


def _is_held(_path: str) -> bool:
    return False


def _ignore(_event: PairEvent) -> None:
    """What happens is not measured."""


async def _with_spark(context: SyphonContext, messages: int) -> tuple[int, float]:
    ends: list[tuple[float, int]] = []

    def note(report: BatchReport) -> None:
        ends.append((time.perf_counter(), report.delivered))

    most = min(SparkSyphonSettings().max_messages, messages // 5)
    syphon = SparkSyphon(context, SparkSyphonSettings(master=_MASTER, max_messages=most), note)
    try:
        await syphon.drain()
    finally:
        await syphon.close()
    if sum(count for _, count in ends) != messages:
        raise RuntimeError(f"of {messages:,} messages {sum(count for _, count in ends):,} came home")
    return sum(count for _, count in ends[1:]), ends[-1][0] - ends[0][0]


async def _in_process(context: SyphonContext, messages: int) -> tuple[int, float]:
    syphon = InProcessSyphon(context)
    await syphon.start()
    try:
        while syphon.status.syphoned < messages * _START_UP:  # noqa: ASYNC110 (it tells nobody)
            await asyncio.sleep(_LOOK_S)
        started, started_s = syphon.status.syphoned, time.perf_counter()
        while syphon.status.syphoned < messages:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return messages - started, time.perf_counter() - started_s
    finally:
        await syphon.close()


ENGINES: Final[dict[str, Callable[[SyphonContext, int], Awaitable[tuple[int, float]]]]] = {
    "spark": _with_spark,
    "in-process": _in_process,
}


async def _move(engine: str, messages: int) -> None:
    async with (
        MessagingFactory.from_connection_string(os.environ["PAIRBUS_PRIMARY"]) as primary,
        MessagingFactory.from_connection_string(os.environ["PAIRBUS_SECONDARY"]) as secondary,
    ):
        context = SyphonContext(
            primary=primary,
            secondary=secondary,
            backlog_queues=tuple(backlog_path(_NAME, queue) for queue in range(QUEUES)),
            settings=SyphonSettings(),
            is_held=_is_held,
            tell=_ignore,
        )
        count, seconds = await ENGINES[engine](context, messages)
    print(json.dumps({"messages": count, "seconds": seconds}))


# What is measured


def measure(engine: str, messages: int, *, compiled: bool = False) -> float:
    """Messages a second, brought home by an engine from one namespace to another."""
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory,
        serving(Path(directory) / "primary", compiled=compiled) as primary,
        serving(Path(directory) / "secondary", compiled=compiled) as secondary,
    ):
        addresses = str(primary.address), str(secondary.address)
        asyncio.run(fill(*addresses, messages))
        roots = _roots(Path(directory), compiled=compiled)
        environment = {
            **os.environ,
            "PAIRBUS_PRIMARY": addresses[0],
            "PAIRBUS_SECONDARY": addresses[1],
            "PYTHONPATH": os.pathsep.join(roots),
        }
        command = [sys.executable, "-m", "benchmarks.syphon", "--move", engine, "--messages", str(messages)]
        found = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, timeout=_PATIENCE_S, check=True, text=True
        )
    told = json.loads(found.stdout.splitlines()[-1])
    return float(told["messages"] / told["seconds"])


def _roots(directory: Path, *, compiled: bool) -> list[str]:
    """Where Python finds us, in this process and in those that Spark starts."""
    if not compiled:
        return [str(HERE / "src"), str(HERE)]
    overlay = directory / "compiled" / "pairbus"
    overlay.mkdir(parents=True)
    for entry in (HERE / "src" / "pairbus").iterdir():
        source = COMPILED / "pairbus" / "wire" if entry.name == "wire" else entry
        (overlay / entry.name).symlink_to(source)
    return [str(overlay.parent), str(HERE), str(COMPILED)]


def _shovel(messages: int) -> float | None:
    return None if missing() else measure_shovel(messages, QUEUES, DESTINATIONS, len(BODY)).per_s


def report(extent: Extent = FULL) -> None:
    messages = extent.messages
    print(
        f"A backlog of {messages:,} messages of {len(BODY):,} bytes in {QUEUES} queues, for {DESTINATIONS}"
        f" destinations; messages a second, median of {extent.rounds}"
    )
    if reason := missing():
        print(f"  without RabbitMQ's shovel: {reason}")
    movers: dict[str, Callable[[], float | None]] = {
        f"Spark, {_MASTER}": lambda: measure("spark", messages),
        f"Spark, {_MASTER}, wire compiled": lambda: measure("spark", messages, compiled=True),
        "in the process": lambda: measure("in-process", messages),
        "RabbitMQ's shovel": lambda: _shovel(messages),
    }
    found: dict[str, list[float]] = {name: [] for name in movers}
    for _ in range(extent.rounds):
        for name, move in movers.items():
            rate = move()
            if rate is not None:
                found[name].append(rate)
    peer = found["RabbitMQ's shovel"]
    for name, rates in found.items():
        if rates:
            middle = statistics.median(rates)
            beside = f"  {middle / statistics.median(peer):5.2f} of the shovel" if peer else ""
            print(f"  {name:<32} {middle:8,.0f}  ({min(rates):,.0f} to {max(rates):,.0f}){beside}")
    if extent.tenfold:
        large = extent.tenfold * messages
        rate = measure("spark", large)
        small = statistics.median(found[f"Spark, {_MASTER}"])
        print(f"  Spark with {extent.tenfold} times the backlog: {rate:,.0f}, which is {rate / small:.2f} of the above")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less")
    parser.add_argument("--messages", type=int, help="how many messages the backlog has")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--move", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    extent = QUICK if arguments.quick else FULL
    if arguments.move:
        asyncio.run(_move(arguments.move, arguments.messages))
        return
    report(
        Extent(
            messages=arguments.messages or extent.messages,
            rounds=arguments.rounds or extent.rounds,
            tenfold=extent.tenfold,
        )
    )


if __name__ == "__main__":
    main()
