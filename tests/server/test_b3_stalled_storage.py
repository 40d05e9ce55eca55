"""B3: storage that does not answer: the side buffer confirms sends, or they are refused, and none is stored twice."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Operation
from pairbus.server.host import COMMIT_OVERDUE_S
from pairbus.server.http.metrics import Metrics, Monitoring
from pairbus.server.supervision.supervisor import MAX_RESTARTS, Problem
from pairbus.store.bundles import BundleDirectory
from pairbus.testing import FaultKind, running_namespace
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RECEIVER,
    Coordinator,
    Delivery,
    Discharge,
    Link,
    Message,
    Properties,
    Source,
    Target,
    TransactionalState,
    decode_message,
    encode_message,
)
from tests.server.amqp.test_failed_commits import FAILURE, LATER, Peer, Stage, condition_of, declare, value
from tests.server.amqp.test_failed_commits import play as play_unbuffered
from tests.server.amqp.wire_client import body_of, connect, text_message
from tests.server.side_buffer.stage import FAILED, ORDERS, BufferedStage, play, staged
from tests.waiting import eventually, eventually_async

LIMIT_S = 0.05
BUSY = ServiceBusCondition.SERVER_BUSY


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


def tagged(body: str) -> bytes:
    """Return a message whose id is its body."""
    return text_message(body, message_id=body)


def set_limit(stage: Stage) -> None:
    """Set the limit, also for a timer that is set already."""
    host = stage.host
    host.commit_overdue_s = LIMIT_S
    if host._watchdog is not None:
        host._watchdog.cancel()
        host._watchdog = None


async def stalled(
    stage: Stage, peer: Peer, link: Link, *, queued: int = 2, make: Callable[[str], bytes] = tagged
) -> list[Delivery]:
    """Let a commit stall with one message inside and some queued behind it; return their deliveries."""
    set_limit(stage)
    stage.shut()
    sent = [peer.begin_send(link, make("inside"))]
    await stage.held_up(peer)
    sent += [peer.begin_send(link, make(f"queued {number}")) for number in range(queued)]
    await peer.until(lambda: stage.host.is_stalled)
    stage.host.commit_overdue_s = COMMIT_OVERDUE_S  # one stall: on a busy machine, the next commit may take longer
    return sent


async def thawed(stage: BufferedStage) -> None:
    """Let the commit that stalled succeed, and wait until everything is merged."""
    stage.store.gate.set()
    await eventually_async(lambda: not stage.host.is_stalled)
    await stage.merged()


# With a side buffer


@pytest.mark.parametrize("make", [tagged, text_message], ids=["with ids", "without ids"])
@pytest.mark.parametrize("fails", [False, True], ids=["then succeeds", "then fails"])
def test_b3_sends_are_confirmed_during_a_stall_and_stored_once_and_in_order(
    directory: Path, fails: bool, make: Callable[[str], bytes]
) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        sent = await stalled(stage, peer, link, make=make)
        sent += [peer.begin_send(link, make(f"new {number}")) for number in range(3)]
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 6
        assert stage.host.is_stalled
        assert stage.buffer.counts.held == 6
        if fails:
            stage.store.fail_next_run(FAILED)
        stage.store.gate.set()
        await stage.merged()
        assert stage.numbers() == ["inside", "queued 0", "queued 1", "new 0", "new 1", "new 2"]
        assert stage.buffer.counts.merged == (6 if fails else 3)
        await eventually_async(lambda: not stage.buffer.holds(ORDERS))
        assert await peer.send(link, "after") == ACCEPTED
        assert stage.numbers()[-1] == "after"
        await eventually_async(lambda: not stage.buffer.used_bytes)

    play(scene, directory)


def test_b3_commit_queued_behind_a_stall_that_fails_is_replaced_by_the_copies(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        sent = await stalled(stage, peer, link)
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 3
        stage.store.trouble_after_next = FAILED
        stage.store.gate.set()
        await stage.merged()
        assert stage.numbers() == ["inside", "queued 0", "queued 1"]
        assert stage.buffer.counts.merged == 2, "the commit that stalled has the first one"

    play(scene, directory)


@pytest.mark.parametrize("is_durable", [False, True], ids=["before the commit", "after the commit"])
def test_b3_kill_during_a_stall_neither_loses_nor_duplicates(directory: Path, tmp_path: Path, is_durable: bool) -> None:
    """The store of the killed process is copied before, or after, the commit that stalled has become durable."""

    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        sent = await stalled(stage, peer, link)
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 3
        files = shutil.copytree(directory, tmp_path / "left")
        values = dict(stage.store._values)
        if is_durable:
            stage.store.gate.set()
            await eventually_async(lambda: stage.store._values != values)
            stage.shut()
            values = dict(stage.store._values)
            stage.store.gate.set()
        async with staged(files, left=values) as again:
            await again.merged()
            assert again.numbers() == ["inside", "queued 0", "queued 1"]

    play(scene, directory)


def test_b3_stall_during_a_merge_keeps_order_and_confirms_sends(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        set_limit(stage)
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.trouble = FAILED
        assert await peer.send(link, "0") == ACCEPTED
        stage.store.merging_gate.clear()
        stage.store.trouble = None
        await eventually_async(stage.store.is_merging.is_set)
        await peer.until(lambda: stage.host.is_stalled)
        for number in range(1, 4):
            assert await peer.send(link, str(number)) == ACCEPTED
        stage.store.trouble = FAILED
        stage.store.merging_gate.set()
        await eventually_async(lambda: not stage.host.is_stalled)
        assert await peer.send(link, "4") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == [*"01234"]

    play(scene, directory)


def test_b3_entity_that_only_the_stalled_commit_has_accepts_no_sends(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        set_limit(stage)
        peer = await stage.peer()
        stage.shut()
        stage.host.use_namespace().create_queue("New", QueueDescription(), stage.host.now_ms())
        link = await peer.sender("new")
        waiting = peer.begin_send(link, tagged("one"))
        assert condition_of(await peer.outcome(waiting)) == BUSY
        for body in ("one", "two"):
            assert condition_of(await peer.outcome(peer.begin_send(link, tagged(body)))) == BUSY
        await thawed(stage)
        for body in ("one", "two"):
            assert await peer.outcome(peer.begin_send(link, tagged(body))) == ACCEPTED
        assert stage.numbers(Address.of("new")) == ["one", "two"]

    play(scene, directory)


def test_b3_full_side_buffer_answers_busy_and_the_retry_is_stored_once(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        body = "x" * 20_000
        large = text_message(body, message_id="large")
        (sent, *_) = await stalled(stage, peer, link, queued=0, make=lambda _: large)
        assert condition_of(await peer.outcome(sent)) == BUSY
        assert condition_of(await peer.outcome(peer.begin_send(link, large))) == BUSY
        stage.store.gate.set()
        await eventually_async(lambda: not stage.host.is_stalled)
        assert await peer.outcome(peer.begin_send(link, large)) == ACCEPTED
        assert stage.numbers() == [body]

    play(scene, directory, max_bytes=16_000)


# Retries


@pytest.mark.parametrize("fails", [False, True], ids=["then succeeds", "then fails"])
def test_b3_retry_on_another_connection_is_stored_once(directory: Path, fails: bool) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        link = await peer.sender()
        set_limit(stage)
        stage.shut()
        peer.begin_send(link, tagged("inside"))
        await stage.held_up(peer)
        peer.begin_send(link, tagged("queued"))
        await stage.held_up(peer)
        peer.transport.abort()
        await eventually_async(lambda: stage.host.is_stalled)
        again = await other.sender()
        for body in ("inside", "queued"):
            assert await other.outcome(other.begin_send(again, tagged(body))) == ACCEPTED
        if fails:
            stage.store.fail_next_run(FAILED)
        stage.store.gate.set()
        await stage.merged()
        assert stage.numbers() == ["inside", "queued"]

    play(scene, directory)


def test_b3_retry_of_a_buffered_send_without_an_answer_is_stored_once(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        link = await peer.sender()
        await stalled(stage, peer, link, queued=0)
        link.send(tagged("lost"), tag=b"lost")
        peer.connection.data_received(peer.engine.data_to_send())
        peer.connection.connection_lost()
        again = await other.sender()
        for _ in range(2):
            assert await other.outcome(other.begin_send(again, tagged("lost"))) == ACCEPTED
        stage.store.gate.set()
        await stage.merged()
        # The second one was sent after the first was confirmed: it is another message.
        assert stage.numbers() == ["inside", "lost", "lost"]

    play(scene, directory)


def test_b3_other_content_with_the_same_id_is_another_message(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        await stalled(stage, peer, await peer.sender(), queued=0)
        peer.transport.abort()
        again = await other.sender()
        changed = text_message("changed", message_id="inside")
        assert await other.outcome(other.begin_send(again, changed)) == ACCEPTED
        stage.store.gate.set()
        await stage.merged()
        assert stage.numbers() == ["inside", "changed"]

    play(scene, directory)


# Without a side buffer


@pytest.mark.parametrize("fails", [False, True], ids=["then succeeds", "then fails"])
def test_b3_without_a_buffer_sends_are_busy_and_retries_are_stored_once(fails: bool) -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        sent = await stalled(stage, peer, link)
        sent.append(peer.begin_send(link, tagged("new")))
        assert [condition_of(await peer.outcome(each)) for each in sent] == [BUSY] * 4
        assert condition_of(await peer.outcome(peer.begin_send(link, tagged("inside")))) == BUSY
        if fails:
            stage.store.fail_next_run(FAILURE)
        stage.store.gate.set()
        await eventually_async(lambda: not stage.host.is_stalled)
        await stage.host.ready()
        assert stage.kept() == ([] if fails else [b"inside"]), "what was queued is withdrawn"
        for body in ("inside", "queued 0", "queued 1", "new"):
            assert await peer.outcome(peer.begin_send(link, tagged(body))) == ACCEPTED
        assert stage.kept() == [b"inside", b"queued 0", b"queued 1", b"new"]

    play_unbuffered(scene)


def test_b3_message_without_an_id_inside_the_commit_is_the_only_one_stored_twice() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        sent = await stalled(stage, peer, link, make=text_message)
        assert [condition_of(await peer.outcome(each)) for each in sent] == [BUSY] * 3
        stage.store.gate.set()
        await eventually_async(lambda: not stage.host.is_stalled)
        await stage.host.ready()
        for body in ("inside", "queued 0", "queued 1"):
            assert await peer.send(link, body) == ACCEPTED
        assert stage.kept() == [b"inside", b"inside", b"queued 0", b"queued 1"]

    play_unbuffered(scene)


# Diagnostics


def test_b3_stall_is_described_in_a_bundle_that_only_its_thread_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    thaw = Event()
    write = BundleDirectory.write

    def write_to_stalled_disk(directory: BundleDirectory, name: str, content: bytes) -> None:
        assert thaw.wait(120)
        write(directory, name, content)

    monkeypatch.setattr(BundleDirectory, "write", write_to_stalled_disk)
    with running_namespace(queues=["orders"], storage_timeout_s=0.2) as namespace, connect(namespace) as client:
        sender = client.sender("orders")
        stall = namespace.faults.engage(FaultKind.STORAGE_STALL)
        for _ in range(2):
            assert condition_of(client.send(sender, text_message())) == BUSY
        directory = namespace.data / "diagnostics"
        assert not directory.exists()
        thaw.set()
        (file,) = eventually(lambda: [*directory.glob("*-storage-stall.json")])
        namespace.faults.clear(stall)
        bundle = json.loads(file.read_text("utf-8"))
        assert bundle["reason"].startswith("the storage does not answer: the commit has been running for ")
        assert bundle["store"].keys() == {"stalled_s"}, "nothing is read from a storage that does not answer"
        eventually(lambda: client.send(sender, text_message()) == ACCEPTED)


def test_b3_many_stalls_are_described_in_few_bundles() -> None:
    with running_namespace() as namespace:
        diagnostics = namespace._running._running.services.diagnostics
        assert diagnostics is not None
        directory = namespace.data / "diagnostics"

        def report(kind: str) -> str | None:
            name = namespace.call(lambda _host: diagnostics.report(kind, Problem(reason="a test")))
            eventually(lambda: name is None or (directory / f"{name}.json").exists())
            return name

        names = [report("storage-stall") for _ in range(MAX_RESTARTS + 3)]
        assert [name is not None for name in names] == [True] * (MAX_RESTARTS + 1) + [False] * 2
        assert report("store-rebuild") is not None


# Other requests


def ask(peer: Peer, asking: Link, operation: str, body: dict[str, Any]) -> None:
    message = Message(
        properties=Properties(message_id="one", reply_to="here"),
        application_properties={"operation": operation},
        body=(body,),
        body_kind=AMQP_VALUE,
    )
    peer.begin_send(asking, encode_message(message))


def test_b3_management_requests_and_transactions_are_busy_during_a_stall(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        replies = await peer.attach(RECEIVER, Source(address="orders/$management"), Target(address="here"))
        asking = await peer.sender("orders/$management")
        coordinator = await peer.sender(target=Coordinator())
        txn_id = await declare(peer, coordinator)
        await peer.outcome(peer.begin_send(link, text_message("part"), state=TransactionalState(txn_id=txn_id)))
        await stalled(stage, peer, link)
        ask(peer, asking, Operation.SCHEDULE_MESSAGE, {"messages": [{"message": LATER}]})
        (answer,) = await peer.receive(replies, 1)
        words = decode_message(answer.payload).application_properties or {}
        assert (int(words["statusCode"]), words["errorCondition"]) == (503, BUSY)
        ending = peer.begin_send(coordinator, value(Discharge(txn_id=txn_id)))
        assert condition_of(await peer.outcome(ending)) == BUSY
        await thawed(stage)
        ending = peer.begin_send(coordinator, value(Discharge(txn_id=txn_id)))
        assert await peer.outcome(ending) == ACCEPTED
        assert sorted(stage.numbers()) == ["inside", "part", "queued 0", "queued 1"]

    play(scene, directory)


def test_b3_receivers_pause_and_settlements_wait_with_a_buffer(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        for body in ("first", "second"):
            assert await peer.send(link, body) == ACCEPTED
        receiver = await peer.receiver(credit=1)
        (first,) = await peer.receive(receiver, 1)
        await stalled(stage, peer, link, queued=0)
        first.link.update(first, ACCEPTED)
        receiver.flow(2)
        for _ in range(20):
            peer.exchange()
            await asyncio.sleep(0)
        assert not first.settled
        assert len(peer.deliveries(receiver)) == 1
        stage.store.gate.set()
        assert await peer.outcome(first) == ACCEPTED
        assert body_of((await peer.receive(receiver, 2))[1]) == b"second"

    play(scene, directory)


def test_b3_settlement_is_busy_without_a_buffer_and_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "first") == ACCEPTED
        receiver = await peer.receiver(credit=1)
        (first,) = await peer.receive(receiver, 1)
        deleting = await peer.receiver(deletes=True)
        await stalled(stage, peer, link, queued=0)
        assert condition_of(await peer.settle(first, ACCEPTED)) == BUSY
        deleting.flow(5)
        peer.exchange()
        stage.store.gate.set()
        assert [body_of(each) for each in await peer.receive(deleting, 1)] == [b"inside"]
        assert stage.kept() == [b"first"], "it is still locked"

    play_unbuffered(scene)


def test_b3_stall_is_reported_by_health_metrics_and_one_line_each_way(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "pairbus.server.host")

    async def scene(stage: BufferedStage) -> None:
        host = stage.host
        metrics = Metrics(stage.services.counters, host.committer, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        link = await peer.sender()
        await stalled(stage, peer, link)
        answer = monitoring.health()
        assert answer.status_code == 200
        assert b'"degraded"' in answer.body
        assert b"the storage has not answered for 0 s: sends go to the side buffer" in answer.body
        await thawed(stage)
        assert b'"ok"' in monitoring.health().body

    play(scene, directory)
    assert [line.split(" namespace=")[0] for line in caplog.messages] == ["storage stalled", "storage recovered"]
    assert 'consequence="sends go to the side buffer"' in caplog.messages[0]


def test_b3_message_that_is_not_merged_in_time_raises_an_alarm(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        host = stage.host
        metrics = Metrics(stage.services.counters, host.committer, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        await stalled(stage, peer, await peer.sender())
        assert not stage.buffer.overdue_s
        stage.buffer.merge_within_s = 0.0
        await eventually_async(lambda: stage.buffer.overdue_s)
        for _ in range(2):
            stage.buffer.check_overdue()
        assert b"messages have waited in the side buffer for 0 minutes" in monitoring.health().body
        await thawed(stage)
        stage.buffer.check_overdue()
        assert b'"ok"' in monitoring.health().body
        assert stage.buffer.oldest_s == 0

    play(scene, directory)
    lines = [line.split(" messages=")[0] for line in caplog.messages if line.startswith("side buffer ")]
    assert lines == ["side buffer overdue", "side buffer no longer overdue"]


def test_b3_alarm_is_raised_after_15_minutes(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: BufferedStage) -> None:
        host = stage.host
        clock, minutes = host._clock, 0.0
        host._clock = lambda: clock() + int(minutes * 60_000)
        metrics = Metrics(stage.services.counters, host.committer, host.throttle)
        monitoring = Monitoring(host, metrics, open_metrics=False, is_draining=lambda: False)
        peer = await stage.peer()
        await stalled(stage, peer, await peer.sender())
        await eventually_async(lambda: stage.buffer.counts.held)
        minutes = 14.5
        stage.buffer.check_overdue()
        assert b"messages have waited in the side buffer" not in monitoring.health().body
        assert not [line for line in caplog.messages if line.startswith("side buffer overdue")]
        minutes = 15.1
        stage.buffer.check_overdue()
        assert b"messages have waited in the side buffer for 15 minutes" in monitoring.health().body
        assert [line for line in caplog.messages if line.startswith("side buffer overdue")]
        await thawed(stage)

    play(scene, directory)


# Loading


def test_b4_requests_wait_while_the_namespace_is_loaded_after_a_failed_commit() -> None:
    async def scene(stage: Stage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        receiver = await peer.receiver()
        stage.store.reads.clear()
        stage.store.fail_next_run(FAILURE)
        lost = peer.begin_send(link, text_message("lost"))
        await eventually_async(lambda: stage.host.committer.is_loading)
        sent = peer.begin_send(link, text_message("sent"))
        receiver.flow(1)
        for _ in range(20):
            peer.exchange()
            await asyncio.sleep(0)
        assert not lost.settled
        assert not sent.settled
        stage.store.reads.set()
        assert condition_of(await peer.outcome(lost)) == "amqp:internal-error"
        assert await peer.outcome(sent) == ACCEPTED
        assert [body_of(each) for each in await peer.receive(receiver, 1)] == [b"sent"]

    play_unbuffered(scene)


# Chance


class Client:
    """Sends messages until each is confirmed: on a new connection after it was lost, again after *server busy*."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name
        self._count = 0
        self._peer: Peer | None = None
        self._link: Link | None = None
        self.underway: dict[str, Delivery] = {}
        self.confirmed: list[str] = []

    async def connect(self) -> None:
        """Connect, and send again what was not confirmed."""
        self._peer = await self._stage.peer()
        self._link = await self._peer.sender()
        for body in self.underway:
            self._begin(body)

    def disconnect(self) -> None:
        """Disconnect, after all answers so far: a lost one would be sent again, and stored twice, as at any time."""
        assert self._peer is not None
        self.exchange()
        self._peer.connection.connection_lost()

    def send(self) -> None:
        self._count += 1
        self._begin(f"{self._name} {self._count}")

    def _begin(self, body: str) -> None:
        assert self._peer is not None
        assert self._link is not None
        self.underway[body] = self._peer.begin_send(self._link, tagged(body))

    def exchange(self, *, retries: bool = False) -> None:
        assert self._peer is not None
        self._peer.exchange()
        for body, delivery in [*self.underway.items()]:
            if delivery.settled and delivery.state == ACCEPTED:
                del self.underway[body]
                self.confirmed.append(body)
            elif delivery.settled and retries:
                self._begin(body)


def is_stalled(stage: Stage, clients: Iterable[Client]) -> bool:
    """Return whether a commit waits and counts as stalled; until then, clients send again what was refused.

    Everything may have been refused, on a busy machine: while the namespace was loaded after the last failure.
    """
    if stage.store.waiting.is_set() and stage.host.is_stalled:
        return True
    for client in clients:
        client.exchange(retries=True)
    return False


async def run_by_chance(
    stage: Stage, chance: random.Random, check: Callable[[list[str]], Awaitable[None]]
) -> list[str]:
    """Send while the storage stalls and fails; return what was confirmed."""
    set_limit(stage)
    stage.host.commit_overdue_s = 0.01
    clients = [Client(stage, name) for name in "ab"]
    for client in clients:
        await client.connect()
    for _ in range(3):
        for _ in range(chance.randrange(6)):
            chance.choice(clients).send()
            await asyncio.sleep(0)
        stage.shut()
        for _ in range(chance.randrange(1, 6)):
            chance.choice(clients).send()
            await asyncio.sleep(0)
        # Not one that a busy machine has delayed: it would end while the clients disconnect.
        await eventually_async(partial(is_stalled, stage, clients))
        for _ in range(chance.randrange(8)):
            match chance.randrange(5):
                case 0:
                    client = chance.choice(clients)
                    client.disconnect()
                    await asyncio.sleep(0)
                    await client.connect()
                case 1:
                    for client in clients:
                        client.exchange(retries=True)
                case _:
                    chance.choice(clients).send()
            await asyncio.sleep(chance.choice([0, 0, 0.001]))
            for client in clients:
                client.exchange()
        await check([body for client in clients for body in client.confirmed])
        if chance.random() < 0.5:
            stage.store.fail_next_run(FAILURE)
        stage.store.gate.set()
        await eventually_async(lambda: not stage.host.is_stalled)

    def all_confirmed() -> bool:
        for client in clients:
            client.exchange(retries=True)
        return not any(client.underway for client in clients)

    await eventually_async(all_confirmed)
    await stage.host.ready()
    return [body for client in clients for body in client.confirmed]


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in (0, 25)], ids=str)
def test_b3_random_stalls_with_a_buffer_store_everything_once_also_after_a_kill(tmp_path: Path, seeds: range) -> None:
    async def scene(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 (not for security)
        async with staged(tmp_path / f"{seed}") as stage:

            async def check(confirmed: list[str]) -> None:
                """Start a namespace with what a kill would leave now: it has everything confirmed, once."""
                values = dict(stage.store._values)
                left = shutil.copytree(tmp_path / f"{seed}", tmp_path / f"{seed} {len(confirmed)}", dirs_exist_ok=True)
                async with staged(left, left=values) as again:
                    await again.merged()
                    found = again.numbers()
                assert len(found) == len(set(found)), (seed, found, confirmed)
                assert {*found} >= {*confirmed}, seed
                shutil.rmtree(left)

            confirmed = await run_by_chance(stage, chance, check)
            await stage.merged()
            assert sorted(stage.numbers()) == sorted(confirmed), seed

    for seed in seeds:
        asyncio.run(scene(seed))


@pytest.mark.parametrize("seeds", [range(first, first + 25) for first in (50, 75)], ids=str)
def test_b3_random_stalls_without_a_buffer_store_everything_once(seeds: range) -> None:
    async def check(_confirmed: list[str]) -> None: ...

    def scene(seed: int) -> Callable[[Stage], Awaitable[None]]:
        async def played(stage: Stage) -> None:
            chance = random.Random(seed)  # noqa: S311 (not for security)
            confirmed = await run_by_chance(stage, chance, check)
            assert sorted(body.decode() for body in stage.kept()) == sorted(confirmed), seed

        return played

    for seed in seeds:
        play_unbuffered(scene(seed))
