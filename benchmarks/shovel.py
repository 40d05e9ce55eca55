"""RabbitMQ's shovel, which does what a syphon does: it takes a backlog to its destinations, confirmed.

One node on this machine has both virtual hosts, and keeps its messages in files below this directory.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.brokers.load import WINDOW, in_tasks
from benchmarks.brokers.shovel_node import ShovelError, ShovelNode, missing
from benchmarks.brokers.topology import BACKLOG, EXCHANGE, PRIMARY, Topology

MESSAGES: Final = 50_000
QUEUES: Final = 10
DESTINATIONS: Final = 40
BODY_BYTES: Final = 1024

START_UP: Final = 0.1
"""The share of the messages that has to arrive before the rate is taken."""

_SHORT_PAUSE_S: Final = 0.05
_LONG_PAUSE_S: Final = 1.0
_PATIENCE_S: Final = 60.0
"""The time without arrivals after which the measurement is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShovelResult:
    """The speed of the shovels, from their declaration until the last message was in its destination."""

    messages: int
    start_up_s: float
    """Until a tenth had arrived, the command that declares the shovels included."""

    steady_messages: int
    """The number of messages that arrived after that."""

    steady_s: float

    cpu_us: float
    """The processor time of each of them, in the node."""

    @property
    def per_s(self) -> float:
        """Messages a second in the steady state."""
        return self.steady_messages / self.steady_s


def measure_shovel(
    messages: int,
    queues: int = QUEUES,
    destinations: int = DESTINATIONS,
    body_bytes: int = BODY_BYTES,
    *,
    over_tcp: bool = False,
) -> ShovelResult:
    """Fill the queues of a node of its own, and let shovels empty them, one for each queue."""
    if messages < 1:
        raise ValueError(f"there is nothing to move with {messages} messages")
    if reason := missing():
        raise ShovelError(reason)
    topology = Topology(queues=queues, destinations=destinations)
    with (
        TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory,
        ShovelNode(Path(directory), topology, over_tcp=over_tcp) as node,
    ):
        return asyncio.run(_measure(node, topology, messages, os.urandom(body_bytes)))


async def _measure(node: ShovelNode, topology: Topology, messages: int, body: bytes) -> ShovelResult:
    pika: Any = importlib.import_module("aio_pika")
    async with await pika.connect(node.uri(BACKLOG)) as connection:
        await _publish(connection, topology, messages, body)
    expected = topology.expected(messages)
    async with await pika.connect(node.uri(PRIMARY)) as connection:
        arrivals = Arrivals({queue: await connection.channel() for queue in expected}, expected, node.cpu_s)
        declared_s = time.perf_counter()
        _, (started, ended) = await asyncio.gather(asyncio.to_thread(node.start_shovels), arrivals.watch())
    if started == ended:
        raise ShovelError(f"{messages:,} messages are too few: they arrived between two looks")
    return ShovelResult(
        messages=messages,
        start_up_s=started.at_s - declared_s,
        steady_messages=ended.arrived - started.arrived,
        steady_s=ended.done_s - started.at_s,
        cpu_us=(ended.cpu_s - started.cpu_s) / (ended.arrived - started.arrived) * 1e6,
    )


async def _publish(connection: Any, topology: Topology, messages: int, body: bytes) -> None:
    """Send the load of the brokers' clients, to every destination in turn."""
    pika: Any = importlib.import_module("aio_pika")
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    exchange = await channel.get_exchange(EXCHANGE)

    async def publish(number: int) -> None:
        message = pika.Message(
            body,
            message_id=f"message-{number:08}",
            headers={"kind": "order", "number": number},
            delivery_mode=pika.DeliveryMode.PERSISTENT,
        )
        await exchange.publish(message, topology.destination(number))

    await in_tasks(WINDOW, range(messages), publish)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The number of messages that had arrived, and the time: queues answer one by one, and slowly on a busy node."""

    arrived: int
    at_s: float
    """The average time at which the queues answered."""

    done_s: float
    """The time at which the last of them answered."""

    cpu_s: float
    """The processor time that the node had taken by then."""


class Arrivals:
    """The arrivals at the destinations. Polling takes processor time from the shovels, so it is rare.

    Every queue is asked through a channel of its own: a busy one lets wait, and all wait at the same time.
    """

    def __init__(self, channels: Mapping[str, Any], expected: Mapping[str, int], cpu_s: Callable[[], float]) -> None:
        self._channels = channels
        self._expected = expected
        self._cpu_s = cpu_s
        self._messages = sum(expected.values())
        self._lengths = dict.fromkeys(expected, 0)

    async def watch(self) -> tuple[Look, Look]:
        """Until all have arrived: the first look after the start-up, and the last one."""
        started: Look | None = None
        progress = look = await self._look()
        while look.arrived < self._messages:
            await asyncio.sleep(self._pause_s(started, look))
            look = await self._look()
            if started is None and look.arrived >= START_UP * self._messages:
                started = look
            if look.arrived > progress.arrived:
                progress = look
            elif look.at_s - progress.at_s > _PATIENCE_S:
                raise ShovelError(f"{look.arrived:,} of {self._messages:,} messages have arrived, and no more come")
        return started or look, look

    def _pause_s(self, started: Look | None, look: Look) -> float:
        """Half of the time that the rest will probably take: so the last look is not much later than the end."""
        if started is None or look.arrived == started.arrived:
            return _SHORT_PAUSE_S
        s_each = (look.at_s - started.at_s) / (look.arrived - started.arrived)
        return min(max(s_each * (self._messages - look.arrived) / 2, _SHORT_PAUSE_S), _LONG_PAUSE_S)

    async def _look(self) -> Look:
        """Ask those that still wait for something."""
        waiting = [queue for queue, length in self._lengths.items() if length < self._expected[queue]]
        answered_s = await asyncio.gather(*map(self._ask, waiting))
        for queue in waiting:
            length, expected = self._lengths[queue], self._expected[queue]
            if length > expected:
                raise ShovelError(f"{queue} holds {length:,} messages; {expected:,} were sent to it")
        arrived = sum(self._lengths.values())
        return Look(arrived=arrived, at_s=statistics.fmean(answered_s), done_s=max(answered_s), cpu_s=self._cpu_s())

    async def _ask(self, queue: str) -> float:
        """Note the length of a queue, and return when that was."""
        answer = await self._channels[queue].declare_queue(queue, passive=True)
        self._lengths[queue] = answer.declaration_result.message_count
        return time.perf_counter()


def report(messages: int = MESSAGES, *, over_tcp: bool = False) -> None:
    """Print the rate, or why there is none."""
    if reason := missing():
        print(f"Not measured: RabbitMQ's shovel: {reason}")
        return
    busy = os.getloadavg()[0]
    result = measure_shovel(messages, over_tcp=over_tcp)
    way = "over TCP" if over_tcp else "inside the node"
    print(f"RabbitMQ's shovels, {way}, on-confirm: {QUEUES} queues to {DESTINATIONS} of another virtual host, 1 KB")
    print(f"{os.cpu_count()} cores, {busy:.1f} processes wanted one in the minute before")
    print(f"{f'{messages:,} messages, without the first tenth':58}{result.per_s:10,.0f} a second")
    print(f"{'what each took of the processors, in the node':58}{result.cpu_us:10,.0f} microseconds")
    print(f"{'that took':58}{result.steady_s:10,.1f} seconds")
    print(f"{'the first tenth, from the declaration on':58}{result.start_up_s:10,.1f} seconds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    parser.add_argument("--over-tcp", action="store_true", help="as if the virtual hosts were on two machines")
    options = parser.parse_args()
    report(options.messages, over_tcp=options.over_tcp)
