"""A server with three times the load that it can take: memory, useful throughput, and latency before and after.

Run as ``python -m benchmarks.overload``. The server, the load and the receivers are processes of their own. First 200
connections send as fast as they are confirmed, with a small window: that is the peak. Then they send at 30 % of it, at
three times it, and at 30 % again. Each message has a time at which it is to be sent, from which its latency counts,
whether or not the server has let the sender get there; what a sender with a full window cannot send is held back. The
processor time is that of the server, relative to one core and for each confirmed message.

The exit code is 1 if a goal is missed, unless other processes kept the machine busy: then the figures say little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from benchmarks.broker import NOW, make_namespace
from benchmarks.server import BODY, Server, serving
from benchmarks.transfer import COMPILED, HERE
from pairbus import BrokeredMessage, MessagingError, MessagingFactory, ReceiveMode, ServerBusyError
from pairbus.broker import QueueDescription
from pairbus.build import COMPILED as COMPILED_BUILD
from pairbus.build import PLAIN as PLAIN_BUILD
from pairbus.client.amqp.sending_link import SendingLink
from pairbus.client.message import encode_brokered
from pairbus.store import GroupCommitter

CONNECTIONS: Final = 200
QUEUES: Final = tuple(f"load-{number}" for number in range(20))
RECEIVERS: Final = 4
TIMES: Final = 3.0
CALM: Final = 0.3
PEAK_WINDOW: Final = 10
"""Messages under way of each connection while the peak is measured."""

WINDOW: Final = 100
"""Messages under way of each connection otherwise."""

WARM_UP_S: Final = 3.0
CALM_S: Final = 5.0
AFTER_S: Final = 15.0
PEAK_S: Final = 10.0
BACKOFF_S: Final = 10.0
DRAIN_S: Final = 120.0
"""Time for receivers to receive what is left at the end."""

GOAL_SHARE: Final = 0.8
GOAL_RECOVERY_S: Final = 10.0
GOAL_MEMORY_MB: Final = 256
"""Maximum growth of the server's memory under overload, relative to the peak."""

QUIET_LOAD: Final = 0.5
"""Maximum load average at the start, for each core, at which the goals are judged."""

_PACE_S: Final = 0.005
_SAMPLE_S: Final = 0.5
_BACK_TO: Final = 2.0
"""The latency is back when it is at most so many times that before."""


# The load, which is a process


@dataclass(slots=True)
class Phase:
    """Results of one phase."""

    name: str
    seconds: float = 0.0
    confirmed: int = 0
    """Messages confirmed during the phase, whenever they were sent."""
    held_back: int = 0
    denied: int = 0
    failed: int = 0
    latencies_ms: dict[int, list[float]] = field(default_factory=dict)
    """Of messages due in each second of the phase."""

    @property
    def rate(self) -> float:
        return self.confirmed / self.seconds


@dataclass(slots=True, eq=False)
class Sender:
    """One connection."""

    link: SendingLink
    under_way: int = 0
    is_free: bool = False
    """True if it may send."""
    is_waiting: bool = False
    """True if it was denied, and waits before it tries again."""


class Load:
    """Sends messages by a schedule, on the connection whose turn it is."""

    def __init__(self, senders: Sequence[Sender]) -> None:
        self._senders = senders
        self._free: deque[Sender] = deque()
        """Senders that may send, by turns: the load must not take more time the more of them are held back."""
        self._phase = Phase("")
        self._window = PEAK_WINDOW
        self._payloads = cycle([encode_brokered(BrokeredMessage(BODY)) for _ in range(1_000)])

    async def run(self, name: str, seconds: float, rate: float | None) -> Phase:
        """Send at a rate, or without one as fast as messages are confirmed."""
        print(name, flush=True)
        phase = self._phase = Phase(name)
        self._window = PEAK_WINDOW if rate is None else WINDOW
        for sender in self._senders:
            self._free_up(sender)
        start_s = time.perf_counter()
        sent = 0
        while (now_s := time.perf_counter()) < start_s + seconds:
            if rate is None:
                while self._send(now_s, start_s):
                    pass
            else:
                due = int((now_s - start_s) * rate)
                for number in range(sent, due):
                    if not self._send(start_s + number / rate, start_s):
                        phase.held_back += due - number
                        break
                sent = due
            await asyncio.sleep(_PACE_S)
        phase.seconds = time.perf_counter() - start_s
        return phase

    def _send(self, due_s: float, start_s: float) -> bool:
        while self._free:
            sender = self._free.popleft()
            sender.is_free = False
            if sender.under_way < self._window and not sender.is_waiting:
                break
        else:
            return False
        phase = self._phase

        def done(future: asyncio.Future[None]) -> None:
            sender.under_way -= 1
            error = None if future.cancelled() else future.exception()
            if error is None:
                self._phase.confirmed += 1
                latency_ms = (time.perf_counter() - due_s) * 1e3
                phase.latencies_ms.setdefault(int(due_s - start_s), []).append(latency_ms)
            elif isinstance(error, ServerBusyError):
                self._phase.denied += 1
                self._wait(sender)
            else:
                assert isinstance(error, MessagingError)
                self._phase.failed += 1
            self._free_up(sender)

        sender.under_way += 1
        sender.link.send(next(self._payloads)).add_done_callback(done)
        self._free_up(sender)
        return True

    def _free_up(self, sender: Sender) -> None:
        if not sender.is_free and not sender.is_waiting and sender.under_way < self._window:
            sender.is_free = True
            self._free.append(sender)

    def _wait(self, sender: Sender) -> None:
        def go_on() -> None:
            sender.is_waiting = False
            self._free_up(sender)

        if not sender.is_waiting:
            sender.is_waiting = True
            asyncio.get_running_loop().call_later(BACKOFF_S, go_on)


async def _be_load(address: str, seconds: float, scale: float) -> None:
    async with AsyncExitStack() as stack:
        senders = []
        for number in range(CONNECTIONS):
            factory = await stack.enter_async_context(MessagingFactory.from_connection_string(address))
            senders.append(Sender(await factory.open_sending_link(QUEUES[number % len(QUEUES)])))
        load = Load(senders)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        phases = [await load.run("warm-up", WARM_UP_S * scale, None)]
        phases.append(peak := await load.run("peak", PEAK_S * scale, None))
        phases.append(await load.run("before", CALM_S * scale, CALM * peak.rate))
        phases.append(await load.run("overload", seconds, TIMES * peak.rate))
        phases.append(await load.run("after", AFTER_S * scale, CALM * peak.rate))
        print("end", flush=True)
        print(json.dumps([asdict(phase) for phase in phases]), flush=True)
        os._exit(0)  # what is still under way stays so


# The receivers, which are a process, too


async def _be_receivers(address: str) -> None:
    async with AsyncExitStack() as stack:
        factories = [
            await stack.enter_async_context(MessagingFactory.from_connection_string(address)) for _ in range(RECEIVERS)
        ]
        received = [0]

        async def receive(factory: MessagingFactory, path: str) -> None:
            receiver = await factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=500)
            while True:
                messages = await receiver.receive(500)
                received[0] += len(messages)  # not in one line: the other tasks add to it during the wait

        async with asyncio.TaskGroup() as tasks:
            for number, path in enumerate(QUEUES):
                tasks.create_task(receive(factories[number % RECEIVERS], path))
            print("ready", flush=True)
            while await asyncio.to_thread(sys.stdin.readline):
                print(received[0], flush=True)
            os._exit(0)


# What is measured


class Resources:
    """Samples the server: the most memory of its own, and the processor time, of each phase."""

    def __init__(self, server: Server) -> None:
        self.most_bytes: dict[str, int] = {}
        self.cpu_s: dict[str, float] = {}
        self._phase = ""
        self._phase_cpu_s = 0.0
        self._server = server
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_ended.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._is_ended.wait(_SAMPLE_S):
            now = self._server.private_bytes
            self.most_bytes[self._phase] = max(now, self.most_bytes.get(self._phase, 0))

    def begin(self, phase: str) -> None:
        now_s = self._server.cpu_s
        self.cpu_s[self._phase] = now_s - self._phase_cpu_s
        self._phase, self._phase_cpu_s = phase, now_s


def _is_compiled() -> bool:
    """Return whether there is a compiled build, which is then what all processes run."""
    return (COMPILED / ".ready").exists()


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.overload", *arguments],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(COMPILED if _is_compiled() else HERE / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert _line(process) == "ready"
        yield process
    finally:
        process.kill()
        process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


@dataclass(frozen=True, slots=True)
class Figures:
    """The phases, by name, and what the server had at the time."""

    phases: dict[str, Phase]
    resources: Resources
    left: int
    """Messages that were confirmed and not received."""
    drained_s: float
    """Seconds after the end until all were received, or until the wait for them ended."""

    @property
    def share(self) -> float:
        """Throughput under overload, relative to the peak; 0 if nothing was confirmed, as on a very busy machine."""
        peak = self.phases["peak"].rate
        return self.phases["overload"].rate / peak if peak else 0.0

    @property
    def growth_mb(self) -> float:
        """Growth of the server's memory under overload, relative to the peak."""
        most = self.resources.most_bytes
        return (most.get("overload", 0) - most.get("peak", 0)) / 2**20

    @property
    def failed(self) -> int:
        """Sends that failed otherwise than with *server busy*, in all phases."""
        return sum(phase.failed for phase in self.phases.values())

    def missed_goals(self) -> list[str]:
        """Return the goals that are missed."""
        recovery_s = self.recovery_s
        is_missed = {
            "throughput": self.share < GOAL_SHARE,
            "recovery": recovery_s is None or recovery_s > GOAL_RECOVERY_S,
            "memory": self.growth_mb > GOAL_MEMORY_MB,
            "failed sends": self.failed > 0,
            "lost messages": self.left > 0,
        }
        return [goal for goal, missed in is_missed.items() if missed]

    @property
    def recovery_s(self) -> float | None:
        """Seconds after the overload from which the latency is back for good; ``None`` if it never is."""
        before_ms = percentile(_all(self.phases["before"]), 0.99)
        slots = self.phases["after"].latencies_ms
        for second in range(int(AFTER_S)):
            later = [percentile(each, 0.99) for at, each in slots.items() if at >= second]
            if later and max(later) <= max(_BACK_TO * before_ms, 20.0):
                return float(second)
        return None


def measure(data: Path, seconds: float, scale: float, *options: str) -> Figures:
    committer = GroupCommitter.open(data, make_namespace, NOW)
    for path in QUEUES:
        committer.namespace.create_queue(path, QueueDescription(), NOW)
    committer.close()
    with (
        serving(data, *options, compiled=_is_compiled()) as server,
        _process("--receivers", str(server.address)) as receivers,
        _process("--load", str(server.address), "--seconds", str(seconds), "--scale", str(scale)) as load,
        Resources(server) as resources,
    ):
        _say(load)
        while (name := _line(load)) != "end":
            resources.begin(name)
        resources.begin(name)
        phases = [_phase_of(each) for each in json.loads(_line(load))]
        left, drained_s = _drain(receivers, sum(phase.confirmed for phase in phases))
    return Figures({phase.name: phase for phase in phases}, resources, left, drained_s)


def _drain(receivers: subprocess.Popen[str], confirmed: int) -> tuple[int, float]:
    """Wait until all confirmed messages are received; return how many are not, and after how long."""
    start_s = time.perf_counter()
    while True:
        _say(receivers)
        left = max(0, confirmed - int(_line(receivers)))
        waited_s = time.perf_counter() - start_s
        if not left or waited_s > DRAIN_S:
            return left, waited_s
        time.sleep(_SAMPLE_S)


def _phase_of(document: dict[str, object]) -> Phase:
    phase = Phase(**document)  # type: ignore[arg-type]  # it was a phase before
    phase.latencies_ms = {int(second): each for second, each in phase.latencies_ms.items()}
    return phase


def _all(phase: Phase) -> list[float]:
    return [latency for each in phase.latencies_ms.values() for latency in each]


def percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def report(seconds: float = 60.0, *options: str, scale: float = 1.0) -> int:
    """Measure and print the figures; return the exit code."""
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    with TemporaryDirectory(prefix="pairbus-overload-") as data:
        figures = measure(Path(data) / "data", seconds, scale, *options)
    build = COMPILED_BUILD if _is_compiled() else PLAIN_BUILD
    print(f"{CONNECTIONS} connections to {len(QUEUES)} queues; {build}; {cores} cores; load at the start {load:.1f}")
    titles = ("", "confirmed/s", "held back/s", "denied", "failed", "half ms", "p99 ms", "CPU %", "CPU µs", "memory MB")
    print("{:<10}{:>13}{:>13}{:>9}{:>9}{:>11}{:>11}{:>8}{:>8}{:>11}".format(*titles))
    for name, phase in figures.phases.items():
        latencies, cpu_s = _all(phase), figures.resources.cpu_s[name]
        print(
            f"{name:<10}{phase.rate:>13,.0f}{phase.held_back / phase.seconds:>13,.0f}{phase.denied:>9,}"
            f"{phase.failed:>9,}{percentile(latencies, 0.5):>11,.1f}{percentile(latencies, 0.99):>11,.1f}"
            f"{cpu_s / phase.seconds:>8.0%}{cpu_s / max(1, phase.confirmed) * 1e6:>8,.0f}"
            f"{figures.resources.most_bytes.get(name, 0) / 2**20:>11,.0f}"
        )
    recovery_s = figures.recovery_s
    back = "not within the time measured" if recovery_s is None else f"after {recovery_s:.0f} s"
    print(f"throughput under overload relative to the peak: {figures.share:.0%} (goal: {GOAL_SHARE:.0%})")
    print(f"99 of 100 latencies back: {back} (goal: {GOAL_RECOVERY_S:.0f} s)")
    print(f"memory under overload beyond the peak: {figures.growth_mb:,.0f} MB (goal: {GOAL_MEMORY_MB} MB)")
    print(f"failed sends: {figures.failed:,} (goal: 0)")
    print(f"messages confirmed and not received {figures.drained_s:.0f} s after the end: {figures.left:,} (goal: 0)")
    return verdict(figures.missed_goals(), load / cores)


def verdict(missed: Sequence[str], load_per_core: float) -> int:
    """Print whether the goals are met; return the exit code."""
    if load_per_core > QUIET_LOAD:
        print(f"the machine was too busy to judge: load {load_per_core:.1f} for each core, at most {QUIET_LOAD}")
        return 0
    print(f"goals missed: {', '.join(missed)}" if missed else "all goals met")
    return 1 if missed else 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the overload")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the durations of the other phases")
    parser.add_argument("--throttle-delay-ms", type=int, help="threshold of the server's event loop delay")
    parser.add_argument("--load", metavar="CONNECTION_STRING", help=argparse.SUPPRESS)
    parser.add_argument("--receivers", metavar="CONNECTION_STRING", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.load is not None:
        asyncio.run(_be_load(chosen.load, chosen.seconds, chosen.scale))
    elif chosen.receivers is not None:
        asyncio.run(_be_receivers(chosen.receivers))
    else:
        delay = chosen.throttle_delay_ms
        options = () if delay is None else ("--throttle-delay-ms", str(delay))
        sys.exit(report(chosen.seconds, *options, scale=chosen.scale))


if __name__ == "__main__":
    main()
