"""B3: while the store fails, sends are buffered; afterwards they are merged once and in order."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pairbus.broker import Address, EntityStatus, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.server.settings import Settings, SettingsError
from pairbus.store import StoreError, StoreInUseError, segment_log
from pairbus.store.buffer_directory import BufferDirectory
from pairbus.store.write_batch import RESERVE_BYTES
from pairbus.wire import (
    ACCEPTED,
    Condition,
    Coordinator,
    Delivery,
    Discharge,
    TransactionalState,
)
from tests.server.amqp.test_failed_commits import condition_of, declare, value
from tests.server.amqp.wire_client import DEADLINE_S, text_message
from tests.server.side_buffer.stage import FAILED, FULL, ORDERS, VISITS, BufferedStage, play
from tests.waiting import eventually_async


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


@pytest.mark.parametrize("trouble", [FAILED, FULL], ids=["failed", "full"])
def test_b3_sends_are_confirmed_while_commits_fail_and_merged_in_order(directory: Path, trouble: StoreError) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.trouble = trouble
        for number in range(20):
            assert await peer.send(link, str(number)) == ACCEPTED
        assert stage.numbers() == ["before"]
        assert stage.buffer.counts.held == 20
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == ["before", *map(str, range(20))]
        assert await peer.send(link, "after") == ACCEPTED
        assert stage.numbers()[-1] == "after"
        assert not stage.buffer.holds(ORDERS)
        assert stage.buffer.counts.merged == 20
        await eventually_async(lambda: not stage.buffer.used_bytes)

    play(scene, directory)
    assert not [*directory.glob("*.parcels")]


def test_b3_sends_are_confirmed_while_the_store_is_full(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.max_bytes = 1_000  # less than is stored: sends are rejected before a commit, which would fail
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(50)]
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 50
        assert stage.numbers() == ["before"]
        stage.store.max_bytes = None
        await stage.merged()
        assert stage.numbers() == ["before", *map(str, range(50))]

    play(scene, directory)


def leave_room_for_one(stage: BufferedStage, payload: bytes) -> None:
    """Leave room for the next message, and none for the one after it."""
    used = sum(len(key) + len(value) for key, value in stage.store._values.items())
    stage.store.max_bytes = used + RESERVE_BYTES + 2 * (len(payload) + 512) + 100


@pytest.mark.parametrize("together", [False, True], ids=["while it is committed", "before it is committed"])
def test_b3_send_of_a_failed_commit_precedes_a_later_diverted_send(directory: Path, together: bool) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        payloads = [text_message(body) for body in ("first", "other")]
        leave_room_for_one(stage, payloads[0])
        stage.store.trouble = FAILED
        stage.shut()
        if together:
            sent = [link.send(payload, tag=payload[-1:]) for payload in payloads]
        else:
            sent = [peer.begin_send(link, payloads[0])]
            await stage.held_up(peer)
            sent.append(peer.begin_send(link, payloads[1]))
        await stage.held_up(peer)
        assert stage.buffer.holds(ORDERS), "the second one was not rejected"
        await asyncio.sleep(0.05)  # time to overtake, which it must not
        peer.exchange()
        assert not any(each.settled for each in sent)
        stage.store.gate.set()
        assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 2
        stage.store.max_bytes = stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == ["first", "other"]

    play(scene, directory)


def test_b3_invalid_sends_are_rejected_as_without_a_buffer(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, sessions = await peer.sender(), await peer.sender("visits")
        link.remote_max_message_size = 0  # the client ignores the limit that the server has announced
        host = stage.host
        host.use_namespace().create_queue("gone", QueueDescription(), host.now_ms())
        await host.durable()
        lost = await peer.sender("gone")
        host.use_namespace().delete(Address.of("gone"), host.now_ms())
        await host.durable()
        for turn in ("the first", "one to an entity that is held"):
            stage.store.trouble = FAILED
            assert await peer.send(link, turn) == ACCEPTED
            assert condition_of(await peer.send(sessions, "no session")) == Condition.NOT_ALLOWED
            assert await peer.send(sessions, "with one", group_id="a") == ACCEPTED
            assert condition_of(await peer.send(link, "x" * 300_000)) == Condition.MESSAGE_SIZE_EXCEEDED
            assert condition_of(await peer.send(lost, "nobody")) == Condition.NOT_FOUND
        assert stage.buffer.counts.held == 4

    play(scene, directory)


def test_b3_send_to_an_entity_undone_by_a_failed_commit_is_rejected(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        await peer.sender()
        stage.store.trouble = FAILED
        stage.shut()
        stage.host.use_namespace().create_queue("new", QueueDescription(), stage.host.now_ms())
        link = await peer.sender("new")
        sent = peer.begin_send(link, text_message("one"))
        stage.store.gate.set()
        assert condition_of(await peer.outcome(sent)) == Condition.INTERNAL_ERROR
        assert not stage.buffer.counts.held

    play(scene, directory)


@pytest.mark.parametrize("trouble", [FAILED, FULL], ids=["failed", "full"])
def test_b3_full_buffer_rejects_with_the_error_of_the_store(directory: Path, trouble: StoreError) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.trouble = trouble
        states = [await peer.send(link, f"{number} " + "x" * 5_000) for number in range(10)]
        kept = [number for number, state in enumerate(states) if state == ACCEPTED]
        assert 0 < len(kept) < 10
        refused = {condition_of(state) for state in states if state != ACCEPTED}
        assert refused == {Condition.RESOURCE_LIMIT_EXCEEDED}
        assert condition_of(await peer.send(await peer.sender("visits"), "y" * 9_000, group_id="a")) == (
            Condition.RESOURCE_LIMIT_EXCEEDED if trouble is FULL else Condition.INTERNAL_ERROR
        )
        stage.store.trouble = None
        await stage.merged()
        assert [int(body.split()[0]) for body in stage.numbers()] == kept

    play(scene, directory, max_bytes=32_000)


def no_descriptor() -> int:
    return 10_000  # like a removed disk


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize(
    ("disk", "condition"),
    [(no_descriptor, Condition.INTERNAL_ERROR), (full_disk, Condition.RESOURCE_LIMIT_EXCEEDED)],
    ids=["gone", "full"],
)
def test_b3_buffer_that_cannot_be_written_rejects_and_loses_nothing(
    directory: Path, caplog: pytest.LogCaptureFixture, disk: Callable[[], int], condition: Condition
) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.trouble = FAILED
        assert await peer.send(link, "one") == ACCEPTED
        shelf = stage.buffer._archive._segment_log
        segment = shelf._segments[0]
        closed, segment._descriptor = segment._descriptor, disk()
        assert condition_of(await peer.send(link, "two")) == condition
        segment._descriptor = closed
        assert await peer.send(link, "three") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == ["one", "three"]

    play(scene, directory)
    assert "side buffer write failed" in caplog.text


def test_b3_transactions_are_not_buffered(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        coordinator = await peer.sender(target=Coordinator())
        txn_id = await declare(peer, coordinator)
        await peer.outcome(peer.begin_send(link, text_message("one"), state=TransactionalState(txn_id=txn_id)))
        stage.store.trouble = FAILED
        ending = peer.begin_send(coordinator, value(Discharge(txn_id=txn_id)))
        assert condition_of(await peer.outcome(ending)) == Condition.INTERNAL_ERROR
        assert not stage.buffer.counts.taken

    play(scene, directory)


def test_b3_disabled_entity_does_not_block_others(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        for number in range(3):
            assert await peer.send(link, str(number)) == ACCEPTED
            assert await peer.send(other, str(number), group_id="a") == ACCEPTED
        namespace, host = stage.host.use_namespace(), stage.host
        stage.store.trouble = None
        namespace.update(ORDERS, QueueDescription(status=EntityStatus.DISABLED), host.now_ms())
        await eventually_async(lambda: stage.numbers(VISITS) == ["0", "1", "2"])
        assert condition_of(await peer.send(link, "3")) == ServiceBusCondition.ENTITY_DISABLED
        assert await peer.send(other, "3", group_id="a") == ACCEPTED
        assert stage.buffer.counts.held == 3
        host.use_namespace().update(ORDERS, QueueDescription(), host.now_ms())
        await stage.merged()
        assert stage.numbers() == ["0", "1", "2"]

    play(scene, directory)


def test_b3_messages_of_a_deleted_entity_are_quarantined_and_counted(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        for number in range(3):
            assert await peer.send(link, str(number), message_id=f"id {number}") == ACCEPTED
        assert await peer.send(other, "stays", group_id="a") == ACCEPTED
        stage.store.trouble = None
        stage.host.use_namespace().delete(ORDERS, stage.host.now_ms())
        await stage.merged()
        assert stage.numbers(VISITS) == ["stays"]
        assert (stage.buffer.counts.set_aside, stage.buffer.counts.merged) == (3, 1)

    play(scene, directory)
    lines = [json.loads(line) for line in (directory / "set-aside.jsonl").read_text().splitlines()]
    assert [line["messages"][0]["message_id"] for line in lines] == ["id 0", "id 1", "id 2"]
    assert {line["entity"] for line in lines} == {"orders"}
    assert "messages quarantined" in caplog.text


def test_b3_merged_messages_pass_duplicate_detection_rules_and_schedules(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        host = stage.host
        description = QueueDescription(requires_duplicate_detection=True)
        host.use_namespace().create_queue("once", description, host.now_ms())
        host.use_namespace().create_topic("news", TopicDescription(), host.now_ms())
        host.use_namespace().create_subscription("news", "all", SubscriptionDescription(), host.now_ms())
        await host.durable()
        peer = await stage.peer()
        once, news = await peer.sender("once"), await peer.sender("news")
        assert await peer.send(once, "first", message_id="a") == ACCEPTED
        stage.store.trouble = FAILED
        for message_id in "abb":
            assert await peer.send(once, message_id, message_id=message_id) == ACCEPTED
        assert await peer.send(news, "read all about it") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.ids(Address.of("once")) == ["a", "b"]
        assert stage.numbers(Address.of("news", "all")) == ["read all about it"]

    play(scene, directory)


def test_b3_steady_sends_leave_the_buffer_again(directory: Path) -> None:
    """Sends arrive at the buffer all the time: the entity must leave it all the same."""

    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.trouble = FAILED
        sent: list[Delivery] = []

        async def stream() -> None:
            while True:
                if len(sent) < 200 or sent[-200].settled:
                    sent.append(peer.begin_send(link, text_message(str(len(sent)))))
                peer.exchange()
                await asyncio.sleep(0)

        task = asyncio.create_task(stream())
        await eventually_async(lambda: stage.buffer.counts.held > 50)
        stage.store.trouble = None
        await eventually_async(lambda: not stage.buffer.holds(ORDERS))
        taken = stage.buffer.counts.taken
        await eventually_async(lambda: len(sent) > taken + 100)
        task.cancel()
        assert stage.buffer.counts.taken == taken
        assert {await peer.outcome(each) for each in sent} == {ACCEPTED}
        assert stage.numbers()[: len(sent)] == [*map(str, range(len(sent)))]

    play(scene, directory)


@pytest.mark.parametrize("seed", range(8))
def test_b3_random_failures_keep_confirmed_messages_once_and_in_order(directory: Path, seed: int) -> None:
    async def scene(stage: BufferedStage) -> None:
        chance = random.Random(seed)  # noqa: S311 (not for security)
        peers = [await stage.peer() for _ in range(2)]
        links = [await peer.sender() for peer in peers]
        sessions = [await peer.sender("visits") for peer in peers]
        sent: dict[tuple[int, Address], list[tuple[str, Delivery]]] = {}
        for number in range(400):
            match chance.randrange(12):
                case 0:
                    stage.store.trouble = chance.choice([FAILED, FULL, None])
                case 1:
                    stage.store.max_bytes = chance.choice([1_000, None, None])
                case 2:
                    await asyncio.sleep(chance.choice([0, 0, 0.01, 0.03]))
                case 3:
                    stage.store.trouble = stage.store.max_bytes = None
                case _:
                    which = chance.randrange(2)
                    peer, body = peers[which], str(number)
                    to, options = chance.choice([(ORDERS, {}), (VISITS, {"group_id": "a"})])
                    link = links[which] if to == ORDERS else sessions[which]
                    delivery = peer.begin_send(link, text_message(body, **options))
                    sent.setdefault((which, to), []).append((body, delivery))
            for peer in peers:
                peer.exchange()
        stage.store.trouble = stage.store.max_bytes = None
        for (which, _), several in sent.items():
            await peers[which].until(lambda several=several: all(each.settled for _, each in several))  # type: ignore[misc]
        await stage.merged()
        await stage.host.durable()
        for to in (ORDERS, VISITS):
            there = stage.numbers(to)
            assert len(there) == len(set(there))
            for which in range(2):
                mine = sent.get((which, to), [])
                confirmed = [body for body, delivery in mine if delivery.state == ACCEPTED]
                names = {body for body, _ in mine}
                assert [body for body in there if body in names] == confirmed
        assert stage.buffer.counts.taken > 20

    play(scene, directory)


def test_b3_message_is_received_while_others_are_buffered(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        stage.store.max_bytes = 1_000
        assert await peer.send(link, "later") == ACCEPTED
        receiver = await peer.receiver(credit=5)
        (delivery,) = await peer.receive(receiver, 1)
        assert await peer.settle(delivery, ACCEPTED) == ACCEPTED
        stage.store.max_bytes = None
        await peer.receive(receiver, 2)

    play(scene, directory)


def test_b3_closed_connection_leaves_no_pending_send(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer, other = await stage.peer(), await stage.peer()
        link, another = await peer.sender(), await other.sender()
        stage.store.trouble = FAILED
        assert await peer.send(link, "one") == ACCEPTED
        peer.begin_send(link, text_message("two"))
        peer.transport.abort()
        assert await other.send(another, "three") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        await eventually_async(lambda: not stage.buffer.holds(ORDERS))
        assert [body for body in stage.numbers() if body != "two"] == ["one", "three"]

    play(scene, directory)


def test_replaced_settings_are_checked() -> None:
    with pytest.raises(SettingsError, match="side_buffer_mb must be >= 1, got 0"):
        replace(Settings(data=Path("data")), side_buffer_mb=0)


# A stalled disk


def test_e1_buffer_on_a_stalled_disk_is_closed_in_time_and_unlocked_later(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    waits = threading.Event()

    def held_up(descriptor: int) -> None:
        waits.set()
        assert answers.wait(DEADLINE_S)
        os.fsync(descriptor)

    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.trouble = FAILED
        assert await peer.send(link, "kept") == ACCEPTED
        monkeypatch.setattr(segment_log, "sync_content", held_up)
        begun = [peer.begin_send(link, text_message(text)) for text in ("first", "second")]
        await peer.until(waits.is_set)
        buffer = stage.buffer
        with pytest.raises(TimeoutError):
            await buffer.close(within_s=0.05)
        assert not any(each.settled for each in begun)
        with pytest.raises(StoreInUseError):
            stage.open_buffer(directory)
        answers.set()
        await eventually_async(lambda: is_free(directory))
        stage.store.trouble = None
        stage.open_buffer(directory)
        await stage.merged()
        assert stage.numbers()[0] == "kept"

    play(scene, directory)


def is_free(directory: Path) -> bool:
    try:
        BufferDirectory.open(directory, "contoso").close()
    except StoreInUseError:
        return False
    return True
