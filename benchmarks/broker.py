"""The broker on its store: put, lock and complete in queues of any length, and the way back after a stop.

Everything runs on one core, fsync included. The peer in the same run is LMDB alone, which does nothing but put and
delete the same bytes in the same groups.
"""

from __future__ import annotations

import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from uuid import UUID

import lmdb

from pairbus.broker.descriptions import QueueDescription
from pairbus.broker.limits import RELAXED
from pairbus.broker.message import NO_PROPERTIES, Address, NewMessage, PropertyView
from pairbus.broker.namespace import Namespace
from pairbus.broker.ports import Records
from pairbus.store.group_committer import GroupCommitter

GROUP = 100
BODY = os.urandom(1024)
RECORD = os.urandom(110)
ROUNDS = 5
MESSAGES_A_ROUND = 20_000
SHORT, LONG = 10_000, 1_000_000
QUEUE = Address.of("orders")
NOW = 1_800_000_000_000


def make_namespace(records: Records, view: Callable[[bytes], PropertyView] = lambda _: NO_PROPERTIES) -> Namespace:
    random = Random()  # noqa: S311 (tokens of a benchmark)
    return Namespace(
        records,
        limits=RELAXED,
        view=view,
        fresh_id=lambda: UUID(int=random.getrandbits(128)),
        fresh_token=lambda: random.randbytes(16),
    )


def report() -> None:
    """Print the rate, the memory, the growth and the time of a restart."""
    with _one_core(), TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        bare = _bare(Path(directory) / "bare.mdb")
        short = _length(Path(directory) / "short", SHORT)
        long = _length(Path(directory) / "long", LONG)
    print(f"1 KB messages, fsync for every {GROUP}, one core; median of {ROUNDS} rounds of {MESSAGES_A_ROUND:,}")
    print(f"{'LMDB alone, put and delete':58}{bare:10,.0f} a second")
    for count, (rate, _, _) in ((SHORT, short), (LONG, long)):
        name = f"put, lock, complete; {count:,} messages in the queue"
        print(f"{name:58}{rate:10,.0f} a second   {rate / bare:.2f} of LMDB alone")
    print(f"to reach: 25,000 a second; {LONG:,} as fast as {SHORT:,} within 15%: {long[0] / short[0] - 1:+.0%}")
    print(f"{f'memory of a message among {LONG:,}':58}{long[1]:10,.0f} bytes      to reach: at most 150")
    print(f"{f'restart with {LONG:,} messages':58}{long[2]:10,.1f} seconds    (benchmarks.startup: compiled, too)")


@contextmanager
def _one_core() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _length(path: Path, count: int) -> tuple[float, float, float]:
    """Messages a second, bytes of memory a message, and seconds of a restart, with that many in the queue."""
    committer = GroupCommitter.open(path, make_namespace, NOW)
    committer.namespace.create_queue("orders", QueueDescription(max_size_megabytes=1_000_000), NOW)
    before = _private_bytes()
    fill(committer, count)
    memory = (_private_bytes() - before) / count
    rate = statistics.median(_round(committer) for _ in range(ROUNDS))
    committer.close()
    start = time.perf_counter()
    committer = GroupCommitter.open(path, make_namespace, NOW)
    seconds = time.perf_counter() - start
    assert committer.recovery.messages == count
    committer.close()
    return rate, memory, seconds


def fill(committer: GroupCommitter, count: int) -> None:
    """Send messages to the queue."""
    for first in range(0, count, 1_000):
        for number in range(first, first + 1_000):
            committer.namespace.send(QUEUE, (NewMessage(BODY, f"message-{number}"),), NOW)
        committer.commit(NOW)


def _round(committer: GroupCommitter) -> float:
    """Messages a second: each is one send, one receive and one settlement, as they come from the wire."""
    namespace = committer.namespace
    start = time.perf_counter()
    for first in range(0, MESSAGES_A_ROUND, GROUP):
        for number in range(first, first + GROUP):
            namespace.send(QUEUE, (NewMessage(BODY, f"message-{number}"),), NOW)
        committer.commit(NOW)
        tokens = [namespace.receive(QUEUE, 1, NOW)[0].lock_token for _ in range(GROUP)]
        for token in tokens:
            assert token is not None
            namespace.settle(QUEUE, token, NOW)
        committer.commit(NOW)
    return MESSAGES_A_ROUND / (time.perf_counter() - start)


def _bare(path: Path) -> float:
    environment = lmdb.open(str(path), subdir=False, map_size=1 << 32, lock=False, readahead=False, meminit=False)
    rate = statistics.median(_bare_round(environment) for _ in range(ROUNDS))
    environment.close()
    return rate


def _bare_round(environment: lmdb.Environment) -> float:
    key = struct.Struct(">cQ").pack
    start = time.perf_counter()
    for first in range(0, MESSAGES_A_ROUND, GROUP):
        with environment.begin(write=True) as transaction:
            for number in range(first, first + GROUP):
                transaction.put(key(b"R", number), RECORD)
                transaction.put(key(b"B", number), BODY)
        with environment.begin(write=True) as transaction:
            for number in range(first, first + GROUP):
                transaction.delete(key(b"R", number))
                transaction.delete(key(b"B", number))
    return MESSAGES_A_ROUND / (time.perf_counter() - start)


def _private_bytes() -> int:
    """Return the private memory of the process: pages of the data file are the system's, and go when it needs them."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


if __name__ == "__main__":
    report()
