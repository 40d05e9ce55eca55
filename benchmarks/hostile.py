"""An honest sender beside one hostile peer at full speed: how long its messages wait for their confirmation.

The server, the sender and the hostile peer are processes of their own. The sender sends at a steady rate, whatever is
confirmed; a message's time counts from when it was to be sent. Run as ``python -m benchmarks.hostile KIND …`` it
measures these kinds alone.

The exit code is 1 if a goal is missed, unless other processes kept the machine busy: then the figures say little.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.broker import NOW, make_namespace
from benchmarks.hostile_peers import CLIENTS, HOSTILE_QUEUE, KINDS, PROPERTY, RULES, SUBSCRIPTION, TOPIC, UNPROVEN
from benchmarks.overload import verdict
from benchmarks.server import BODY, serving
from benchmarks.transfer import COMPILED, HERE
from pairbus import BrokeredMessage, MessageSender, MessagingFactory
from pairbus.broker import (
    QueueDescription,
    RuleDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.connection_string import ConnectionString
from pairbus.store import GroupCommitter

RATE: Final = 100
SECONDS: Final = 10.0
GOAL_MS: Final = 100.0
ALONE: Final = "none"
QUEUE: Final = "orders"

_GRACE_S: Final = 1.0
"""Time after the last send for confirmations; an unconfirmed message counts with the time that it has waited."""
_WARM_UP_S: Final = 0.5
_OPTIONS: Final = ("--tier", "standard", "--log-level", "info")
"""The default log level of a server: every line is written, to a file."""


# The sender, which is a process


async def _be_sender(address: str) -> None:
    """Connect, wait for the word, send, and print the milliseconds that each message took."""
    async with MessagingFactory.from_connection_string(address) as factory:
        sender = await factory.create_message_sender(QUEUE)
        await sender.send(BrokeredMessage(BODY))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        print(json.dumps(await _send_steadily(sender)), flush=True)
        os._exit(0)  # what is still under way stays so


async def _send_steadily(sender: MessageSender) -> list[float]:
    start = time.perf_counter()
    due = [start + number / RATE for number in range(int(RATE * SECONDS))]
    confirmed_s: dict[float, float] = {}

    async def send(at: float) -> None:
        await sender.send(BrokeredMessage(BODY))
        confirmed_s[at] = time.perf_counter() - at

    tasks: list[asyncio.Task[None]] = []
    for at in due:
        await asyncio.sleep(at - time.perf_counter())
        tasks.append(asyncio.create_task(send(at)))
    await asyncio.wait(tasks, timeout=_GRACE_S)
    end = time.perf_counter()
    return [confirmed_s.get(at, end - at) * 1e3 for at in due]


# What is measured


@dataclass(frozen=True, slots=True)
class Row:
    """The latency of the sender's messages, and the rate of the hostile peer's attempts."""

    half_ms: float
    p99_ms: float
    longest_ms: float
    attempts_per_s: float


@contextmanager
def _process(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that says when it is ready, and end it."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": str(HERE / "src")},
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


def measure(address: ConnectionString, kind: str) -> Row:
    """Let the sender send beside such a peer."""
    with _process("benchmarks.hostile", "--sender", str(address)) as sender:
        if kind == ALONE:
            return _row(_sent_ms(sender), 0.0)
        with _process("benchmarks.hostile_peers", kind, str(address)) as peer:
            time.sleep(_WARM_UP_S)
            sent_ms = _sent_ms(sender)
            attempts_per_s, _ = peer.communicate()
            return _row(sent_ms, float(attempts_per_s))


def _sent_ms(sender: subprocess.Popen[str]) -> list[float]:
    assert sender.stdin is not None
    sender.stdin.write("go\n")
    sender.stdin.flush()
    return [float(each) for each in json.loads(_line(sender))]


def _row(sent_ms: Sequence[float], attempts_per_s: float) -> Row:
    hundredths = statistics.quantiles(sent_ms, n=100, method="inclusive")
    return Row(hundredths[49], hundredths[98], max(sent_ms), attempts_per_s)


def measure_all(data: Path, kinds: Sequence[str], *, compiled: bool) -> dict[str, Row]:
    """Measure one kind after the other on one server."""
    _furnish(data)
    with data.with_suffix(".log").open("w") as log, serving(data, *_OPTIONS, compiled=compiled, log=log) as server:
        return {kind: measure(server.address, kind) for kind in kinds}


def _furnish(data: Path) -> None:
    """Create what the peers need; two thousand rules take long over the network."""
    with GroupCommitter.open(data, make_namespace, NOW) as committer:
        namespace = committer.namespace
        for queue in (QUEUE, HOSTILE_QUEUE):
            namespace.create_queue(queue, QueueDescription(), NOW)
        namespace.create_topic(TOPIC, TopicDescription(), NOW)
        namespace.create_subscription(TOPIC, SUBSCRIPTION, SubscriptionDescription(), NOW, _rule(0))
        for number in range(1, RULES):
            namespace.add_rule(TOPIC, SUBSCRIPTION, _rule(number), NOW)
        committer.commit(NOW)


def _rule(number: int) -> RuleDescription:
    return RuleDescription(name=f"rule-{number}", filter=SqlFilterDescription(f"{PROPERTY} LIKE '%b{number}%'"))


# What is printed


def report(kinds: Sequence[str] = tuple(KINDS)) -> int:
    """Print what the sender sees beside each kind of peer, with the plain and with the compiled build; return the exit
    code.
    """
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    builds: dict[str, dict[str, Row]] = {}
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        for build in ("plain", "compiled") if (COMPILED / ".ready").exists() else ("plain",):
            builds[build] = measure_all(Path(directory) / build, (ALONE, *kinds), compiled=build == "compiled")
    print(f"One sender, {RATE} messages of 1 KB a second for {SECONDS:.0f} s, beside one hostile peer at full speed;")
    print("milliseconds from when a message was to be sent until it is confirmed: half, 99 of 100, and all within;")
    print(f"{cores} cores; load at the start {load:.1f}")
    print(f"{'':52}" + "".join(f"{build:>44}" for build in builds))
    print(f"{'beside':52}" + f"{'attempts/s':>12}{'p50':>8}{'p99':>8}{'max':>8}{'p99 x':>8}" * len(builds))
    for title, group in (("", (ALONE,)), ("without a key", UNPROVEN), ("with a key", CLIENTS)):
        shown = [kind for kind in group if kind == ALONE or kind in kinds]
        if title and shown:
            print(f"{title}:")
        for kind in shown:
            print(f"{kind:52}" + "".join(_cells(rows[kind], rows[ALONE]) for rows in builds.values()))
    if "compiled" not in builds:
        print("pairbus is not compiled (make compiled): no figures with it.")
    print(f"goal: 99 of 100 within {GOAL_MS:.0f} ms")
    return verdict(missed_goals(builds), load / cores)


def _cells(row: Row, alone: Row) -> str:
    times = f"{row.half_ms:8.1f}{row.p99_ms:8.1f}{row.longest_ms:8.1f}"
    return f"{row.attempts_per_s:12,.0f}{times}{row.p99_ms / alone.p99_ms:8.1f}"


def missed_goals(builds: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return the kinds of peers, with the build, beside which the sender waits too long."""
    return [
        f"{kind} ({build})" for build, rows in builds.items() for kind, row in rows.items() if row.p99_ms >= GOAL_MS
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sender"]:
        asyncio.run(_be_sender(sys.argv[2]))
    else:
        sys.exit(report(sys.argv[1:] or tuple(KINDS)))
