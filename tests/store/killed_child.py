"""Commits numbered batches endlessly, and prints the number of each when it is durable."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from threading import Thread

from pairbus.store import DataDirectory, LmdbStore

NEWEST = b"newest"
KEPT = 40
"""Number of later batches after which half of a batch is deleted."""


def batch_of(number: int) -> dict[bytes, bytes | None]:
    """Return the writes of one commit: its own records, deletions of older ones, and its number."""
    batch: dict[bytes, bytes | None] = {key: value_of(number, key) for key in keys_of(number)}
    batch |= dict.fromkeys(keys_of(number - KEPT)[::2])
    batch[NEWEST] = b"%d" % number
    return batch


def state_after(number: int) -> dict[bytes, bytes]:
    """Return the state after the batches up to this number were committed."""
    state = {
        key: value_of(older, key)
        for older in range(1, number + 1)
        for key in (keys_of(older)[1::2] if older <= number - KEPT else keys_of(older))
    }
    return state | {NEWEST: b"%d" % number} if number else state


def keys_of(number: int) -> list[bytes]:
    return [b"%d/%d/%d" % (number * 7919 % 64, number, part) for part in range(5 + number % 4)] if number > 0 else []


def value_of(number: int, key: bytes) -> bytes:
    return key * (5, 30, 100, 500)[(number + len(key)) % 4]


if __name__ == "__main__":
    directory = DataDirectory.open(Path(sys.argv[1]), now_ms=1)
    store = LmdbStore(directory.data_file, step_bytes=1 << 20)
    number = int(store.get(NEWEST) or 0)
    while True:
        number += 1
        thread = Thread(target=store.prepare(batch_of(number)).run)
        thread.start()
        thread.join()
        os.write(1, b"%d\n" % number)
