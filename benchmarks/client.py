"""The client in a process of its own, beside the clients of other brokers, all in one run.

Every broker is a process on this machine that keeps its messages in files below this directory; nothing is compiled.
The rounds of all of them take turns, so that whatever else the machine does falls on each.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import pstats
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.brokers import jetstream, rabbitmq
from benchmarks.brokers.load import BATCH, BODY, WINDOW, LoadedClient, batches_of, in_tasks
from benchmarks.server import Administrator, serving
from pairbus import (
    BrokeredMessage,
    Endpoint,
    MessageReceiver,
    MessageSender,
    MessagingFactory,
    ReceivedMessage,
    TokenProvider,
)
from pairbus.dialect.connection_string import ConnectionString
from tests.client.rabbitmq_server import RabbitMqServer

try:
    import uvloop
except ImportError:
    _uvloop: Callable[[], asyncio.AbstractEventLoop] | None = None
else:
    _uvloop = uvloop.new_event_loop

ROUNDS: Final = 3
MESSAGES_A_ROUND: Final = 5_000
IN_FLIGHT: Final = 2_000

SEND: Final = "send one by one"
SEND_BATCHES: Final = f"send in batches of {BATCH}"
COMPLETE: Final = "receive and complete one by one"
COMPLETE_BATCHES: Final = f"receive and complete {BATCH} at a time"
WORKLOADS: Final = (SEND, COMPLETE, SEND_BATCHES, COMPLETE_BATCHES)
"""In this order the queue is empty after every round."""

OURS: Final = "pairbus"
OURS_ON_UVLOOP: Final = "pairbus, uvloop"
RABBITMQ: Final = "aio-pika, RabbitMQ"
JETSTREAM: Final = "nats-py, JetStream"

GOALS: Final = {
    (SEND, RABBITMQ): 4.0,
    (SEND_BATCHES, RABBITMQ): 4.0,
    (SEND, JETSTREAM): 1.0,
    (SEND_BATCHES, JETSTREAM): 1.0,
    (COMPLETE, RABBITMQ): 3.0,
    (COMPLETE_BATCHES, RABBITMQ): 3.0,
}
"""The factor by which pairbus is required to be faster than the SDK."""

_PATIENCE: Final = timedelta(seconds=30)
_PROFILED_FUNCTIONS: Final = 25


# Our client


class Pairbus:
    """A factory with one sender; a receiver is there only while something is received, or it would prefetch."""

    def __init__(self, address: ConnectionString, path: str) -> None:
        self._address = address
        self._path = path
        self._messages: list[BrokeredMessage] = []

    async def open(self) -> None:
        assert self._address.key_name is not None
        assert self._address.key is not None
        self._factory = MessagingFactory.create(
            Endpoint("127.0.0.1", self._address.port, tls=False),
            TokenProvider.from_key(self._address.key_name, self._address.key),
        )
        self.sender: MessageSender = await self._factory.create_message_sender(self._path)
        await self.sender.send(messages(1))
        await self.complete_batches(1)

    async def close(self) -> None:
        await self._factory.close()

    async def receiver(self) -> MessageReceiver:
        return await self._factory.create_message_receiver(self._path, prefetch_count=WINDOW)

    async def prepare(self, count: int) -> None:
        self._messages = messages(count)

    async def send_each(self) -> None:
        await in_tasks(WINDOW, self._messages, self.sender.send)

    async def send_batches(self) -> None:
        await in_tasks(WINDOW // BATCH, batches_of(self._messages), self.sender.send)

    async def complete_each(self, count: int) -> None:
        async with await self.receiver() as receiver:

            async def complete_one(_: int) -> None:
                (message,) = await receiver.receive(1, _PATIENCE)
                await receiver.complete(message)

            await in_tasks(WINDOW, range(count), complete_one)

    async def complete_batches(self, count: int) -> None:
        left = count

        async def complete_some() -> None:
            nonlocal left
            while left > 0:
                wanted = min(BATCH, left)
                left -= wanted
                received = await receiver.receive(wanted, _PATIENCE)
                assert received, "the queue is empty before its time"
                left += wanted - len(received)
                await receiver.complete(received)

        async with await self.receiver() as receiver, asyncio.TaskGroup() as group:
            for _ in range(WINDOW // BATCH):
                group.create_task(complete_some())


def messages(count: int) -> list[BrokeredMessage]:
    """Return typical messages of an application: a body of 1 KB, a message id and two properties of its own."""
    return [
        BrokeredMessage(
            BODY, message_id=f"message-{number:08}", application_properties={"kind": "order", "number": number}
        )
        for number in range(count)
    ]


# What is measured


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second, and what each takes of the client's processor."""

    per_s: float
    cpu_us: float


class Contestant:
    """A client, the loop that it runs on, and how it has done so far."""

    def __init__(self, name: str, client: LoadedClient, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.name = name
        self._client = client
        self._new_loop = new_loop
        self._rates: dict[str, list[Rate]] = {workload: [] for workload in WORKLOADS}

    def play(self, count: int) -> None:
        """One round of everything, through a connection of its own."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            runner.run(self._play(count))

    def profile(self, count: int) -> dict[str, pstats.Stats]:
        """One round of everything, with what took the time."""
        with asyncio.Runner(loop_factory=self._new_loop) as runner:
            return runner.run(self._profile(count))

    def median(self, workload: str) -> Rate:
        rates = self._rates[workload]
        return Rate(statistics.median(r.per_s for r in rates), statistics.median(r.cpu_us for r in rates))

    async def _play(self, count: int) -> None:
        async with _opened(self._client, count):
            for workload in WORKLOADS:
                gc.collect()
                self._rates[workload].append(await _rate(self._client, workload, count))

    async def _profile(self, count: int) -> dict[str, pstats.Stats]:
        profiles: dict[str, pstats.Stats] = {}
        async with _opened(self._client, count):
            for workload in WORKLOADS:
                with cProfile.Profile() as profiler:
                    await _work(self._client, workload, count)
                profiles[workload] = pstats.Stats(profiler)
        return profiles


@asynccontextmanager
async def _opened(client: LoadedClient, count: int) -> AsyncIterator[None]:
    await client.open()
    try:
        await client.prepare(count)
        yield
    finally:
        await client.close()


async def _rate(client: LoadedClient, workload: str, count: int) -> Rate:
    cpu_s, start = time.process_time(), time.perf_counter()
    await _work(client, workload, count)
    seconds = time.perf_counter() - start
    return Rate(count / seconds, (time.process_time() - cpu_s) / count * 1e6)


async def _work(client: LoadedClient, workload: str, count: int) -> None:
    if workload == SEND:
        await client.send_each()
    elif workload == SEND_BATCHES:
        await client.send_batches()
    elif workload == COMPLETE:
        await client.complete_each(count)
    else:
        await client.complete_batches(count)


def compete(where: Path, count: int, rounds: int) -> tuple[list[Contestant], list[str]]:
    """Let all that are there play their rounds in turn, and say who is not."""
    absent: list[str] = []
    with ExitStack() as stack:
        address = stack.enter_context(serving(where / "pairbus")).address
        administrator = Administrator(address)
        contestants = [_ours(administrator, address, OURS, asyncio.new_event_loop)]
        if _uvloop is None:
            absent.append(f"{OURS_ON_UVLOOP}: uvloop is not installed")
        else:
            contestants.append(_ours(administrator, address, OURS_ON_UVLOOP, _uvloop))
        if reason := rabbitmq.missing():
            absent.append(f"{RABBITMQ}: {reason}")
        else:
            node = stack.enter_context(RabbitMqServer(where / "rabbitmq"))
            contestants.append(Contestant(RABBITMQ, rabbitmq.AioPika(node.port), asyncio.new_event_loop))
        if reason := jetstream.missing():
            absent.append(f"{JETSTREAM}: {reason}")
        else:
            port = stack.enter_context(jetstream.jetstream_server(where / "jetstream"))
            contestants.append(Contestant(JETSTREAM, jetstream.NatsPy(port), asyncio.new_event_loop))
        for _ in range(rounds):
            for contestant in contestants:
                contestant.play(count)
    return contestants, absent


def _ours(
    administrator: Administrator, address: ConnectionString, name: str, loop: Callable[[], asyncio.AbstractEventLoop]
) -> Contestant:
    path = f"orders-{len(name)}"
    administrator.create(path)
    return Contestant(name, Pairbus(address, path), loop)


def alone(where: Path, count: int) -> Contestant:
    """One round of ours, with so many messages in the queue."""
    with serving(where) as server:
        contestant = _ours(Administrator(server.address), server.address, OURS, asyncio.new_event_loop)
        contestant.play(count)
    return contestant


def profiles(where: Path, count: int) -> dict[str, pstats.Stats]:
    with serving(where) as server:
        contestant = _ours(Administrator(server.address), server.address, OURS, asyncio.new_event_loop)
        return contestant.profile(count)


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes that the client holds for one message."""

    sent: float
    """While it waits for its confirmation, the task that waits included."""

    received: float
    """Until it is completed; this includes its body."""


def held(where: Path, count: int) -> Held:
    with serving(where) as server:
        Administrator(server.address).create("orders")
        return asyncio.run(_held(Pairbus(server.address, "orders"), count))


async def _held(client: Pairbus, count: int) -> Held:
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
    """Print the rates and the memory, and how they compare."""
    busy = os.getloadavg()[0]
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        where = Path(directory)
        contestants, absent = compete(where, count, rounds)
        once, tenfold = alone(where / "once", count), alone(where / "tenfold", 10 * count)
        few, many = held(where / "few", IN_FLIGHT), held(where / "many", 10 * IN_FLIGHT)
    print(f"One client process, one broker process, 1 KB messages, durable and confirmed; window and prefetch {WINDOW}")
    print(f"median of {rounds} rounds of {count:,} in turn, plain Python, asyncio's own loop unless it says otherwise")
    print(f"{os.cpu_count()} cores, {busy:.1f} processes wanted one in the minute before")
    for workload in (SEND, SEND_BATCHES, COMPLETE, COMPLETE_BATCHES):
        _print_workload(workload, contestants)
    print(
        "Ours waits until each completion is confirmed. RabbitMQ and JetStream do not confirm an ack: their rows wait"
    )
    print(
        "for one answer after the last (RabbitMQ: ack, and ack(multiple) for a hundred; JetStream: fetch and ack each)."
    )
    print("JetStream confirms what it has written before any of it is synced to disk; the others sync first.")
    for line in absent:
        print(f"Not measured: {line}")
    print("To reach: send ≥ 4 times RabbitMQ's and ≥ JetStream's; receive + complete ≥ 3 times RabbitMQ's;", end=" ")
    print(_verdict(contestants))
    print()
    print(f"Ten times the work: {count:,} messages, then {10 * count:,}; a message's share of the client's processor")
    for workload in (SEND, SEND_BATCHES, COMPLETE, COMPLETE_BATCHES):
        small, large = once.median(workload), tenfold.median(workload)
        growth = f"x {large.cpu_us / small.cpu_us:.2f}   {small.per_s:8,.0f} a second {large.per_s:8,.0f} a second"
        print(f"{workload:60} {small.cpu_us:5.0f} µs {large.cpu_us:5.0f} µs   {growth}")
    what = f"among {IN_FLIGHT:,}, then {10 * IN_FLIGHT:,}"
    print(f"{f'memory of a message being sent, {what}':60} {few.sent:6.0f} B {many.sent:6.0f} B")
    print(f"{f'memory of a message received, {what}':60} {few.received:6.0f} B {many.received:6.0f} B")


def _print_workload(workload: str, contestants: Sequence[Contestant]) -> None:
    ours = contestants[0].median(workload).per_s
    for contestant in contestants:
        rate = contestant.median(workload)
        ratio = "" if contestant.name.startswith(OURS) else f"   ours is {ours / rate.per_s:.2f} times as fast"
        goal = GOALS.get((workload, contestant.name))
        wanted = "" if goal is None else f", to reach {goal:.0f}"
        name = f"{workload}, {contestant.name}"
        print(f"{name:60}{rate.per_s:10,.0f} a second   {rate.cpu_us:4.0f} µs of the client's processor{ratio}{wanted}")


def _verdict(contestants: Sequence[Contestant]) -> str:
    rates = {contestant.name: contestant for contestant in contestants}
    known = {(workload, name): goal for (workload, name), goal in GOALS.items() if name in rates}
    missed = [
        f"{workload} against {name}"
        for (workload, name), goal in known.items()
        if rates[OURS].median(workload).per_s < goal * rates[name].median(workload).per_s
    ]
    if not known:
        return "no other client to compare with"
    return f"missed: {'; '.join(missed)}" if missed else "reached"


def print_profiles(count: int) -> None:
    """Print where our client spends its time."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        for workload, stats in profiles(Path(directory) / "profile", count).items():
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
