"""Collects the broker's records into one atomic batch of key-value writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from itertools import chain
from typing import Final

from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.message import QueueId, Record
from pairbus.broker.ports import Location
from pairbus.store import keys
from pairbus.store.errors import DamagedRecordError, StoreError, StoreFullError
from pairbus.store.keyvalue import Commit, CommitId, KeyValueStore, RetiredBatch
from pairbus.store.records import (
    RecordFormatError,
    decode_entity,
    decode_number,
    decode_record,
    decode_stamped,
    encode_access,
    encode_entity,
    encode_number,
    encode_record,
    encode_rule,
    encode_stamped,
)

RESERVE_BYTES: Final = 4 * 1024 * 1024
"""Space reserved for settling: removing a message takes space too, until the next commit."""

_PER_WRITE_BYTES: Final = 64
"""Overhead of a record besides its value: its key, its checksum, its place in a page."""

_PER_RECORD_BYTES: Final = 512
"""Maximum size of a message's metadata, unless its properties were changed."""

_USUAL_BYTES: Final = 1024 * 1024
"""Refusal of a message larger than this does not stop other sends."""

LAST_BODY: Final = keys.COUNTER + b"last body id"
ACCESS_KEY: Final = keys.ACCESS + b"access"
LAST_OUTBOX: Final = keys.COUNTER + b"last in outbox"
LAST_ENTITY: Final = keys.COUNTER + b"last entity id"

_ABSENT: Final = b"\0absent"


class WriteBatch:
    """The broker's ``Records`` on top of a key-value store.

    Writes are collected in a batch. ``seal`` returns the batch as a commit, and a new one begins; until the commit has
    ended, reads look into both before the store.
    """

    def __init__(self, store: KeyValueStore, damaged: list[bytes], wanted_bytes: int = 0) -> None:
        """Start with an empty batch on ``store``. ``damaged`` collects the keys of unreadable records that are set
        aside.

        ``wanted_bytes`` is how much space there must be before anything is accepted again.
        """
        self._wanted_bytes = wanted_bytes
        self._refused_bytes: int | None = 0 if wanted_bytes else None
        """Size of the last message that was refused for lack of space, unless it was unusually large."""
        self._store = store
        self._damaged = damaged
        # Not of type dict: compiled code would not call the methods that RetiredBatch overrides.
        self._batch: MutableMapping[bytes, bytes | None] = {}
        self._committing: MutableMapping[bytes, bytes | None] = {}
        self._batch_bytes = 0
        self._room = 0
        self._last_body_id = 0
        self._last_sequences: dict[tuple[QueueId, int], int] = {}
        self._found_damaged: DamagedRecordError | None = None
        """The error of the record that was found damaged last."""

    # Batches

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to commit."""
        return not self._batch and not self._last_sequences

    def seal(self) -> Commit:
        """Return everything written so far as a commit. It must have ended, one way or the other, before the next
        ``seal``.
        """
        self._write_counters()
        self._committing, self._batch = self._batch, {}
        self._room -= 2 * self._batch_bytes
        self._batch_bytes = 0
        return self._store.prepare(self._committing)

    def put_commit(self, commit: CommitId) -> None:
        """Write the identity of the commit that the batch is about to become: a part of it shows that it succeeded.

        Only a batch with new messages needs it. Others must not grow by it: they have to fit into a full store.
        """
        if self._last_body_id:
            self._batch[keys.epoch_key(commit.epoch)] = encode_number(commit.number)

    def last_commit(self, epoch: int) -> int:
        """Return the number of the last commit of an epoch that succeeded; 0 if there is none, or it cannot be read."""
        try:
            data = self._store.get(keys.epoch_key(epoch))
            return 0 if data is None else decode_number(data)
        except (DamagedRecordError, RecordFormatError):
            return 0

    def sealed(self) -> None:
        """Discard the sealed batch: its commit is done, and the store has it."""
        self._committing = {}
        self._room = 0

    def admit(self, size_bytes: int, records: int = 1) -> None:
        """Raise ``StoreFullError`` unless there is space for bodies and records, and for settling besides."""
        if not self._has_room(size_bytes, records):
            self._refused_bytes = self._batch_bytes + min(size_bytes, _USUAL_BYTES)
            raise StoreFullError(self._store.place, "the remaining space is reserved for removing messages")

    def lacks_room(self) -> bool:
        """Return whether the message refused last for lack of space would be refused again, in a batch as large."""
        if self._refused_bytes is None:
            return False
        with suppress(StoreError):  # keep the last answer
            if self._has_room(self._refused_bytes, 1):
                self._refused_bytes = None
        return self._refused_bytes is not None

    def _has_room(self, size_bytes: int, records: int) -> bool:
        # A value that does not fit into half a page takes whole pages, so it may take twice its size.
        need = 2 * (self._batch_bytes + size_bytes + records * _PER_RECORD_BYTES) + RESERVE_BYTES
        if self._room < need:
            wanted = max(need, self._wanted_bytes)
            room = self._store.room(wanted)
            if room < wanted:
                return False
            self._room = room
            self._wanted_bytes = 0
        return True

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Write an outbox entry with the batch that it describes; return whether it was accepted.

        It does not cause a commit, and takes no space from messages. An empty entry always has space.
        """
        if self.is_empty:
            return False
        try:
            if content and not self._has_room(len(content), 0):
                return False
        except StoreError:
            return False
        self._put(keys.outbox_key(number), content)
        self._batch[LAST_OUTBOX] = encode_number(number)
        return True

    def last_in_outbox(self) -> int:
        """Return the number of the last outbox entry, whether or not it is still stored."""
        data = self._read(LAST_OUTBOX)
        try:
            return 0 if data is None else decode_number(data)
        except RecordFormatError:
            return 0

    def remove_from_outbox(self, number: int) -> None:
        self._batch[keys.outbox_key(number)] = None

    def put_merged(self, identity: bytes, path: str, position: int) -> None:
        """Record up to which position the contents of a side buffer are part of what was written."""
        self._put(keys.merged_key(identity, path), encode_stamped(position, path))

    def adopt(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Add the writes that the recovery requires."""
        self._batch.update(changes)

    def new_entities(self) -> set[str]:
        """Return the paths of the entities that the store does not have yet."""
        written = {key: value for batch in (self._committing, self._batch) for key, value in batch.items()}
        return {
            decode_entity(keys.entity_of(key), value).path
            for key, value in written.items()
            if value is not None and key.startswith(keys.ENTITY) and self._store.get(key) is None
        }

    def uncommitted(self) -> dict[bytes, bytes | None]:
        """Return the writes that no commit has, by key."""
        return {**self._committing, **self._batch}

    def retire(self) -> None:
        """Reject all further use: a commit has failed, and the state of the broker on this batch is no longer valid."""
        self._batch = RetiredBatch()
        self._last_sequences.clear()

    # Reading

    def _read(self, key: bytes) -> bytes | None:
        value = self._batch.get(key, _ABSENT)
        if value is _ABSENT:
            value = self._committing.get(key, _ABSENT)
            if value is _ABSENT:
                try:
                    return self._store.get(key)
                except DamagedRecordError as error:
                    self._found_damaged = error
                    return None
        return value

    def location(self, place: QueueId, sequence: int, body_id: int | None) -> Location:
        key = keys.record_key(*place, sequence) if body_id is None else keys.body_key(body_id)
        found = self._found_damaged
        if found is None or found.key != key or found.page is None:
            return (("key", key.hex()),)
        location: Location = (("key", key.hex()), ("page", found.page), ("offset", found.offset))
        return location if found.referred_from is None else (*location, ("referred_from", found.referred_from))

    def record(self, place: QueueId, sequence: int) -> Record | None:
        data = self._read(keys.record_key(place[0], place[1], sequence))
        if data is None:
            return None
        try:
            return decode_record(sequence, data)
        except RecordFormatError:
            return None

    def lost_record(self, place: QueueId, sequence: int) -> Record | None:
        data = self._read(keys.lost_key(keys.record_key(*place, sequence)))
        try:
            return None if data is None else decode_record(sequence, data)
        except RecordFormatError:
            return None

    def sequences(self, place: QueueId, start: int, limit: int) -> tuple[list[int], int | None]:
        first, end = keys.record_key(place[0], place[1], start), keys.after_records(place)
        found: set[bytes] = set()
        stored = self._store.scan(first, end, lambda key, _raw: found.add(key))
        after: int | None = None
        for key, _ in stored:
            found.add(key)
            if len(found) >= limit:
                after = keys.sequence_of(key) + 1
                end = key + b"\0"
                break
        for batch in (self._committing, self._batch):
            for key, value in batch.items():
                if first <= key < end:
                    (found.discard if value is None else found.add)(key)
        return sorted(map(keys.sequence_of, found)), after

    def body(self, body_id: int) -> bytes | None:
        return self._read(keys.body_key(body_id))

    def session_state(self, entity_id: int, session_id: str) -> bytes | None:
        """Return the state of a session; raises ``DamagedRecordError``, since no state would be a wrong answer."""
        key = keys.session_key(entity_id, session_id)
        written = self._batch.get(key, _ABSENT)
        if written is _ABSENT:
            written = self._committing.get(key, _ABSENT)
        data = self._store.get(key) if written is _ABSENT else written
        try:
            return None if data is None else decode_stamped(data)[2]
        except RecordFormatError as error:
            raise DamagedRecordError(key, self._store.place) from error

    def duplicate(self, entity_id: int, key: str) -> tuple[int, int] | None:
        where = keys.duplicate_key(entity_id, key)
        value = self._batch.get(where, _ABSENT)
        if value is _ABSENT:
            value = self._committing.get(where, _ABSENT)
        try:
            if value is _ABSENT:
                value = self._store.get(where)
            return None if value is None else _first_seen(value)
        except (DamagedRecordError, RecordFormatError):
            self._quarantine(where, self._raw(where))
            return None

    def duplicates(self, entity_id: int) -> Iterator[tuple[str, int]]:
        start, end = keys.duplicates_between(entity_id)
        pending = {key: value for batch in (self._committing, self._batch) for key, value in batch.items()}
        found = [(key, value) for key, value in pending.items() if value is not None and start <= key < end]
        for key, value in chain(found, self._store.scan(start, end, self._quarantine)):
            try:
                first_ms, text, _ = decode_stamped(value)
            except RecordFormatError:
                self._quarantine(key, value)
            else:
                yield text, first_ms

    # Writing

    def _quarantine(self, key: bytes, raw: bytes) -> None:
        """Take an unreadable id out of service without deleting it."""
        self._damaged.append(key)
        self._batch[keys.aside_key(key)] = raw
        self._batch[key] = None

    def put_record(self, place: QueueId, record: Record) -> None:
        value = encode_record(record)
        self._batch[keys.record_key(place[0], place[1], record.sequence)] = value
        self._batch_bytes += len(value) + _PER_WRITE_BYTES

    def remove_record(self, place: QueueId, sequence: int) -> None:
        self._batch[keys.record_key(place[0], place[1], sequence)] = None

    def set_aside(self, place: QueueId, sequence: int) -> None:
        key = keys.record_key(place.entity_id, place.part, sequence)
        self._damaged.append(key)
        self._batch[keys.aside_key(key)] = self._raw(key)
        self._batch[key] = None

    def set_aside_lost(self, place: QueueId, sequence: int, record: Record | None) -> None:
        key = keys.record_key(*place, sequence)
        self._damaged.append(key)
        self._batch[keys.aside_key(key)] = b"" if record is None else encode_record(record)
        self._batch[keys.lost_key(key)] = None

    def set_aside_body(self, body_id: int) -> None:
        key = keys.body_key(body_id)
        self._batch[keys.aside_key(key)] = self._raw(key)

    def put_body(self, body_id: int, body: bytes) -> None:
        self._batch[keys.body_key(body_id)] = body
        self._batch_bytes += len(body) + _PER_WRITE_BYTES
        self._last_body_id = body_id

    def remove_body(self, body_id: int) -> None:
        self._batch[keys.body_key(body_id)] = None

    def put_last_sequence(self, place: QueueId, partition: int, sequence: int) -> None:
        self._last_sequences[place, partition] = sequence

    def put_last_entity_id(self, entity_id: int) -> None:
        self._batch[LAST_ENTITY] = encode_number(entity_id)

    def put_entity(self, entity: EntityRecord) -> None:
        self._put(keys.entity_key(entity.entity_id), encode_entity(entity))

    def remove_last_sequence(self, place: QueueId, partition: int) -> None:
        self._last_sequences.pop((place, partition), None)
        self._batch[keys.sequence_key(place.entity_id, place.part, partition)] = None

    def remove_entity(self, entity_id: int) -> None:
        self._batch[keys.entity_key(entity_id)] = None

    def put_access(self, rules: tuple[AuthorizationRule, ...]) -> None:
        self._put(ACCESS_KEY, encode_access(rules))

    def put_rule(self, entity_id: int, position: int, rule: RuleDescription, created_ms: int) -> None:
        self._put(keys.rule_key(entity_id, position), encode_rule(rule, created_ms))

    def remove_rule(self, entity_id: int, position: int) -> None:
        self._batch[keys.rule_key(entity_id, position)] = None

    def put_session_state(self, entity_id: int, session_id: str, state: bytes | None, updated_ms: int) -> None:
        key = keys.session_key(entity_id, session_id)
        if state is None:
            self._batch[key] = None
        else:
            self._put(key, encode_stamped(updated_ms, session_id, state))

    def put_duplicate(self, entity_id: int, key: str, first_ms: int, sequence: int) -> None:
        self._put(keys.duplicate_key(entity_id, key), encode_stamped(first_ms, key, sequence.to_bytes(8, "big")))

    def remove_duplicate(self, entity_id: int, key: str) -> None:
        self._batch[keys.duplicate_key(entity_id, key)] = None

    def _put(self, key: bytes, value: bytes) -> None:
        self._batch[key] = value
        self._batch_bytes += len(value) + _PER_WRITE_BYTES

    def _write_counters(self) -> None:
        """Write the counters once per batch: they change with every message, but only their last value counts."""
        for (place, partition), sequence in self._last_sequences.items():
            self._batch[keys.sequence_key(place.entity_id, place.part, partition)] = encode_number(sequence)
        self._last_sequences.clear()
        if self._last_body_id:
            self._batch[LAST_BODY] = encode_number(self._last_body_id)
            self._last_body_id = 0

    def _raw(self, key: bytes) -> bytes:
        """Return the bytes under a key, damaged or not."""
        written = self._batch.get(key) or self._committing.get(key)
        if written is not None:
            return written
        found: list[bytes] = []
        for _, value in self._store.scan(key, key + b"\0", lambda _, raw: found.append(raw)):
            found.append(value)
        return found[0] if found else b""


def _first_seen(value: bytes) -> tuple[int, int]:
    first_ms, _, sequence = decode_stamped(value)
    return first_ms, int.from_bytes(sequence, "big")
