"""Measures the cost of a pair: while the primary works, when it is killed, and while it is down.

Both namespaces are processes on this machine. What is compared takes turns within one client process, through factories
that are open all the time, so that whatever else the machine does falls on both; a ratio is the median of the ratios of
neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import statistics
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.brokers.load import BATCH, WINDOW, batches_of, in_tasks
from benchmarks.brokers.pairbus import messages
from benchmarks.client import Rate
from benchmarks.server import Administrator, Server, serving
from benchmarks.transfer import COMPILED, HERE
from pairbus import (
    BrokeredMessage,
    Endpoint,
    EntityChanged,
    EntityState,
    MessageSender,
    MessagingError,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    PairEvent,
    SendAvailabilityPairedNamespaceOptions,
    TokenProvider,
)
from pairbus.build import COMPILED as COMPILED_BUILD
from pairbus.build import build
from pairbus.client.entity_link import EntityLink
from pairbus.dialect.connection_string import ConnectionString
from pairbus.pairing.entity import ping
from tests.faults.fault import Outage, Schedule
from tests.faults.proxy import Proxy

QUEUE: Final = "orders"
GOAL: Final = 0.98
"""The fraction of an unpaired sender's rate that a paired one must reach."""

DIVERTED_GOAL: Final = 0.75
"""The fraction of the direct rate that diverted sends, one by one, must reach on the compiled build."""

ONE_BY_ONE: Final = "one by one"
IN_BATCHES: Final = f"in batches of {BATCH}"
_EVERY_S: Final = 0.005
"""The interval of the steady sender."""

_WITNESSES: Final = 3
"""The number of factories whose primary is killed, each with a steady sender."""

_ADMINISTRATORS: Final = 10
_OUTAGE_S: Final = 3_600.0
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Extent:
    """The amounts to measure."""

    messages: int = 1_000
    rounds: int = 15
    tenfold: int = 2_000
    in_flight: int = 500
    entities: int = 100


FULL: Final = Extent()
QUICK: Final = Extent(rounds=5, tenfold=500, in_flight=200, entities=20)


# The client


def factory_for(address: ConnectionString, port: int | None = None) -> MessagingFactory:
    return MessagingFactory.create(_endpoint(address, port), _key(address))


def _endpoint(address: ConnectionString, port: int | None = None) -> Endpoint:
    return Endpoint("127.0.0.1", port or address.port, tls=False)


def _key(address: ConnectionString) -> TokenProvider:
    assert address.key_name is not None
    assert address.key is not None
    return TokenProvider.from_key(address.key_name, address.key)


@asynccontextmanager
async def paired(primary: MessagingFactory, secondary: ConnectionString) -> AsyncIterator[NamespacePair]:
    """A factory in a pair that diverts at once."""
    async with (
        NamespaceManager.create(_endpoint(secondary), _key(secondary)) as manager,
        factory_for(secondary) as backup,
        primary,
    ):
        options = SendAvailabilityPairedNamespaceOptions(manager, backup, failover_interval=timedelta())
        yield await primary.pair_namespace(options)


async def _send(sender: MessageSender, workload: str, sent: list[BrokeredMessage]) -> None:
    if workload == ONE_BY_ONE:
        await in_tasks(WINDOW, sent, sender.send)
    else:
        await in_tasks(WINDOW // BATCH, batches_of(sent), sender.send)


async def _rate(sender: MessageSender, workload: str, sent: list[BrokeredMessage]) -> Rate:
    gc.collect()
    cpu_s, start = time.process_time(), time.perf_counter()
    await _send(sender, workload, sent)
    seconds = time.perf_counter() - start
    return Rate(len(sent) / seconds, (time.process_time() - cpu_s) / len(sent) * 1e6)


async def _until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.perf_counter() + _PATIENCE_S
    while not is_so():
        if time.perf_counter() > deadline_s:
            raise TimeoutError("what was waited for has not come")
        await asyncio.sleep(0.001)


# While the primary is well, and while messages are diverted

UNPAIRED: Final = "unpaired"
AGAIN: Final = "another unpaired one"
PAIRED: Final = "paired, healthy primary"
DIRECT: Final = "paired, direct"
DIVERTED: Final = "paired, diverted"
COMPARED: Final = {AGAIN: UNPAIRED, PAIRED: UNPAIRED, DIVERTED: DIRECT}
"""The baseline of each measurement; the first one shows the noise."""

Turn = Callable[[str], Awaitable[Rate]]
"""A round of one of them, with a workload."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rates of all senders, round by round."""

    rates: dict[str, list[Rate]]

    def median(self, name: str) -> Rate:
        rates = self.rates[name]
        return Rate(statistics.median(r.per_s for r in rates), statistics.median(r.cpu_us for r in rates))

    def speed(self, name: str) -> float:
        return statistics.median(rate.per_s / usual.per_s for rate, usual in self._beside(name))

    def cpu(self, name: str) -> float:
        return statistics.median(rate.cpu_us / usual.cpu_us for rate, usual in self._beside(name))

    def _beside(self, name: str) -> list[tuple[Rate, Rate]]:
        return list(zip(self.rates[name], self.rates[COMPARED[name]], strict=True))


async def take_turns(turns: Mapping[str, Turn], workload: str, rounds: int) -> Rounds:
    """Measure in another order every round, because the previous one has an effect; the first round is not counted."""
    rates: dict[str, list[Rate]] = {name: [] for name in turns}
    random = Random(rounds)  # noqa: S311 (the same order in every run)
    for _ in range(rounds + 1):
        for name in random.sample([*turns], len(turns)):
            rates[name].append(await turns[name](workload))
    return Rounds({name: reached[1:] for name, reached in rates.items()})


async def compare(primary: Server, secondary: Server, extent: Extent) -> dict[str, Rounds]:
    """Unpaired, paired and diverted, by the workload."""
    sent = messages(extent.messages)
    async with (
        factory_for(primary.address) as plain,
        factory_for(primary.address) as another,
        paired(factory := factory_for(primary.address), secondary.address) as pair,
    ):
        sender = await factory.create_message_sender(QUEUE)

        async def diverted(workload: str) -> Rate:
            pair.engage()
            try:
                return await _rate(sender, workload, sent)
            finally:
                pair.release()

        direct = partial(_rate, sender, sent=sent)
        healthy: dict[str, Turn] = {
            UNPAIRED: partial(_rate, await plain.create_message_sender(QUEUE), sent=sent),
            AGAIN: partial(_rate, await another.create_message_sender(QUEUE), sent=sent),
            PAIRED: direct,
        }
        away: dict[str, Turn] = {DIRECT: direct, DIVERTED: diverted}
        found = {}
        for workload in (ONE_BY_ONE, IN_BATCHES):
            # Apart, because what the secondary is left to do disturbs whoever comes next.
            rounds = [await take_turns(turns, workload, extent.rounds) for turns in (healthy, away)]
            found[workload] = Rounds({name: rates for one in rounds for name, rates in one.rates.items()})
        return found


# When the primary dies


@dataclass(frozen=True, slots=True)
class Death:
    """The effect of the end of the primary on steady senders."""

    diverted_s: list[float]
    """From the end to the first confirmation of a diverted message, one for each sender."""

    longest_s: float
    """The time of the slowest send."""

    sends: int
    """The number of sends in flight between the end and that confirmation."""

    failed: int


class Witness:
    """A sender at a steady rate, and when what it sent was confirmed."""

    def __init__(self, sender: MessageSender, pair: NamespacePair) -> None:
        self.failed_over_s: float | None = None
        self.sends: list[tuple[float, float]] = []
        """The start and the confirmation of each send."""

        self.failures: list[MessagingError] = []
        self.is_over = False
        self._sender = sender
        pair.subscribe(self._notice)

    @property
    def has_diverted(self) -> bool:
        since_s = self.failed_over_s
        return since_s is not None and any(confirmed_s > since_s for _, confirmed_s in self.sends)

    def _notice(self, event: PairEvent) -> None:
        if isinstance(event, EntityChanged) and event.state is EntityState.FAILED_OVER:
            self.failed_over_s = time.perf_counter()

    async def go_on(self) -> None:
        """Send until it is over, whether or not what was sent before is confirmed; then wait for all of it."""
        number = 0
        async with asyncio.TaskGroup() as group:
            while not self.is_over:
                group.create_task(self._send(number))
                number += 1
                await asyncio.sleep(_EVERY_S)

    async def _send(self, number: int) -> None:
        began_s = time.perf_counter()
        try:
            await self._sender.send(BrokeredMessage(b"x" * 1024, message_id=f"{number}"))
        except MessagingError as error:
            self.failures.append(error)
        else:
            self.sends.append((began_s, time.perf_counter()))

    def first_diverted_s(self, died_s: float) -> float:
        assert self.failed_over_s is not None
        return min(at_s for _, at_s in self.sends if at_s > self.failed_over_s) - died_s


async def die(
    end: Callable[[], None], addresses: tuple[ConnectionString, ConnectionString], port: int | None = None
) -> Death:
    """Let the primary end while several factories send to it, and wait until all of them have diverted."""
    async with _witnesses(addresses, port) as witnesses, asyncio.TaskGroup() as group:
        for witness in witnesses:
            group.create_task(witness.go_on())
        await _until(lambda: all(len(witness.sends) > 20 for witness in witnesses))
        end()
        died_s = time.perf_counter()
        await _until(lambda: all(witness.has_diverted for witness in witnesses))
        for witness in witnesses:
            witness.is_over = True
    diverted_s = [witness.first_diverted_s(died_s) for witness in witnesses]
    seen = [
        (began_s, confirmed_s)
        for witness, until_s in zip(witnesses, diverted_s, strict=True)
        for began_s, confirmed_s in witness.sends
        if confirmed_s > died_s and began_s < died_s + until_s
    ]
    failed = sum(len(witness.failures) for witness in witnesses)
    return Death(diverted_s, max(confirmed_s - began_s for began_s, confirmed_s in seen), len(seen) + failed, failed)


@asynccontextmanager
async def _witnesses(
    addresses: tuple[ConnectionString, ConnectionString], port: int | None
) -> AsyncIterator[list[Witness]]:
    primary, secondary = addresses
    async with (
        paired(one := factory_for(primary, port), secondary) as first,
        paired(two := factory_for(primary, port), secondary) as second,
        paired(three := factory_for(primary, port), secondary) as third,
    ):
        witnesses = []
        for factory, pair in ((one, first), (two, second), (three, third)):
            witnesses.append(Witness(await factory.create_message_sender(QUEUE), pair))
        yield witnesses


def deaths(where: Path, secondary: Server) -> dict[str, Death]:
    """A process that is killed, connections that are reset, and a process that is stopped and does not answer."""
    found = {}
    with serving(where / "doomed") as primary:
        Administrator(primary.address).create(QUEUE)
        addresses = primary.address, secondary.address
        found["connections reset, then refused"] = asyncio.run(_reset(addresses))
        found["no answer (SIGSTOP)"] = asyncio.run(die(lambda: primary.process.send_signal(signal.SIGSTOP), addresses))
        primary.process.send_signal(signal.SIGCONT)
        found["killed, then refused (SIGKILL)"] = asyncio.run(die(primary.process.kill, addresses))
    return found


async def _reset(addresses: tuple[ConnectionString, ConnectionString]) -> Death:
    primary, _ = addresses
    assert primary.port is not None
    async with Proxy("127.0.0.1", primary.port) as proxy:
        outage = Schedule(outages=(Outage(after_s=0, lasts_s=_OUTAGE_S),))
        return await die(lambda: proxy.misbehave(outage), addresses, proxy.port)


# Ten times the work


@dataclass(frozen=True, slots=True)
class Load:
    """The cost of each of many diverted messages."""

    rate: Rate
    bytes_in_flight: float
    bytes_left: float
    """The memory that is still used when all of them are confirmed."""


async def load(primary: Server, secondary: Server, count: int, in_flight: int) -> Load:
    async with paired(factory := factory_for(primary.address), secondary.address) as pair:
        sender = await factory.create_message_sender(QUEUE)
        pair.engage()
        sent = messages(in_flight)
        await _send_at_once(sender, sent)  # there is room for all of them from now on
        rate = await _rate(sender, ONE_BY_ONE, messages(count))
        held, left = await _bytes_each(sender, sent)
    return Load(rate, held, left)


async def _bytes_each(sender: MessageSender, sent: Sequence[BrokeredMessage]) -> tuple[float, float]:
    """All of them at once; the messages themselves are there before."""
    gc.collect()
    tracemalloc.start()
    try:
        await _send_at_once(sender, sent)
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak / len(sent), left / len(sent)


async def _send_at_once(sender: MessageSender, sent: Sequence[BrokeredMessage]) -> None:
    async with asyncio.TaskGroup() as group:
        for message in sent:
            group.create_task(sender.send(message))


@dataclass(frozen=True, slots=True)
class Crowd:
    """The cost of each of many entities that fail over at once."""

    first_s: float
    """Until a message for each of them is confirmed, after the primary is gone."""

    first_cpu_us: float
    next: Rate
    """One more message for each, one entity after the other."""

    ping_cpu_us: float
    """The cost of a refused ping."""

    bytes_each: float


async def crowd(where: Path, secondary: Server, count: int) -> Crowd:
    """With two factories, one for the times and one for the memory: to look at that takes time."""
    with serving(where) as primary:
        _create_queues(primary.address, count)
        async with (
            paired(measured := factory_for(primary.address), secondary.address),
            paired(factory := factory_for(primary.address), secondary.address),
        ):
            weighed, timed = await _senders(measured, count), await _senders(factory, count)
            primary.process.kill()
            primary.process.wait()
            first_s, first_cpu_us = await _send_round(timed)
            rounds = [await _send_round(timed) for _ in range(5)]
            ping_cpu_us = statistics.median([await _ping_cpu_us(factory, count) for _ in range(5)])
            bytes_each = await _bytes_of_failover(weighed)
    seconds, cpu_us = (statistics.median(values) for values in zip(*rounds, strict=True))
    return Crowd(first_s, first_cpu_us, Rate(count / seconds, cpu_us), ping_cpu_us, bytes_each)


def _create_queues(address: ConnectionString, count: int) -> None:
    """Several at a time, so that they share what is synced to disk."""

    def create(numbers: range) -> None:
        administrator = Administrator(address)
        for number in numbers:
            administrator.create(f"{QUEUE}-{number}")

    with ThreadPoolExecutor(_ADMINISTRATORS) as pool:
        list(pool.map(create, [range(first, count, _ADMINISTRATORS) for first in range(_ADMINISTRATORS)]))


async def _senders(factory: MessagingFactory, count: int) -> list[MessageSender]:
    """One for each entity, attached."""
    senders = [await factory.create_message_sender(f"{QUEUE}-{number}") for number in range(count)]
    await in_tasks(20, senders, lambda sender: sender.send(BrokeredMessage(b"")))
    return senders


async def _send_round(senders: list[MessageSender]) -> tuple[float, float]:
    """Seconds for a message to each, all at once, and microseconds of the processor for one."""
    gc.collect()
    cpu_s, start = time.process_time(), time.perf_counter()
    await in_tasks(len(senders), zip(senders, messages(len(senders)), strict=True), lambda each: each[0].send(each[1]))
    return time.perf_counter() - start, (time.process_time() - cpu_s) / len(senders) * 1e6


async def _ping_cpu_us(factory: MessagingFactory, count: int) -> float:
    """All of them at once, as they are when all entities have failed over at once."""
    gc.collect()
    cpu_s = time.process_time()
    causes = await asyncio.gather(
        *(ping(EntityLink(factory, f"{QUEUE}-{number}"), 60.0, lambda: None) for number in range(count))
    )
    assert all(causes)
    return (time.process_time() - cpu_s) / count * 1e6


async def _bytes_of_failover(senders: list[MessageSender]) -> float:
    gc.collect()
    tracemalloc.start()
    try:
        await _send_round(senders)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return left / len(senders)


# What is printed


def report(extent: Extent = FULL) -> None:
    """Print what pairing costs, each figure beside what it is compared with."""
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # what it warns of is what is wanted here
    busy = os.getloadavg()[0]
    many = 10 * extent.entities
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory, ExitStack() as stack:
        where = Path(directory)
        primary = stack.enter_context(serving(where / "primary"))
        secondary = stack.enter_context(serving(where / "secondary"))
        Administrator(primary.address).create(QUEUE)
        compared = asyncio.run(compare(primary, secondary, extent))
        ended = deaths(where, secondary)
        once = asyncio.run(load(primary, secondary, extent.tenfold, extent.in_flight))
        tenfold = asyncio.run(load(primary, secondary, 10 * extent.tenfold, 10 * extent.in_flight))
        few = asyncio.run(crowd(where / "few", secondary, extent.entities))
        lots = asyncio.run(crowd(where / "many", secondary, many))
    print(f"One client process, a primary and a secondary process, 1 KB messages, durable and confirmed, {build()}")
    print(f"median of {extent.rounds} rounds of {extent.messages:,} in turn, window {WINDOW}; {os.cpu_count()} cores,")
    print(f"{busy:.1f} processes wanted one in the minute before")
    for workload, rounds in compared.items():
        _print_rounds(workload, rounds)
    verdicts = "; ".join(f"{workload}: {_verdict(rounds)}" for workload, rounds in compared.items())
    print(f"To reach: {GOAL:.2f} of the unpaired rate; {verdicts}")
    if build() == COMPILED_BUILD:
        is_reached = compared[ONE_BY_ONE].speed(DIVERTED) >= DIVERTED_GOAL
        print(f"To reach, diverted one by one: {DIVERTED_GOAL} of direct; {'reached' if is_reached else 'missed'}")
    print()
    print(f"The primary ends under {_WITNESSES} steady senders ({1 / _EVERY_S:.0f} a second each), failover interval 0")
    for name, death in ended.items():
        first = f"{min(death.diverted_s) * 1e3:7,.0f} to {max(death.diverted_s) * 1e3:,.0f} ms"
        print(
            f"{name:40} first diverted confirmation after {first}; slowest send {death.longest_s * 1e3:,.0f} ms;",
            end="",
        )
        print(f" {death.failed} of {death.sends} sends failed")
    print()
    print(f"Ten times the work: {extent.tenfold:,} diverted messages, then {10 * extent.tenfold:,}")
    _print_growth("a message's share of the client's processor", "µs", once.rate.cpu_us, tenfold.rate.cpu_us)
    _print_growth("messages a second", "", once.rate.per_s, tenfold.rate.per_s)
    flights = f"{extent.in_flight:,}, then {10 * extent.in_flight:,}"
    _print_growth(f"memory of one on its way among {flights}", "B", once.bytes_in_flight, tenfold.bytes_in_flight)
    _print_growth("memory that stays for each", "B", once.bytes_left, tenfold.bytes_left)
    print(f"{extent.entities:,} entities failed over at once, then {many:,}")
    _print_growth("until a message for each is confirmed", "ms", few.first_s * 1e3, lots.first_s * 1e3)
    _print_growth("processor for one of these", "µs", few.first_cpu_us, lots.first_cpu_us)
    _print_growth("processor for a message to one afterwards", "µs", few.next.cpu_us, lots.next.cpu_us)
    _print_growth("processor for a ping that is refused", "µs", few.ping_cpu_us, lots.ping_cpu_us)
    _print_growth("memory for one", "B", few.bytes_each, lots.bytes_each)


def report_compiled() -> None:
    """Print the same of the compiled build, if there is one."""
    if (COMPILED / ".ready").exists():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (COMPILED, HERE)))}
        subprocess.run([sys.executable, "-m", "benchmarks.pairing"], env=environment, check=True)
    else:
        print("pairbus is not compiled (make compiled): no figures with it")


def _print_rounds(workload: str, rounds: Rounds) -> None:
    for name in rounds.rates:
        rate, usual = rounds.median(name), COMPARED.get(name)
        reported = f"{f'send {workload}, {name}':50}{rate.per_s:8,.0f} a second"
        reported += f" {rate.cpu_us:6.1f} µs of the client's processor"
        if usual is not None:
            reported += (
                f"   {rounds.speed(name):.3f} of the rate and {rounds.cpu(name):.3f} of the processor of {usual}"
            )
        print(reported)


def _verdict(rounds: Rounds) -> str:
    """Return the verdict; unknown if the noise exceeds the difference to measure."""
    noise = abs(rounds.speed(AGAIN) - 1)
    if noise > 1 - GOAL:
        return f"unknown, because two unpaired ones differ by {noise:.0%} on this machine now"
    return "reached" if rounds.speed(PAIRED) >= GOAL else "missed"


def _print_growth(name: str, unit: str, small: float, large: float) -> None:
    growth = f"x {large / small:.2f}" if small > 0 else ""
    print(f"{name:60}{small:12,.0f} {unit:2} {large:12,.0f} {unit:2}   {growth}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what pairing costs.")
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--compiled", action="store_true", help="measure the compiled build")
    chosen = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if chosen.compiled:
            report_compiled()
        else:
            report(QUICK if chosen.quick else FULL)


if __name__ == "__main__":
    main()
