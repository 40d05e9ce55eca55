"""Random batches, scans and restarts, compared with a dictionary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.store import apply
from pairbus.store.keyvalue import PREFIXES
from tests.store.opening import EVERYTHING, LmdbOpening, MemoryOpening, Opening
from tests.thoroughness import times

KEYS = st.one_of(
    st.integers(0, 40).map(lambda number: b"%03d" % number),
    st.integers(0, 40).map(lambda number: b"%03d" % number + b"k" * (468 + number)),
    st.binary(min_size=1, max_size=4).filter(lambda key: not key.startswith(PREFIXES)),  # the store's own
)

SIZES = st.sampled_from([0, 1, 30, 900, 1_990, 2_040, 4_000, 4_100, 9_000, 40_000])
VALUES = st.builds(lambda size, octet: bytes([octet]) * size, SIZES, st.integers(0, 255))
BATCHES = st.dictionaries(KEYS, st.none() | VALUES, max_size=30)
RANGES = st.tuples(KEYS, KEYS)

Step = tuple[str, dict[bytes, bytes | None], tuple[bytes, bytes]]
KINDS = st.sampled_from(["apply", "apply", "abandon", "reopen", "clear"])
STEPS = st.lists(st.tuples(KINDS, BATCHES, RANGES), max_size=12)


def in_memory(_: Path) -> MemoryOpening:
    return MemoryOpening()


@pytest.mark.parametrize("make", [in_memory, LmdbOpening], ids=["memory", "lmdb"])
@settings(deadline=None, max_examples=times(150))
@given(steps=STEPS)
def test_store_behaves_like_a_dictionary(make: Callable[[Path], Opening], steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        opening = make(Path(directory))
        try:
            follow(opening, steps)
        finally:
            opening.close()


def follow(opening: Opening, steps: list[Step]) -> None:
    store = opening.open()
    model: dict[bytes, bytes] = {}
    for step, batch, (start, end) in steps:
        match step:
            case "apply":
                apply(store, batch)
                change(model, batch)
            case "abandon":
                store.prepare(batch).abandon()
            case "clear":
                apply(store, dict.fromkeys(model))
                model.clear()
            case _:
                store = opening.reopen()
        assert list(store.scan(*EVERYTHING)) == sorted(model.items())
        assert list(store.scan(start, end)) == sorted(item for item in model.items() if start <= item[0] < end)
        for key in batch:
            assert store.get(key) == model.get(key)
    assert list(opening.reopen().scan(*EVERYTHING)) == sorted(model.items())


def change(model: dict[bytes, bytes], batch: dict[bytes, bytes | None]) -> None:
    for key, value in batch.items():
        if value is None:
            model.pop(key, None)
        else:
            model[key] = value
