"""A single confirmed send, and what it is made of: a sync of the disk, a commit of LMDB, a group commit.

Each is done alone, with a pause before the next, on the same disk. Nothing is confirmed before it is on disk, and a
commit of LMDB syncs twice: first the pages, then the meta page that refers to them.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import lmdb

from benchmarks.broker import NOW, QUEUE, make_namespace
from benchmarks.server import Administrator, connected, payload_of, serving
from benchmarks.transfer import COMPILED
from pairbus.broker import NewMessage, QueueDescription
from pairbus.store import GroupCommitter
from pairbus.wire import ACCEPTED, DispositionReceived

SAMPLES: Final = 1_000
PAUSE_S: Final = 0.005
_PAGE: Final = os.urandom(4096)


class Latency(NamedTuple):
    """Milliseconds within which half of all samples ended, and 99 of 100."""

    half_ms: float
    most_ms: float


def latency_of(work: Callable[[int], object], samples: int = SAMPLES) -> Latency:
    """Do a piece of work again and again, with pauses."""
    times_s: list[float] = []
    for number in range(samples):
        time.sleep(PAUSE_S)
        start_s = time.perf_counter()
        work(number)
        times_s.append(time.perf_counter() - start_s)
    hundredths = statistics.quantiles(times_s, n=100)
    return Latency(hundredths[49] * 1e3, hundredths[98] * 1e3)


def sync_alone(path: Path) -> Latency:
    """Append a page to a file, and sync it."""
    with path.open("wb", 0) as file:

        def append(_number: int) -> None:
            file.write(_PAGE)
            os.fsync(file.fileno())

        return latency_of(append)


def lmdb_alone(path: Path) -> Latency:
    """Commit the two records of a message, and nothing else."""
    environment = lmdb.open(str(path), subdir=False, map_size=1 << 30, lock=False, readahead=False)
    body = payload_of(0)

    def put(number: int) -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"R%08d" % number, body[:110])
            transaction.put(b"B%08d" % number, body)

    found = latency_of(put)
    environment.close()
    return found


def commit_alone(path: Path) -> Latency:
    """Send to the broker, and commit, in this process."""
    with GroupCommitter.open(path, make_namespace, NOW) as committer:
        committer.namespace.create_queue("orders", QueueDescription(), NOW)
        body = payload_of(0)

        def send(number: int) -> None:
            committer.namespace.send(QUEUE, (NewMessage(body, f"message-{number:08}"),), NOW)
            committer.commit(NOW)

        return latency_of(send)


def send_to_server(path: Path, *, compiled: bool) -> Latency:
    """Send to a server, and wait for the confirmation."""
    with serving(path, compiled=compiled) as server, connected(server.address) as client:
        Administrator(server.address).create("orders")
        link, body = client.sender("orders"), payload_of(0)

        def send(_number: int) -> None:
            link.send(body, tag=client.tag())
            while True:
                for event in client.read():
                    if isinstance(event, DispositionReceived) and event.settled:
                        assert event.state == ACCEPTED, event.state
                        return

        return latency_of(send)


def report() -> None:
    """Print the latencies, and each relative to that of a sync."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        where = Path(directory)
        found = {
            "write 4 KB and sync": sync_alone(where / "page"),
            "commit of LMDB, alone": lmdb_alone(where / "bare.mdb"),
            "broker and commit, in one process": commit_alone(where / "alone"),
            "send to a server, plain": send_to_server(where / "plain", compiled=False),
        }
        if (COMPILED / ".ready").exists():
            found["send to a server, compiled"] = send_to_server(where / "compiled", compiled=True)
    print(f"{f'One message of 1 KB at a time; {SAMPLES:,} samples':40}{'half ms':>10}{'99% ms':>10}{'syncs':>10}")
    sync_ms = found["write 4 KB and sync"].half_ms
    for name, latency in found.items():
        print(f"{name:40}{latency.half_ms:10.2f}{latency.most_ms:10.2f}{latency.half_ms / sync_ms:10.1f}")


if __name__ == "__main__":
    report()
