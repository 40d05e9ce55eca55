"""Measures the cost of a ledger: three servers side by side, one without, one with, one with the lives of messages.

They take turns, so that whatever else the machine does falls on all of them; the rate is of messages that were
confirmed, as everywhere. What a server takes of the processors is steadier than its rate, and says the same.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.server import Administrator, Client, Rate, Server, connected, payload_of, rate_of, serving
from pairbus.wire import Link

ROUNDS: Final = 15
MESSAGES_A_ROUND: Final = 10_000
GOAL: Final = 0.97
"""Having it on may cost 3% of the throughput."""

KINDS: Final[dict[str, tuple[str, ...]]] = {
    "without a ledger": (),
    "with a ledger": ("--ledger", "ledger"),
    "with lives, too": ("--ledger", "ledger", "--ledger-lives"),
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A server and the client that loads it."""

    server: Server
    client: Client
    sender: Link
    receiver: Link

    def send(self, payloads: list[bytes]) -> Rate:
        return rate_of(self.server, len(payloads), lambda: self.client.send_all(self.sender, payloads))

    def complete(self, count: int) -> Rate:
        return rate_of(self.server, count, lambda: self.client.complete_all(self.receiver, count))


def _open(stack: ExitStack, where: Path, options: tuple[str, ...]) -> Subject:
    options = tuple(str(where / "ledger") if option == "ledger" else option for option in options)
    server = stack.enter_context(serving(where / "data", *options))
    client = stack.enter_context(connected(server.address))
    Administrator(server.address).create("orders")
    return Subject(server, client, client.sender("orders"), client.receiver("orders"))


def report(rounds: int = ROUNDS) -> None:
    payloads = [payload_of(number) for number in range(MESSAGES_A_ROUND)]
    sent: dict[str, list[Rate]] = {name: [] for name in KINDS}
    completed: dict[str, list[Rate]] = {name: [] for name in KINDS}
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory, ExitStack() as stack:
        subjects = {
            name: _open(stack, Path(directory) / str(number), options)
            for number, (name, options) in enumerate(KINDS.items())
        }
        for number in range(rounds + 1):
            for name, subject in subjects.items():
                took = subject.send(payloads), subject.complete(len(payloads))
                if number:  # the first one is for warming up
                    sent[name].append(took[0])
                    completed[name].append(took[1])
    print(f"The ledger: {rounds} rounds of {MESSAGES_A_ROUND:,} messages of 1 KB, one by one; medians")
    for what, found in (("send", sent), ("receive and complete", completed)):
        plain = found["without a ledger"]
        for name, rates in found.items():
            print(
                f"  {what:<21} {name:<17} {_middle([r.per_s for r in rates]):9,.0f} a second,"
                f" {_middle([r.cpu_us for r in rates]):5.1f} µs of the server's processor;"
                f" {_ratio(rates, plain):.3f} of the rate, {_cpu_ratio(rates, plain):.3f} of the processor"
            )
    print(f"  to reach: {GOAL} of the rate with a ledger")


def _middle(figures: list[float]) -> float:
    return statistics.median(figures)


def _ratio(rates: list[Rate], plain: list[Rate]) -> float:
    """Of each round to the same round without: what changes from round to round falls on both."""
    return _middle([one.per_s / other.per_s for one, other in zip(rates, plain, strict=True)])


def _cpu_ratio(rates: list[Rate], plain: list[Rate]) -> float:
    """Of all rounds together: the system counts in hundredths of a second, which is much of one round."""
    return sum(one.cpu_us for one in rates) / sum(one.cpu_us for one in plain)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    report(parser.parse_args().rounds)
