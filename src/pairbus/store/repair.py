"""Repair of a damaged data directory: every readable record is copied into a new one."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pairbus.broker.descriptions import EntityRecord, QueueDescription
from pairbus.broker.message import QueueId
from pairbus.broker.queue import PARTITION_SHIFT
from pairbus.durable import OURS_ALONE, make_directory, sync_directory, try_lock
from pairbus.store import keys
from pairbus.store.datafile import disk_errors_as_store_errors
from pairbus.store.directory import DATA_FILE, FORMAT_FILE, LOCK_FILE, read_format, write_format
from pairbus.store.errors import DamagedStoreError, NotADataDirectoryError, RepairTargetError, StoreInUseError
from pairbus.store.keyvalue import apply, put_back_moved
from pairbus.store.lmdb import LmdbStore
from pairbus.store.page_nodes import LostPage, PageNode
from pairbus.store.records import (
    RecordFormatError,
    decode_entity,
    decode_number,
    decode_record,
    encode_entity,
    encode_number,
)
from pairbus.store.salvage import DamagedFile
from pairbus.store.write_batch import LAST_BODY

_BATCH_RECORDS: Final = 1_000
_BATCH_BYTES: Final = 4 << 20
_NOT_COPIED: Final = frozenset({DATA_FILE, FORMAT_FILE, FORMAT_FILE + ".new", LOCK_FILE})
"""Files of a data directory that the new one has of its own; besides, incomplete and replaced data files."""

_REPLACEABLE: Final = (keys.ENTITY, keys.RULE, keys.ACCESS, keys.SEQUENCE, keys.COUNTER, keys.RECORD)
"""Kinds of records of which an earlier version is better than none. An earlier session state would be a wrong one."""

_SEQUENCE_BYTES: Final = 8

RECOVERED: Final = "recovered-"
"""Begin of the names of queues that replace lost entities; their id follows."""

PARTS: Final = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostMessage:
    """A message that could not be copied."""

    entity: str
    sequence: int
    message_id: str = ""
    """Empty if it is unknown."""

    damaged: str
    """The part of it that is damaged: its record or its body."""


@dataclass(slots=True, kw_only=True)
class EntityRepair:
    """Numbers of copied and lost messages of a queue or subscription; dead letters are counted separately."""

    entity: str
    copied: int = 0
    restored: int = 0
    """Number of copied messages that were found outside the damaged tree, or of which only an earlier copy was left."""

    lost: list[LostMessage] = field(default_factory=list)
    quarantined: list[LostMessage] = field(default_factory=list)
    """Messages that were lost before this repair, and are still: each has a stub, or gets it at the next start."""


@dataclass(slots=True, kw_only=True)
class RepairReport:
    """The result of a repair."""

    entities: dict[QueueId, EntityRepair] = field(default_factory=dict)
    records: int = 0
    """Number of records of all kinds that were copied."""

    damaged: list[bytes] = field(default_factory=list)
    """Keys of damaged records other than messages and bodies, of which there is no other copy."""

    damaged_pages: list[LostPage] = field(default_factory=list)
    renamed: list[str] = field(default_factory=list)
    """Queues that replace entities whose own record, with their name and settings, is lost."""

    unreferenced_bodies: int = 0
    """Number of bodies whose record is lost; they are quarantined in the new directory."""

    @property
    def lost(self) -> list[LostMessage]:
        return [message for each in self.entities.values() for message in each.lost]

    @property
    def quarantined(self) -> list[LostMessage]:
        """Return the messages that were lost before this repair, and are still."""
        return [message for each in self.entities.values() for message in each.quarantined]

    @property
    def is_complete(self) -> bool:
        """Return whether nothing is known to be lost, besides what was lost before."""
        return not (self.lost or self.damaged or self.damaged_pages or self.renamed or self.unreferenced_bodies)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownState:
    """The records of a store as the memory of its running namespace has them."""

    messages: Mapping[QueueId, Iterable[int]]
    """The sequence numbers of the messages of every queue, uncommitted changes included."""

    uncommitted: Mapping[bytes, bytes | None]
    """The writes that no commit has."""

    counters: Mapping[bytes, int]
    """Records that are numbers, and that must not be lower than these: they keep numbers from being used again."""

    settings: Mapping[bytes, bytes]
    """Entities, rules and keys: what of these is lost is written again."""


def repair(source: Path, target: Path, now_ms: int) -> RepairReport:
    """Copy everything that can be read from one data directory into another, which is created; return what was lost.

    The source is never changed. The format file of the target is written last: a target whose creation was interrupted
    is refused by the server. Raises ``StoreInUseError``, ``RepairTargetError``, ``NotADataDirectoryError``,
    ``NewerFormatError``, ``StoreFullError`` or ``StoreFailedError``.
    """
    source, target = source.resolve(), target.resolve()
    with disk_errors_as_store_errors(source):
        created_ms = _check_source(source, now_ms)
        _check_target(source, target)
        with _locked(source) as descriptor:
            make_directory(target, OURS_ALONE)
            _copy_other_files(source, target)
            store = LmdbStore(target / DATA_FILE)
            try:
                report = Repair(DamagedFile(source / DATA_FILE, descriptor), store, now_ms).run()
            finally:
                store.close()
            write_format(target, created_ms)
    return report


def _check_source(path: Path, now_ms: int) -> int:
    """Return the time at which a data directory was created, as far as that can be read."""
    if not (path / DATA_FILE).is_file():
        raise NotADataDirectoryError(path, f"it has no file {DATA_FILE!r}")
    try:
        return read_format(path, path / FORMAT_FILE)
    except (DamagedStoreError, FileNotFoundError):
        return now_ms


def _check_target(source: Path, target: Path) -> None:
    if target.is_relative_to(source) or source.is_relative_to(target):
        raise RepairTargetError(target, "it is, or is in, or holds the directory to repair")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RepairTargetError(target, "it is not empty" if target.is_dir() else "it is a file")


@contextmanager
def _locked(source: Path) -> Iterator[int]:
    """Open the data file for reading, and keep servers away; the locks write nothing."""
    descriptors = [os.open(source / DATA_FILE, os.O_RDONLY | os.O_CLOEXEC)]
    try:
        if (source / LOCK_FILE).exists():
            descriptors.append(os.open(source / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC))
        if not all(map(try_lock, descriptors)):
            raise StoreInUseError(source, None)
        yield descriptors[0]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _copy_other_files(source: Path, target: Path) -> None:
    """Copy the certificates, and whatever else there is: a side buffer, a ledger, a settings file."""
    for entry in sorted(source.iterdir()):
        if entry.name in _NOT_COPIED or entry.name.startswith(DATA_FILE + "."):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, target / entry.name, symlinks=True)
        elif entry.is_file() or entry.is_symlink():
            shutil.copy2(entry, target / entry.name, follow_symlinks=False)
    for folder, _, names in os.walk(target):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        sync_directory(Path(folder))


class _Target:
    """Collects records, and writes them in batches."""

    def __init__(self, store: LmdbStore) -> None:
        self.store = store
        store.is_copy = True
        self._batch: dict[bytes, bytes | None] = {}
        self._size = 0

    def put(self, key: bytes, value: bytes | None) -> None:
        self._batch[key] = value
        self._size += 0 if value is None else len(value)
        if len(self._batch) >= _BATCH_RECORDS or self._size >= _BATCH_BYTES:
            self.flush()

    def get(self, key: bytes) -> bytes | None:
        return self._batch[key] if key in self._batch else self.store.get(key)

    def flush(self) -> None:
        apply(self.store, self._batch)
        self._batch = {}
        self._size = 0

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.flush()
        return self.store.scan(prefix, keys.after(prefix))


class Repair:
    """One repair: first what the tree of the newest state leads to, then what is missing, from all other pages."""

    def __init__(self, file: DamagedFile, store: LmdbStore, now_ms: int, known: KnownState | None = None) -> None:
        self._now_ms = now_ms
        self._file = file
        self._target = _Target(store)
        self._report = RepairReport()
        self._damaged: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        """Messages whose records were in damaged pages."""

        self._restored: set[bytes] = set()
        self._uncertain: set[bytes] = set()
        """Messages whose record and body are both lost: earlier copies do not tell whether they were removed since."""

        self._bodies: set[int] = set()
        """Ids of the bodies that the target has."""

        self._known = known
        self._removed_bodies: set[int] = set()
        """Ids of the bodies of messages that were removed, as is known."""

    def run(self) -> RepairReport:
        self._copy_tree()
        put_back_moved(self._target.store)
        self._note_bodies()
        self._drop_remains()
        quarantined = self._quarantined()
        if self._file.lost_pages or self._damaged or quarantined or self._file.is_newest_lost:
            self._restore_records(quarantined)
        if self._known is not None:
            self._apply(self._known)
        self._restore_bodies(self._missing_bodies(quarantined))
        self._finish(quarantined)
        return self._report

    def _quarantined(self) -> set[bytes]:
        """Return the keys of quarantined messages. A running namespace has left stubs of them, so they stay there."""
        if self._known is not None:
            return set()
        return {key[1:] for key, _ in self._target.scan(keys.ASIDE) if key.startswith(keys.ASIDE + keys.RECORD)}

    def _copy_tree(self) -> None:
        file, target = self._file, self._target
        for node in file.records():
            value = node.value
            if value is None:
                if keys.is_plausible(node.key):
                    self._damaged.add(node.key)
            elif not file.lost_pages or target.get(node.key) is None:
                target.put(node.key, value)
                if node.key.startswith(keys.RECORD) and not file.is_sound(node.page):
                    self._doubtful.add(node.key)
        target.flush()
        self._damaged = {key for key in self._damaged if target.get(key) is None}
        self._report.damaged_pages = file.lost_pages

    def _note_bodies(self) -> None:
        self._bodies = {keys.split_body(key) for key, _ in self._target.scan(keys.BODY)}

    def _drop_remains(self) -> None:
        """Drop messages of damaged pages that were removed earlier: their bodies were removed with them."""
        for key in self._doubtful:
            body_key = keys.body_key(_body_of(key, self._target.get(key)) or 0)
            if keys.split_body(body_key) in self._bodies or body_key in self._damaged:
                continue
            if self._is_lost(body_key):
                self._uncertain.add(key)
            else:
                self._target.put(key, None)
        self._target.flush()

    # What the tree does not lead to

    def _restore_records(self, quarantined: set[bytes]) -> None:
        """Look for all records but bodies in the other pages.

        A page that is not free belonged to the lost part of the tree: its records are as good as any. An outdated one
        of a message counts only if the message was not removed since: then its body would have been removed as well.
        """
        last_body = self._last_body()
        outdated: dict[bytes, PageNode] = {}
        for node, may_be_outdated in self._file.loose_records():
            key = node.key
            if not keys.is_plausible(key):
                continue
            if not may_be_outdated and self._is_lost(key):
                self._take(node)
            elif key.startswith(_REPLACEABLE) and (
                key in self._damaged or key in quarantined or self._is_lost(key) or self._is_newer(node, last_body)
            ):
                outdated[key] = _newer(outdated.get(key), node)
        for key, node in outdated.items():
            if key in self._damaged or key in quarantined or self._is_newer(node, last_body):
                self._take(node)
            elif self._file.has_all_leaves:
                continue
            elif not key.startswith(keys.RECORD) or self._has_body(node):
                self._take(node)
            elif self._is_lost(keys.body_key(_body_of(key, node.value) or 0)):
                self._take(node)
                self._uncertain.add(key)
        self._target.flush()

    def _take(self, node: PageNode) -> None:
        value = node.value
        if value is not None and self._target.get(node.key) is None:
            self._target.put(node.key, value)
            self._damaged.discard(node.key)
            self._restored.add(node.key)
            if node.key.startswith(keys.BODY):
                self._bodies.add(keys.split_body(node.key))

    def _is_lost(self, key: bytes) -> bool:
        return any(page.covers(key) for page in self._file.lost_pages)

    def _is_newer(self, node: PageNode, last_body: int) -> bool:
        """Return whether a message was stored by a commit whose meta page is lost."""
        if not self._file.is_newest_lost or not node.key.startswith(keys.RECORD):
            return False
        body_id = _body_of(node.key, node.value)
        return body_id is not None and body_id > last_body

    def _last_body(self) -> int:
        return self._number(LAST_BODY)

    def _has_body(self, node: PageNode) -> bool:
        return _body_of(node.key, node.value) in self._bodies

    def _missing_bodies(self, quarantined: set[bytes]) -> dict[int, list[bytes]]:
        """Return the ids of missing bodies, each with the keys of the messages that refer to it."""
        missing: dict[int, list[bytes]] = defaultdict(list)
        for key, value in self._target.scan(keys.RECORD):
            body_id = _body_of(key, value)
            if body_id is not None and body_id not in self._bodies:
                missing[body_id].append(key)
        for key in quarantined:
            body_id = _body_of(key, self._target.get(keys.aside_key(key)))
            if body_id is not None and body_id not in self._bodies:
                missing[body_id].append(key)
        return missing

    def _restore_bodies(self, missing: dict[int, list[bytes]]) -> None:
        """Look for the bodies of messages in the other pages: a body never changes, so that every copy is the right
        one.
        """
        if not missing:
            return
        for node, _ in self._file.loose_records():
            if node.key.startswith(keys.BODY) and keys.is_plausible(node.key):
                body_id = keys.split_body(node.key)
                if body_id in missing and body_id not in self._bodies:
                    self._take(node)
                    self._restored.update(missing[body_id])
        for body_id in missing.keys() - self._bodies:
            for key in self._uncertain.intersection(missing[body_id]):
                self._target.put(key, None)
        self._target.flush()

    # What a running namespace knows

    def _apply(self, known: KnownState) -> None:
        """Make the target agree with the memory of the namespace about which messages and entities there are."""
        for place, sequences in known.messages.items():
            self._apply_messages(place, self._committed(place, sequences, known))
        for key, value in known.settings.items():
            if self._target.get(key) is None and (key in self._damaged or self._is_lost(key)):
                self._target.put(key, value)
                self._damaged.discard(key)
        for key, number in known.counters.items():
            if number > self._number(key):
                self._target.put(key, encode_number(number))
            self._damaged.discard(key)
        self._target.flush()

    def _committed(self, place: QueueId, sequences: Iterable[int], known: KnownState) -> set[int]:
        """Return which messages of a queue were there at the last commit."""
        removed = {
            message[1]
            for key, value in known.uncommitted.items()
            if value is None and (message := keys.split_record(key)) is not None and message[0] == place
        }
        found = {*sequences, *removed}
        newest: dict[int, int | None] = {}
        for partition in {sequence >> PARTITION_SHIFT for sequence in found}:
            key = keys.sequence_key(place.entity_id, place.part, partition)
            is_certain = key not in self._restored and self._target.get(key) is not None
            newest[partition] = self._number(key) if is_certain else None

        def is_committed(sequence: int) -> bool:
            last = newest[sequence >> PARTITION_SHIFT]
            if last is not None:
                return sequence <= last
            return sequence in removed or keys.record_key(*place, sequence) not in known.uncommitted

        return {*filter(is_committed, found)}

    def _apply_messages(self, place: QueueId, committed: set[int]) -> None:
        prefix = keys.record_key(*place, 0)[:-_SEQUENCE_BYTES]
        for key, value in [*self._target.scan(prefix)]:
            sequence = keys.sequence_of(key)
            if sequence in committed:
                committed.discard(sequence)
            else:
                self._removed_bodies.add(_body_of(key, value) or 0)
                self._target.put(key, None)
        self._damaged = {key for key in self._damaged if not key.startswith(prefix)}
        self._uncertain = {key for key in self._uncertain if not key.startswith(prefix)}
        self._damaged.update(keys.record_key(*place, sequence) for sequence in committed)

    def _number(self, key: bytes) -> int:
        value = self._target.get(key)
        try:
            return 0 if value is None else decode_number(value)
        except RecordFormatError:
            return 0

    # The result

    def _finish(self, quarantined: set[bytes]) -> None:
        self._replace_lost_entities()
        entities = self._entities()
        for key in sorted(quarantined):
            if not self._release(key):
                self._report_quarantined(key, self._target.get(keys.aside_key(key)), entities)
        self._report_without_stub(entities)
        for key in sorted(self._damaged):
            self._report_damaged(key, entities)
        used = self._count_messages(entities)
        for body_id in sorted(self._bodies - used):
            key = keys.body_key(body_id)
            if body_id not in self._removed_bodies:
                self._target.put(keys.aside_key(key), self._target.get(key))
                self._report.unreferenced_bodies += 1
            self._target.put(key, None)
        self._target.flush()
        self._report.records = sum(1 for _ in self._target.store.scan(b"\0", b"\xff"))

    def _report_damaged(self, key: bytes, entities: dict[int, str]) -> None:
        message = keys.split_record(key)
        if message is not None and self._was_assigned(*message) and message[0].entity_id in entities:
            place, sequence = message
            entity = self._entity(entities, place)
            entity.lost.append(_lost(entity, sequence, b""))
            self._lose(key, b"")
        elif not key.startswith(keys.BODY):
            self._report.damaged.append(key)

    def _was_assigned(self, place: QueueId, sequence: int) -> bool:
        """Return whether a sequence number has been assigned, as far as known: otherwise the key is damaged, too."""
        value = self._target.get(keys.sequence_key(place.entity_id, place.part, sequence >> PARTITION_SHIFT & 0xFF))
        try:
            return value is None or sequence <= decode_number(value)
        except RecordFormatError:
            return True

    def _lose(self, key: bytes, value: bytes) -> None:
        """Take a message out of its queue, and have the next start leave a stub of it."""
        self._target.put(keys.lost_key(key), value)
        self._target.put(key, None)

    def _report_quarantined(self, key: bytes, value: bytes | None, entities: dict[int, str]) -> None:
        message = keys.split_record(key)
        if message is not None and message[0].entity_id in entities:
            entity = self._entity(entities, message[0])
            entity.quarantined.append(_lost(entity, message[1], value or b""))

    def _report_without_stub(self, entities: dict[int, str]) -> None:
        """Report the messages that an earlier repair has lost, and of which no start has left a stub since."""
        for key, value in [*self._target.scan(keys.LOST)]:
            record_key = key[len(keys.LOST) :]
            if self._target.get(keys.aside_key(record_key)) is None:
                self._report_quarantined(record_key, value, entities)
            else:  # it has a stub: this is what a damaged page still had
                self._target.put(key, None)

    def _release(self, key: bytes) -> bool:
        """Take a message out of quarantine, if an intact copy of both of its parts was found; return whether it was.

        Otherwise the best copy of its record stays in quarantine only: it has a stub.
        """
        aside = keys.aside_key(key)
        value = self._target.get(key) or self._target.get(aside)
        body_id = _body_of(key, value)
        if value is not None and body_id is not None and body_id in self._bodies:
            self._target.put(key, value)
            self._target.put(aside, None)
            self._target.put(keys.aside_key(keys.body_key(body_id)), None)
            self._restored.add(key)
            return True
        if value:
            self._target.put(aside, value)
        self._target.put(key, None)
        return False

    def _count_messages(self, entities: dict[int, str]) -> set[int]:
        """Count the messages that were copied, and return the ids of their bodies."""
        used: set[int] = set()
        lost: list[tuple[bytes, bytes]] = []
        for key, value in self._target.scan(keys.RECORD):
            message = keys.split_record(key)
            if message is None:
                continue
            place, sequence = message
            entity = self._entity(entities, place)
            body_id = _body_of(key, value)
            if body_id is not None and body_id in self._bodies:
                used.add(body_id)
                entity.copied += 1
                entity.restored += key in self._restored
            else:
                entity.lost.append(_lost(entity, sequence, value))
                lost.append((key, value))
        for key, value in lost:
            self._lose(key, value)
        return used

    # Entities

    def _replace_lost_entities(self) -> None:
        """Create a queue in place of every entity that has messages, but whose record is lost.

        Without it, the server would remove the messages as those of a deleted entity.
        """
        known = {keys.entity_of(key) for key, _ in self._target.scan(keys.ENTITY)}
        traits: dict[int, tuple[bool, bool]] = {}
        for key, value in self._target.scan(keys.RECORD):
            message = keys.split_record(key)
            if message is not None and message[0].entity_id not in known:
                place, sequence = message
                needs_session, is_partitioned = traits.get(place.entity_id, (False, False))
                has_session = _has_session(sequence, value)
                traits[place.entity_id] = (
                    needs_session or has_session,
                    is_partitioned or sequence >> PARTITION_SHIFT > 0,
                )
        for entity_id, (requires_session, partitioned) in traits.items():
            key = keys.entity_key(entity_id)
            if key in self._damaged or self._is_lost(key):
                entity = EntityRecord(
                    entity_id=entity_id,
                    path=f"{RECOVERED}{entity_id}",
                    description=QueueDescription(requires_session=requires_session, partitioned=partitioned),
                    created_ms=self._now_ms,
                    updated_ms=self._now_ms,
                )
                self._target.put(key, encode_entity(entity))
                self._damaged.discard(key)
                self._report.renamed.append(entity.path)
        self._target.flush()

    def _entities(self) -> dict[int, str]:
        """Return the paths of the entities by id."""
        found: dict[int, EntityRecord] = {}
        for key, value in self._target.scan(keys.ENTITY):
            try:
                found[keys.entity_of(key)] = decode_entity(keys.entity_of(key), value)
            except RecordFormatError:
                self._report.damaged.append(key)
        return {entity_id: _path(entity, found) for entity_id, entity in found.items()}

    def _entity(self, entities: dict[int, str], place: QueueId) -> EntityRepair:
        if place not in self._report.entities:
            path = entities.get(place.entity_id, f"(deleted entity {place.entity_id})")
            part = PARTS[place.part] if place.part < len(PARTS) else f"/{place.part}"
            self._report.entities[place] = EntityRepair(entity=path + part)
        return self._report.entities[place]


def _lost(entity: EntityRepair, sequence: int, value: bytes) -> LostMessage:
    """Return a lost message of which this record is left; an empty one if nothing is."""
    try:
        message_id = decode_record(sequence, value).message_id
    except RecordFormatError:
        return LostMessage(entity=entity.entity, sequence=sequence, damaged="record")
    return LostMessage(entity=entity.entity, sequence=sequence, message_id=message_id, damaged="body")


def _has_session(sequence: int, value: bytes) -> bool:
    try:
        return decode_record(sequence, value).session_id is not None
    except RecordFormatError:
        return False


def _path(entity: EntityRecord, entities: dict[int, EntityRecord]) -> str:
    if entity.topic_id is None:
        return entity.path
    topic = entities.get(entity.topic_id)
    return f"{topic.path if topic is not None else f'(topic {entity.topic_id})'}/Subscriptions/{entity.path}"


def _body_of(key: bytes, value: bytes | None) -> int | None:
    """Return the body id in the record of a message; ``None`` if it cannot be read."""
    message = keys.split_record(key)
    if message is None or not value:
        return None
    try:
        return decode_record(message[1], value).body_id
    except RecordFormatError:
        return None


def _newer(one: PageNode | None, other: PageNode) -> PageNode:
    """Return the newer of two versions of a record, as far as they tell."""
    if one is None:
        return other
    return max(one, other, key=lambda node: _age(node.key, node.value or b""))


def _age(key: bytes, value: bytes) -> int:
    try:
        match key[:1]:
            case keys.ENTITY:
                return decode_entity(keys.entity_of(key), value).updated_ms
            case keys.SEQUENCE | keys.COUNTER:
                return decode_number(value)
            case keys.RECORD:
                return decode_record(0, value).delivery_count
    except RecordFormatError:
        return -1
    return 0
