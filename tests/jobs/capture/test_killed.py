"""Captures that are killed, with all their processes, at points chosen by a seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from pairbus.blocking import MessagingFactory
from pairbus.jobs.capture.command import DONE
from pairbus.testing import running_namespace
from tests.client.stage import make_queue
from tests.jobs.capture.entities import LIMIT_S, book, depth, send, sent
from tests.jobs.capture.messages import ids
from tests.jobs.processes import kill_session, members
from tests.waiting import eventually

ROOT: Final = Path(__file__).resolve().parents[3]
BATCH: Final = 100
EACH_TIME: Final = 600
SHORT_LOCK_MS: Final = 5_000


@contextmanager
def process(connection_string: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process group that is killed at the end."""
    with subprocess.Popen(
        [*map(str, (sys.executable, "-m", "pairbus", "capture", *arguments, "--master", "local[2]", "--json"))],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PAIRBUS_SOURCE": connection_string},
        start_new_session=True,
    ) as found:
        try:
            yield found
        finally:
            kill_session(found.pid)
    assert not members(found.pid)


Until = Callable[[subprocess.Popen[str]], object]


def until_file(_to: Path) -> Until:
    """Return whether a file was reported."""

    def wait(running: subprocess.Popen[str]) -> None:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{") and json.loads(line)["event"] == "file":
                return
        pytest.fail("it has ended before")

    return wait


def until_piece(to: Path) -> Until:
    """Return whether a task has written a piece, or its batch is in the state already."""
    before, taken = pieces(to), taken_of(to)
    return lambda _: eventually(lambda: bool(pieces(to) - before) or taken_of(to) != taken)


def until_batch(to: Path) -> Until:
    """Return whether a batch is in the state."""
    taken = taken_of(to)
    return lambda _: eventually(lambda: taken_of(to) != taken)


def pieces(to: Path) -> set[Path]:
    return {*(to / "_capture" / "pieces").glob("*")}


def taken_of(to: Path) -> object:
    """Return the stored state, or an empty one."""
    return book(to).taken if (to / "_capture" / "book.json").exists() else {}


POINTS: Final[list[tuple[Callable[[Path], Until], float]]] = [
    (until_piece, 0.3),
    (until_file, 3.0),
    (until_batch, 0.1),
]
"""Conditions to wait for, from before the start, and the maximum time until the kill after that."""


def until_directory(to: Path) -> Until:
    """Return whether Spark has begun to write a batch to a URL."""
    before = directories(to)
    return lambda _: eventually(lambda: bool(directories(to) - before))


def until_whole_directory(to: Path) -> Until:
    """Return whether Spark has written a batch to a URL, which it has to commit after that."""
    before = whole_directories(to)
    return lambda _: eventually(lambda: bool(whole_directories(to) - before))


def directories(to: Path) -> set[Path]:
    return {*to.glob("day=*/hour=*/window=*/batch=*")}


def whole_directories(to: Path) -> set[Path]:
    return {*to.glob("day=*/hour=*/window=*/batch=*/_SUCCESS")}


URL_POINTS: Final[list[tuple[Callable[[Path], Until], float]]] = [
    (until_directory, 0.3),
    (until_file, 3.0),
    (until_whole_directory, 0.05),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("is_url", [False, True])
def test_e1_kill_at_any_point_captures_each_message_once(seed: int, is_url: bool, tmp_path: Path) -> None:
    random, to = Random(seed), tmp_path / "files"  # noqa: S311 (the same each time)
    points = URL_POINTS if is_url else POINTS
    with (
        running_namespace() as namespace,
        MessagingFactory.from_connection_string(namespace.connection_string) as factory,
    ):
        queues = [make_queue(namespace, lock_duration_ms=SHORT_LOCK_MS) for _ in range(2)]
        what = (*("--entity", queues[0], "--entity", queues[1]), "--to", to.as_uri() if is_url else to)
        small = ("--max-messages", BATCH, "--window", "1s")
        for kill, (until, longest_s) in enumerate(points):
            for queue in queues:
                send(factory, queue, range(kill * EACH_TIME, (kill + 1) * EACH_TIME))
            wait = until(to)
            with process(namespace.connection_string, *what, *small) as running:
                wait(running)
                time.sleep(random.random() * longest_s)
            seen = ids(to)
            assert len(seen) == len(set(seen))

        with process(namespace.connection_string, *what, "--once") as last:
            last.communicate(timeout=LIMIT_S)
        assert last.returncode == DONE
        everything = [name for queue in queues for name in sent(queue, range(len(points) * EACH_TIME))]
        assert ids(to) == sorted(everything)
        assert [depth(factory, queue) for queue in queues] == [0, 0]
