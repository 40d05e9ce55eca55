"""Has writers killed, one after the other, at points that a seed tells, and says what each had on disk by then.

Each writer opens the same ledger, and so recovers, or is killed while it does, what the one before it has left.
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
from tests.ledger.entries import HOUR_MS, NAMESPACE, START_MS, lives_from, sort_of, tally_of

SETTINGS: Final = LedgerSettings(flush_s=0.002, close_s=0.1, close_bytes=200_000)
ROUND: Final = 1_000_000
"""The numbers of a round begin with a multiple of this."""

AT_A_TIME: Final = 20


def at_ms_of(number: int) -> int:
    """Every now and then another hour begins."""
    return START_MS + number % ROUND // 2_000 * HOUR_MS


def write(directory: Path, first: int, report: int) -> None:
    """Write for ever, and report how much is on disk whenever that is more."""
    start_s = time.monotonic()
    ledger = Ledger.open(
        directory, NAMESPACE, SETTINGS, clock=lambda: START_MS + int(1e3 * (time.monotonic() - start_s))
    )
    number = first
    reported = 0
    while True:
        at_ms = at_ms_of(number)
        ledger.write_lives(lives_from(number, AT_A_TIME, at_ms))
        ledger.write_operations(at_ms, [(sort_of(number), tally_of(number))], 0)
        number += AT_A_TIME
        time.sleep(0.001)
        status = ledger.status
        if status.rows_written > reported:
            reported = status.rows_written
            os.write(report, b"%d %d\n" % (status.lives_written, status.operations_written))


def killed_writer(directory: Path, number: int, chance: Random) -> str:
    """Let one write until it has reported some times, and then a little longer; gives its last report."""
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
    logging.getLogger("pairbus").addHandler(logging.NullHandler())  # what was cut off is no news here
    import_module("pairbus.ledger.writer")  # once, and not in each of them
    chance = Random(int(sys.argv[2]))  # noqa: S311
    for number in range(1, 1 + int(sys.argv[3])):
        print(number, killed_writer(Path(sys.argv[1]), number, chance), end="", flush=True)
