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
from benchmarks.transfer import COMPILED, HERE
from pairbus.broker import QueueDescription
from pairbus.store import GroupCommitter

RUNS: Final = 10
STARTS: Final = 3
MESSAGES: Final = 1_000_000
RESTART_S: Final = 2.0
"""Goal for the compiled build, until a server with all messages serves."""

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


def _environment(*, compiled: bool) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(COMPILED if compiled else HERE / "src")}


def run(arguments: list[str], *, compiled: bool) -> Start:
    """Run Python until it ends."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments], env=_environment(compiled=compiled), stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, arguments
    return Start(time.perf_counter() - start, used.ru_utime + used.ru_stime)


def serve(data: Path, *, compiled: bool) -> Start:
    """Start a server, and stop it once it serves."""
    options = ["serve", "--data", str(data), "--name", "bench", "--port", "0", "--tier", "relaxed"]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", *options, "--log-level", "warning"],
        env=_environment(compiled=compiled),
        stdout=subprocess.PIPE,
        text=True,
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


def _median(runs: int, start: Callable[[], Start]) -> Start:
    return Start(*(statistics.median(values) for values in zip(*[start() for _ in range(runs)], strict=True)))


def report(messages: int = MESSAGES, data: Path | None = None) -> None:
    """Print the medians of each build. A directory ``data`` is filled if it is new, and kept for the next run."""
    with TemporaryDirectory(prefix="pairbus-bench-", dir=Path.cwd()) as directory:
        filled = data or Path(directory) / "filled"
        if not filled.exists():
            _fill(filled, messages)
        _report_build(Path(directory), filled, messages, compiled=False)
        if not (COMPILED / ".ready").exists():
            print("pairbus is not compiled (make compiled): no figures with it.")
            return
        restart_s = _report_build(Path(directory), filled, messages, compiled=True)
    verdict = "reached" if restart_s <= RESTART_S else "missed"
    print(f"to reach with {messages:,} messages, compiled: {RESTART_S * 1e3:,.0f} ms: {verdict}")


def _report_build(directory: Path, filled: Path, messages: int, *, compiled: bool) -> float:
    """Print the medians of a build, and return the seconds until a server with all messages serves."""
    name = "compiled" if compiled else "plain"
    print(f"{f'Starts, {name}; medians of {RUNS}, of servers {STARTS}':52}{'CPU ms':>12}{'ms':>12}")
    for command, arguments in _COMMANDS.items():
        _print(command, _median(RUNS, partial(run, arguments, compiled=compiled)))
    empty = _median(STARTS, lambda: serve(directory / f"empty-{name}", compiled=compiled))
    _print("pairbus serve, until it serves: empty", empty)
    full = _median(STARTS, lambda: serve(filled, compiled=compiled))
    _print(f"pairbus serve, until it serves: {messages:,} messages", full)
    return full.seconds


def _print(name: str, start: Start) -> None:
    print(f"{name:52}{start.cpu_s * 1e3:12,.0f}{start.seconds * 1e3:12,.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="messages of 1 KB in the data directory")
    parser.add_argument("--data", type=Path, help="a directory to fill, or one that was filled before")
    chosen = parser.parse_args()
    report(chosen.messages, chosen.data)
