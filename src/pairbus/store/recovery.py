"""Recovery of a namespace from its store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, TypeVar

from pairbus.broker.errors import BrokerError
from pairbus.broker.message import QueueId, Record, RecordBatch
from pairbus.broker.namespace import Namespace
from pairbus.broker.restoration import NamespaceRestore
from pairbus.store import keys
from pairbus.store.keyvalue import KeyValueStore
from pairbus.store.records import (
    RecordFormatError,
    add_to_batch,
    decode_access,
    decode_entity,
    decode_number,
    decode_record,
    decode_rule,
    decode_stamped,
    encode_rule,
)
from pairbus.store.write_batch import LAST_BODY, LAST_ENTITY, WriteBatch

T = TypeVar("T")

_BATCH_RECORDS: Final = 10_000
_PLACE_BYTES: Final = 6
"""Length of the beginning of a key that all records of a queue share."""


@dataclass(slots=True)
class Recovery:
    """The result of reading the store."""

    entities: int = 0
    messages: int = 0
    damaged: list[bytes] = field(default_factory=list)
    """Keys of records that could not be read. They were set aside; those of entities were left in place."""

    stubs: set[bytes] = field(default_factory=set)
    """The damaged keys of messages that have a stub in a dead-letter queue."""

    epochs: list[int] = field(default_factory=list)
    """Epochs of which the store has the last commit, in order."""

    quarantined: int = 0
    """Number of damaged records that were set aside before this start and are still stored."""


class _Reader:
    """Scans one kind of record after another, and keeps unreadable records away from the broker."""

    def __init__(self, store: KeyValueStore, recovery: Recovery) -> None:
        self._store = store
        self._recovery = recovery
        self._changes: dict[bytes, bytes | None] = {}

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._store.scan(prefix, keys.after(prefix), self.note_damage)

    def note_damage(self, key: bytes, raw: bytes) -> None:
        self._recovery.damaged.append(key)
        # Without its entity a message would count as left over from a deleted one. So the entity's record stays.
        if not key.startswith((keys.ENTITY, keys.ASIDE)):
            self._changes[keys.aside_key(key)] = raw
            self._changes[key] = None

    def decoded(self, prefix: bytes, decode: Callable[[bytes, bytes], T]) -> Iterator[tuple[bytes, T]]:
        for key, value in self.scan(prefix):
            try:
                yield key, decode(key, value)
            except RecordFormatError:
                self.note_damage(key, value)

    def lost(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over what is left of lost messages without a stub. One that is damaged, too, still gets its stub."""
        damaged: list[bytes] = []
        yield from self._store.scan(keys.LOST, keys.after(keys.LOST), lambda key, _raw: damaged.append(key))
        yield from ((key, b"") for key in damaged)

    def drop(self, key: bytes) -> None:
        """Remove a record that a deleted entity has left."""
        self._changes[key] = None

    @property
    def changes(self) -> Mapping[bytes, bytes | None]:
        """Return the writes that bring the store in order for the next start."""
        return self._changes


def recover(store: KeyValueStore, journal: WriteBatch, namespace: Namespace, now_ms: int) -> Recovery:
    """Load the contents of the store into a new namespace. Locks are not stored: every locked message is available
    again.

    Nothing is written: damaged records are set aside with the journal's first commit.
    """
    recovery = Recovery()
    reader = _Reader(store, recovery)
    restoration = namespace.restoration()
    recovery.quarantined = sum(1 for key, _ in reader.scan(keys.ASIDE) if not key.startswith(keys.ASIDE + keys.BODY))
    recovery.epochs = [keys.epoch_of(key) for key, _ in reader.scan(keys.EPOCH)]
    restoration.last_ids(*_last_ids(reader))
    for _, rules in reader.decoded(keys.ACCESS, lambda _, value: decode_access(value)):
        restoration.access(rules)
    _restore_entities(reader, restoration, recovery)
    _restore_messages(reader, restoration, recovery)
    _restore_histories(reader, restoration)
    restoration.finish(now_ms)
    journal.adopt(reader.changes)
    namespace.started(now_ms)
    return recovery


def _last_ids(reader: _Reader) -> tuple[int, int]:
    counters = dict(reader.decoded(keys.COUNTER, lambda _, value: decode_number(value)))
    return counters.get(LAST_ENTITY, 0), counters.get(LAST_BODY, 0)


def _restore_entities(reader: _Reader, restoration: NamespaceRestore, recovery: Recovery) -> None:
    entities = [
        entity
        for _, entity in reader.decoded(keys.ENTITY, lambda key, value: decode_entity(keys.entity_of(key), value))
    ]
    known = {entity.entity_id for entity in entities}
    for key in recovery.damaged:
        if key.startswith(keys.ENTITY):
            restoration.leave_alone(keys.entity_of(key))
    for entity in sorted(entities, key=lambda entity: (entity.topic_id is not None, entity.entity_id)):
        if entity.topic_id is None or entity.topic_id in known:
            restoration.entity(entity)
            recovery.entities += 1
        else:  # its topic cannot be read
            restoration.leave_alone(entity.entity_id)
    for key, (rule, created_ms) in reader.decoded(keys.RULE, lambda _, value: decode_rule(value)):
        try:
            is_claimed = restoration.rule(*keys.split_rule(key), rule, created_ms)
        except BrokerError:  # it was written by a version that could read it
            reader.note_damage(key, encode_rule(rule, created_ms))
        else:
            if not is_claimed:
                reader.drop(key)


def _restore_messages(reader: _Reader, restoration: NamespaceRestore, recovery: Recovery) -> None:
    for key, sequence in reader.decoded(keys.SEQUENCE, lambda _, value: decode_number(value)):
        entity_id, part, partition = keys.split_sequence(key)
        if not restoration.last_sequence(QueueId(entity_id, part), partition, sequence):
            reader.drop(key)
    _restore_records(reader, restoration, recovery)
    for key in recovery.damaged:
        message = keys.split_record(key)
        if message is not None and restoration.damaged_record(*message):
            recovery.stubs.add(key)
    for key, value in reader.lost():
        message = keys.split_record(key[1:])
        if message is None or not restoration.lost_message(*message, _record(message[1], value)):
            reader.drop(key)


def _restore_records(reader: _Reader, restoration: NamespaceRestore, recovery: Recovery) -> None:
    needs_record = restoration.needs_records
    batch = RecordBatch()
    beginning = keys.RECORD
    for key, value in reader.scan(keys.RECORD):
        if key[:_PLACE_BYTES] != beginning or len(batch.sequences) >= _BATCH_RECORDS:
            recovery.messages += _restore_batch(beginning, batch, restoration)
            batch = RecordBatch()
            beginning = key[:_PLACE_BYTES]
        try:
            add_to_batch(batch, keys.sequence_of(key), value, needs_record)
        except RecordFormatError:
            reader.note_damage(key, value)
    recovery.messages += _restore_batch(beginning, batch, restoration)


def _restore_batch(beginning: bytes, batch: RecordBatch, restoration: NamespaceRestore) -> int:
    if not batch.sequences:
        return 0
    place = QueueId(keys.entity_of(beginning), beginning[-1])
    return restoration.records(place, batch)


def _record(sequence: int, value: bytes) -> Record | None:
    try:
        return decode_record(sequence, value)
    except RecordFormatError:
        return None


def _restore_histories(reader: _Reader, restoration: NamespaceRestore) -> None:
    for key, (updated_ms, session_id, _) in reader.decoded(keys.SESSION, lambda _, value: decode_stamped(value)):
        if not restoration.session_state(keys.entity_of(key), session_id, updated_ms):
            reader.drop(key)
    seen = reader.decoded(keys.DUPLICATE, lambda _, value: decode_stamped(value))
    for entity_id, group in groupby(seen, key=lambda found: keys.entity_of(found[0])):
        restoration.duplicates(entity_id, _history(group))


def _history(group: Iterator[tuple[bytes, tuple[int, str, bytes]]]) -> Iterator[tuple[int, str, int]]:
    for _, (first_ms, message_id, sequence) in group:
        yield first_ms, message_id, int.from_bytes(sequence, "big")
