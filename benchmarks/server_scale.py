"""The server with many connections, and with many queues; each beside ten times fewer, so that growth shows.

Run as ``python -m benchmarks.server_scale crowd CONNECTION_STRING COUNT`` it is the crowd: it connects so many times,
says how long that took, and stays until its standard input ends.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.broker import NOW, make_namespace
from benchmarks.server import Administrator, Client, Server, connected, payload_of, serving
from benchmarks.transfer import HERE
from pairbus.broker import QueueDescription
from pairbus.dialect.connection_string import ConnectionString, parse_connection_string
from pairbus.store import GroupCommitter
from pairbus.wire import Link

CONNECTIONS: Final = (100, 1_000)
QUEUES: Final = (1_000, 10_000)
BY_HTTP: Final = 10
"""Every so many-th queue is made by HTTP, the others by the broker itself before the server starts."""

AT_ONCE: Final = 20
SENDS: Final = 200
PAGE: Final = 100
CROWDED: Final = "crowded"
QUIET: Final = "quiet"
_KILOBYTE: Final = 1_024


# Many connections


@dataclass(frozen=True, slots=True)
class Crowd:
    """The cost of many connections, and their effect on one more client."""

    seconds: float
    bytes_each: float
    bytes_more_each: float
    alone_ms: float
    meanwhile_ms: float
    beside_ms: float
    among_ms: float
    """To send to a queue that half of them wait at."""


def crowd(count: int, data: Path) -> Crowd:
    with serving(data) as server, connected(server.address) as client:
        for path in (CROWDED, QUIET):
            Administrator(server.address).create(path)
        quiet, crowded = client.sender(QUIET), client.sender(CROWDED)
        alone_ms = _send_ms(client, quiet)
        before = server.private_bytes
        with _crowd_process(server.address, count) as process:
            meanwhile_ms = _send_ms_until_ready(client, quiet, process)
            seconds = float(_line(process))
            during = server.private_bytes
            beside_ms, among_ms = _send_ms(client, quiet), _send_ms(client, crowded)
        with _crowd_process(server.address, count) as process:
            _line(process)
            again = server.private_bytes
    return Crowd(
        seconds, (during - before) / count, (again - during) / count, alone_ms, meanwhile_ms, beside_ms, among_ms
    )


@contextmanager
def _crowd_process(address: ConnectionString, count: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.server_scale", "crowd", str(address), str(count)],
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    try:
        assert _line(process) == "ready"
        yield process
    finally:
        process.stdin.close()
        process.wait()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _be_crowd(address: ConnectionString, count: int) -> None:
    """Connect in several threads, half as senders and half as receivers, and stay."""
    print("ready", flush=True)
    start = time.perf_counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        clients = list(pool.map(lambda number: _one_of_many(address, number), range(count)))
    print(time.perf_counter() - start, flush=True)
    sys.stdin.read()
    for client in clients:
        client.socket.close()


def _one_of_many(address: ConnectionString, number: int) -> Client:
    client = Client(address)
    client.put_token(CROWDED)
    if number % 2:
        client.sender(CROWDED)
    else:
        client.receiver(CROWDED, credit=10)
    return client


def _send_ms(client: Client, link: Link, count: int = SENDS) -> float:
    """Milliseconds that 99 of 100 messages are confirmed within, sent one at a time."""
    return _hundredth([_one_send_ms(client, link) for _ in range(count)])


def _send_ms_until_ready(client: Client, link: Link, process: subprocess.Popen[str]) -> float:
    """The same, for as long as the crowd is connecting."""
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    times = [_one_send_ms(client, link)]
    while not process.stdout.buffer.peek(1):  # type: ignore[attr-defined]
        times.append(_one_send_ms(client, link))
    os.set_blocking(process.stdout.fileno(), True)
    return _hundredth(times)


def _one_send_ms(client: Client, link: Link) -> float:
    start = time.perf_counter()
    client.send_all(link, [payload_of(0)])
    return (time.perf_counter() - start) * 1e3


def _hundredth(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] if len(times) > 1 else times[0]


# Many queues


@dataclass(frozen=True, slots=True)
class Queues:
    """The cost of many queues, and their effect on an administrator and a client."""

    create_ms: float
    create_by_http_ms: float
    bytes_each: float
    list_s: float
    slowest_page_ms: float
    send_ms: float
    restart_s: float


def queues(count: int, data: Path) -> Queues:
    with serving(data.with_suffix(".empty")) as empty:
        bare = empty.private_bytes
    by_http = count // BY_HTTP
    create_ms = _create_by_broker(data, count - by_http)
    with serving(data) as server:
        http = Administrator(server.address)
        start = time.perf_counter()
        for number in range(count - by_http, count):
            http.create(_name(number))
        create_by_http_ms = (time.perf_counter() - start) / by_http * 1e3
        bytes_each = (server.private_bytes - bare) / count
        list_s, slowest_page_ms = _list_all(http, count)
        send_ms = _send_to_random(server, count)
    start = time.perf_counter()
    with serving(data):
        restart_s = time.perf_counter() - start
    return Queues(create_ms, create_by_http_ms, bytes_each, list_s, slowest_page_ms, send_ms, restart_s)


def _name(number: int) -> str:
    return f"queue-{number:06}"


def _create_by_broker(data: Path, count: int) -> float:
    start = time.perf_counter()
    with GroupCommitter.open(data, make_namespace, NOW) as committer:
        for number in range(count):
            committer.namespace.create_queue(_name(number), QueueDescription(), NOW)
            if not number % 100:
                committer.commit(NOW)
    return (time.perf_counter() - start) / count * 1e3


def _page(http: Administrator, skip: int) -> int:
    """Return the number of queues on a page of the list."""
    status, answer = http.ask("GET", f"/$Resources/Queues?api-version=2021-05&$skip={skip}&$top={PAGE}")
    assert status == 200, answer
    return answer.count(b"<entry")


def _list_all(http: Administrator, count: int) -> tuple[float, float]:
    """Seconds for the whole list, and milliseconds for the slowest page of it."""
    pages: list[float] = []
    found = 0
    while found < count:
        start = time.perf_counter()
        got = _page(http, found)
        pages.append(time.perf_counter() - start)
        assert got, f"the list ends after {found} queues"
        found += got
    return sum(pages), max(pages) * 1e3


def _send_to_random(server: Server, count: int) -> float:
    random = Random(7)  # noqa: S311 (which queues does not matter)
    with connected(server.address) as client:
        links = [client.sender(_name(number)) for number in random.sample(range(count), SENDS)]
        return _hundredth([_one_send_ms(client, link) for link in links])


# What is printed


def report() -> None:
    _allow_many_files()
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        where = Path(directory)
        few, many = (crowd(count, where / f"crowd-{count}") for count in CONNECTIONS)
        short, long = (queues(count, where / f"queues-{count}") for count in QUEUES)
    least, most = CONNECTIONS
    print(f"Connections, each with a session, a token and a link: {least:,}, then {most:,}; {os.cpu_count()} cores")
    _row("to connect all, client and server on one machine (s)", few.seconds, many.seconds)
    _row("memory of one (KB)", few.bytes_each / _KILOBYTE, many.bytes_each / _KILOBYTE)
    _row(
        "more, when as many have come and gone before (KB)",
        few.bytes_more_each / _KILOBYTE,
        many.bytes_more_each / _KILOBYTE,
    )
    print("99 of 100 messages of another client are confirmed within (ms)")
    _row("  before they come", few.alone_ms, many.alone_ms)
    _row("  while they connect", few.meanwhile_ms, many.meanwhile_ms)
    _row("  while they are there", few.beside_ms, many.beside_ms)
    _row("  sent to the queue that half of them wait at", few.among_ms, many.among_ms)
    print(f"Queues in one namespace: {QUEUES[0]:,}, then {QUEUES[1]:,}")
    _row("to create one, the broker alone (ms)", short.create_ms, long.create_ms)
    _row("to create one by HTTP (ms)", short.create_by_http_ms, long.create_by_http_ms)
    _row("memory of one (KB)", short.bytes_each / _KILOBYTE, long.bytes_each / _KILOBYTE)
    _row(f"to list all, {PAGE} a page (s)", short.list_s, long.list_s)
    _row("  the slowest page (ms)", short.slowest_page_ms, long.slowest_page_ms)
    _row("99 of 100 messages to any of them are confirmed within (ms)", short.send_ms, long.send_ms)
    _row("from the start of the process until it serves (s)", short.restart_s, long.restart_s)


def _row(name: str, few: float, many: float) -> None:
    growth = f"x {many / few:.1f}" if few > 0 else ""
    print(f"{name:64}{few:10,.2f}{many:10,.2f}   {growth}")


def _allow_many_files() -> None:
    """A connection is an open file in each of the processes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    if sys.argv[1:2] == ["crowd"]:
        _be_crowd(parse_connection_string(sys.argv[2]), int(sys.argv[3]))
    else:
        report()
