"""B3: a side buffer takes little more disk space than its unmerged messages."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from shutil import copy, copytree, rmtree

import pytest

from pairbus.broker import EntityStatus, QueueDescription
from pairbus.wire import ACCEPTED, Delivery
from tests.server.amqp.wire_client import text_message
from tests.server.side_buffer.stage import FAILED, ORDERS, VISITS, BufferedStage, play
from tests.waiting import eventually_async

SMALL = 32_000
"""Limit of a buffer whose segments have 4,000 bytes."""

LARGE = "x" * 2_000
DISABLED = QueueDescription(status=EntityStatus.DISABLED)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.parcels"))


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def test_b3_merged_segments_are_deleted_while_the_buffer_is_never_empty(directory: Path) -> None:
    """The buffer is never empty: merged messages must not count against its limit for ever."""

    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        receiver = await peer.receiver(credit=500, deletes=True)
        stage.store.give_room(3 * len(LARGE))
        counts = stage.buffer.counts
        for _ in range(20):
            sent = [peer.begin_send(link, text_message(LARGE)) for _ in range(5)]
            assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 5
            await peer.until(lambda: counts.held <= 4)
        assert counts.taken * len(LARGE) > 3 * SMALL, "the messages went through the buffer"
        await peer.receive(receiver, 100)

    play(scene, directory, SMALL)


async def fill(stage: BufferedStage) -> None:
    """Send until a send is rejected."""
    peer = await stage.peer()
    link = await peer.sender()
    stage.store.trouble = FAILED
    while await peer.send(link, LARGE) == ACCEPTED:
        pass


def test_b3_segments_left_by_a_kill_are_deleted_at_the_start(directory: Path, tmp_path: Path) -> None:
    """This is the state after a kill between the commit and the deletion of the segments."""

    async def scene(stage: BufferedStage) -> None:
        await fill(stage)
        copytree(directory, tmp_path / "before")
        stage.store.trouble = None
        await stage.merged()
        there = stage.numbers()
        await stage.buffer.close()
        rmtree(directory)
        copytree(tmp_path / "before", directory)
        stage.open_buffer(directory, SMALL)
        assert not files(directory)
        assert not stage.buffer.used_bytes
        peer = await stage.peer()
        stage.store.trouble = FAILED
        assert await peer.send(await peer.sender(), "one") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == [*there, "one"]

    play(scene, directory, SMALL)


def test_b3_undeleted_segments_are_deleted_before_a_send_is_rejected(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await fill(stage)
        for file in files(directory):  # a directory cannot be unlinked
            file.rename(tmp_path / file.name)
            (file / "full").mkdir(parents=True)
        stage.store.trouble = None
        await stage.merged()
        await eventually_async(lambda: not stage.buffer.holds(ORDERS))
        await eventually_async(lambda: "segment not deleted" in caplog.text)
        assert stage.buffer.used_bytes
        for file in files(directory):
            rmtree(file)
            (tmp_path / file.name).rename(file)
        peer = await stage.peer()
        stage.store.trouble = FAILED
        assert await peer.send(await peer.sender(), LARGE) == ACCEPTED
        await eventually_async(lambda: len(files(directory)) == 1)
        stage.store.trouble = None
        await stage.merged()

    play(scene, directory, SMALL)


async def pin(stage: BufferedStage, count: int) -> None:
    """Write a small message that stays, and a large one that is merged, to each segment."""
    peer = await stage.peer()
    link, other = await peer.sender(), await peer.sender("visits")
    stage.store.trouble = FAILED
    for number in range(count):
        assert await peer.send(link, str(number)) == ACCEPTED
        assert await peer.send(other, f"{number} {LARGE}", group_id="a") == ACCEPTED
    stage.store.trouble = None
    stage.host.use_namespace().update(ORDERS, DISABLED, stage.host.now_ms())


def test_b3_few_unmerged_batches_do_not_keep_a_segment(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        await pin(stage, 10)
        await eventually_async(lambda: len(stage.numbers(VISITS)) == 10)
        await eventually_async(lambda: stage.buffer.used_bytes < SMALL / 4)
        await eventually_async(lambda: sum(map(size_of, files(directory))) == stage.buffer.used_bytes)
        host = stage.host
        host.use_namespace().update(ORDERS, QueueDescription(), host.now_ms())
        await stage.merged()
        assert stage.numbers() == [*map(str, range(10))]
        await eventually_async(lambda: not files(directory))

    play(scene, directory, SMALL)


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "moved, and the first ones are there, too"])
def test_b3_moved_batches_are_merged_once_and_in_order_after_a_kill(
    directory: Path, tmp_path: Path, is_left: bool
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await pin(stage, 10)
        before = copytree(directory, tmp_path / "before")
        await eventually_async(lambda: stage.buffer.used_bytes < SMALL / 4)
        await stage.buffer.close()
        if is_left:
            for file in files(before):
                if not (directory / file.name).exists():
                    copy(file, directory)
        host = stage.host
        host.use_namespace().update(ORDERS, QueueDescription(), host.now_ms())
        await host.durable()
        stage.store.trouble = FAILED
        stage.open_buffer(directory, SMALL)
        peer = await stage.peer()
        assert await peer.send(await peer.sender(), "later") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == [*map(str, range(10)), "later"]
        assert len(stage.numbers(VISITS)) == 10
        await eventually_async(lambda: not files(directory))

    play(scene, directory, SMALL)


@pytest.mark.parametrize("seed", range(6))
def test_b3_random_moves_keep_confirmed_messages_once_and_in_order(directory: Path, seed: int) -> None:
    async def scene(stage: BufferedStage) -> None:
        chance = random.Random(seed)  # noqa: S311 (not for security)
        sent: dict[str, list[tuple[str, Delivery]]] = {"orders": [], "visits": []}
        peer = await stage.peer()
        links = {"orders": await peer.sender(), "visits": await peer.sender("visits")}
        for number in range(400):
            match chance.randrange(14):
                case 0:
                    stage.store.trouble = chance.choice([FAILED, FAILED, None])
                case 1:
                    host = stage.host
                    await host.ready()
                    host.use_namespace().update(ORDERS, chance.choice([DISABLED, QueueDescription()]), host.now_ms())
                case 2:
                    await asyncio.sleep(chance.choice([0, 0.01, 0.05]))
                case 3 if chance.random() < 0.3:
                    await peer.until(lambda: all(each.settled for several in sent.values() for _, each in several))
                    await stage.buffer.close()
                    stage.open_buffer(directory, SMALL)
                case _:
                    to = chance.choice(["orders", "visits", "visits"])
                    body = f"{number} " + (LARGE if to == "visits" else "")
                    group_id = "a" if to == "visits" else None
                    delivery = peer.begin_send(links[to], text_message(body, group_id=group_id))
                    sent[to].append((body, delivery))
            peer.exchange()
        stage.store.trouble = None
        await peer.until(lambda: all(each.settled for several in sent.values() for _, each in several))
        host = stage.host
        await eventually_async(
            lambda: host.use_namespace().update(ORDERS, QueueDescription(), host.now_ms()) is not None
        )
        await stage.merged()
        await host.durable()
        for to, address in (("orders", ORDERS), ("visits", VISITS)):
            confirmed = [body.split()[0] for body, delivery in sent[to] if delivery.state == ACCEPTED]
            assert [body.split()[0] for body in stage.numbers(address)] == confirmed, to
        await eventually_async(lambda: not files(directory))

    play(scene, directory, SMALL)
