"""Opens damaged copies of a store's file, one after the other, and prints the outcome of each.

The cases come on standard input, one per line: the length to which the file is cut, then pairs of position and new
octet. Before each case its number is printed, so that the last one is known when LMDB kills the process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pairbus.store import DamagedRecordError, DamagedStoreError, LmdbStore, apply, verify
from tests.store.opening import EVERYTHING

REFUSED = "refused"
SET_ASIDE = "set aside"
UNHARMED = "unharmed"


def examine(path: Path, expected: dict[bytes, bytes]) -> str:
    """Open a store with known contents, read all of it in both ways, write to it, and read again."""
    try:
        store = LmdbStore(path, max_bytes=1 << 30, step_bytes=1 << 16)
    except DamagedStoreError:
        return REFUSED
    try:
        damaged = compare(store, expected)
        batch = {key: None if number % 3 else b"new" * 400 for number, key in enumerate(expected) if number % 2}
        for part in (0, 1):
            apply(store, {key: value for number, (key, value) in enumerate(batch.items()) if number % 2 == part})
        verify(path)
        changed = {key: value for key, value in (expected | batch).items() if value is not None}
        compare(store, changed)
    finally:
        store.close()
    return SET_ASIDE if damaged else UNHARMED


def compare(store: LmdbStore, expected: dict[bytes, bytes]) -> set[bytes]:
    """Check that every record is right, or that its damage is reported."""
    damaged: set[bytes] = set()
    found = dict(store.scan(*EVERYTHING, on_damage=lambda key, _: damaged.add(key)))
    for key, value in found.items():
        assert expected.get(key) == value, f"a wrong value under {key!r}"
    missing = expected.keys() - found.keys()
    assert len(missing) <= len(damaged), f"{missing} are missing, and only {damaged} were reported"
    for key in expected:
        try:
            assert store.get(key) == found.get(key), f"{key!r} is found in one way only"
        except DamagedRecordError:
            assert key in damaged
    return damaged


def damaged_copy(data: bytes, case: list[int]) -> bytes:
    copy = bytearray(data[: case[0]])
    for position, octet in zip(case[1::2], case[2::2], strict=True):
        copy[position] = octet
    return bytes(copy)


def load(path: Path) -> tuple[bytes, dict[bytes, bytes]]:
    """Read an undamaged file, and its contents."""
    data = path.read_bytes()
    records = json.loads(path.with_suffix(".json").read_text())
    return data, {bytes.fromhex(key): bytes.fromhex(value) for key, value in records.items()}


if __name__ == "__main__":
    sound, records = load(Path(sys.argv[1]))
    copy = Path(sys.argv[2])
    for number, line in enumerate(sys.stdin):
        print(number, end=" ", flush=True)
        copy.write_bytes(damaged_copy(sound, json.loads(line)))
        print(examine(copy, records), flush=True)
