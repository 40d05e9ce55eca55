"""A client process: it loads one broker with one client library, and prints what that took as JSON.

It reads a job from the standard input. It does not import pairbus unless that is the client: the memory of the process
is one of the results. The driver is ``benchmarks.comparison``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import importlib
import json
import os
import selectors
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks.brokers.load import WORKLOADS, LoadedClient, run_workload
from benchmarks.latency import Percentiles, open_loop
from benchmarks.processors import MachineTime, cpu_s, private_bytes

WARM_UP: Final = 200
"""The number of messages that pass through every workload before anything is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A client library, the broker that it loads, and how much."""

    module: str
    """The module of ``benchmarks.brokers`` that has the client."""

    address: str
    broker_pid: int
    body_bytes: int
    messages: int
    rates: tuple[int, ...]
    """Rates at which the latency of a send is measured, in messages a second."""

    seconds: float
    """The duration of each of these measurements; longer with fewer messages than ``samples``."""

    samples: int = 0
    uvloop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Messages a second, and the processor time that each takes on both sides."""

    per_s: float
    client_us: float
    broker_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The results of one job."""

    rates: dict[str, Rate] = field(default_factory=dict)
    """By the name of the workload."""

    latencies: dict[int, Percentiles] = field(default_factory=dict)
    """From when a message was due until it was confirmed, by messages a second."""

    client_bytes: int = 0
    """Private memory, the largest after any of the loads."""

    broker_bytes: int = 0

    others_share: float = 0.0
    """The part of the processors that other processes took, or the host of this virtual machine."""

    is_compiled: bool = False
    """True if the client was the compiled build of pairbus."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Turn:
        found = json.loads(text)
        found["rates"] = {workload: Rate(**rate) for workload, rate in found["rates"].items()}
        found["latencies"] = {int(rate): Percentiles(**times) for rate, times in found["latencies"].items()}
        return cls(**found)


class Watch:
    """Follows the processor time and the memory of a client, which is this process, and of its broker."""

    def __init__(self, broker_pid: int) -> None:
        self._broker_pid = broker_pid
        self._start_s, self._start, self._start_own_s = time.perf_counter(), MachineTime.now(), self._own_s()
        self.client_bytes = self.broker_bytes = 0

    async def rate(self, client: LoadedClient, workload: str, count: int) -> Rate:
        """Run a workload, and return its rate."""
        gc.collect()
        broker_s, client_s, start_s = cpu_s(self._broker_pid), time.process_time(), time.perf_counter()
        await run_workload(client, workload, count)
        seconds = time.perf_counter() - start_s
        client_s, broker_s = time.process_time() - client_s, cpu_s(self._broker_pid) - broker_s
        self.weigh()
        return Rate(per_s=count / seconds, client_us=client_s / count * 1e6, broker_us=broker_s / count * 1e6)

    def weigh(self) -> None:
        """Note how much memory both processes have now."""
        self.client_bytes = max(self.client_bytes, private_bytes(os.getpid()))
        self.broker_bytes = max(self.broker_bytes, private_bytes(self._broker_pid))

    def others_share(self) -> float:
        """Return the part of the processors that others took since the beginning."""
        now, seconds = MachineTime.now(), time.perf_counter() - self._start_s
        own_s = self._own_s() - self._start_own_s
        others_s = max(0.0, now.busy_s - self._start.busy_s - own_s) + now.stolen_s - self._start.stolen_s
        return others_s / seconds / (os.cpu_count() or 1)

    def _own_s(self) -> float:
        return time.process_time() + cpu_s(self._broker_pid)


def work(job: Job) -> Turn:
    """Measure all workloads, and then all latencies, each through a connection of its own."""
    watch = Watch(job.broker_pid)
    with asyncio.Runner(loop_factory=_uvloop() if job.uvloop else None) as runner:
        rates = runner.run(_rates(job, watch))
    with asyncio.Runner(loop_factory=_precise_loop) as runner:
        latencies = runner.run(_latencies(job, watch))
    return Turn(
        rates=rates,
        latencies=latencies,
        client_bytes=watch.client_bytes,
        broker_bytes=watch.broker_bytes,
        others_share=watch.others_share(),
        is_compiled=_is_compiled(),
    )


async def _rates(job: Job, watch: Watch) -> dict[str, Rate]:
    async with _opened(job) as client:
        await client.prepare(job.messages, os.urandom(job.body_bytes))
        return {workload: await watch.rate(client, workload, job.messages) for workload in WORKLOADS}


async def _latencies(job: Job, watch: Watch) -> dict[int, Percentiles]:
    found: dict[int, Percentiles] = {}
    async with _opened(job) as client:
        for rate in job.rates:
            count = max(round(rate * job.seconds), job.samples)
            await client.prepare(count, os.urandom(job.body_bytes))
            gc.collect()
            found[rate] = Percentiles.of(await open_loop(rate, count, client.send_one))
            watch.weigh()
            await client.complete_batches(count)
    return found


@asynccontextmanager
async def _opened(job: Job) -> AsyncIterator[LoadedClient]:
    """Open a client, and let a few messages pass through it."""
    client: LoadedClient = importlib.import_module(f"benchmarks.brokers.{job.module}").make_client(job.address)
    await client.open()
    try:
        await client.prepare(WARM_UP, os.urandom(job.body_bytes))
        for workload in WORKLOADS:
            await run_workload(client, workload, WARM_UP)
        yield client
    finally:
        await client.close()


def _uvloop() -> Callable[[], asyncio.AbstractEventLoop]:
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return new_event_loop


def _precise_loop() -> asyncio.AbstractEventLoop:
    """Return a loop whose timers are exact to some microseconds: with epoll they are up to a millisecond late."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def _is_compiled() -> bool:
    decoder = sys.modules.get("pairbus.wire.decoder")
    return decoder is not None and not str(decoder.__file__).endswith(".py")


def main() -> None:
    job = json.load(sys.stdin)
    print(work(Job(**{**job, "rates": tuple(job["rates"])})).to_json())


if __name__ == "__main__":
    main()
