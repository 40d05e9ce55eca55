"""Kills writers one after the other at points derived from a seed, and reports what each had on disk.

Each writer opens the same ledger, and so recovers what the one before it has left, or is killed while it does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Final

from pairbus.ledger import Ledger, LedgerSettings
from tests.ledger.entries import HOUR_MS, NAMESPACE, START_MS, counts_of, events_from, key_of

SETTINGS: Final = LedgerSettings(flush_s=0.002, close_s=0.1, close_bytes=200_000)
ROUND: Final = 1_000_000
"""The numbers of a round start with a multiple of this."""

AT_A_TIME: Final = 20


def at_ms_of(number: int) -> int:
    """Return the time of an event; another hour starts from time to time."""
    return START_MS + number % ROUND // 2_000 * HOUR_MS


def write(directory: Path, first: int, report: int) -> None:
    """Write endlessly, and report the number of durable events whenever it increases."""
    start_s = time.monotonic()
    ledger = Ledger.open(
        directory, NAMESPACE, SETTINGS, clock=lambda: START_MS + int(1e3 * (time.monotonic() - start_s))
    )
    number = first
    reported = 0
    while True:
        at_ms = at_ms_of(number)
        ledger.write_events(events_from(number, AT_A_TIME, at_ms))
        ledger.write_operations(at_ms, [(key_of(number), counts_of(number))], 0)
        number += AT_A_TIME
        time.sleep(0.001)
        status = ledger.status
        if status.rows_written > reported:
            reported = status.rows_written
            os.write(report, b"%d %d\n" % (status.events_written, status.operations_written))


def killed_writer(directory: Path, number: int, chance: Random) -> str:
    """Let a writer report some times, then kill it a little later; return its last report."""
    reading, report = os.pipe()
    writer = os.fork()
    if not writer:
        try:
            write(directory, number * ROUND, report)
        finally:
            os._exit(1)
    os.close(report)
    with os.fdopen(reading) as reports:
        last = "0 0\n"
        for _ in range(chance.choice((0, 1, 2, 4))):
            last = reports.readline()
        time.sleep(chance.uniform(0, 0.03))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        whole = [line for line in reports if line.endswith("\n")]
    return whole[-1] if whole else last


if __name__ == "__main__":
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # warnings about truncated journals are expected
    import_module("pairbus.ledger.files")  # once, rather than in each child
    chance = Random(int(sys.argv[2]))  # noqa: S311
    for number in range(1, 1 + int(sys.argv[3])):
        print(number, killed_writer(Path(sys.argv[1]), number, chance), end="", flush=True)
