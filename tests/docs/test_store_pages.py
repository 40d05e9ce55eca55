"""The pages on guarantees and the disk say what is true: layouts and figures are the code's, damage is tried."""

from __future__ import annotations

import json
import os
import re
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pairbus.broker import (
    MISSING,
    Address,
    Missing,
    Namespace,
    NewMessage,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    Value,
)
from pairbus.broker.namespace import DUE_AT_ONCE
from pairbus.server.audit import audit_file
from pairbus.store import (
    DamagedStoreError,
    GroupCommitter,
    LmdbStore,
    MemoryStore,
    NewerFormatError,
    NotADataDirectoryError,
    StoreFailedError,
    StoreInUseError,
    UnsupportedSystemError,
    datafile,
    directory,
    keys,
    lmdb,
    page_nodes,
    records,
    write_batch,
)
from pairbus.store.certificate import open_certificate
from pairbus.store.rotating_log import RotatingLog
from tests.docs.snippets import ROOT, run_snippets
from tests.docs.tables import code, rows_of

LAYOUT = ROOT / "docs" / "explanation" / "disk-layout.md"
GUARANTEES = ROOT / "docs" / "explanation" / "guarantees.md"
OPERATE = ROOT / "docs" / "how-to" / "operate.md"
TEXT = LAYOUT.read_text(encoding="utf-8")
PROSE = " ".join(TEXT.split())
NOW = 1_700_000_000_000
ORDERS = Address.of("orders")
TALKS = Address.of("talks")
EVENTS = Address.of("events")
LARGE = Address.of("events", "large")


class View:
    def user(self, _name: str) -> Value | Missing:
        return MISSING

    def system(self, _name: str) -> Value:
        return None


def make_namespace(records: Any) -> Namespace:
    return Namespace(records, view=lambda _: View(), fresh_id=uuid4, fresh_token=lambda: uuid4().bytes)


def test_table_of_keys_has_every_kind() -> None:
    rows = rows_of(LAYOUT, "first byte", "rest of the key", "value")
    kinds = [value for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes)]
    assert sorted(row[0] for row in rows) == sorted(f"`{kind.decode()}`" for kind in kinds)
    assert len(kinds) == len({*kinds})


def test_table_of_a_record_is_its_layout() -> None:
    sizes = [int(size) for _, size in rows_of(LAYOUT, "field", "bytes")]
    form = records._MESSAGE.format
    assert sizes == [struct.calcsize(">" + character) for character in form[1:]]
    assert f"These {sum(sizes)} bytes are followed by" in PROSE
    assert records.VERSION == 1


def test_message_takes_the_documented_space() -> None:
    record_key, body_key = keys.record_key(1, 0, 1), keys.body_key(1)
    assert f"two keys of {len(record_key)} and {len(body_key)} bytes" in PROSE
    assert f"two checksums of {page_nodes.CHECKSUM_BYTES} bytes" in PROSE
    page_bytes = lmdb._RECORD_BYTES - page_nodes.CHECKSUM_BYTES
    assert f"{page_bytes} bytes for each in LMDB's pages" in PROSE
    total = len(record_key) + len(body_key) + 2 * lmdb._RECORD_BYTES + records._HEAD
    assert f"a message in a queue takes {total} bytes in two records" in PROSE


def test_documented_free_space_matches_the_code() -> None:
    figures = [figure for _, figure in rows_of(LAYOUT, "what", "how much")]
    assert figures == [
        f"{lmdb._STEP_BYTES >> 20} MiB",
        f"{datafile._KEPT_BACK_BYTES >> 20} MiB",
        f"{write_batch.RESERVE_BYTES >> 20} MiB",
        f"{write_batch._PER_WRITE_BYTES:,} bytes",
        f"{write_batch._PER_RECORD_BYTES:,} bytes",
        f"{lmdb.DEFAULT_MAX_BYTES >> 40} TiB",
    ]
    assert f"more than {keys._LONGEST_TEXT} bytes in UTF-8" in PROSE
    assert f"{DUE_AT_ONCE:,} due things" in " ".join(GUARANTEES.read_text(encoding="utf-8").split())


def test_data_directory_has_the_documented_files(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    GroupCommitter.open(path, make_namespace, NOW).close()
    open_certificate(path, [], NOW)
    RotatingLog(audit_file(path), 1, 1).append([b"{}"])
    tree = TEXT.split("```")[1]
    assert sorted(os.listdir(path)) == sorted(re.findall("^[├└]── ([^\\s/]+)", tree, re.MULTILINE))
    for name in os.listdir(path / "tls"):
        assert f"`{name}`" in TEXT or name == "server-key.pem"
    said = (path / "format").read_text(encoding="utf-8")
    assert json.loads(said) == {"format": directory.FORMAT_VERSION, "created_ms": NOW}
    assert said.replace(str(NOW), "…").strip() in tree
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_damaged_newer_or_foreign_file_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "shop"
    GroupCommitter.open(path, make_namespace, NOW).close()
    for name, content, error in (
        ("format", b'{"format": 2, "created_ms": 0}', NewerFormatError),
        ("format", b"{}", DamagedStoreError),
        ("data.mdb", b"too short", DamagedStoreError),
    ):
        file = path / name
        before = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(error):
            GroupCommitter.open(path, make_namespace, NOW)
        assert file.read_bytes() == content
        file.write_bytes(before)
    (path / "format").unlink()
    (path / "holiday.jpg").touch()
    with pytest.raises(NotADataDirectoryError):
        GroupCommitter.open(path, make_namespace, NOW)


def test_data_directory_takes_the_documented_space(tmp_path: Path) -> None:
    with GroupCommitter.open(tmp_path / "shop", make_namespace, NOW) as keeper:
        file = tmp_path / "shop" / "data.mdb"
        first = file.stat().st_size >> 20
        keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
        keeper.commit(NOW)
        then = file.stat().st_size >> 20
    for page in (LAYOUT, OPERATE, ROOT / "README.md"):
        said = re.search(
            r"(\d+) MiB (?:at first|when it is made) and (\d+) MiB", " ".join(page.read_text("utf-8").split())
        )
        assert said is not None, page.name
        assert (int(said[1]), int(said[2])) == (first, then)


def test_quarantined_records_are_listed_as_documented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shop"
    with GroupCommitter.open(path, make_namespace, NOW) as keeper:
        keeper.use_namespace().create_queue("orders", QueueDescription(), NOW)
        keeper.use_namespace().send(ORDERS, [NewMessage(b"1")], NOW)
    page = run_snippets(OPERATE)
    page["print_set_aside"](path)
    assert capsys.readouterr().out == ""
    key = keys.record_key(1, 0, 1)
    store = LmdbStore(path / "data.mdb")
    store.prepare({key: b"\xff of an unknown version"}).run()
    store.close()
    with GroupCommitter.open(path, make_namespace, NOW) as keeper:
        assert keeper.recovery.damaged == [key]
        with pytest.raises(StoreInUseError):
            page["print_set_aside"](path)
    page["print_set_aside"](path)
    assert capsys.readouterr().out == f"message, key {key.hex()}, 23 bytes\n"


def test_list_has_every_kind_of_quarantined_record() -> None:
    kinds = {value for name, value in vars(keys).items() if name.isupper() and isinstance(value, bytes)}
    never = {keys.ENTITY, keys.ASIDE, keys.OUTBOX, keys.LOST}  # what is in the outbox is a copy
    assert run_snippets(OPERATE)["KINDS"].keys() == kinds - never


def test_table_of_the_start_has_every_error_of_opening() -> None:
    listed = {code(row[0]) for row in rows_of(OPERATE, "error", "what it means", "what to do") if row[0].endswith("`")}
    raised = {DamagedStoreError, NewerFormatError, NotADataDirectoryError, StoreFailedError, StoreInUseError}
    assert listed == {kind.__name__ for kind in (*raised, UnsupportedSystemError)}
    said = f"{directory.DataDirectory.open.__doc__} {LmdbStore.__doc__}"
    assert {*re.findall(r"\w+Error", said)} == {kind.__name__ for kind in raised}


# What is damaged, and what happens.


class Damaged:
    """A namespace with a bit of everything, in which one record is found damaged at a restart."""

    def __init__(self, kind: bytes, pick: int = 0) -> None:
        self.store = MemoryStore()
        keeper = GroupCommitter(self.store, make_namespace, NOW)
        keeper.use_namespace().create_queue("orders", QueueDescription(requires_duplicate_detection=True), NOW)
        keeper.use_namespace().create_queue("talks", QueueDescription(requires_session=True), NOW)
        keeper.use_namespace().create_topic("events", TopicDescription(), NOW)
        keeper.use_namespace().create_subscription("events", "large", SubscriptionDescription(), NOW)
        keeper.use_namespace().send(ORDERS, [NewMessage(b"1", "1"), NewMessage(b"2", "2")], NOW)
        keeper.use_namespace().send(EVENTS, [NewMessage(b"3", "3")], NOW)
        grant = keeper.use_namespace().accept_session(TALKS, "a", NOW)
        assert grant is not None
        keeper.use_namespace().set_session_state(TALKS, grant.session_token, b"state", NOW)
        keeper.commit(NOW)
        found = [key for key, _ in self.store.scan(kind, keys.after(kind))]
        self.key = found[pick]
        self.store.damage(self.key)
        self.keeper = GroupCommitter(self.store, make_namespace, NOW)
        self.namespace = self.keeper.use_namespace()

    @property
    def is_set_aside(self) -> bool:
        self.keeper.commit(NOW)
        return self.store.get(keys.aside_key(self.key)) is not None and self.store.get(self.key) is None

    def bodies(self, address: Address) -> list[bytes]:
        return [delivery.body for delivery in self.namespace.receive(address, 10, NOW)]


def a_record() -> None:
    damaged = Damaged(keys.RECORD)
    assert damaged.keeper.recovery.damaged == [damaged.key]
    assert damaged.bodies(ORDERS) == [b"2"]
    assert damaged.is_set_aside


def a_body() -> None:
    damaged = Damaged(keys.BODY)
    assert damaged.keeper.recovery.damaged == []
    assert damaged.bodies(ORDERS) == [b"2"]
    assert damaged.keeper.damaged == [keys.record_key(1, 0, 1)]
    damaged.keeper.commit(NOW)
    assert damaged.store.get(keys.aside_key(keys.record_key(1, 0, 1))) is not None


def an_entity() -> None:
    damaged = Damaged(keys.ENTITY)
    assert [info.path for info in damaged.namespace.queues(NOW)] == ["talks"]
    assert damaged.bodies(LARGE) == [b"3"]
    untouched(damaged)


def a_topic() -> None:
    damaged = Damaged(keys.ENTITY, pick=2)
    assert damaged.namespace.topics(NOW) == []
    untouched(damaged)


def untouched(damaged: Damaged) -> None:
    before = dict(damaged.store._values)
    while damaged.namespace.tidy(NOW):
        pass
    damaged.keeper.commit(NOW)
    assert damaged.key in damaged.store._values
    assert {key for key in before if key[:1] == keys.RECORD} <= damaged.store._values.keys()


def a_rule() -> None:
    damaged = Damaged(keys.RULE)
    assert damaged.namespace.rules("events", "large", 0) == []
    assert damaged.is_set_aside


def a_session_state() -> None:
    damaged = Damaged(keys.SESSION)
    grant = damaged.namespace.accept_session(TALKS, "a", NOW)
    assert grant is not None
    assert damaged.namespace.session_state(TALKS, grant.session_token, NOW) is None
    assert damaged.is_set_aside


def a_duplicate() -> None:
    damaged = Damaged(keys.DUPLICATE)
    assert damaged.is_set_aside
    assert damaged.namespace.send(ORDERS, [NewMessage(b"1", "1"), NewMessage(b"2", "2")], NOW) == [3, None]


def a_counter() -> None:
    damaged = Damaged(keys.SEQUENCE)
    assert damaged.namespace.send(ORDERS, [NewMessage(b"4", "4")], NOW) == [3]


DAMAGE: dict[str, Callable[[], None] | None] = {
    "the record of a message": a_record,
    "the body of a message": a_body,
    "an entity": an_entity,
    "a topic": a_topic,
    "a rule": a_rule,
    "the state of a session": a_session_state,
    "an id of the duplicate history": a_duplicate,
    "a counter": a_counter,
    "a page of the file, or its length, at the start": None,  # tried above, with files
    "a leaf page of the file while it is open": None,  # tests/server/test_e6_scrubbing.py
    "a branch page, or many pages, while it is open": None,  # tests/durability/test_rebuild.py, test_live_damage.py
    "a meta page, the root or the free list while it is open": None,
    "the file `format`": None,
}


def test_table_of_damage_is_tried_row_by_row() -> None:
    assert [row[0] for row in rows_of(GUARANTEES, "what is damaged", "what happens")] == list(DAMAGE)


@pytest.mark.parametrize("damage", [check for check in DAMAGE.values() if check], ids=lambda check: check.__name__)
def test_damage_has_the_documented_effect(damage: Callable[[], None]) -> None:
    damage()
