"""A namespace on disk whose process is killed while it takes messages in, and what is there afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from pairbus.broker import (
    NO_PROPERTIES,
    Address,
    EntityExistsError,
    Message,
    Namespace,
    QueueDescription,
    Records,
)
from pairbus.cli.demo.engines import say
from pairbus.store import Keeper, StoreError

KILLS = 3
CONFIRMED_EACH = 2_000
GROUP = 50
ORDERS = Address.of("orders")


class Survivor:
    """Starts a process that sends, kills it, counts, and starts the next one on the same directory."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []

    def run(self) -> bool:
        """Run the demo; return whether everything that was confirmed is there, once."""
        with TemporaryDirectory(prefix="pairbus-demo-") as directory:
            path = Path(directory) / "contoso"
            for number in range(KILLS):
                self.crash(path, number)
            return self.report(path)

    def crash(self, path: Path, number: int) -> None:
        """Let a process send until enough is confirmed; then kill it, whatever it is doing."""
        command = [sys.executable, "-m", "pairbus.cli.demo.survivor", str(path), str(number)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 (it is ourselves)
            assert process.stdout is not None  # noqa: S101 (we have asked for it)
            before = len(self.confirmed)
            for line in process.stdout:
                self.confirmed.append(line.strip())
                if len(self.confirmed) - before == CONFIRMED_EACH:
                    process.kill()
        say("sender", f"killed after {len(self.confirmed) - before:,} messages were confirmed")

    def report(self, path: Path) -> bool:
        start = time.perf_counter()
        keeper = Keeper.open(path, make_namespace, now_ms())
        seconds = time.perf_counter() - start
        say("broker", f"back with {keeper.recovery.messages:,} messages after {seconds:.2f} s")
        found = Counter(drain(keeper))
        keeper.close()
        lost = sum(message_id not in found for message_id in self.confirmed)
        twice = sum(count > 1 for count in found.values())
        unconfirmed = len(found) - (len(self.confirmed) - lost)
        print(f"\nconfirmed {len(self.confirmed):,}, received {len(found):,}, lost {lost}, twice {twice}")
        print(f"taken in but not confirmed before the kill: {unconfirmed}")
        return lost == 0 and twice == 0


def send_until_killed(path: Path, name: str) -> None:
    """Send in groups, and say each message's id once it is on disk."""
    keeper = Keeper.open(path, make_namespace, now_ms())
    with suppress(EntityExistsError):
        keeper.namespace.create_queue("orders", QueueDescription(), now_ms())
    number = 0
    while True:
        ids = [f"{name}-{number + offset}" for offset in range(GROUP)]
        number += GROUP
        for message_id in ids:
            keeper.namespace.send(ORDERS, [Message(b"one espresso", message_id)], now_ms())
        keeper.when_durable(partial(confirm, ids))
        keeper.commit(now_ms())


def confirm(ids: list[str], error: StoreError | None) -> None:
    if error is not None:
        raise error
    print(*ids, sep="\n", flush=True)


def drain(keeper: Keeper) -> list[str]:
    """Receive and complete everything."""
    received: list[str] = []
    while deliveries := keeper.namespace.receive(ORDERS, 100, now_ms()):
        for delivery in deliveries:
            received.append(delivery.record.message_id)
            keeper.namespace.settle(ORDERS, delivery.lock_token or b"", now_ms())
        keeper.commit(now_ms())
    return received


def make_namespace(records: Records) -> Namespace:
    return Namespace(records, view=lambda _: NO_PROPERTIES, fresh_id=uuid4, fresh_token=lambda: uuid4().bytes)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    send_until_killed(Path(sys.argv[1]), sys.argv[2])
