"""B3 on a real store: random failures, stalls and lack of space lose nothing that was confirmed, and duplicate nothing.

The seeds here and the kills of ``side_buffer/test_server.py`` are 100 together. The 100 seeds of
``test_b3_stalled_storage.py`` use a store in memory.
"""

from __future__ import annotations

import time
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
from tests.server.side_buffer.test_server import MERGE_KILLS
from tests.server.test_e6_damage import ask, health
from tests.waiting import eventually

pytestmark = pytest.mark.slow

SEEDS: Final = 100 - MERGE_KILLS
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


class Orders:
    """Sends messages of one seed, and sends those again that are refused, until all are confirmed."""

    def __init__(self, client: WireClient, seed: int) -> None:
        self._client = client
        self._seed = seed
        self._link = client.sender("orders")
        self._underway: dict[str, Delivery] = {}
        self._count = 0
        self.refused = 0
        self.confirmed: list[str] = []

    def begin(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            self._begin(f"{self._seed}-{self._count}")

    def _begin(self, message_id: str) -> None:
        payload = text_message(message_id * 100, message_id=message_id)
        self._underway[message_id] = self._client.begin_send(self._link, payload)

    def finish(self) -> None:
        """Wait until everything is confirmed."""
        while self._underway:
            (message_id, delivery), *_ = self._underway.items()
            state = self._client.outcome(delivery)
            del self._underway[message_id]
            if state == ACCEPTED:
                self.confirmed.append(message_id)
                continue
            assert condition_of(state) in REFUSALS
            self.refused += 1
            self._begin(message_id)


def play(namespace: RunningNamespace, client: WireClient, seed: int, kind: FaultKind) -> Orders:
    """Send before, during and after a fault; return what was confirmed."""
    chance = Random(seed)  # noqa: S311 (not for security)
    orders = Orders(client, seed)
    orders.begin(chance.randrange(6))
    with namespace.faults.engaged(kind):
        orders.begin(chance.randrange(1, 8))
        client.barrier()
        time.sleep(chance.choice([0, 0.02, 0.15]))  # shorter, and longer, than the limit for a stall
        orders.begin(chance.randrange(4))
        client.barrier()
    orders.begin(chance.randrange(4))
    orders.finish()
    return orders


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
