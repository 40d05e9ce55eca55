"""A file that has to grow on a disk that does not answer blocks no caller."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pairbus.store import LmdbStore
from pairbus.store.datafile import DataFile
from pairbus.store.errors import StoreFailedError, StoreInUseError

MEBIBYTE = 1 << 20
WAIT_S = 60.0


def test_disk_that_does_not_answer_while_the_file_grows_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.mdb"
    store = LmdbStore(path, step_bytes=MEBIBYTE)
    store.close()
    file = DataFile(path, step_bytes=MEBIBYTE)
    file.set_limit(1 << 40)
    answers = threading.Event()
    allocate = os.posix_fallocate

    def held_up(descriptor: int, start: int, size: int) -> None:
        assert answers.wait(WAIT_S)
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", held_up)
    size = path.stat().st_size
    with pytest.raises(StoreFailedError, match="the storage does not answer"):
        file.grow(within_s=0.01)
    with pytest.raises(StoreFailedError, match="the storage does not answer"):
        file.grow(within_s=2 * WAIT_S)
    file.close()
    with pytest.raises(StoreInUseError):
        DataFile(path, step_bytes=MEBIBYTE)
    growing = file._growing
    assert growing is not None
    answers.set()
    growing.join(WAIT_S)
    assert path.stat().st_size == size + MEBIBYTE
    again = DataFile(path, step_bytes=MEBIBYTE)
    again.set_limit(1 << 40)
    assert again.grow()
    again.close()
