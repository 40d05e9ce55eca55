"""What the broker writes on its way into the store: gathered, readable at once, made durable in groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final, NoReturn

from pairbus.broker.address import Place
from pairbus.broker.descriptions import AuthorizationRule, EntityRecord, RuleDescription
from pairbus.broker.message import Record
from pairbus.store import keys
from pairbus.store.errors import DamagedRecordError, NamespaceReplacedError, StoreError, StoreFullError
from pairbus.store.keyvalue import Commit, KeyValueStore
from pairbus.store.records import (
    RecordFormatError,
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
"""Room that is kept for settling: to remove a message takes space too, until the next commit."""

_PER_WRITE_BYTES: Final = 64
"""What a record takes besides its value: its key, its checksum, its place in a page."""

_PER_RECORD_BYTES: Final = 512
"""What is kept of a message besides its body, at most, unless its properties were changed."""

LAST_BODY: Final = keys.COUNTER + b"last body id"
ACCESS_KEY: Final = keys.ACCESS + b"access"
LAST_OUTBOX: Final = keys.COUNTER + b"last in outbox"
LAST_ENTITY: Final = keys.COUNTER + b"last entity id"

_ABSENT: Final = b"\0absent"


class _Retired(dict[bytes, bytes | None]):
    """In place of a batch that nobody will commit any more."""

    def __setitem__(self, _key: bytes, _value: bytes | None) -> NoReturn:
        raise NamespaceReplacedError

    def get(self, _key: bytes, _default: object = None) -> NoReturn:
        raise NamespaceReplacedError


class Journal:
    """The broker's ``Records`` on top of a key-value store.

    Writes gather in a batch. ``seal`` hands the batch over to be committed, and a new one begins; until the commit is
    done both are read before the store is.
    """

    def __init__(self, store: KeyValueStore, damaged: list[bytes], wanted_bytes: int = 0) -> None:
        """``damaged`` is told the keys under which something unreadable is found, and set aside.

        ``wanted_bytes`` is how much room there has to be before anything is taken in again.
        """
        self._wanted_bytes = wanted_bytes
        self.lacks_room = False
        """Whether the last that asked for room was refused."""
        self._store = store
        self._damaged = damaged
        self._batch: dict[bytes, bytes | None] = {}
        self._committing: dict[bytes, bytes | None] = {}
        self._batch_bytes = 0
        self._room = 0
        self._last_body_id = 0
        self._last_sequences: dict[tuple[Place, int], int] = {}

    # Groups

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self._batch and not self._last_sequences

    def seal(self) -> Commit:
        """Hand over what was written so far. Its commit has to end, one way or the other, before the next is sealed."""
        self._write_counters()
        self._committing, self._batch = self._batch, {}
        self._room -= 2 * self._batch_bytes
        self._batch_bytes = 0
        return self._store.prepare(self._committing)

    def sealed(self) -> None:
        """The commit is done: what it holds is in the store."""
        self._committing = {}
        self._room = 0

    def admit(self, size_bytes: int, records: int = 1) -> None:
        """Raise ``StoreFullError`` unless there is room for bodies and records, and for settling besides."""
        # A value that does not fit into half a page has whole pages for itself, so it may take twice its size.
        need = 2 * (self._batch_bytes + size_bytes + records * _PER_RECORD_BYTES) + RESERVE_BYTES
        if self._room < need:
            wanted = max(need, self._wanted_bytes)
            self._room = self._store.room(wanted)
            self.lacks_room = self._room < wanted
            if self.lacks_room:
                raise StoreFullError(self._store.place, "what is left is kept for removing messages")
            self._wanted_bytes = 0

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Have something for others written with what is there to be committed, which it tells of.

        It does not make a commit, and takes no room from messages: tells whether it is taken. For what is empty there
        is always room.
        """
        if self.is_empty:
            return False
        try:
            if content:
                self.admit(len(content), 0)
        except StoreError:
            return False
        self._put(keys.outbox_key(number), content)
        self._batch[LAST_OUTBOX] = encode_number(number)
        return True

    def last_in_outbox(self) -> int:
        """The number that was put there last, whether it is still there or not."""
        data = self._read(LAST_OUTBOX)
        try:
            return 0 if data is None else decode_number(data)
        except RecordFormatError:
            return 0

    def remove_from_outbox(self, number: int) -> None:
        self._batch[keys.outbox_key(number)] = None

    def put_merged(self, identity: bytes, path: str, position: int) -> None:
        """Note up to where what lay in a side buffer is among what was written."""
        self._put(keys.merged_key(identity, path), encode_stamped(position, path))

    def adopt(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Take over what the recovery has found to be written."""
        self._batch.update(changes)

    def retire(self) -> None:
        """A commit has failed: what the broker on this journal believes is not so, and it must not go on."""
        self._batch = _Retired()
        self._last_sequences.clear()

    # Reading

    def _read(self, key: bytes) -> bytes | None:
        value = self._batch.get(key, _ABSENT)
        if value is _ABSENT:
            value = self._committing.get(key, _ABSENT)
            if value is _ABSENT:
                try:
                    return self._store.get(key)
                except DamagedRecordError:
                    return None
        return value

    def record(self, place: Place, sequence: int) -> Record | None:
        data = self._read(keys.record_key(place[0], place[1], sequence))
        if data is None:
            return None
        try:
            return decode_record(sequence, data)
        except RecordFormatError:
            return None

    def body(self, body_id: int) -> bytes | None:
        return self._read(keys.body_key(body_id))

    def session_state(self, entity_id: int, session_id: str) -> bytes | None:
        """Return the state of a session; raises ``DamagedRecordError``, for no state would be a wrong answer."""
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
        """Take an id out of service that cannot be read, without throwing it away."""
        self._damaged.append(key)
        self._batch[keys.aside_key(key)] = raw
        self._batch[key] = None

    def put_record(self, place: Place, record: Record) -> None:
        value = encode_record(record)
        self._batch[keys.record_key(place[0], place[1], record.sequence)] = value
        self._batch_bytes += len(value) + _PER_WRITE_BYTES

    def remove_record(self, place: Place, sequence: int) -> None:
        self._batch[keys.record_key(place[0], place[1], sequence)] = None

    def set_aside(self, place: Place, sequence: int) -> None:
        key = keys.record_key(place.entity_id, place.part, sequence)
        self._damaged.append(key)
        self._batch[keys.aside_key(key)] = self._raw(key)
        self._batch[key] = None

    def set_aside_body(self, body_id: int) -> None:
        key = keys.body_key(body_id)
        self._batch[keys.aside_key(key)] = self._raw(key)

    def put_body(self, body_id: int, body: bytes) -> None:
        self._batch[keys.body_key(body_id)] = body
        self._batch_bytes += len(body) + _PER_WRITE_BYTES
        self._last_body_id = body_id

    def remove_body(self, body_id: int) -> None:
        self._batch[keys.body_key(body_id)] = None

    def put_last_sequence(self, place: Place, partition: int, sequence: int) -> None:
        self._last_sequences[place, partition] = sequence

    def put_last_entity_id(self, entity_id: int) -> None:
        self._batch[LAST_ENTITY] = encode_number(entity_id)

    def put_entity(self, entity: EntityRecord) -> None:
        self._put(keys.entity_key(entity.entity_id), encode_entity(entity))

    def remove_last_sequence(self, place: Place, partition: int) -> None:
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
        """Counters change with every message; what counts is their last value."""
        for (place, partition), sequence in self._last_sequences.items():
            self._batch[keys.sequence_key(place.entity_id, place.part, partition)] = encode_number(sequence)
        self._last_sequences.clear()
        if self._last_body_id:
            self._batch[LAST_BODY] = encode_number(self._last_body_id)
            self._last_body_id = 0

    def _raw(self, key: bytes) -> bytes:
        """What lies under a key, damaged or not."""
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
