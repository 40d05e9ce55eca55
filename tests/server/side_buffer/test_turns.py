"""B3: a blocked entity of a side buffer does not block the others; and the order in which entities are merged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pairbus.broker import Address, NewMessage, QueueDescription
from pairbus.server.side_buffer.archive import BufferedBatch, mark_of, pack_batch
from pairbus.store.buffer_directory import BufferDirectory
from pairbus.store.segment_log import SegmentLog
from pairbus.wire import ACCEPTED
from tests.server.amqp.wire_client import text_message
from tests.server.side_buffer.stage import FAILED, MEGABYTE, ORDERS, VISITS, BufferedStage, play
from tests.waiting import eventually_async

COUNT = 600
"""More than one commit merges, and few enough that the entity is closing meanwhile."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


# A store with little room


def test_b3_batch_too_large_for_the_store_does_not_block_smaller_ones(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.max_bytes = 1_000
        assert await peer.send(link, "x" * 100_000) == ACCEPTED
        assert await peer.send(other, "small", group_id="a") == ACCEPTED
        stage.store.give_room(50_000)
        await eventually_async(lambda: stage.numbers(VISITS) == ["small"])
        assert stage.numbers() == []
        stage.store.max_bytes = None
        await stage.merged()
        assert len(stage.numbers()) == 1

    play(scene, directory)


def test_b3_scarce_room_does_not_always_go_to_the_same_entity(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.max_bytes = 1_000
        for number in range(20):
            assert await peer.send(link, f"{number:04}") == ACCEPTED
            assert await peer.send(other, f"{number:04}", group_id="a") == ACCEPTED
        counts = stage.buffer.counts
        for _ in range(8):
            merged = counts.merged
            stage.store.give_room(3 * 512)
            await eventually_async(lambda merged=merged: counts.merged > merged)  # type: ignore[misc]
        assert counts.held, "all of them fitted"
        assert stage.numbers()
        assert stage.numbers(VISITS)

    play(scene, directory)


# A failing disk of the buffer


def test_b3_failed_quarantine_does_not_block_other_entities(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        for number in range(3):
            assert await peer.send(link, str(number)) == ACCEPTED
        assert await peer.send(other, "goes on", group_id="a") == ACCEPTED
        (directory / "set-aside.jsonl").mkdir()
        stage.store.trouble = None
        stage.host.use_namespace().delete(ORDERS, stage.host.now_ms())
        await eventually_async(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.buffer.counts.held == 3
        (directory / "set-aside.jsonl").rmdir()
        await stage.merged()
        assert stage.buffer.counts.set_aside == 3

    play(scene, directory)
    assert caplog.text.count("side buffer quarantine failed") == 1, "it is logged once"


def test_b3_unreadable_batch_does_not_block_other_entities(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        assert await peer.send(link, "x" * 5_000) == ACCEPTED
        assert await peer.send(link, "in the next file") == ACCEPTED
        assert await peer.send(other, "goes on", group_id="a") == ACCEPTED
        first = stage.buffer._archive._segment_log._segments[0]
        descriptor, first._descriptor = first._descriptor, 10_000  # like an unreadable sector
        stage.store.trouble = None
        await eventually_async(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.numbers() == []
        first._descriptor = descriptor
        await stage.merged()
        assert stage.numbers() == ["x" * 5_000, "in the next file"]

    play(scene, directory, 32_000)
    assert caplog.text.count("side buffer read failed") == 1, "it is logged once"


def test_b3_batches_before_one_that_fails_in_the_broker_are_sent_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await stage.buffer.close()
        opened = BufferDirectory.open(directory, "contoso")
        mark = mark_of(opened.identity)
        opened.close()
        odd: NewMessage = NewMessage(b"odd", returned=[])  # type: ignore[arg-type]
        parcels = [
            BufferedBatch(entity, 1, [message])
            for entity, message in (
                ("orders", NewMessage(text_message("first"), "1")),
                ("orders", odd),
                ("orders", NewMessage(text_message("behind it"), "2")),
                ("visits", NewMessage(text_message("goes on"), "3", session_id="a")),
            )
        ]
        shelf = SegmentLog(directory, mark)
        shelf.append([pack_batch(parcel, mark) for parcel in parcels])
        shelf.close()
        stage.open_buffer(directory)
        await eventually_async(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.numbers() == ["first"]
        assert stage.buffer.counts.held == 2

    play(scene, directory)
    assert caplog.text.count("side buffer merge failed") == 1


# Sends wait while an entity is closing


def test_b3_closing_entity_is_merged_completely_before_the_next(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        sent = [peer.begin_send(link, text_message("one")) for _ in range(COUNT)]
        sent += [peer.begin_send(other, text_message("one", group_id="a")) for _ in range(COUNT)]
        assert {await peer.outcome(each) for each in sent} == {ACCEPTED}
        stage.store.trouble = None
        await stage.merged()
        assert stage.store.merged[0] == stage.store.merged[1]
        assert stage.store.merged[-2] == stage.store.merged[-1]
        assert len(stage.numbers()) == len(stage.numbers(VISITS)) == COUNT

    play(scene, directory)


def test_b3_many_small_entities_are_merged_with_few_commits(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        names = [f"queue-{number}" for number in range(100)]
        host = stage.host
        for name in names:
            host.use_namespace().create_queue(name, QueueDescription(), host.now_ms())
        await host.durable()
        peer = await stage.peer()
        links = [await peer.sender(name) for name in names]
        stage.store.max_bytes = 1_000
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(3) for link in links]
        assert {await peer.outcome(each) for each in sent} == {ACCEPTED}
        stage.store.max_bytes = None
        await stage.merged()
        for name in names:
            assert stage.numbers(Address.of(name)) == ["0", "1", "2"]
        assert len(stage.store.merged) < 10

    play(scene, directory)


def test_b3_stop_waits_for_sends_to_a_closing_entity(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.max_bytes = 1_000
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(COUNT)]
        assert {await peer.outcome(each) for each in sent} == {ACCEPTED}
        assert stage.buffer.writer.is_quiet()
        stage.store.merging_gate.clear()
        stage.store.max_bytes = None
        await eventually_async(stage.store.is_merging.is_set)
        waiting = peer.begin_send(link, text_message("last"))
        assert not stage.buffer.writer.is_quiet()
        await asyncio.sleep(0.05)  # time to reach the buffer, which it must not
        peer.exchange()
        assert not waiting.settled
        stage.store.merging_gate.set()
        assert await peer.outcome(waiting) == ACCEPTED
        await eventually_async(stage.buffer.writer.is_quiet)
        assert stage.numbers() == [*map(str, range(COUNT)), "last"]

    play(scene, directory, 4 * MEGABYTE)


# The store is probed


def test_b3_probe_of_the_store_does_not_affect_receivers(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        (delivery,) = await peer.receive(await peer.receiver(credit=1), 1)
        namespace = stage.host.use_namespace()
        stage.store.max_bytes = 1_000  # less than a probe needs
        assert await peer.send(link, "later") == ACCEPTED
        await stage.rounds()
        assert stage.host.use_namespace() is namespace, "the namespace was reloaded"
        stage.store.max_bytes = None
        assert await peer.settle(delivery, ACCEPTED) == ACCEPTED
        await stage.merged()
        assert stage.numbers() == ["later"]

    play(scene, directory)
