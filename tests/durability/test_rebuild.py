"""E6, B4: a data file whose damage cannot be confined is rebuilt while the namespace is in use."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.broker.message import NewMessage
from pairbus.store import keys
from pairbus.store.directory import DATA_FILE
from pairbus.store.errors import DamagedStoreError, UnconfinedDamageError
from pairbus.store.group_committer import MOST_REBUILDS, REBUILD_WINDOW_MS, GroupCommitter
from pairbus.store.page_nodes import linked_pages
from pairbus.store.pages import verify
from pairbus.store.rebuild import DAMAGED, KEPT_FILES, REBUILT
from pairbus.store.repair import repair
from pairbus.testing import running_namespace
from tests.durability.namespace import ALL, DEAD_LETTERS, NOW, QUEUE, make_namespace, open_keeper
from tests.waiting import eventually

PAGE = 4096
SENT = [b"%d" % number * 100 for number in range(2_000)]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with so many messages that the file has branches below its root."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    with open_keeper(path) as keeper:
        keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
        keeper.use_namespace().send(QUEUE, [NewMessage(body, str(n)) for n, body in enumerate(SENT)], NOW)
    os.truncate(path / DATA_FILE, (verify(path / DATA_FILE).last_page + 1) * PAGE)  # less to copy
    return path


@pytest.fixture
def path(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "data"))


def strike_branches(path: Path) -> None:
    """Overwrite every branch below the root, without which nothing can be found."""
    file = path / DATA_FILE
    root = verify(file).main.root
    with file.open("r+b", buffering=0) as data:
        for number in linked_pages(root, os.pread(data.fileno(), PAGE, root * PAGE)):
            os.pwrite(data.fileno(), b"\xa5" * 64, number * PAGE)


def rebuild(keeper: GroupCommitter, path: Path, now_ms: int = NOW) -> None:
    """Damage the file, and let the keeper find that."""
    strike_branches(path)
    with pytest.raises(UnconfinedDamageError):
        keeper.use_namespace().peek(QUEUE, 0, ALL, now_ms)
    keeper.commit(now_ms)


def bodies(keeper: GroupCommitter) -> list[bytes]:
    return [found.body for found in keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)]


def test_e6_lost_branches_cost_no_message(path: Path) -> None:
    with open_keeper(path) as keeper:
        rebuild(keeper, path)
        assert bodies(keeper) == SENT
        assert keeper.use_namespace().peek(DEAD_LETTERS, 0, ALL, NOW) == []
        (done,) = keeper.rebuilds
        assert done.kept.name.startswith(DATA_FILE + DAMAGED)
        with pytest.raises(DamagedStoreError):
            verify(done.kept)
        assert not (path / (DATA_FILE + REBUILT)).exists()
    with open_keeper(path) as keeper:
        assert bodies(keeper) == SENT


def test_file_holds_nothing_that_was_in_the_memory_of_the_process(tmp_path: Path) -> None:
    """Otherwise a repair could find records of another namespace in the gaps of damaged pages."""
    for name, body in (("first", b"of the first namespace"), ("second", b"of the second namespace")):
        with open_keeper(tmp_path / name) as keeper:
            keeper.namespace.create_queue("orders", QueueDescription(), NOW)
            for first in range(0, 2_400, 100):
                messages = [NewMessage(body * (1 + n * 7 % 40), str(first + n)) for n in range(100)]
                keeper.namespace.send(QUEUE, messages, NOW)
                if name == "first":
                    keeper.commit(NOW)
            keeper.commit(NOW)
            if name == "first":
                for delivery in keeper.namespace.receive(QUEUE, 1_200, NOW):
                    assert delivery.lock_token is not None
                    keeper.namespace.settle(QUEUE, delivery.lock_token, NOW)
    content = (tmp_path / "second" / DATA_FILE).read_bytes()
    assert b"of the second namespace" in content
    assert b"of the first namespace" not in content


def test_e6_removed_messages_stay_removed_and_uncommitted_ones_fail(path: Path) -> None:
    with open_keeper(path) as keeper:
        for delivery in keeper.use_namespace().receive(QUEUE, 500, NOW):
            assert delivery.lock_token is not None
            keeper.use_namespace().settle(QUEUE, delivery.lock_token, NOW)
        keeper.commit(NOW)
        strike_branches(path)
        keeper.use_namespace().send(QUEUE, [NewMessage(b"not confirmed", "new")], NOW)
        outcomes: list[object] = []
        keeper.when_durable(outcomes.append)
        with pytest.raises(UnconfinedDamageError):
            keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)
        with pytest.raises(UnconfinedDamageError):
            keeper.commit(NOW)
        assert [type(outcome) for outcome in outcomes] == [UnconfinedDamageError]
        assert bodies(keeper) == SENT[500:]
        keeper.use_namespace().send(QUEUE, [NewMessage(b"later", "later")], NOW)
        keeper.commit(NOW)
        assert bodies(keeper) == [*SENT[500:], b"later"]


def test_e6_lost_records_leave_stubs_and_lost_settings_are_written_again(path: Path) -> None:
    with open_keeper(path) as keeper:
        keeper.use_namespace().create_queue("letters", QueueDescription(max_delivery_count=3), NOW)
        keeper.commit(NOW)
        lost = {keys.entity_key(keeper.use_namespace().entity_id(Address.of("letters")) or 0)}
        lost |= {
            keys.record_key(keeper.use_namespace().entity_id(QUEUE) or 0, 0, sequence) for sequence in range(1, 11)
        }
        data = (path / DATA_FILE).read_bytes()
        with (path / DATA_FILE).open("r+b", buffering=0) as file:
            for key in lost:
                at = data.find(key)
                while at >= 0:  # also in pages that hold earlier versions
                    os.pwrite(file.fileno(), b"\xa5" * 4, at + len(key))
                    at = data.find(key, at + 1)
        rebuild(keeper, path)
        assert bodies(keeper) == SENT[10:]
        keeper.use_namespace().tidy(NOW)
        stubs = keeper.use_namespace().peek(DEAD_LETTERS, 0, ALL, NOW)
        assert [stub.record.original_sequence for stub in stubs] == [*range(1, 11)]
        assert {queue.path for queue in keeper.use_namespace().queues(NOW)} == {"letters", "orders"}


def test_e6_rebuild_that_was_interrupted_leaves_the_old_file(path: Path) -> None:
    (path / (DATA_FILE + REBUILT)).write_bytes(b"a part of a file")
    with open_keeper(path) as keeper:
        assert bodies(keeper) == SENT
        assert not (path / (DATA_FILE + REBUILT)).exists()


def rebuild_until_killed(path: Path, step: str, is_done: bool) -> None:
    """Rebuild the file, and kill this process before or after a step of the swap."""
    keeper = open_keeper(path)
    operation = getattr(Path, step)

    def kill(*arguments: object) -> object:
        is_swap = arguments[1] == path / DATA_FILE
        found = operation(*arguments) if is_done or not is_swap else None
        if is_swap:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(Path, step, kill)
    rebuild(keeper, path)


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["hardlink_to", "replace"])
def test_e6_kill_within_the_swap_loses_nothing(path: Path, tmp_path: Path, step: str, is_done: bool) -> None:
    process = get_context("spawn").Process(target=rebuild_until_killed, args=(path, step, is_done))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if (step, is_done) != ("replace", True):  # the file is still the damaged one
        with pytest.raises(DamagedStoreError):
            open_keeper(path)
        repair(path, tmp_path / "repaired", NOW)
        path = tmp_path / "repaired"
    with open_keeper(path) as keeper:
        assert bodies(keeper) == SENT


@pytest.mark.parametrize("step", ["hardlink_to", "replace"])
def test_e6_rebuild_that_fails_keeps_the_old_file_in_use(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """An operation of the swap fails, as on a disk that is full: what the old file still has can be read."""
    with open_keeper(path) as keeper:

        def fail(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, step, fail)
        monkeypatch.setattr("shutil.copyfile", fail)
        before = (path / DATA_FILE).stat().st_ino
        rebuild(keeper, path)
        for _ in range(MOST_REBUILDS):
            with suppress(UnconfinedDamageError):
                assert keeper.use_namespace() is not None
        assert len(keeper.failed_rebuilds) == MOST_REBUILDS
        keeper.use_namespace().peek(QUEUE, 0, 10, NOW)
        assert not keeper.may_rebuild()
        assert (path / DATA_FILE).stat().st_ino == before
        assert not (path / (DATA_FILE + REBUILT)).exists()
        keeper.abandon()


def test_e6_file_is_rebuilt_three_times_within_ten_minutes_and_no_more(path: Path) -> None:
    with GroupCommitter.open(path, make_namespace, NOW) as keeper:
        for number in range(MOST_REBUILDS):
            rebuild(keeper, path, NOW + number * 1_000)
        assert len(keeper.rebuilds) == MOST_REBUILDS
        assert len([*path.glob(DATA_FILE + DAMAGED + "*")]) == KEPT_FILES
        assert not keeper.may_rebuild()
        strike_branches(path)
        keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)
        with suppress(UnconfinedDamageError):
            keeper.commit(NOW + REBUILD_WINDOW_MS - 1)
        assert len(keeper.rebuilds) == MOST_REBUILDS
        with suppress(UnconfinedDamageError):
            keeper.commit(NOW + REBUILD_WINDOW_MS)
        assert keeper.may_rebuild()
        keeper.abandon()


def test_b4_rebuild_in_a_server_is_described_in_a_bundle(path: Path) -> None:
    with running_namespace(data=path) as namespace:
        strike_branches(path)
        with suppress(UnconfinedDamageError):
            namespace.call(lambda host: host.use_namespace().peek(QUEUE, 0, ALL, host.now_ms()))
        (file,) = eventually(lambda: [*(path / "diagnostics").glob("*-store-rebuild.json")])
        assert json.loads(file.read_text("utf-8"))["reason"].startswith("the damaged data file was rebuilt: ")
