"""The interface of all stores: ordered keys, and atomic batches; and values under other keys than their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple, NoReturn, Protocol, TypeAlias

from pairbus.store import keys
from pairbus.store.errors import InvalidKeyError, NamespaceReplacedError, StoreError, StoreFailedError

LONGEST_KEY_BYTES: Final = 511

Batch: TypeAlias = Mapping[bytes, bytes | None]
"""The values to write by key; ``None`` deletes."""

DamageListener: TypeAlias = Callable[[bytes, bytes], None]
"""Called with the key of a damaged record and the bytes that were found."""


class RetiredBatch(dict[bytes, bytes | None]):
    """Stands in for a batch that will never be committed."""

    def __setitem__(self, _key: bytes, _value: bytes | None) -> NoReturn:
        raise NamespaceReplacedError

    def get(self, _key: bytes, _default: object = None) -> NoReturn:
        raise NamespaceReplacedError


class CommitId(NamedTuple):
    """The identity of a commit: with it, the store itself can tell whether the commit has succeeded."""

    epoch: int
    """Number of the load of the namespace: a failed commit ends an epoch. Later ones are larger."""

    number: int
    """Number of the commit in its epoch."""


class CommitInDoubtError(StoreFailedError):
    """A commit has failed, and the store cannot be read: whether it has the commit is not known yet."""

    def __init__(self, error: StoreError, commit: CommitId) -> None:
        Exception.__init__(self, f"{error}. Whether the write has succeeded all the same is not known")
        self.place = getattr(error, "place", "the store")
        self.reason = str(error)
        self.commit = commit


class Commit(Protocol):
    """A batch that is ready to be written."""

    def run(self) -> None:
        """Write the batch and return when it is durable; may be called on another thread than ``prepare``.

        Raises StoreFullError or StoreFailedError; then nothing of the batch is written, and the store stays usable.
        """

    def abandon(self) -> None:
        """Discard the batch: nothing of it is written."""


class KeyValueStore(Protocol):
    """An ordered map from bytes to bytes that survives a crash.

    All methods belong to one thread; only a commit's ``run`` may be called on another. While it runs, reads continue
    and see the state before it.
    """

    @property
    def place(self) -> str:
        """Return the location, for the text of errors."""

    @property
    def used_bytes(self) -> int:
        """Return the bytes that its records take, as far as known."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value stored under a key; raises DamagedRecordError."""

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all records with ``start <= key < end``, in the order of their keys.

        A damaged record is skipped and ``on_damage`` is called; without ``on_damage``, DamagedRecordError is raised.
        Batches may be written during the scan; whether it sees their changes ahead of it is undefined.
        """

    def prepare(self, batch: Batch) -> Commit:
        """Prepare a batch; deleting a missing key is allowed.

        Only one commit can be prepared at a time, otherwise CommitOrderError is raised. Raises StoreFullError if the
        batch cannot fit, and StoreFailedError; then nothing has changed.
        """

    def room(self, wanted_bytes: int = 0) -> int:
        """Return how many bytes can very likely be written, in addition to a batch that is not written yet.

        A store that grows in steps grows by as many steps as ``wanted_bytes`` takes, if it can.
        """

    def close(self) -> None:
        """Close the store; a commit that was only prepared is abandoned. Closing twice is allowed.

        Raises CommitOrderError while a commit is running.
        """


def apply(store: KeyValueStore, batch: Batch) -> None:
    """Write a batch and return when it is durable."""
    store.prepare(batch).run()


def check_keys(keys: Collection[bytes]) -> None:
    """Raise ``InvalidKeyError`` for keys that not every store accepts."""
    if keys and not (min(map(len, keys)) > 0 and max(map(len, keys)) <= LONGEST_KEY_BYTES):
        for key in keys:
            check_key(key)


def check_key(key: bytes) -> None:
    """Raise ``InvalidKeyError`` for a key that not every store accepts."""
    if not 0 < len(key) <= LONGEST_KEY_BYTES:
        raise InvalidKeyError(key, LONGEST_KEY_BYTES)


_DELETED: Final = b"\0"
_STORED: Final = b"\1"
_AT_ONCE: Final = 1_000


PREFIXES: Final = (keys.MOVED, keys.MOVED_AGAIN)
"""The prefixes under which moved values are stored, in this order, at both ends of the tree. The second is newer."""


def moved(batch: Batch, prefix: bytes) -> dict[bytes, bytes | None]:
    """Return a batch that stores the same values, and what it deletes, under other keys."""
    return {prefix + key: _DELETED if value is None else _STORED + value for key, value in batch.items()}


def original(value: bytes) -> bytes | None:
    """Return the value that was stored; ``None`` if it was deleted."""
    return value[1:] if value.startswith(_STORED) else None


def put_back_moved(store: KeyValueStore) -> None:
    """Put moved values back where they belong.

    Each batch is a commit: if the process is killed, the rest is put back at the next start.
    """
    for prefix in PREFIXES:
        while batch := _next_batch(store, prefix):
            apply(store, batch)


def _next_batch(store: KeyValueStore, prefix: bytes) -> dict[bytes, bytes | None]:
    batch: dict[bytes, bytes | None] = {}

    def set_aside(key: bytes, raw: bytes) -> None:
        batch.update({key: None, keys.aside_key(key): raw})

    for key, value in store.scan(prefix, keys.after(prefix), set_aside):
        batch.update({key: None, key[1:]: original(value)})
        if len(batch) >= 2 * _AT_ONCE:
            break
    return batch
