"""A killed process: everything that it reported as durable is stored, and no batch is stored in part."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pairbus.store import DataDirectory, LmdbStore
from tests.store.child import start
from tests.store.killed_child import NEWEST, state_after
from tests.store.opening import EVERYTHING


@pytest.mark.parametrize("kills", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_kill_loses_no_durable_write(tmp_path: Path, kills: int) -> None:
    chance = random.Random(kills)  # noqa: S311
    said = 0
    for _ in range(kills):
        said = commit_until_killed(tmp_path / "data", said, lines=chance.randrange(40))
        directory = DataDirectory.open(tmp_path / "data", now_ms=2)
        store = LmdbStore(directory.data_file, step_bytes=1 << 20)  # verifies all pages, too
        newest = int(store.get(NEWEST) or 0)
        assert newest in {said, said + 1}
        assert dict(store.scan(*EVERYTHING)) == state_after(newest)
        store.close()
        directory.close()
        said = newest


def commit_until_killed(path: Path, said: int, lines: int) -> int:
    """Kill the child after some lines, at any point, and return the last number that it printed."""
    with start("killed_child", path) as child:
        assert child.stdout is not None
        for _ in range(lines):
            child.stdout.readline()
        child.kill()
        rest = child.stdout.read().split()
    return int(rest[-1]) if rest else said + lines
