"""B3 on a real store: random failures, stalls and lack of space lose nothing confirmed, and duplicate nothing.

Most seeds inject faults; the others have a disk that really is frozen, slow, full, or fails. The seeds here and the
kills of ``side_buffer/test_server.py`` are 100 together. The 100 seeds of ``test_b3_stalled_storage.py`` use a store in
memory.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
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
from tests.server.side_buffer.test_server import MERGE_KILLS
from tests.server.test_e6_damage import ask, health
from tests.waiting import eventually

pytestmark = pytest.mark.slow

DISK_SEEDS: Final = 16
SEEDS: Final = 100 - MERGE_KILLS - DISK_SEEDS
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


SHOWN_BY: Final = {
    Trouble.FROZEN: "storage_stalled",
    Trouble.SLOW: "storage_stalled",
    Trouble.FULL: "storage_full",
    Trouble.FAILING: "storage_failing",
}
"""The gauges that show the troubles."""

INJECTED_SHOWN_BY: Final = {
    FaultKind.STORAGE_ERROR: "storage_failing",
    FaultKind.STORAGE_STALL: "storage_stalled",
    FaultKind.STORAGE_FULL: "storage_full",
}


SENT: Final = {Trouble.FULL: (10, LARGE), Trouble.FAILING: (1, LARGE)}
"""How many messages at once, and of what size, find the troubles that not every send meets."""


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with fragile(tmp_path_factory.mktemp("disk")) as (place, below):
        yield Disk(place, below)


def shows(namespace: RunningNamespace, gauge: str) -> bool:
    """Return whether /health or a metric shows trouble."""
    found = re.search(rf"^pairbus_{gauge} (\S+)$", ask(namespace, "/metrics")[1], re.MULTILINE)
    assert found is not None
    return float(found[1]) == 1 or health(namespace)[1] != "ok"


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

    def finish(self) -> None:
        """Wait until everything is confirmed."""
        while self._underway:
            (message_id, (payload, delivery)), *_ = self._underway.items()
            state = self._client.outcome(delivery)
            del self._underway[message_id]
            if state == ACCEPTED:
                self.confirmed.append(message_id)
                continue
            assert condition_of(state) in REFUSALS
            self.refused += 1
            self._begin(message_id, payload)


def play(namespace: RunningNamespace, client: WireClient, seed: int, kind: FaultKind) -> Orders:
    """Send before, during and after a fault, which is shown in time; return what was confirmed."""
    chance = Random(seed)  # noqa: S311 (not for security)
    orders = Orders(client, seed)
    orders.begin(chance.randrange(6))
    with namespace.faults.engaged(kind):
        orders.begin(chance.randrange(1, 8))
        begun_s = time.monotonic()
        client.barrier()
        if kind is not FaultKind.STORAGE_STALL or chance.randrange(2):  # a stall may be too short
            eventually(lambda: shows(namespace, INJECTED_SHOWN_BY[kind]))
            assert time.monotonic() - begun_s < REPORTED_WITHIN_S, f"seed {seed}, {kind}"
        time.sleep(chance.choice([0, 0.02, 0.15]))  # shorter, and longer, than the limit for a stall
        orders.begin(chance.randrange(4))
        client.barrier()
    orders.begin(chance.randrange(4))
    orders.finish()
    return orders


def play_on(namespace: RunningNamespace, client: WireClient, disk: Disk, seed: int) -> Orders:
    """Send before, during and after a trouble of a disk, which is shown in time; return what was confirmed."""
    chance = Random(seed)  # noqa: S311 (not for security)
    kind = kind_of(seed)
    orders = Orders(client, seed)
    orders.begin(chance.randrange(1, 6))
    orders.finish()
    with disk.trouble(kind):
        shown, begun_s = False, 0.0
        while not shown:  # the trouble is met by the send for which there is no space
            begun_s = time.monotonic()
            orders.begin(*SENT.get(kind, (1, 0)))
            client.barrier()
            shown = shows(namespace, SHOWN_BY[kind])
            if kind in {Trouble.FROZEN, Trouble.SLOW} and not shown:
                eventually(lambda: shows(namespace, SHOWN_BY[kind]))
                shown = True
        assert time.monotonic() - begun_s < REPORTED_WITHIN_S, f"seed {seed}, {kind}"
        orders.begin(chance.randrange(4))
        client.barrier()
        time.sleep(chance.choice([0, 0.02, 0.15]))
    orders.begin(chance.randrange(4))
    orders.finish()
    return orders


def kind_of(seed: int) -> Trouble:
    kinds = tuple(Trouble)
    return kinds[seed % len(kinds)]


@pytest.mark.parametrize("is_buffered", [False, True], ids=["without a side buffer", "with a side buffer"])
def test_b3_random_disk_troubles_lose_and_duplicate_nothing(tmp_path: Path, disk: Disk, is_buffered: bool) -> None:
    for seed in range(DISK_SEEDS // 2):
        data = disk.place / f"{tmp_path.name}-{seed}"
        settings: dict[str, Any] = {"side_buffer": tmp_path / str(seed)} if is_buffered else {}
        with running_namespace(data=data, queues=["orders"], storage_timeout_s=0.1, **settings) as namespace:
            with connect(namespace) as client:
                expected = sorted(play_on(namespace, client, disk, seed).confirmed)
                eventually(lambda: health(namespace) == (200, "ok", ""))
                eventually(lambda: is_merged(namespace))
                assert sorted(ids_in(namespace)) == expected, f"seed {seed}"
            namespace.restart()
            assert sorted(ids_in(namespace)) == expected, f"seed {seed}, after a restart"
        shutil.rmtree(data)


def is_merged(namespace: RunningNamespace) -> bool:
    found = re.search(r"^pairbus_side_buffer_messages (\S+)$", ask(namespace, "/metrics")[1], re.MULTILINE)
    return found is None or float(found[1]) == 0


@pytest.mark.parametrize("is_buffered", [False, True], ids=["without a side buffer", "with a side buffer"])
def test_b3_random_storage_faults_lose_and_duplicate_nothing(tmp_path: Path, is_buffered: bool) -> None:
    settings: dict[str, Any] = {"side_buffer": tmp_path / "side"} if is_buffered else {}
    expected: list[str] = []
    refused = 0
    with running_namespace(data=tmp_path / "data", queues=["orders"], storage_timeout_s=0.1, **settings) as namespace:
        client = connect(namespace)
        for seed in range(SEEDS // 2):
            orders = play(namespace, client, seed, KINDS[seed % len(KINDS)])
            expected += orders.confirmed
            refused += orders.refused
            eventually(lambda: health(namespace) == (200, "ok", ""))
            eventually(lambda: not is_buffered or "pairbus_side_buffer_messages 0.0" in ask(namespace, "/metrics")[1])
            assert sorted(ids_in(namespace)) == sorted(expected), f"seed {seed}"
            if seed % RESTART_EVERY == RESTART_EVERY - 1:
                client.socket.close()
                namespace.restart()
                assert sorted(ids_in(namespace)) == sorted(expected), f"seed {seed}, after a restart"
                client = connect(namespace)
        client.socket.close()
    assert is_buffered or refused
