"""E1: a confirmed message survives ``kill -9``, and a message whose settlement was confirmed does not come back."""

from __future__ import annotations

import os
import signal
from collections import Counter
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from pairbus.broker.descriptions import QueueDescription
from tests.durability import busy
from tests.durability.namespace import NOW, contents, open_keeper


class Books:
    """The records that the killed processes printed."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.removing: set[str] = set()
        self.removed: set[str] = set()

    def read(self, reports: Connection, limit: int | None = None) -> int:
        """Read the reports, all of them or until so many messages are confirmed; return how many are.

        A report of a removal that is about to happen does not count: how many of them there are until the next commit
        depends on how busy the machine is.
        """
        count = 0
        try:
            while limit is None or count < limit:
                word, message_id = reports.recv()
                getattr(self, word).add(message_id)
                count += word != "removing"
        except EOFError:
            pass
        return count

    def check(self, path: Path) -> int:
        """Compare with what is there now; how many messages that are."""
        keeper = open_keeper(path)
        assert keeper.recovery.damaged == []
        found = contents(keeper.use_namespace())
        counts = Counter(delivery.record.message_id for delivery in found)
        for delivery in found:
            assert delivery.body.rstrip(b".").decode() == delivery.record.message_id
        assert [message_id for message_id, count in counts.items() if count > 1] == []
        assert self.sent - self.removing - counts.keys() == set(), "confirmed, and lost"
        assert self.removed & counts.keys() == set(), "settled, and back"
        # What was being removed when the process died is decided now.
        self.removed |= self.removing - counts.keys()
        self.removing = set(self.removed)
        keeper.close()
        return len(found)


def create_queue(path: Path) -> None:
    keeper = open_keeper(path)
    keeper.use_namespace().create_queue("orders", QueueDescription(max_delivery_count=3), NOW)
    keeper.commit(NOW)
    keeper.close()


def crash(path: Path, books: Books, random: Random) -> None:
    """Let a process work for a random number of confirmations, kill it, and read the rest of its reports."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.durability.busy"])
    reports, theirs = context.Pipe(duplex=False)
    process = context.Process(target=busy.main, args=(path, theirs, random.getrandbits(32)), daemon=True)
    process.start()
    theirs.close()
    confirmed = books.read(reports, limit=random.randrange(1, 300))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL, "it ended by itself"
    assert confirmed
    books.read(reports)


@pytest.mark.parametrize("kills", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_e1_nothing_confirmed_is_lost_when_the_process_is_killed(tmp_path: Path, kills: int) -> None:
    path = tmp_path / "data"
    create_queue(path)
    books = Books()
    random = Random(kills)  # noqa: S311 (the moments of the kills)
    for _ in range(kills):
        crash(path, books, random)
        books.check(path)
    assert len(books.sent) > kills * 10
    assert len(books.removed) > kills
