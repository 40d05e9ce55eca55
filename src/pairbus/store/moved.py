"""Values that replace those of damaged pages: stored under other keys, because the page must not be written."""

from __future__ import annotations

from typing import Final

from pairbus.store import keys
from pairbus.store.keyvalue import Batch, KeyValueStore, apply

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
