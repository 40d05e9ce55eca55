"""E6: ``repair`` copies every readable message of a damaged directory into a new one, and lists the rest."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from pairbus.broker import Address, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.message import NewMessage
from pairbus.broker.namespace import Namespace
from pairbus.store import NewerFormatError, NotADataDirectoryError, RepairTargetError, StoreInUseError, keys
from pairbus.store.directory import DATA_FILE, FORMAT_FILE, LOCK_FILE
from pairbus.store.errors import DamagedStoreError
from pairbus.store.lmdb import CHECKED_S
from pairbus.store.page_guard import Leaf, PathReader
from pairbus.store.page_nodes import PageSource
from pairbus.store.pages import verify, walk_free_list
from pairbus.store.repair import RepairReport, repair
from tests.durability.namespace import ALL, DEAD_LETTERS, NOW, QUEUE, open_keeper
from tests.waiting import eventually

PAGE = 4096
COUNT = 300
MESSAGES = {
    f"message-{number}": b"%d " % number + bytes((number % 251,)) * (37 * number % 9_001) for number in range(COUNT)
}
SUBSCRIPTION = Address.of("events", "all")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with messages of many sizes, some of which were completed, and other files."""
    path = tmp_path_factory.mktemp("healthy") / "data"
    with open_keeper(path) as keeper:
        namespace = keeper.use_namespace()
        namespace.create_queue("orders", QueueDescription(), NOW)
        namespace.create_topic("events", TopicDescription(), NOW)
        namespace.create_subscription("events", "all", SubscriptionDescription(), NOW)
        for message_id, body in MESSAGES.items():
            namespace.send(QUEUE, [NewMessage(body, message_id), NewMessage(bytes(50), "gone")], NOW)
            if message_id.endswith("0"):
                keeper.commit(NOW)
        namespace.send(Address.of("events"), [NewMessage(b"event", "event")], NOW)
        keeper.commit(NOW)
        for delivery in namespace.receive(QUEUE, ALL, NOW):
            assert delivery.lock_token is not None
            if delivery.record.message_id == "gone":
                namespace.settle(QUEUE, delivery.lock_token, NOW)
        keeper.commit(NOW)
    length = (verify(path / DATA_FILE).last_page + 1) * PAGE
    os.truncate(path / DATA_FILE, length)
    (path / "tls").mkdir()
    (path / "tls" / "ca.pem").write_text("a certificate")
    (path / "pairbus.toml").write_text("name = 'contoso'")
    return path


@pytest.fixture
def damaged(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "damaged"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "repaired"


def overwrite(path: Path, at: int, content: bytes) -> None:
    with (path / DATA_FILE).open("r+b") as file:
        file.seek(at)
        file.write(content)


def zero(path: Path, *pages: int) -> None:
    for page in pages:
        overwrite(path, page * PAGE, bytes(PAGE))


def leaf_of(path: Path, key: bytes) -> Leaf:
    with (path / DATA_FILE).open("rb") as file:
        leaf = PathReader(PageSource(file.fileno(), PAGE), verify(path / DATA_FILE).main).leaf(key)
    assert isinstance(leaf, Leaf)
    return leaf


def found_in(path: Path) -> set[str]:
    """Start a namespace on a repaired directory, and return the messages in its queue; each must have its body."""
    with open_keeper(path) as keeper:
        found = keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)
        for each in found:
            assert MESSAGES[each.record.message_id] == each.body
        assert len(found) == len({each.record.message_id for each in found})
        (event,) = keeper.use_namespace().peek(SUBSCRIPTION, 0, ALL, NOW)
        assert event.body == b"event"
        keeper.use_namespace().send(QUEUE, [NewMessage(b"new", "new")], NOW)
        keeper.commit(NOW)
        assert keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)[-1].body == b"new"
    return {each.record.message_id for each in found}


def test_healthy_directory_is_copied_as_it_is(damaged: Path, target: Path) -> None:
    before = {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()}
    report = repair(damaged, target, NOW)
    assert report.is_complete
    assert found_in(target) == set(MESSAGES)
    assert {path: path.read_bytes() for path in damaged.rglob("*") if path.is_file()} == before
    assert (target / "tls" / "ca.pem").read_text() == "a certificate"
    assert (target / "pairbus.toml").exists()
    assert (target / FORMAT_FILE).read_bytes() == before[damaged / FORMAT_FILE]
    counts = {entity.entity: (entity.copied, len(entity.lost)) for entity in report.entities.values()}
    assert counts == {"orders": (COUNT, 0), "events/Subscriptions/all": (1, 0)}


@pytest.mark.parametrize("record", ["first", "last"])
def test_damaged_body_is_listed_with_its_message_id_and_its_stub_is_left_by_the_server(
    damaged: Path, target: Path, record: str
) -> None:
    message_id = "message-1" if record == "first" else f"message-{COUNT - 1}"
    data = (damaged / DATA_FILE).read_bytes()
    body = MESSAGES[message_id]
    (damaged / DATA_FILE).write_bytes(data.replace(body, b"?" + body[1:]))  # earlier copies, too
    report = repair(damaged, target, NOW)
    ((lost),) = report.lost
    assert (lost.entity, lost.message_id, lost.damaged) == ("orders", message_id, "body")
    assert found_in(target) == MESSAGES.keys() - {message_id}


@pytest.mark.parametrize("number", [1, 2 * COUNT - 1], ids=["first", "last"])
def test_damaged_record_is_listed_with_its_sequence_number(damaged: Path, target: Path, number: int) -> None:
    key = keys.record_key(1, 0, number)
    data = bytearray((damaged / DATA_FILE).read_bytes())
    at = data.find(key)
    while at >= 0:
        data[at + len(key) + 20] ^= 0xFF
        at = data.find(key, at + 1)
    (damaged / DATA_FILE).write_bytes(data)
    report = repair(damaged, target, NOW)
    ((lost),) = report.lost
    assert (lost.entity, lost.sequence, lost.damaged) == ("orders", number, "record")
    assert report.unreferenced_bodies == 1
    assert len(found_in(target)) == COUNT - 1
    assert stubs_in(target) == [number]


def tidy(namespace: Namespace) -> None:
    while namespace.tidy(NOW):
        pass


def stubs_in(path: Path) -> list[int]:
    """Start a namespace, let its background work end, and return the numbers of the messages that have stubs."""
    with open_keeper(path) as keeper:
        tidy(keeper.use_namespace())
        return [stub.record.original_sequence for stub in keeper.use_namespace().peek(DEAD_LETTERS, 0, ALL, NOW)]


def lose(path: Path, numbers: Iterable[int]) -> None:
    """Overwrite the bodies of messages, and all earlier copies of them."""
    data = (path / DATA_FILE).read_bytes()
    for number in numbers:
        body = MESSAGES[f"message-{number}"]
        data = data.replace(body, b"?" + body[1:])
    (path / DATA_FILE).write_bytes(data)


def test_lost_messages_get_their_stubs_in_the_background_once_whenever_the_process_is_killed(
    damaged: Path, target: Path
) -> None:
    numbers = range(100, 160)
    lose(damaged, numbers)
    lost = sorted(message.sequence for message in repair(damaged, target, NOW).lost)
    assert lost == [2 * number + 1 for number in numbers]
    done = 0
    for steps in (0, 25, 15):
        keeper = open_keeper(target)
        namespace = keeper.use_namespace()
        info = namespace.entity(QUEUE, NOW)
        assert (info.active_count, info.dead_letter_count) == (COUNT - len(lost), done)
        namespace.tidy(NOW, steps)
        keeper.commit(NOW)
        done += steps
        namespace.tidy(NOW, 5)
        keeper.abandon()  # as a kill does, before the next commit
    assert stubs_in(target) == lost
    assert found_in(target) == MESSAGES.keys() - {f"message-{number}" for number in numbers}


def test_repair_of_a_repaired_directory_finds_nothing_new(damaged: Path, target: Path, tmp_path: Path) -> None:
    lose(damaged, range(100, 105))
    lost = repair(damaged, target, NOW).lost
    assert len(lost) == 5
    again = repair(target, tmp_path / "again", NOW)
    assert again.is_complete
    assert (again.lost, again.quarantined) == ([], lost)
    assert stubs_in(tmp_path / "again") == [message.sequence for message in lost]


def test_message_that_was_quarantined_before_keeps_its_one_stub_and_is_listed(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "served"
    with open_keeper(path) as keeper:
        namespace = keeper.use_namespace()
        namespace.create_queue("orders", QueueDescription(), NOW)
        for number in range(1, 202):
            namespace.send(QUEUE, [NewMessage(b"body %03d" % number + bytes(3_000), str(number))], NOW)
            keeper.commit(NOW)
        sent_s = time.monotonic()
        eventually(lambda: time.monotonic() > sent_s + CHECKED_S)  # until then, pages that were checked count as sound
        data = (path / DATA_FILE).read_bytes()
        overwrite(path, data.index(b"body 201"), b"?" * 100)
        overwrite(path, data.index(b"body 106") // PAGE * PAGE, b"?" * PAGE)
        assert len(namespace.peek(QUEUE, 0, ALL, NOW)) == 199
        keeper.commit(NOW)
        assert len(namespace.peek(DEAD_LETTERS, 0, ALL, NOW)) == 2
    report = repair(path, target, NOW)
    assert report.lost == []
    assert [(each.sequence, each.message_id) for each in report.quarantined] == [(106, "106"), (201, "201")]
    assert sorted(stubs_in(target)) == [106, 201]
    with open_keeper(target) as keeper:
        assert len(keeper.use_namespace().peek(QUEUE, 0, ALL, NOW)) == 199
    again = repair(target, tmp_path / "again", NOW)
    assert again.is_complete
    assert again.quarantined == report.quarantined


def one_meta(path: Path) -> None:
    zero(path, verify(path / DATA_FILE).page)


def both_metas(path: Path) -> None:
    zero(path, 0, 1)


def root(path: Path) -> None:
    zero(path, verify(path / DATA_FILE).main.root)


def free_list(path: Path) -> None:
    zero(path, verify(path / DATA_FILE).free.root)


def header_of_a_leaf(path: Path) -> None:
    overwrite(path, leaf_of(path, keys.record_key(1, 0, 200)).page * PAGE, b"\xa5" * 16)


def header_of_a_leaf_of_bodies(path: Path) -> None:
    overwrite(path, leaf_of(path, keys.body_key(200)).page * PAGE, b"\xa5" * 16)


def end_of_the_file(path: Path) -> None:
    os.truncate(path / DATA_FILE, verify(path / DATA_FILE).last_page * PAGE)


@pytest.mark.parametrize(
    "damage",
    [
        one_meta,
        both_metas,
        root,
        free_list,
        header_of_a_leaf,
        header_of_a_leaf_of_bodies,
        end_of_the_file,
    ],
    ids=lambda damage: damage.__name__,
)
def test_every_message_is_recovered_if_only_the_pages_that_lead_to_them_are_damaged(
    damaged: Path, target: Path, damage: Callable[[Path], None]
) -> None:
    damage(damaged)
    with pytest.raises(DamagedStoreError, match=f"pairbus repair --data {damaged} --to"):
        open_keeper(damaged)
    report = repair(damaged, target, NOW)
    assert report.damaged_pages
    assert not report.is_complete
    assert found_in(target) == set(MESSAGES)
    assert report.lost == []


@pytest.mark.parametrize("key", [keys.record_key(1, 0, 200), keys.body_key(200)], ids=["records", "bodies"])
def test_every_message_of_a_leaf_is_recovered_if_its_header_and_all_that_leads_to_it_is_damaged(
    damaged: Path, target: Path, key: bytes
) -> None:
    meta, leaf = verify(damaged / DATA_FILE), leaf_of(damaged, key).page
    with (damaged / DATA_FILE).open("rb") as file:
        free = walk_free_list(damaged / DATA_FILE, file.fileno(), meta)
    zero(damaged, meta.main.root, *free)  # the free pages have earlier copies
    overwrite(damaged, leaf * PAGE, b"\xa5" * 16)
    assert repair(damaged, target, NOW).lost == []
    assert found_in(target) == set(MESSAGES)


def test_truncated_file_yields_what_is_left(damaged: Path, target: Path) -> None:
    os.truncate(damaged / DATA_FILE, verify(damaged / DATA_FILE).last_page * PAGE // 2)
    report = repair(damaged, target, NOW)
    assert report.damaged_pages
    with open_keeper(target) as keeper:
        queues = keeper.use_namespace().queues(NOW)
        found = [each for queue in queues for each in keeper.use_namespace().peek(Address.of(queue.path), 0, ALL, NOW)]
    for each in found:
        assert each.record.message_id not in MESSAGES or MESSAGES[each.record.message_id] == each.body
    assert sum(entity.copied for entity in report.entities.values()) == len(found)


def test_lost_entity_is_replaced_by_a_queue_with_its_messages(damaged: Path, target: Path) -> None:
    data = bytearray((damaged / DATA_FILE).read_bytes())
    key = keys.entity_key(1)
    at = data.find(key)
    while at >= 0:
        data[at + len(key) + 8] ^= 0xFF
        at = data.find(key, at + 1)
    (damaged / DATA_FILE).write_bytes(data)
    report = repair(damaged, target, NOW)
    assert report.renamed == ["recovered-1"]
    with open_keeper(target) as keeper:
        found = keeper.use_namespace().peek(Address.of("recovered-1"), 0, ALL, NOW)
    assert {each.record.message_id for each in found} == set(MESSAGES)


def test_directory_in_use_is_refused(damaged: Path, target: Path) -> None:
    with open_keeper(damaged), pytest.raises(StoreInUseError):
        repair(damaged, target, NOW)
    assert not target.exists()
    (damaged / LOCK_FILE).unlink()
    assert repair(damaged, target, NOW).is_complete


def refused(source: Path, target: Path) -> Exception:
    with pytest.raises((RepairTargetError, NotADataDirectoryError, NewerFormatError)) as caught:
        repair(source, target, NOW)
    return caught.value


def test_target_that_is_not_empty_is_refused(damaged: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("important")
    assert "not empty" in str(refused(damaged, tmp_path / "full"))
    assert "it is a file" in str(refused(damaged, tmp_path / "full" / "file"))
    for target in (damaged, damaged / "inside", tmp_path):
        assert "the directory to repair" in str(refused(damaged, target))
    assert (tmp_path / "full" / "file").read_text() == "important"


def test_source_that_is_no_data_directory_or_newer_is_refused(damaged: Path, tmp_path: Path, target: Path) -> None:
    assert isinstance(refused(tmp_path, target), NotADataDirectoryError)
    (damaged / FORMAT_FILE).write_text('{"format": 99, "created_ms": 1}')
    assert isinstance(refused(damaged, target), NewerFormatError)
    assert not target.exists()


def test_damaged_format_file_is_replaced(damaged: Path, target: Path) -> None:
    (damaged / FORMAT_FILE).write_text("?")
    report: RepairReport = repair(damaged, target, NOW)
    assert report.is_complete
    assert found_in(target) == set(MESSAGES)


def test_interrupted_repair_leaves_a_directory_that_is_refused(damaged: Path, target: Path) -> None:
    repair(damaged, target, NOW)
    (target / FORMAT_FILE).unlink()
    with pytest.raises((DamagedStoreError, NotADataDirectoryError)):
        open_keeper(target)
