"""B3 on a real store: random failures, stalls and lack of space lose nothing confirmed, and duplicate nothing.

Most seeds inject faults; the others have a disk that really is frozen, slow, full, or fails. The seeds here and the
kills of ``side_buffer/test_server.py`` are 100 different ones. The 100 seeds of ``test_b3_stalled_storage.py`` use a
store in memory.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import AbstractContextManager
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from pairbus.broker import Address
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.host import NamespaceHost
from pairbus.testing import FaultKind, RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Condition, Delivery
from tests.server.amqp.test_failed_commits import condition_of
from tests.server.amqp.wire_client import WireClient, connect, text_message
from tests.server.disks import filled, fragile, frozen, slowed
from tests.server.side_buffer.test_server import MERGE_KILL_SEEDS
from tests.server.test_e6_damage import ask, health
from tests.waiting import eventually

pytestmark = pytest.mark.slow

FAULT_SEEDS: Final = range(64)
DISK_SEEDS: Final = range(64, 80)
LIMIT_S: Final = 0.1
"""Time that a commit may take before the storage stalls."""

LONG_LIMIT_S: Final = 2.0
"""The same for a disk that is not meant to stall, so that a send is refused or diverted for its trouble only."""

PAUSES_S: Final = (0.0, 0.02, 1.5 * LIMIT_S)
REPORTED_WITHIN_S: Final = 3.0
LARGE: Final = 200_000
WRITES_PER_S: Final = 10
RESTART_EVERY: Final = 10
ORDERS: Final = Address.of("orders")
KINDS: Final = (FaultKind.STORAGE_ERROR, FaultKind.STORAGE_STALL, FaultKind.STORAGE_FULL)
REFUSALS: Final = {
    Condition.INTERNAL_ERROR,
    Condition.RESOURCE_LIMIT_EXCEEDED,
    ServiceBusCondition.SERVER_BUSY,
}


def ids_in(namespace: RunningNamespace) -> list[str]:
    def peek(host: NamespaceHost) -> list[str]:
        return [each.record.message_id for each in host.use_namespace().peek(ORDERS, 0, 10_000, host.now_ms())]

    return namespace.call(peek)


class Disk:
    """A disk that can be frozen, slowed down, filled, or made to fail."""

    def __init__(self, place: Path, below: Path) -> None:
        self.place = place
        self._below = below

    def trouble(self, kind: Trouble) -> AbstractContextManager[None]:
        match kind:
            case Trouble.FROZEN:
                return frozen(self.place)
            case Trouble.SLOW:
                return slowed(self.place, os.getpid(), WRITES_PER_S)
            case Trouble.FULL:
                return filled(self.place)
            case Trouble.FAILING:
                return filled(self._below)


class Trouble(Enum):
    """A trouble of a disk."""

    FROZEN = auto()
    SLOW = auto()
    FULL = auto()
    FAILING = auto()


FAILING: Final = ("storage_failing", "the storage fails")
STALLED: Final = ("storage_stalled", "the storage has not answered for")
FULL: Final = ("storage_full", "the storage is full")
SHOWN_BY: Final = {
    Trouble.FROZEN: STALLED,
    Trouble.SLOW: STALLED,
    Trouble.FULL: FULL,
    Trouble.FAILING: FAILING,
    FaultKind.STORAGE_ERROR: FAILING,
    FaultKind.STORAGE_STALL: STALLED,
    FaultKind.STORAGE_FULL: FULL,
}
"""The gauges that show the troubles, and how /health names them."""

STALLS: Final = frozenset({Trouble.FROZEN, Trouble.SLOW})
SENT: Final = {Trouble.FULL: (20, LARGE), Trouble.FAILING: (20, LARGE)}
"""Numbers and sizes of messages that meet troubles which not every send meets."""


def gauge(namespace: RunningNamespace, name: str) -> float:
    """Return the value of a metric; 0 if it does not exist."""
    found = re.search(rf"^pairbus_{name} (\S+)$", ask(namespace, "/metrics")[1], re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def shows(namespace: RunningNamespace, trouble: Trouble | FaultKind, is_buffered: bool) -> bool:
    """Return whether both /health and a metric show a trouble."""
    name, problem = SHOWN_BY[trouble]
    status, state, problems = health(namespace)
    expected = (200, "degraded") if is_buffered else (503, "unavailable")
    return (status, state) == expected and problems.startswith(problem) and gauge(namespace, name) == 1


class Orders:
    """Sends messages of one seed, and sends those again that are refused, until all are confirmed."""

    def __init__(self, client: WireClient, seed: int) -> None:
        self._client = client
        self._seed = seed
        self._link = client.sender("orders")
        self._underway: dict[str, tuple[bytes, Delivery]] = {}
        self._count = 0
        self.refused = 0
        self.confirmed: list[str] = []

    def begin(self, count: int, size: int = 0) -> None:
        for _ in range(count):
            self._count += 1
            message_id = f"{self._seed}-{self._count}"
            self._begin(message_id, text_message((message_id * 100).ljust(size), message_id=message_id))

    def _begin(self, message_id: str, payload: bytes) -> None:
        self._underway[message_id] = payload, self._client.begin_send(self._link, payload)

    @property
    def is_done(self) -> bool:
        return not self._underway

    def finish(self) -> None:
        """Wait until everything is confirmed."""
        eventually(lambda: self.is_done, step=self.answer)

    def answer(self) -> None:
        """Record the outcomes that are known, and send again what was refused."""
        self._client.barrier()
        for message_id, (payload, delivery) in [*self._underway.items()]:
            if not delivery.settled:
                continue
            del self._underway[message_id]
            if delivery.state == ACCEPTED:
                self.confirmed.append(message_id)
                continue
            assert condition_of(delivery.state) in REFUSALS
            self.refused += 1
            self._begin(message_id, payload)

    def go_on(self, count: int, size: int = 0) -> None:
        """Record the outcomes that are known, and send more if everything is confirmed."""
        self.answer()
        if self.is_done:
            self.begin(count, size)


def play(namespace: RunningNamespace, client: WireClient, seed: int, kind: FaultKind, is_buffered: bool) -> Orders:
    """Send before, during and after a fault, which is shown in time; return what was confirmed."""
    chance = Random(seed)  # noqa: S311 (not for security)
    orders = Orders(client, seed)
    orders.begin(chance.randrange(6))
    with namespace.faults.engaged(kind):
        begun_s = time.monotonic()
        orders.begin(chance.randrange(1, 8))
        client.barrier()
        pause_s = chance.choice(PAUSES_S)
        if kind is not FaultKind.STORAGE_STALL or pause_s > LIMIT_S:
            # What joins a batch that was begun before the fault is still confirmed: go on until one is not.
            eventually(lambda: shows(namespace, kind, is_buffered), step=lambda: orders.go_on(1))
            assert time.monotonic() - begun_s < REPORTED_WITHIN_S, f"seed {seed}, {kind}"
        time.sleep(pause_s)
        orders.begin(chance.randrange(4))
        client.barrier()
    orders.begin(chance.randrange(4))
    orders.finish()
    return orders


def meet(namespace: RunningNamespace, client: WireClient, orders: Orders, kind: Trouble) -> float:
    """Send until a trouble of the disk refuses or diverts a send; return when that began."""
    taken = gauge(namespace, "side_buffer_taken_total")
    while True:
        begun_s = time.monotonic()
        orders.begin(*SENT.get(kind, (1, 0)))
        client.barrier()
        if kind in STALLS:
            return begun_s  # every send meets it
        eventually(lambda: orders.refused or orders.is_done, step=orders.answer)
        if orders.refused or gauge(namespace, "side_buffer_taken_total") > taken:
            return begun_s


def play_on(namespace: RunningNamespace, client: WireClient, disk: Disk, seed: int, is_buffered: bool) -> Orders:
    """Send before, during and after a trouble of a disk, which is shown in time; return what was confirmed."""
    chance = Random(seed)  # noqa: S311 (not for security)
    kind = kind_of(seed)
    orders = Orders(client, seed)
    orders.begin(chance.randrange(1, 6))
    orders.finish()

    with disk.trouble(kind):
        begun_s = meet(namespace, client, orders, kind)
        # A slow disk stalls for the time of a commit only, and on a full one, less than was refused may still fit.
        eventually(lambda: shows(namespace, kind, is_buffered), step=lambda: orders.go_on(*SENT.get(kind, (1, 0))))
        assert time.monotonic() - begun_s < REPORTED_WITHIN_S, f"seed {seed}, {kind}"
        orders.begin(chance.randrange(4))
        client.barrier()
        time.sleep(chance.choice(PAUSES_S))
    orders.begin(chance.randrange(4))
    orders.finish()
    return orders


def kind_of(seed: int) -> Trouble:
    kinds = tuple(Trouble)
    return kinds[seed // 2 % len(kinds)]  # every other seed has a side buffer


@pytest.mark.parametrize("is_buffered", [False, True], ids=["without a side buffer", "with a side buffer"])
def test_b3_random_disk_troubles_lose_and_duplicate_nothing(tmp_path: Path, is_buffered: bool) -> None:
    for seed in DISK_SEEDS[is_buffered::2]:
        (tmp_path / str(seed)).mkdir()
        with fragile(tmp_path / str(seed)) as (place, below):  # anew: what was written once can be written again
            check_disk(tmp_path / str(seed), Disk(place, below), seed, is_buffered)


def check_disk(directory: Path, disk: Disk, seed: int, is_buffered: bool) -> None:
    settings: dict[str, Any] = {"side_buffer": directory / "side"} if is_buffered else {}
    limit_s = LIMIT_S if kind_of(seed) in STALLS else LONG_LIMIT_S
    data = disk.place / "data"
    with running_namespace(data=data, queues=["orders"], storage_timeout_s=limit_s, **settings) as namespace:
        with connect(namespace) as client:
            expected = sorted(play_on(namespace, client, disk, seed, is_buffered).confirmed)
            eventually(lambda: health(namespace) == (200, "ok", ""))
            eventually(lambda: not gauge(namespace, "side_buffer_messages"))
            assert sorted(ids_in(namespace)) == expected, f"seed {seed}"
        namespace.restart()
        assert sorted(ids_in(namespace)) == expected, f"seed {seed}, after a restart"


@pytest.mark.parametrize("is_buffered", [False, True], ids=["without a side buffer", "with a side buffer"])
def test_b3_random_storage_faults_lose_and_duplicate_nothing(tmp_path: Path, is_buffered: bool) -> None:
    settings: dict[str, Any] = {"side_buffer": tmp_path / "side"} if is_buffered else {}
    expected: list[str] = []
    refused = 0
    with running_namespace(
        data=tmp_path / "data", queues=["orders"], storage_timeout_s=LIMIT_S, **settings
    ) as namespace:
        client = connect(namespace)
        for number, seed in enumerate(FAULT_SEEDS[is_buffered::2], start=1):
            orders = play(namespace, client, seed, KINDS[seed % len(KINDS)], is_buffered)
            expected += orders.confirmed
            refused += orders.refused
            eventually(lambda: health(namespace) == (200, "ok", ""))
            eventually(lambda: not gauge(namespace, "side_buffer_messages"))
            assert sorted(ids_in(namespace)) == sorted(expected), f"seed {seed}"
            if number % RESTART_EVERY == 0:
                client.socket.close()
                namespace.restart()
                assert sorted(ids_in(namespace)) == sorted(expected), f"seed {seed}, after a restart"
                client = connect(namespace)
        client.socket.close()
    assert is_buffered or refused


def test_seeds_are_100_different_ones() -> None:
    assert len({*FAULT_SEEDS, *DISK_SEEDS, *MERGE_KILL_SEEDS}) == 100
