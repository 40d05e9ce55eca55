"""Measures the connector with many queues: the time of a table, and the costs of a queue and of a batch in the driver.

The server and Spark share this machine. Processes are plain, or compiled if this one is. `benchmarks.scale` computes
from these figures. Where something is repeated, a figure is that of the fastest, since the machine may be busy; the
processor time of all processes says how long it takes at least on two processors.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from benchmarks.overload import QUIET_LOAD
from benchmarks.processors import cpu_s, descendants
from benchmarks.server import serving
from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, QueueDescription
from pairbus.pairing.syphon.channel import DestinationChannel
from pairbus.pairing.syphon.interface import TimeToLive
from pairbus.spark.offset import ConsumeOffset
from pairbus.spark.options import SourceOptions
from pairbus.spark.reader import ConsumingStreamReader, MessageReader
from pairbus.spark.schema import MESSAGE_SCHEMA
from pairbus.spark.session import ensured_session

QUEUES: Final = (100, 1_000)
MESSAGES: Final = 10
BODY: Final = b"x" * 1024
GOAL_QUEUES: Final = 1_000
GOAL_S: Final = 15.0
_MASTER: Final = "local[2]"
_VARIABLE: Final = "PAIRBUS_BENCH_QUEUES"
_AT_ONCE: Final = 16
_BATCHES: Final = 20
_REPEATS: Final = 3
_PARKED: Final = 100_000
_PREFETCHED_S: Final = 10.0
"""Time within which a stream has prefetched its next batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The results with a number of queues."""

    plan_s: float
    """To plan a table, in the driver."""

    plan_cpu_s: float
    """Its processor time, that of the server included."""

    first_count_s: float
    """The first query of a session, which starts the processes of Python."""

    first_count_cpu_s: float
    """Its processor time, that of the server included."""

    count_s: float
    """The same query once more."""

    count_cpu_s: float

    start_s: float
    """From the start of a stream to its first batch."""

    next_plan_s: float
    """To plan a batch of prefetched messages, and to commit the last one."""

    planned_queues: int
    """The queues of that batch."""

    offset_bytes: float
    """The checkpoint's entry of one queue in the offset of a batch."""

    queue_bytes: float
    """Memory of the driver for each queue of a stream, with its link."""


# Preparation.


async def fill(address: str, queues: int) -> None:
    """Create queues, and send some messages to each."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def fill_queue(name: str) -> None:
        async with slots:
            await manager.create_queue(QueueDescription(name))
            async with await factory.create_message_sender(name) as sender:
                await sender.send([BrokeredMessage(BODY, message_id=f"{number}") for number in range(MESSAGES)])

    async with (
        NamespaceManager.from_connection_string(address) as manager,
        MessagingFactory.from_connection_string(address) as factory,
    ):
        await asyncio.gather(*(fill_queue(f"q-{number:05}") for number in range(queues)))


# Measurements.


@contextmanager
def _namespace(queues: int) -> Iterator[None]:
    """Serve a namespace with queues, and set the variable with its connection string."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory, serving(Path(directory)) as server:
        os.environ[_VARIABLE] = str(server.address)
        asyncio.run(fill(str(server.address), queues))
        yield


def _options(**given: object) -> SourceOptions:
    texts = {"connection": f"env:{_VARIABLE}", "entities": "q-*", **{name: str(value) for name, value in given.items()}}
    return SourceOptions.from_options(texts, is_stream="maxMessagesPerTrigger" in given)


def _plan_table() -> tuple[float, float]:
    """Return the time to plan a table and its processor time."""
    reader = MessageReader(_options(), MESSAGE_SCHEMA)
    started_s, started_cpu_s = time.perf_counter(), _cpu_s()
    reader.partitions()
    return time.perf_counter() - started_s, _cpu_s() - started_cpu_s


def _cpu_s() -> float:
    """Return the processor time of this process and of all that it has started."""
    found = 0.0
    for process in (os.getpid(), *descendants(os.getpid())):
        with suppress(ProcessLookupError):  # it has just ended
            found += cpu_s(process)
    return found


def _count(session: SparkSession, expected: int) -> tuple[float, float]:
    """Return the time of a query and its processor time."""
    started_s, started_cpu_s = time.perf_counter(), _cpu_s()
    found = session.read.format("pairbus").option("connection", f"env:{_VARIABLE}").load("q-*").count()
    took_s = time.perf_counter() - started_s
    if found != expected:
        raise RuntimeError(f"of {expected:,} messages {found:,} were read")
    return took_s, _cpu_s() - started_cpu_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Streamed:
    start_s: float
    next_plan_s: float
    queues: int
    offset_bytes: float


def _stream(queues: int) -> _Streamed:
    """Plan batches as Spark does, without reading them."""
    limit = ReadMaxRows(queues * MESSAGES // 2)
    reader = ConsumingStreamReader(_options(maxMessagesPerTrigger=limit.max_rows), MESSAGE_SCHEMA)
    try:
        started_s = time.perf_counter()
        first: dict[str, Any] = reader.latestOffset(reader.initialOffset(), limit)
        start_s = time.perf_counter() - started_s
        time.sleep(_PREFETCHED_S)
        started_s = time.perf_counter()
        second: dict[str, Any] = reader.latestOffset(first, limit)
        next_plan_s = time.perf_counter() - started_s
    finally:
        reader.stop()
    held = second["held"]
    return _Streamed(
        start_s=start_s, next_plan_s=next_plan_s, queues=len(held), offset_bytes=len(json.dumps(held)) / len(held)
    )


def _queue_bytes(queues: int) -> float:
    """Return the memory that the driver takes for each queue of a stream, with a few messages of each."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    reader = ConsumingStreamReader(_options(maxMessagesPerTrigger=queues), MESSAGE_SCHEMA)
    try:
        reader.latestOffset(ConsumeOffset().to_json(), ReadMaxRows(queues))
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / queues
    finally:
        tracemalloc.stop()
        reader.stop()


def measure(queues: int) -> Figures:
    with _namespace(queues), ensured_session(_MASTER) as session:
        first, *others = (_count(session, queues * MESSAGES) for _ in range(1 + _REPEATS))
        planned = min(_plan_table() for _ in range(_REPEATS))
        queue_bytes = _queue_bytes(queues)
        streamed = _stream(queues)
    return Figures(
        plan_s=planned[0],
        plan_cpu_s=planned[1],
        first_count_s=first[0],
        first_count_cpu_s=first[1],
        count_s=min(others)[0],
        count_cpu_s=min(others)[1],
        start_s=streamed.start_s,
        next_plan_s=streamed.next_plan_s,
        planned_queues=streamed.queues,
        offset_bytes=streamed.offset_bytes,
        queue_bytes=queue_bytes,
    )


def batch_s(messages: int = _BATCHES) -> float:
    """Return the time of a batch with one message: what each batch costs, however many messages it has."""
    with _namespace(messages // MESSAGES), ensured_session(_MASTER) as session, TemporaryDirectory() as directory:
        reader = session.readStream.format("pairbus").option("connection", f"env:{_VARIABLE}")
        rows = reader.option("maxMessagesPerTrigger", "1").option("longPoll", "1s").load("q-*")
        writer = rows.writeStream.format("noop").option("checkpointLocation", directory)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        took_ms = [one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows]
    return min(took_ms) / 1_000


class _Down:
    """A destination that is down."""

    is_down = True
    is_tried = False
    path = "orders"

    def __init__(self) -> None:
        self.waiters: set[DestinationChannel] = set()


async def _parked_bytes() -> float:
    """Return the memory that a process takes for a parked message, of which it knows the number only."""
    nothing = cast(Any, object())
    channel = DestinationChannel(nothing, cast(Any, _Down()), nothing, TimeToLive.REMAINING)
    channel.is_closing = True  # nothing is delivered
    gc.collect()
    tracemalloc.start()
    for number in range(1_000_000, 1_000_000 + _PARKED):
        channel.adopt(number, None)
    found = tracemalloc.get_traced_memory()[0] / _PARKED
    tracemalloc.stop()
    return found


# The report.


def report(queues: tuple[int, ...] = QUEUES) -> None:
    logging.getLogger("pairbus").setLevel(logging.ERROR)  # each namespace ends before the connections of this process
    load = os.getloadavg()[0]
    found = {count: measure(count) for count in queues}
    print(f"Queues of {MESSAGES} messages of {len(BODY):,} bytes; server and Spark ({_MASTER}) on one machine")
    print(f"Load average at the start: {load:.1f}")
    print(f"{'':58}" + "".join(f"{count:>12,}" for count in queues))
    rows: tuple[tuple[str, str, float], ...] = (
        ("to plan a table (s)", "plan_s", 1),
        ("  processor time of all processes (s)", "plan_cpu_s", 1),
        ('load("q-*").count(), the first of a session (s)', "first_count_s", 1),
        ("  processor time of all processes (s)", "first_count_cpu_s", 1),
        ('load("q-*").count(), once more (s)', "count_s", 1),
        ("  processor time of all processes (s)", "count_cpu_s", 1),
        ("from the start of a stream to its first batch (s)", "start_s", 1),
        ("to plan its next batch (ms)", "next_plan_s", 1_000),
        ("  queues of that batch", "planned_queues", 1),
        ("offset of a batch, for each queue (bytes)", "offset_bytes", 1),
        ("memory of the driver for each queue of a stream (KB)", "queue_bytes", 1 / 1_024),
    )
    for text, name, factor in rows:
        print(f"{text:58}" + "".join(f"{getattr(one, name) * factor:12,.2f}" for one in found.values()))
    print(f"{'a batch of a stream with one message (s)':58}{batch_s():12,.2f}")
    print(f"{'memory of a process for each parked message (bytes)':58}{asyncio.run(_parked_bytes()):12,.0f}")
    if GOAL_QUEUES in found:
        took_s = found[GOAL_QUEUES].first_count_s
        is_judged = took_s <= GOAL_S or load <= QUIET_LOAD * (os.cpu_count() or 1)
        verdict = "reached" if took_s <= GOAL_S else "missed" if is_judged else "the machine was too busy to judge"
        print(f"{GOAL_QUEUES:,} queues within {GOAL_S:g} s: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queues", type=int, nargs="+", default=QUEUES, help="how many queues to measure with")
    report(tuple(parser.parse_args().queues))


if __name__ == "__main__":
    main()
