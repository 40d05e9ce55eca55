"""B3 on a disk that is really frozen, with real clients: nothing confirmed is lost, and nothing is stored twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.blocking import BrokeredMessage, MessagingFactory
from pairbus.broker import Address
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED
from tests.compatibility.stage import unclosed_forgiven
from tests.server.amqp.wire_client import body_of, connect, text_message
from tests.server.disks import frozen, mounted
from tests.server.served_process import PATIENCE_S, served_process
from tests.server.test_e6_damage import ask, health
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ORDERS: Final = Address.of("orders")
REPORTED_WITHIN_S: Final = 3.0
SENDS: Final = 40


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as place:
        yield place


def send_with_sdk(connection_string: str, confirmed: list[str]) -> None:
    with (
        ServiceBusClient.from_connection_string(
            connection_string, retry_total=20, retry_backoff_factor=0.2, retry_backoff_max=1
        ) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(SENDS):
            sender.send_messages(ServiceBusMessage(f"sdk {number}", message_id=f"sdk {number}"))
            confirmed.append(f"sdk {number}")
            time.sleep(0.1)


def send_with_ours(connection_string: str, confirmed: list[str]) -> None:
    with MessagingFactory.from_connection_string(connection_string) as factory:
        sender = factory.create_message_sender("orders")
        for number in range(SENDS):
            sender.send(BrokeredMessage(f"ours {number}", message_id=f"ours {number}"))
            confirmed.append(f"ours {number}")
            time.sleep(0.1)


def found_in(namespace: RunningNamespace) -> list[str]:
    def peek(host: NamespaceHost) -> list[str]:
        return [each.record.message_id for each in host.use_namespace().peek(ORDERS, 0, 1_000, host.now_ms())]

    return namespace.call(peek)


def run_clients(namespace: RunningNamespace, during: Callable[[list[str]], None]) -> list[str]:
    """Send with both clients, run a function when some messages are confirmed, and wait until all are."""
    confirmed: list[str] = []
    with unclosed_forgiven(), ThreadPoolExecutor() as threads:
        running = [
            threads.submit(send, namespace.connection_string, confirmed) for send in (send_with_sdk, send_with_ours)
        ]
        eventually(lambda: len(confirmed) > 6)
        during(confirmed)
        for each in running:
            each.result()
    return confirmed


def reported(namespace: RunningNamespace, status: str) -> None:
    """Check that the metrics and /health report a stall in time."""
    started_s = time.monotonic()
    eventually(lambda: health(namespace)[1] == status)
    assert "pairbus_storage_stalled 1.0" in ask(namespace, "/metrics")[1]
    assert time.monotonic() - started_s < REPORTED_WITHIN_S


def test_b3_clients_send_through_a_frozen_disk_with_a_side_buffer(tmp_path: Path, disk: Path) -> None:
    with running_namespace(data=disk / "data", queues=["orders"], side_buffer=tmp_path / "side") as namespace:

        def during(confirmed: list[str]) -> None:
            with frozen(disk):
                before = len(confirmed)
                reported(namespace, "degraded")
                namespace.kill_connections()
                eventually(lambda: len(confirmed) > before + 10)
                assert "sends go to the side buffer" in health(namespace)[2]

        confirmed = run_clients(namespace, during)
        assert len(confirmed) == 2 * SENDS
        eventually(lambda: "pairbus_side_buffer_messages 0.0" in ask(namespace, "/metrics")[1])
        found = found_in(namespace)
        assert sorted(found) == sorted(confirmed), "each once"
        for name in ("sdk", "ours"):
            assert [each for each in found if each.startswith(name)] == [f"{name} {number}" for number in range(SENDS)]
        assert health(namespace) == (200, "ok", "")


def test_b3_clients_retry_without_a_side_buffer_and_every_message_is_stored_once(disk: Path) -> None:
    with running_namespace(data=disk / "data", queues=["orders"]) as namespace:

        def during(confirmed: list[str]) -> None:
            with frozen(disk):
                reported(namespace, "unavailable")
                before = len(confirmed)
                time.sleep(1)
                assert len(confirmed) == before

        confirmed = run_clients(namespace, during)
        assert len(confirmed) == 2 * SENDS
        assert sorted(found_in(namespace)) == sorted(confirmed), "each once"
        assert health(namespace) == (200, "ok", "")


def send_without_ids(connection_string: str, confirmed: list[str]) -> None:
    with (
        unclosed_forgiven(),
        ServiceBusClient.from_connection_string(
            connection_string, retry_total=20, retry_backoff_factor=0.2, retry_backoff_max=1
        ) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(SENDS):
            sender.send_messages(ServiceBusMessage(f"sdk {number}"))
            confirmed.append(f"sdk {number}")
            time.sleep(0.05)


def test_b3_message_without_an_id_is_stored_twice_at_most_once_a_stall_and_never_lost(disk: Path) -> None:
    """Only the send that is inside the commit can be stored twice: all later ones are refused, and never committed."""
    with running_namespace(data=disk / "data", queues=["orders"]) as namespace, ThreadPoolExecutor() as threads:
        confirmed: list[str] = []
        running = threads.submit(send_without_ids, namespace.connection_string, confirmed)
        eventually(lambda: len(confirmed) > 3)
        with frozen(disk):
            reported(namespace, "unavailable")
            time.sleep(2)  # for several retries
        running.result()
        with connect(namespace) as receiving:
            count = len(found_in(namespace))
            received = receiving.receive(receiving.receiver("orders", credit=count, deletes=True), count)
        bodies = [body_of(each).decode() for each in received]
        assert {*bodies} == {*confirmed} == {f"sdk {number}" for number in range(SENDS)}
        assert len(bodies) <= SENDS + 1


def test_b3_kill_during_a_freeze_loses_nothing_that_the_side_buffer_confirmed(tmp_path: Path, disk: Path) -> None:
    arguments = ["--data", disk / "data", "--side-buffer", tmp_path / "side", "--storage-timeout-s", 0.5]
    with served_process(tmp_path, *arguments) as served, served.connect() as client:
        link = client.sender("orders")
        assert client.send(link, text_message("before")) == ACCEPTED
        with frozen(disk):
            sent = [client.begin_send(link, text_message(str(number))) for number in range(5)]
            assert [client.outcome(each) for each in sent] == [ACCEPTED] * 5
            assert client.send(link, text_message("new")) == ACCEPTED
            served.process.kill()
            eventually(served.has_ended)
        served.process.wait(PATIENCE_S)
    with served_process(tmp_path, *arguments) as served, served.connect() as client:
        received = client.receive(client.receiver("orders", credit=20, deletes=True), 7)
        assert [body_of(each) for each in received] == [b"before", *(b"%d" % number for number in range(5)), b"new"]
        assert "pairbus_side_buffer_messages 0.0" in served.get("/metrics")[1]
