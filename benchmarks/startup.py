"""The start of processes: of an import, of the command, and of a server with many messages.

Processor time is that of the whole process, so it includes the interpreter. The time until a server serves is that
from the start of its process until it prints its connection string.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from benchmarks.broker import NOW, fill, make_namespace
from benchmarks.processors import cpu_s
from pairbus.broker import QueueDescription
from pairbus.store import GroupCommitter

RUNS: Final = 10
STARTS: Final = 3
MESSAGES: Final = 1_000_000

_COMMANDS: Final = {
    "python -c pass": ["-c", "pass"],
    "import pairbus": ["-c", "import pairbus"],
    "from pairbus import MessagingFactory": ["-c", "from pairbus import MessagingFactory"],
    "pairbus --version": ["-m", "pairbus", "--version"],
    "pairbus --help": ["-m", "pairbus", "--help"],
    "pairbus send --help": ["-m", "pairbus", "send", "--help"],
}


class Start(NamedTuple):
    """The cost of one start."""

    seconds: float
    cpu_s: float


def run(arguments: list[str]) -> Start:
    """Run Python until it ends."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return Start(time.perf_counter() - start, used.ru_utime + used.ru_stime)


def serve(data: Path) -> Start:
    """Start a server, and stop it once it serves."""
    options = ["serve", "--data", str(data), "--name", "bench", "--port", "0", "--tier", "relaxed"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", *options, "--log-level", "warning"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert any(line.startswith("Endpoint=") for line in iter(process.stdout.readline, ""))
        return Start(time.perf_counter() - start, cpu_s(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def _fill(data: Path, count: int) -> None:
    with GroupCommitter.open(data, make_namespace, NOW) as committer:
        committer.namespace.create_queue("orders", QueueDescription(max_size_megabytes=1_000_000), NOW)
        fill(committer, count)


def _row(name: str, runs: int, start: Callable[[], Start]) -> None:
    starts = [start() for _ in range(runs)]
    seconds, cpu = (statistics.median(values) for values in zip(*starts, strict=True))
    print(f"{name:52}{cpu * 1e3:12,.0f}{seconds * 1e3:12,.0f}")


def report(messages: int = MESSAGES, data: Path | None = None) -> None:
    """Print the medians. A directory ``data`` is filled if it is new, and kept for the next run."""
    print(f"{f'Starts; medians of {RUNS}, of servers {STARTS}':52}{'CPU ms':>12}{'ms':>12}")
    for name, arguments in _COMMANDS.items():
        _row(name, RUNS, partial(run, arguments))
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        _row("pairbus serve, until it serves: empty", STARTS, lambda: serve(Path(directory) / "empty"))
        filled = data or Path(directory) / "filled"
        if not filled.exists():
            _fill(filled, messages)
        _row(f"pairbus serve, until it serves: {messages:,} messages", STARTS, lambda: serve(filled))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages of 1 KB in the data directory")
    parser.add_argument("--data", type=Path, help="a directory to fill, or one that was filled before")
    chosen = parser.parse_args()
    report(chosen.messages, chosen.data)
