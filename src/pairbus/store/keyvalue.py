"""What every store can do: keys in order, batches that are written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

from pairbus.store.errors import InvalidKeyError

LONGEST_KEY_BYTES: Final = 511

Batch: TypeAlias = Mapping[bytes, bytes | None]
"""What to write under which key; ``None`` deletes."""

DamageListener: TypeAlias = Callable[[bytes, bytes], None]
"""Is told the key of a damaged record and the bytes that were found."""


class Commit(Protocol):
    """A batch that is ready to be written."""

    def run(self) -> None:
        """Write the batch and return when it is durable; may be called on another thread than ``prepare``.

        Raises StoreFullError or StoreFailedError; then nothing of the batch is there, and the store goes on.
        """

    def abandon(self) -> None:
        """Give the batch up: nothing of it is written."""


class KeyValueStore(Protocol):
    """An ordered map from bytes to bytes that survives a crash.

    All methods belong to one thread; only a commit's ``run`` may be called on another. While it runs, reads go on and
    see what was there before it.
    """

    @property
    def place(self) -> str:
        """Where it is, for the text of errors."""

    @property
    def used_bytes(self) -> int:
        """How much room its records take, as far as that is known."""

    def get(self, key: bytes) -> bytes | None:
        """Return what is stored under a key; raises DamagedRecordError."""

    def scan(self, start: bytes, end: bytes, on_damage: DamageListener | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Go through all records with ``start <= key < end``, in the order of their keys.

        A damaged record is not among them: ``on_damage`` is told, and without it DamagedRecordError is raised. Batches
        may be written meanwhile; whether the scan sees what they change ahead of it is open.
        """

    def prepare(self, batch: Batch) -> Commit:
        """Get a batch ready; to delete what is not there is fine.

        There is one prepared commit at a time, otherwise CommitOrderError is raised. Raises StoreFullError when the
        batch cannot fit, and StoreFailedError; then nothing has changed.
        """

    def room(self, wanted_bytes: int = 0) -> int:
        """Return how many bytes can be written with fair certainty, beside a batch that is not written yet.

        A store that grows in steps grows by as many as ``wanted_bytes`` takes, if it can.
        """

    def close(self) -> None:
        """Give the store back; a commit that was only prepared is abandoned. To close twice is fine.

        Raises CommitOrderError while a commit runs.
        """


def apply(store: KeyValueStore, batch: Batch) -> None:
    """Write a batch and return when it is durable."""
    store.prepare(batch).run()


def check_keys(keys: Collection[bytes]) -> None:
    """Refuse keys that not every store could take."""
    if keys and not (min(map(len, keys)) > 0 and max(map(len, keys)) <= LONGEST_KEY_BYTES):
        for key in keys:
            check_key(key)


def check_key(key: bytes) -> None:
    """Refuse a key that not every store could take."""
    if not 0 < len(key) <= LONGEST_KEY_BYTES:
        raise InvalidKeyError(key, LONGEST_KEY_BYTES)
