"""Measures how fast a backlog is delivered: the syphon on Spark and the one in the process, beside RabbitMQ's shovel.

Both namespaces and whoever moves the messages share this machine. Engines take turns, each in a process of its own. A
rate is taken in the steady state: from the end of the first batch, or of the first tenth, to the last message. So is
what every process takes of the processors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.brokers.shovel_node import missing
from benchmarks.processors import command_of, cpu_s, descendants
from benchmarks.server import serving
from benchmarks.shovel import measure_shovel
from benchmarks.transfer import COMPILED, HERE
from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, PairEvent
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.message import encode_brokered
from pairbus.dialect.paths import backlog_path
from pairbus.dialect.transfer import divert
from pairbus.pairing.backlog import ensure_backlog_queues
from pairbus.pairing.syphon import InProcessSyphon, SyphonContext, SyphonSettings

QUEUES: Final = 10
DESTINATIONS: Final = 40
BODY: Final = b"x" * 1024
_NAME: Final = "contoso"
_MASTER: Final = "local[2]"
_OVER_TCP: Final = "RabbitMQ's shovel, over TCP"
_AT_ONCE: Final = 200
_BATCHES: Final = 5
_START_UP: Final = 0.1
_COMPILED: Final = "in the process, compiled"
GOAL: Final = 1.5
"""The rate of the compiled syphon in the process, relative to the shovel over TCP."""
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 1_800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The amounts to measure."""

    messages: int = 100_000
    rounds: int = 3
    tenfold: int = 10
    """The factor of the large backlog; 0 for none."""

    spark: bool = True
    """False to leave Spark out."""


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
    lane = EntityLink(factory, backlog_path(_NAME, queue))
    for start in range(0, messages, _AT_ONCE):
        numbers = range(start, min(start + _AT_ONCE, messages))
        await lane.send(SendBatch([_diverted(queue, number) for number in numbers]))
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
    """Ignore an event."""


@dataclass(frozen=True, slots=True)
class Look:
    """The number of delivered messages at a time, and the processor time of the processes until then."""

    home: int
    at_s: float
    cpu_s: dict[str, float]

    @classmethod
    def now(cls, home: int) -> Look:
        return cls(home, time.perf_counter(), _cpu_by_part_s())


def _cpu_by_part_s() -> dict[str, float]:
    parts = {name: cpu_s(process) for name, process in json.loads(os.environ["PAIRBUS_SERVERS"]).items()}
    parts["driver"] = cpu_s(os.getpid())
    for process in descendants(os.getpid()):
        try:
            part = next(part for part, sign in _SIGNS.items() if sign in command_of(process))
            parts[part] = parts.get(part, 0.0) + cpu_s(process)
        except (StopIteration, FileNotFoundError, ProcessLookupError):
            continue  # a script that starts something else, or one that has just ended
    return parts


_SIGNS: Final = {"tasks": "pyspark.daemon", "source": "streaming_source", "Java": "org.apache.spark.deploy"}
"""The command lines by which the processes of a driver are distinguished."""


async def _with_spark(context: SyphonContext, messages: int, batch: int) -> tuple[Look, Look]:
    # The other driver does without Spark, whose objects its garbage collector would visit, too.
    from pairbus.jobs.syphon.outcome import BatchReport  # noqa: PLC0415
    from pairbus.jobs.syphon.settings import SparkSyphonSettings  # noqa: PLC0415
    from pairbus.jobs.syphon.spark_syphon import SparkSyphon  # noqa: PLC0415

    ends: list[Look] = []

    def note(report: BatchReport) -> None:
        ends.append(Look.now((ends[-1].home if ends else 0) + report.delivered))

    syphon = SparkSyphon(context, SparkSyphonSettings(master=_MASTER, max_messages=batch), note)
    try:
        await syphon.drain()
    finally:
        await syphon.close()
    if ends[-1].home != messages:
        raise RuntimeError(f"of {messages:,} messages {ends[-1].home:,} were delivered")
    return ends[0], ends[-1]


async def _in_process(context: SyphonContext, messages: int, _batch: int) -> tuple[Look, Look]:
    syphon = InProcessSyphon(context)
    await syphon.start()
    try:
        while syphon.status.syphoned < messages * _START_UP:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(_LOOK_S)
        started = Look.now(syphon.status.syphoned)
        while syphon.status.syphoned < messages:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return started, Look.now(messages)
    finally:
        await syphon.close()


ENGINES: Final[dict[str, Callable[[SyphonContext, int, int], Awaitable[tuple[Look, Look]]]]] = {
    "spark": _with_spark,
    "in-process": _in_process,
}


async def _move(engine: str, messages: int, batch: int) -> None:
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
            publish=_ignore,
        )
        first, last = await ENGINES[engine](context, messages, batch)
    count = last.home - first.home
    each_us = {part: (taken_s - first.cpu_s.get(part, 0.0)) / count * 1e6 for part, taken_s in last.cpu_s.items()}
    print(json.dumps({"per_s": count / (last.at_s - first.at_s), "cpu_us": each_us}))


# What is measured


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, and what each takes of the processors, by the process that takes it."""

    per_s: float
    cpu_us: dict[str, float]

    @property
    def parts(self) -> str:
        return f"{sum(self.cpu_us.values()):.0f}: " + ", ".join(
            f"{part} {each_us:.0f}" for part, each_us in sorted(self.cpu_us.items(), key=lambda item: -item[1])
        )


def measure(engine: str, messages: int, batch: int, *, compiled: bool = False) -> Rate:
    """Measure an engine that delivers a backlog from one namespace to another."""
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory,
        serving(Path(directory) / "primary", compiled=compiled) as primary,
        serving(Path(directory) / "secondary", compiled=compiled) as secondary,
    ):
        addresses = str(primary.address), str(secondary.address)
        asyncio.run(fill(*addresses, messages))
        environment = {
            **os.environ,
            "PAIRBUS_PRIMARY": addresses[0],
            "PAIRBUS_SECONDARY": addresses[1],
            "PAIRBUS_SERVERS": json.dumps({"primary": primary.process.pid, "secondary": secondary.process.pid}),
            "PYTHONPATH": os.pathsep.join(map(str, (COMPILED if compiled else HERE / "src", HERE))),
        }
        command = [sys.executable, "-m", "benchmarks.syphon", "--move", engine]
        command += ["--messages", str(messages), "--batch", str(batch)]
        found = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, timeout=_PATIENCE_S, check=True, text=True
        )
    return Rate(**json.loads(found.stdout.splitlines()[-1]))


def _shovel(messages: int, *, over_tcp: bool) -> Rate | None:
    if missing():
        return None
    result = measure_shovel(messages, QUEUES, DESTINATIONS, len(BODY), over_tcp=over_tcp)
    return Rate(result.per_s, {"node": result.cpu_us})


def _movers(messages: int, batch: int, *, spark: bool) -> dict[str, Callable[[], Rate | None]]:
    """Return what is measured, by name."""
    movers: dict[str, Callable[[], Rate | None]] = {
        "in the process": lambda: measure("in-process", messages, batch),
        _COMPILED: lambda: measure("in-process", messages, batch, compiled=True),
        "RabbitMQ's shovel": lambda: _shovel(messages, over_tcp=False),
        _OVER_TCP: lambda: _shovel(messages, over_tcp=True),
    }
    if spark:
        movers[f"Spark, {_MASTER}"] = lambda: measure("spark", messages, batch)
        movers[f"Spark, {_MASTER}, compiled"] = lambda: measure("spark", messages, batch, compiled=True)
    if not (COMPILED / ".ready").exists():
        print("  pairbus is not compiled (make compiled): no figures with it")
        movers = {name: move for name, move in movers.items() if not name.endswith("compiled")}
    return movers


def report(extent: Extent = FULL) -> None:
    messages, batch = extent.messages, extent.messages // _BATCHES
    print(
        f"A backlog of {messages:,} messages of {len(BODY):,} bytes in {QUEUES} queues, for {DESTINATIONS}"
        f" destinations; messages a second, median of {extent.rounds}"
    )
    if reason := missing():
        print(f"  without RabbitMQ's shovel: {reason}")
    movers = _movers(messages, batch, spark=extent.spark)
    found: dict[str, list[Rate]] = {name: [] for name in movers}
    for _ in range(extent.rounds):
        for name, move in movers.items():
            rate = move()
            if rate is not None:
                found[name].append(rate)
    peer = found[_OVER_TCP]
    for name, rates in found.items():
        if rates:
            middle = _median(rates).per_s
            beside = f"  {middle / _median(peer).per_s:5.2f} of the shovel over TCP" if peer else ""
            least, most = min(rate.per_s for rate in rates), max(rate.per_s for rate in rates)
            print(f"  {name:<32} {middle:8,.0f}  ({least:,.0f} to {most:,.0f}){beside}")
    if peer and found.get(_COMPILED):
        reached = _median(found[_COMPILED]).per_s / _median(peer).per_s
        verdict = "reached" if reached >= GOAL else "missed"
        print(f"  to reach in the process, compiled: {GOAL} of the shovel over TCP: {verdict}")
    print("Microseconds of the processors that each message took, in the round of that rate")
    for name, rates in found.items():
        if rates:
            print(f"  {name:<32} {_median(rates).parts}")
    if extent.spark and extent.tenfold:
        large = measure("spark", extent.tenfold * messages, batch).per_s
        small = _median(found[f"Spark, {_MASTER}"]).per_s
        print(f"Spark with {extent.tenfold} times the backlog: {large:,.0f}, which is {large / small:.2f} of the above")


def _median(rates: list[Rate]) -> Rate:
    return sorted(rates, key=lambda rate: rate.per_s)[(len(rates) - 1) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less")
    parser.add_argument("--messages", type=int, help="how many messages the backlog has")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--in-process", action="store_true", help="leave Spark out")
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--move", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    extent = QUICK if arguments.quick else FULL
    if arguments.move:
        asyncio.run(_move(arguments.move, arguments.messages, arguments.batch))
        return
    report(
        Extent(
            messages=arguments.messages or extent.messages,
            rounds=arguments.rounds or extent.rounds,
            tenfold=extent.tenfold,
            spark=not arguments.in_process,
        )
    )


if __name__ == "__main__":
    main()
