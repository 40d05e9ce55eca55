"""Every kind of store, opened on a new place for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.opening import LmdbOpening, MemoryOpening, Opening


@pytest.fixture(params=["memory", "lmdb"])
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opening]:
    opening: Opening = MemoryOpening() if request.param == "memory" else LmdbOpening(tmp_path)
    yield opening
    opening.close()
