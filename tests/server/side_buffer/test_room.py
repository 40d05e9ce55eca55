"""B3: what a side buffer takes on its disk is what is not merged, and little more."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from shutil import copy, copytree, rmtree

import pytest

from pairbus.broker import EntityStatus, QueueDescription
from pairbus.wire import ACCEPTED, Delivery
from tests.server.amqp.wire_client import text_message
from tests.server.side_buffer.stage import FAILED, ORDERS, VISITS, BufferedStage, eventually, play

SMALL = 32_000
"""A buffer with files of 4,000 bytes."""

LARGE = "x" * 2_000
DISABLED = QueueDescription(status=EntityStatus.DISABLED)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "side"


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.parcels"))


def size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def test_b3_it_goes_on_while_the_store_stays_full_and_receivers_keep_up(directory: Path) -> None:
    """There is always something in the buffer: what was merged must not count for ever."""

    async def scene(stage: BufferedStage) -> None:
        peer = await stage.peer()
        link = await peer.sender()
        receiver = await peer.receiver(credit=500, deletes=True)
        stage.store.give_room(3 * len(LARGE))
        tally = stage.buffer.tally
        for _ in range(20):
            sent = [peer.begin_send(link, text_message(LARGE)) for _ in range(5)]
            assert [await peer.outcome(each) for each in sent] == [ACCEPTED] * 5
            await peer.until(lambda: tally.held <= 4)
        assert tally.taken * len(LARGE) > 3 * SMALL, "it went through the buffer"
        await peer.receive(receiver, 100)

    play(scene, directory, SMALL)


async def fill(stage: BufferedStage) -> None:
    """Send until it refuses."""
    peer = await stage.peer()
    link = await peer.sender()
    stage.store.trouble = FAILED
    while await peer.send(link, LARGE) == ACCEPTED:
        pass


def test_b3_files_that_were_left_are_removed_at_a_start(directory: Path, tmp_path: Path) -> None:
    """As after a kill between the commit and the removal of the files."""

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


def test_b3_files_that_could_not_be_removed_are_removed_before_it_refuses(
    directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await fill(stage)
        for file in files(directory):  # a directory that has something in it cannot be unlinked
            file.rename(tmp_path / file.name)
            (file / "full").mkdir(parents=True)
        stage.store.trouble = None
        await stage.merged()
        await eventually(lambda: not stage.buffer.holds(ORDERS))
        assert stage.buffer.used_bytes
        for file in files(directory):
            rmtree(file)
            (tmp_path / file.name).rename(file)
        peer = await stage.peer()
        stage.store.trouble = FAILED
        assert await peer.send(await peer.sender(), LARGE) == ACCEPTED
        await eventually(lambda: len(files(directory)) == 1)
        stage.store.trouble = None
        await stage.merged()

    play(scene, directory, SMALL)
    assert "cannot be removed" in caplog.text


async def pin(stage: BufferedStage, count: int) -> None:
    """Have something small in each file that stays, and something large that goes."""
    peer = await stage.peer()
    link, other = await peer.sender(), await peer.sender("visits")
    stage.store.trouble = FAILED
    for number in range(count):
        assert await peer.send(link, str(number)) == ACCEPTED
        assert await peer.send(other, f"{number} {LARGE}", group_id="a") == ACCEPTED
    stage.store.trouble = None
    stage.host.namespace.update(ORDERS, DISABLED, stage.host.now_ms())


def test_b3_a_little_that_cannot_be_merged_does_not_keep_the_room_of_what_was(directory: Path) -> None:
    async def scene(stage: BufferedStage) -> None:
        await pin(stage, 10)
        await eventually(lambda: len(stage.numbers(VISITS)) == 10)
        await eventually(lambda: stage.buffer.used_bytes < SMALL / 4)
        await eventually(lambda: sum(map(size_of, files(directory))) == stage.buffer.used_bytes)
        host = stage.host
        host.namespace.update(ORDERS, QueueDescription(), host.now_ms())
        await stage.merged()
        assert stage.numbers() == [*map(str, range(10))]
        await eventually(lambda: not files(directory))

    play(scene, directory, SMALL)


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "moved, and the first ones are there, too"])
def test_b3_what_was_moved_is_merged_once_and_in_order_after_a_kill(
    directory: Path, tmp_path: Path, is_left: bool
) -> None:
    async def scene(stage: BufferedStage) -> None:
        await pin(stage, 10)
        before = copytree(directory, tmp_path / "before")
        await eventually(lambda: stage.buffer.used_bytes < SMALL / 4)
        await stage.buffer.close()
        if is_left:
            for file in files(before):
                if not (directory / file.name).exists():
                    copy(file, directory)
        host = stage.host
        host.namespace.update(ORDERS, QueueDescription(), host.now_ms())
        await host.durable()
        stage.store.trouble = FAILED
        stage.open_buffer(directory, SMALL)
        peer = await stage.peer()
        assert await peer.send(await peer.sender(), "later") == ACCEPTED
        stage.store.trouble = None
        await stage.merged()
        assert stage.numbers() == [*map(str, range(10)), "later"]
        assert len(stage.numbers(VISITS)) == 10
        await eventually(lambda: not files(directory))

    play(scene, directory, SMALL)


@pytest.mark.parametrize("seed", range(6))
def test_b3_whatever_is_moved_when_what_was_confirmed_is_there_once_and_in_order(directory: Path, seed: int) -> None:
    async def scene(stage: BufferedStage) -> None:
        chance = random.Random(seed)  # noqa: S311 (a test's own)
        sent: dict[str, list[tuple[str, Delivery]]] = {"orders": [], "visits": []}
        peer = await stage.peer()
        links = {"orders": await peer.sender(), "visits": await peer.sender("visits")}
        for number in range(400):
            match chance.randrange(14):
                case 0:
                    stage.store.trouble = chance.choice([FAILED, FAILED, None])
                case 1:
                    host = stage.host
                    host.namespace.update(ORDERS, chance.choice([DISABLED, QueueDescription()]), host.now_ms())
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
        await eventually(lambda: host.namespace.update(ORDERS, QueueDescription(), host.now_ms()) or True)
        await stage.merged()
        await host.durable()
        for to, address in (("orders", ORDERS), ("visits", VISITS)):
            confirmed = [body.split()[0] for body, delivery in sent[to] if delivery.state == ACCEPTED]
            assert [body.split()[0] for body in stage.numbers(address)] == confirmed, to
        await eventually(lambda: not files(directory))

    play(scene, directory, SMALL)
