"""B3: what keeps one lane of a side buffer from going on does not keep the others; and which of them comes when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pairbus.broker import Address, Message, QueueDescription
from pairbus.server.side_buffer.directory import BufferDirectory
from pairbus.server.side_buffer.parcel import Parcel, mark_of, pack_parcel
from pairbus.server.side_buffer.shelf import Shelf
from pairbus.wire import ACCEPTED
from tests.server.amqp.wire_client import text_message
from tests.server.side_buffer.stage import FAILED, MEGABYTE, ORDERS, VISITS, BufferedStage, eventually, play

COUNT = 600
"""More than one batch, and so little that a lane is closed for it."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


# The store has little room


def test_b3_what_is_too_large_for_the_room_that_is_left_does_not_hold_up_what_is_small(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.max_bytes = 1_000
        assert await peer.send(link, "x" * 100_000) == ACCEPTED
        assert await peer.send(other, "small", group_id="a") == ACCEPTED
        stage.store.give_room(50_000)
        await eventually(lambda: stage.numbers(VISITS) == ["small"])
        assert stage.numbers() == []
        stage.store.max_bytes = None
        await stage.merged()
        assert len(stage.numbers()) == 1

    play(scene, directory)


def test_b3_little_room_does_not_always_go_to_the_same_entity(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.max_bytes = 1_000
        for number in range(20):
            assert await peer.send(link, f"{number:04}") == ACCEPTED
            assert await peer.send(other, f"{number:04}", group_id="a") == ACCEPTED
        tally = stage.buffer.tally
        for _ in range(8):
            merged = tally.merged
            stage.store.give_room(3 * 512)
            await eventually(lambda merged=merged: tally.merged > merged)  # type: ignore[misc]
        assert tally.held, "there was little room"
        assert stage.numbers()
        assert stage.numbers(VISITS)

    play(scene, directory)


# The disk of the buffer


def test_b3_where_nothing_can_be_set_aside_other_entities_go_on(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        for number in range(3):
            assert await peer.send(link, str(number)) == ACCEPTED
        assert await peer.send(other, "goes on", group_id="a") == ACCEPTED
        (directory / "set-aside.jsonl").mkdir()
        stage.store.trouble = None
        stage.host.namespace.delete(ORDERS, stage.host.now_ms())
        await eventually(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.buffer.tally.held == 3
        (directory / "set-aside.jsonl").rmdir()
        await stage.merged()
        assert stage.buffer.tally.set_aside == 3

    play(scene, directory)
    assert caplog.text.count("nothing can be set aside") == 1, "it is told when it changes"


def test_b3_what_cannot_be_read_does_not_hold_up_the_others(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link, other = await peer.sender(), await peer.sender("visits")
        stage.store.trouble = FAILED
        assert await peer.send(link, "x" * 5_000) == ACCEPTED
        assert await peer.send(link, "in the next file") == ACCEPTED
        assert await peer.send(other, "goes on", group_id="a") == ACCEPTED
        first = stage.buffer._archive._shelf._segments[0]
        descriptor, first._descriptor = first._descriptor, 10_000  # as a sector that cannot be read
        stage.store.trouble = None
        await eventually(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.numbers() == []
        first._descriptor = descriptor
        await stage.merged()
        assert stage.numbers() == ["x" * 5_000, "in the next file"]

    play(scene, directory, 32_000)
    assert caplog.text.count("cannot be read") == 1, "it is told when it changes"


def test_b3_what_the_broker_fails_at_is_not_sent_again_with_what_came_before_it(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await stage.buffer.close()
        opened = BufferDirectory.open(directory, "contoso")
        mark = mark_of(opened.identity)
        opened.close()
        odd: Message = Message(b"odd", returned=[])  # type: ignore[arg-type]
        parcels = [
            Parcel(entity, 1, [message])
            for entity, message in (
                ("orders", Message(text_message("first"), "1")),
                ("orders", odd),
                ("orders", Message(text_message("behind it"), "2")),
                ("visits", Message(text_message("goes on"), "3", session_id="a")),
            )
        ]
        shelf = Shelf(directory, 0)
        shelf.append([pack_parcel(parcel, mark) for parcel in parcels])
        shelf.close()
        stage.open_buffer(directory)
        await eventually(lambda: stage.numbers(VISITS) == ["goes on"])
        await stage.rounds()
        assert stage.numbers() == ["first"]
        assert stage.buffer.tally.held == 2

    play(scene, directory)
    assert caplog.text.count("cannot be merged") == 1


# Sends wait while a lane is closed


def test_b3_a_lane_that_is_closing_comes_to_its_end_before_the_next(directory: Path) -> None:
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


def test_b3_many_small_lanes_are_merged_with_few_commits(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        names = [f"queue-{number}" for number in range(100)]
        host = stage.host
        for name in names:
            host.namespace.create_queue(name, QueueDescription(), host.now_ms())
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


def test_b3_a_stop_waits_for_what_waits_while_a_lane_is_closed(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        stage.store.max_bytes = 1_000
        sent = [peer.begin_send(link, text_message(str(number))) for number in range(COUNT)]
        assert {await peer.outcome(each) for each in sent} == {ACCEPTED}
        assert stage.buffer.is_quiet()
        stage.store.merging_gate.clear()
        stage.store.max_bytes = None
        await eventually(stage.store.is_merging.is_set)
        waiting = peer.begin_send(link, text_message("last"))
        assert not stage.buffer.is_quiet()
        await asyncio.sleep(0.05)  # time for it to get into the buffer, which it must not
        peer.exchange()
        assert not waiting.settled
        stage.store.merging_gate.set()
        assert await peer.outcome(waiting) == ACCEPTED
        await eventually(stage.buffer.is_quiet)
        assert stage.numbers() == [*map(str, range(COUNT)), "last"]

    play(scene, directory, 4 * MEGABYTE)


# The store is looked at


def test_b3_to_see_whether_the_store_works_costs_receivers_nothing(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        assert await peer.send(link, "before") == ACCEPTED
        (delivery,) = await peer.receive(await peer.receiver(credit=1), 1)
        namespace = stage.host.namespace
        stage.store.max_bytes = 1_000  # not even what is written to see whether it works
        assert await peer.send(link, "later") == ACCEPTED
        await stage.rounds()
        assert stage.host.namespace is namespace, "it was not read anew"
        stage.store.max_bytes = None
        assert await peer.settle(delivery, ACCEPTED) == ACCEPTED
        await stage.merged()
        assert stage.numbers() == ["later"]

    play(scene, directory)
