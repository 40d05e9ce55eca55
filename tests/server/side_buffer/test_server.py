"""B3 with a real server, a real store without room, real clients, and kill -9."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from random import Random
from shutil import copytree, rmtree
from urllib.request import urlopen

import lmdb
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from pairbus.broker import Address
from pairbus.ledger import LIVES
from pairbus.server.host import NamespaceHost
from pairbus.store import keys
from pairbus.store.directory import DATA_FILE
from pairbus.store.pages import META_BYTES, read_meta
from pairbus.testing import RunningNamespace
from pairbus.wire import ACCEPTED, Delivery, Link, Rejected, plain
from tests.server.amqp.wire_client import DEADLINE_S, HungUpError, WireClient, text_message
from tests.server.ledger_rows import rows_of
from tests.server.side_buffer.small_server import Served, serving, small_settings, starting
from tests.waiting import eventually

ORDERS = Address.of("orders")
PADDING = b"." * 8_000
LARGE_MB = 256
PAGE = 4096
MERGE_KILL_SEEDS = range(80, 100)


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[RunningNamespace]:
    running = RunningNamespace(small_settings(tmp_path, 32))
    running.start()
    try:
        yield running
    finally:
        running.close()


def held(namespace: RunningNamespace) -> int:
    def ask(host: NamespaceHost) -> int:
        assert host.side_buffer is not None
        return host.side_buffer.counts.held

    return namespace.call(ask)


def metric(namespace: RunningNamespace | Served, name: str) -> int:
    with urlopen(f"http://localhost:{namespace.port}/metrics", timeout=DEADLINE_S) as answer:
        found = re.search(rf"^pairbus_side_buffer_{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def connected(port: int, key: str) -> WireClient:
    return WireClient(port, sasl=plain("RootManageSharedAccessKey", key)).open()


def body(number: int) -> bytes:
    return b"%d " % number + PADDING


class Stream:
    """Sends numbered messages, and notes which were confirmed."""

    def __init__(self) -> None:
        self.next = 0
        self.confirmed: list[int] = []
        self.in_doubt: set[int] = set()

    def send(self, client: WireClient, link: Link, count: int, window: int = 50) -> None:
        underway: list[tuple[int, Delivery]] = []
        try:
            for _ in range(count):
                payload = text_message(body(self.next), message_id=str(self.next))
                underway.append((self.next, client.begin_send(link, payload)))
                self.next += 1
                if len(underway) >= window:
                    self._note(client, *underway.pop(0))
            while underway:
                self._note(client, *underway.pop(0))
        except HungUpError:
            self.in_doubt.update(number for number, delivery in underway)
            raise

    def _note(self, client: WireClient, number: int, delivery: Delivery) -> None:
        try:
            state = client.outcome(delivery)
        except HungUpError:
            self.in_doubt.add(number)
            raise
        assert not isinstance(state, Rejected), state
        self.confirmed.append(number)


def numbers_in(namespace: RunningNamespace) -> list[int]:
    def peek(host: NamespaceHost) -> list[int]:
        found: list[int] = []
        first = 0
        while page := host.use_namespace().peek(ORDERS, first, 1_000, host.now_ms()):
            found += [int(each.record.message_id) for each in page]
            first = page[-1].record.sequence + 1
        return found

    return namespace.call(peek)


def test_b3_official_sdk_sends_to_a_full_store_and_receives_all_in_order(
    namespace: RunningNamespace,
) -> None:
    stream = Stream()
    with connected(namespace.port, namespace.key) as client:
        link = client.sender("orders")
        while not held(namespace):
            stream.send(client, link, 200)
    filled = stream.next
    with ServiceBusClient.from_connection_string(namespace.connection_string) as sdk:
        with sdk.get_queue_sender("orders") as sender:
            for number in range(filled, filled + 10):
                sender.send_messages(ServiceBusMessage(body(number), message_id=str(number)))
            sender.send_messages(
                [ServiceBusMessage(body(number), message_id=str(number)) for number in range(filled + 10, filled + 15)]
            )
        assert held(namespace) >= 15
        assert metric(namespace, "taken_total") >= metric(namespace, "messages") >= 15
        received: list[int] = []
        with sdk.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
            while len(received) < filled + 15:
                messages = receiver.receive_messages(max_message_count=500, max_wait_time=DEADLINE_S)
                assert messages
                received += [int(str(message.message_id)) for message in messages]
    assert received == [*range(filled + 15)]
    eventually(lambda: not held(namespace))  # counted once durable; received a moment before
    assert metric(namespace, "messages") == 0
    assert metric(namespace, "merged_total") == metric(namespace, "taken_total")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_b3_kills_while_buffering_neither_lose_nor_duplicate(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)  # noqa: S311 (not for security)
    stream = Stream()
    for _ in range(2):
        with serving(tmp_path, 32) as served:
            _send_until_killed(served, stream, chance)
    namespace = RunningNamespace(small_settings(tmp_path, LARGE_MB))
    namespace.start()
    try:
        eventually(lambda: not held(namespace))
        found = numbers_in(namespace)
    finally:
        namespace.close()
    assert len(found) == len(set(found)), "a message was duplicated"
    assert {*found} - {*stream.confirmed} <= stream.in_doubt
    assert [number for number in found if number not in stream.in_doubt] == stream.confirmed
    events = [
        (row["event"], int(row["message_id"])) for row in rows_of(tmp_path / "ledger", LIVES) if row["message_id"]
    ]
    accepted = [number for event, number in events if event == "accepted"]
    assert len(accepted) == len(set(accepted)), "the ledger has duplicates"
    # A store that is nearly full has no room for events: those that a kill loses appear as found at the start.
    assert {number for event, number in events if event in {"accepted", "found"}} == {*found}


def _send_until_killed(served: Served, stream: Stream, chance: Random) -> None:
    with connected(served.port, served.key) as client:
        link = client.sender("orders")
        stream.send(client, link, 1_500)  # more than fits into the store
        kill_at = stream.next + chance.randrange(50, 400)
        while stream.next < kill_at:
            stream.send(client, link, 25)
        sent = [
            (number, client.begin_send(link, text_message(body(number), message_id=str(number))))
            for number in range(stream.next, stream.next + 20)
        ]
        stream.next += 20
        time.sleep(chance.random() * 0.02)
        served.kill()
        try:
            for number, delivery in sent:
                state = client.outcome(delivery)
                assert state == ACCEPTED
                stream.confirmed.append(number)
        except HungUpError:
            stream.in_doubt.update(number for number, delivery in sent if not delivery.settled)
            stream.confirmed += [n for n, d in sent if d.settled and n not in stream.confirmed]


def left_in_the_buffer(tmp_path: Path, more: int = 0) -> Stream:
    """Send until the store is full, and a little more, stop the namespace, and return what was sent."""
    stream = Stream()
    small = RunningNamespace(small_settings(tmp_path, 32))
    small.start()
    with connected(small.port, small.key) as client:
        link = client.sender("orders")
        while not held(small):
            stream.send(client, link, 200)
        stream.send(client, link, more)
    small.close()
    return stream


def stored_count(path: Path) -> int:
    """Return the number of messages in the store of a namespace that does not run."""
    with (
        lmdb.open(str(path / "data" / DATA_FILE), subdir=False, readonly=True, lock=False) as environment,
        environment.begin() as transaction,
        transaction.cursor() as cursor,
    ):
        cursor.set_range(keys.RECORD)
        return sum(1 for _ in takewhile(lambda key: key.startswith(keys.RECORD), cursor.iternext(values=False)))


def commit_count(path: Path) -> int:
    """Return the number of the last commit of a store, which may be in use."""
    with (path / "data" / DATA_FILE).open("rb", buffering=0) as file:
        return max(read_meta(os.pread(file.fileno(), META_BYTES, PAGE * number)).transaction for number in range(2))


def kill_while_merging(path: Path, chance: Random) -> None:
    """Start a namespace, which merges its side buffer then, and kill it after one of the first commits."""
    last = commit_count(path) + chance.randrange(1, 8)
    with starting(path, LARGE_MB) as (process, _):
        eventually(lambda: commit_count(path) >= last or not [*(path / "side").glob("*.parcels")], step=os.sched_yield)
        time.sleep(chance.random() * 0.01)
        process.kill()


@pytest.mark.slow
def test_b3_kills_between_and_during_the_commits_of_a_merge_neither_lose_nor_duplicate(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    stream = left_in_the_buffer(origin, more=2_000)  # 500 of them make a commit
    before = stored_count(origin)
    halves = 0
    for seed in MERGE_KILL_SEEDS:
        path = copytree(origin, tmp_path / "killed")
        kill_while_merging(path, Random(seed))  # noqa: S311 (the moments of the kills)
        halves += before < stored_count(path) < len(stream.confirmed)
        namespace = RunningNamespace(small_settings(path, LARGE_MB))
        namespace.start()
        try:
            eventually(lambda: not held(namespace))  # noqa: B023 (called here)
            assert numbers_in(namespace) == stream.confirmed, f"seed {seed}"
        finally:
            namespace.close()
        rmtree(path)
    assert halves >= len(MERGE_KILL_SEEDS) // 2, "too few kills came while it merged"


def test_b3_messages_buffered_at_a_stop_are_merged_at_the_next_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = left_in_the_buffer(tmp_path)
    large = RunningNamespace(small_settings(tmp_path, LARGE_MB))
    large.start()
    try:
        eventually(lambda: not held(large))
        assert numbers_in(large) == stream.confirmed
    finally:
        large.close()
    assert not [*(tmp_path / "side").glob("*.parcels")]
    assert "side buffer unset" not in caplog.text
    without = RunningNamespace(replace(small_settings(tmp_path, LARGE_MB), side_buffer=None))
    without.start()
    without.close()
    assert "side buffer unset" in caplog.text


def test_b3_merged_segments_that_reappear_are_not_merged_again(tmp_path: Path) -> None:
    """This is the state after a kill between the commit and the deletion of the segment."""
    stream = left_in_the_buffer(tmp_path)
    copytree(tmp_path / "side", tmp_path / "before")
    for turn in ("it is merged", "it was merged"):
        large = RunningNamespace(small_settings(tmp_path, LARGE_MB))
        large.start()
        eventually(partial(lambda large: not held(large), large))
        assert numbers_in(large) == stream.confirmed, turn
        large.close()
        rmtree(tmp_path / "side")
        copytree(tmp_path / "before", tmp_path / "side")
