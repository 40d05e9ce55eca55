"""E1, E3: bytes of the data file cut off or changed lead to a refusal or a report, never to a wrong message."""

from __future__ import annotations

import os
import shutil
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pytest

from pairbus.broker import QueueDescription
from pairbus.broker.message import NewMessage
from pairbus.store.directory import DATA_FILE
from pairbus.store.errors import DamagedStoreError
from tests.durability.namespace import NOW, QUEUE, contents, open_keeper

PAGE = 4096
MESSAGES = {f"message-{number}": bytes((number % 251,)) * (37 * number % 9_001) for number in range(120)}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with messages of many sizes, and some free pages."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    keeper = open_keeper(path)
    keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
    for message_id, body in MESSAGES.items():
        keeper.use_namespace().send(QUEUE, [NewMessage(body, message_id), NewMessage(bytes(50), "gone")], NOW)
    keeper.commit(NOW)
    for delivery in keeper.use_namespace().receive(QUEUE, 1_000, NOW):
        if delivery.record.message_id == "gone":
            assert delivery.lock_token is not None
            keeper.use_namespace().settle(QUEUE, delivery.lock_token, NOW)
    keeper.commit(NOW)
    keeper.close()
    data = (path / DATA_FILE).read_bytes().rstrip(b"\0")  # what was allocated ahead is all zero
    (path / DATA_FILE).write_bytes(data.ljust(-len(data) // PAGE * -PAGE, b"\0"))
    return path


def judge(path: Path) -> str:
    """Open a damaged directory and look at every message: what came of it in a word."""
    try:
        keeper = open_keeper(path)
    except DamagedStoreError:
        return "refused"
    try:
        if not keeper.use_namespace().queues(NOW):
            return "reported" if keeper.recovery.damaged else "LOST THE QUEUE"
        deliveries = keeper.use_namespace().receive(QUEUE, 1_000, NOW)
        for delivery in deliveries:
            if MESSAGES.get(delivery.record.message_id) != delivery.body:
                return f"WRONG MESSAGE {delivery.record.message_id}"
        if len(deliveries) == len(MESSAGES):
            return "whole"
        reported = len(keeper.recovery.damaged) + len(keeper.damaged)
        return "reported" if len(deliveries) + reported >= len(MESSAGES) else "LOST A MESSAGE"
    finally:
        keeper.close()


def flip_many(healthy: Path, scratch: Path, seed: int, count: int) -> None:
    """In a process of its own, so that a crash of the library would show as one."""
    random = Random(seed)  # noqa: S311 (which bytes)
    length = (healthy / DATA_FILE).stat().st_size
    outcomes = set()
    for number in range(count):
        position = random.randrange(length)
        path = scratch / "copy"
        shutil.copytree(healthy, path)
        with (path / DATA_FILE).open("r+b") as file:
            file.seek(position)
            before = file.read(1)[0]
            file.seek(position)
            file.write(bytes((before ^ random.randrange(1, 256),)))
        outcome = judge(path)
        assert outcome in {"refused", "reported", "whole"}, f"{outcome} after byte {position} changed (flip {number})"
        outcomes.add(outcome)
        shutil.rmtree(path)
    assert {"refused", "reported"} <= outcomes


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [pytest.param(500, id="500"), pytest.param(2_000, id="2000", marks=pytest.mark.slow)])
def test_e1_changed_byte_never_makes_a_wrong_message(healthy: Path, tmp_path: Path, count: int) -> None:
    process = get_context("spawn").Process(target=flip_many, args=(healthy, tmp_path, count, count))
    process.start()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize("pages", [0, 1, 2, 3, 5, 10, 50])
@pytest.mark.parametrize("more", [-1, 0, 1, 100])
def test_e1_file_that_was_cut_off_is_refused(healthy: Path, tmp_path: Path, pages: int, more: int) -> None:
    path = tmp_path / "data"
    shutil.copytree(healthy, path)
    os.truncate(path / DATA_FILE, max(0, pages * PAGE + more))
    assert judge(path) == "refused"


def test_e6_damaged_message_leaves_a_stub_and_the_rest_is_delivered(healthy: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(healthy, path)
    data = (path / DATA_FILE).read_bytes()
    body = MESSAGES["message-33"]
    assert body in data
    (path / DATA_FILE).write_bytes(data.replace(body, b"?" + body[1:]))  # also in pages that are no longer in use
    keeper = open_keeper(path)
    received = keeper.use_namespace().receive(QUEUE, 1_000, NOW)
    assert len(received) == len(MESSAGES) - 1
    assert len(keeper.damaged) == 1
    keeper.commit(NOW)
    keeper.close()
    keeper = open_keeper(path)  # and it stays out of service
    found = contents(keeper.use_namespace())
    assert len(found) == len(MESSAGES)
    (stub,) = [each for each in found if each.body != MESSAGES[each.record.message_id]]
    assert (stub.record.message_id, stub.body) == ("message-33", b"")
    assert keeper.recovery.damaged == []
    keeper.close()
