"""Our client in a process of its own, without its compiled build: profiles, growth, and the memory of a message.

``benchmarks.comparison`` has its rates, beside the clients of other brokers.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.brokers.load import WORKLOADS, run_workload
from benchmarks.brokers.pairbus import BODY, Pairbus, messages
from benchmarks.server import Administrator, serving
from pairbus import BrokeredMessage, ReceivedMessage
from pairbus.dialect.connection_string import ConnectionString

ROUNDS: Final = 3
MESSAGES_A_ROUND: Final = 5_000
IN_FLIGHT: Final = 2_000
QUEUE: Final = "orders"

_PATIENCE: Final = timedelta(seconds=30)
_PROFILED_FUNCTIONS: Final = 25


# What is measured


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, and what each takes of the client's processor."""

    per_s: float
    cpu_us: float


async def rates(address: ConnectionString, count: int, rounds: int = ROUNDS) -> dict[str, Rate]:
    """Return the medians of all workloads with so many messages in the queue."""
    async with _opened(address, count) as client:
        found = [[await _rate(client, workload, count) for workload in WORKLOADS] for _ in range(rounds)]
    return dict(zip(WORKLOADS, map(_median, zip(*found, strict=True)), strict=True))


async def profiles(address: ConnectionString, count: int) -> dict[str, pstats.Stats]:
    """Run every workload once, and return what took the time."""
    found: dict[str, pstats.Stats] = {}
    async with _opened(address, count) as client:
        for workload in WORKLOADS:
            with cProfile.Profile() as profiler:
                await run_workload(client, workload, count)
            found[workload] = pstats.Stats(profiler)
    return found


@asynccontextmanager
async def _opened(address: ConnectionString, count: int) -> AsyncIterator[Pairbus]:
    client = Pairbus(address, QUEUE)
    await client.open()
    try:
        await client.prepare(count, BODY)
        yield client
    finally:
        await client.close()


async def _rate(client: Pairbus, workload: str, count: int) -> Rate:
    gc.collect()
    cpu_s, start = time.process_time(), time.perf_counter()
    await run_workload(client, workload, count)
    seconds = time.perf_counter() - start
    return Rate(count / seconds, (time.process_time() - cpu_s) / count * 1e6)


def _median(rates: Sequence[Rate]) -> Rate:
    return Rate(statistics.median(r.per_s for r in rates), statistics.median(r.cpu_us for r in rates))


@contextmanager
def namespace(where: Path) -> Iterator[ConnectionString]:
    """Serve a namespace with a queue."""
    with serving(where) as server:
        Administrator(server.address).create(QUEUE)
        yield server.address


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that the client holds for one message."""

    sent: float
    """While it waits for its confirmation, the task that waits included."""

    received: float
    """Until it is completed; this includes its body."""


async def held(address: ConnectionString, count: int) -> Held:
    """Return the memory of a message among so many."""
    client = Pairbus(address, QUEUE)
    await client.open()
    sent_messages = messages(count)
    tracemalloc.start()
    try:
        sent = await _bytes_to_send(client, sent_messages) / count
        received = await _bytes_to_hold(client, count) / count
    finally:
        tracemalloc.stop()
        await client.close()
    return Held(sent, received)


async def _bytes_to_send(client: Pairbus, sent: Sequence[BrokeredMessage]) -> int:
    """All of them at once; the messages themselves are there before."""
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    async with asyncio.TaskGroup() as group:
        for message in sent:
            group.create_task(client.sender.send(message))
    _, peak = tracemalloc.get_traced_memory()
    return peak - before


async def _bytes_to_hold(client: Pairbus, count: int) -> int:
    received: list[ReceivedMessage] = []
    async with await client.receiver() as receiver:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        while len(received) < count:
            received += await receiver.receive(count - len(received), _PATIENCE)
        after, _ = tracemalloc.get_traced_memory()
        await receiver.complete(received)
    return after - before


# What is printed


def report(count: int = MESSAGES_A_ROUND, rounds: int = ROUNDS) -> None:
    """Print how the cost of a message grows with their number, and its memory."""
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory,
        namespace(Path(directory)) as address,
    ):
        once, tenfold = (asyncio.run(rates(address, times * count, rounds)) for times in (1, 10))
        few, many = (asyncio.run(held(address, times * IN_FLIGHT)) for times in (1, 10))
    print(
        f"One client process, plain Python: {count:,} messages of 1 KB, then {10 * count:,}; median of {rounds} rounds;"
    )
    print("a message's share of the client's processor")
    for workload in WORKLOADS:
        small, large = once[workload], tenfold[workload]
        growth = f"x {large.cpu_us / small.cpu_us:.2f}   {small.per_s:8,.0f} a second {large.per_s:8,.0f} a second"
        print(f"{workload:60} {small.cpu_us:5.0f} µs {large.cpu_us:5.0f} µs   {growth}")
    what = f"among {IN_FLIGHT:,}, then {10 * IN_FLIGHT:,}"
    print(f"{f'memory of a message being sent, {what}':60} {few.sent:6.0f} B {many.sent:6.0f} B")
    print(f"{f'memory of a message received, {what}':60} {few.received:6.0f} B {many.received:6.0f} B")


def print_profiles(count: int) -> None:
    """Print where our client spends its time."""
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory,
        namespace(Path(directory)) as address,
    ):
        for workload, stats in asyncio.run(profiles(address, count)).items():
            print(f"{workload}, {count:,} messages")
            stats.sort_stats("tottime").print_stats(_PROFILED_FUNCTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure our client beside those of other brokers.")
    parser.add_argument("--messages", type=int, default=MESSAGES_A_ROUND, help="a round (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of which the median counts (%(default)s)")
    parser.add_argument("--profile", action="store_true", help="say instead where our client spends its time")
    options = parser.parse_args()
    if options.profile:
        print_profiles(options.messages)
    else:
        report(options.messages, options.rounds)


if __name__ == "__main__":
    main()
