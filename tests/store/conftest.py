"""Every kind of store, opened in a new location for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.opening import FaultyOpening, LmdbOpening, MemoryOpening, Opening


@pytest.fixture(params=["memory", "lmdb", "faulty"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    makers: dict[str, Callable[[], Opening]] = {
        "memory": MemoryOpening,
        "lmdb": lambda: LmdbOpening(tmp_path),
        "faulty": FaultyOpening,
    }
    opening = makers[request.param]()
    yield opening
    opening.close()
