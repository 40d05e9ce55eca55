"""Sessions: the processor time of a message that is received and completed in a session, and of the session itself.

Each build runs in processes of its own: a server, and a client that accepts one session after the other.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.server import Server, serving
from benchmarks.transfer import COMPILED, HERE
from pairbus import BrokeredMessage, MessagingFactory, NamespaceManager, QueueDescription

MESSAGES: Final = 10_000
ROUNDS: Final = 3
SESSIONS: Final = (10, 1_000)
QUEUE: Final = "visits"
BODY: Final = os.urandom(1024)
_SENT_AT_ONCE: Final = 100


class Cost(NamedTuple):
    """Processor time of a message, in microseconds, and messages a second."""

    server_us: float
    client_us: float
    per_s: float


async def _fill(factory: MessagingFactory, sessions: int) -> None:
    sender = await factory.create_message_sender(QUEUE)
    for session in range(sessions):
        for first in range(0, MESSAGES // sessions, _SENT_AT_ONCE):
            count = min(_SENT_AT_ONCE, MESSAGES // sessions - first)
            await sender.send([BrokeredMessage(BODY, session_id=f"visit-{session}") for _ in range(count)])
    await sender.close()


async def _receive_all(factory: MessagingFactory, sessions: int) -> None:
    """Accept the next session, receive and complete its messages, and release it: so often as there are sessions."""
    for _ in range(sessions):
        session = await factory.accept_message_session(QUEUE)
        left = MESSAGES // sessions
        while left:
            messages = await session.receive(max_message_count=min(left, _SENT_AT_ONCE))
            await session.complete(messages)
            left -= len(messages)
        await session.close()


async def _round(factory: MessagingFactory, server: Server, sessions: int) -> Cost:
    await _fill(factory, sessions)
    start_s, server_s, client_s = time.perf_counter(), server.cpu_s, time.process_time()
    await _receive_all(factory, sessions)
    seconds = time.perf_counter() - start_s
    server_s, client_s = server.cpu_s - server_s, time.process_time() - client_s
    return Cost(server_s / MESSAGES * 1e6, client_s / MESSAGES * 1e6, MESSAGES / seconds)


async def _measure(server: Server) -> dict[int, Cost]:
    address = str(server.address)
    async with NamespaceManager.from_connection_string(address) as manager:
        await manager.create_queue(QueueDescription(QUEUE, requires_session=True))
    found: dict[int, Cost] = {}
    async with MessagingFactory.from_connection_string(address) as factory:
        for sessions in SESSIONS:
            rounds = [await _round(factory, server, sessions) for _ in range(ROUNDS)]
            found[sessions] = Cost(*(statistics.median(values) for values in zip(*rounds, strict=True)))
    return found


def print_build(name: str) -> None:
    """Measure the build that runs in this process."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory, serving(Path(directory)) as server:
        found = asyncio.run(_measure(server))
    for sessions, cost in found.items():
        what = f"{sessions:,} sessions of {MESSAGES // sessions:,} messages, {name}"
        print(f"{what:44}{cost.server_us:12.1f}{cost.client_us:12.1f}{cost.per_s:12,.0f}", flush=True)


def report() -> None:
    """Print the costs with both builds."""
    title = f"Receive and complete in sessions; medians of {ROUNDS}"
    print(f"{title:44}{'server µs':>12}{'client µs':>12}{'a second':>12}", flush=True)
    for name, place in (("plain", HERE / "src"), ("compiled", COMPILED)):
        if name == "compiled" and not (COMPILED / ".ready").exists():
            print("pairbus is not compiled (make compiled): no figures with it.")
            continue
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (place, HERE)))}
        subprocess.run([sys.executable, "-m", "benchmarks.sessions", "--build", name], env=environment, check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.build:
        print_build(chosen.build)
    else:
        report()
