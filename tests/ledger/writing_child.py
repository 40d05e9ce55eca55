"""Writes to a ledger as instructed line by line on stdin, and reports when it is on disk."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from pairbus.ledger import Ledger, LedgerSettings
from tests.ledger.entries import START_MS, events_from
from tests.waiting import eventually

SETTINGS: Final = LedgerSettings(flush_s=0.01)

if __name__ == "__main__":
    ledger = Ledger.open(Path(sys.argv[1]), sys.argv[2], SETTINGS, clock=lambda: START_MS)
    print("open", flush=True)
    for line in sys.stdin:
        first, count = map(int, line.split())
        ledger.write_events(events_from(first, count))
        eventually(lambda: not ledger.status.events_waiting)
        print("written", flush=True)
    ledger.close()
