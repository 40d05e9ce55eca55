"""Holds a data directory until it is stopped."""

from __future__ import annotations

import sys
from pathlib import Path

from pairbus.store import DataDirectory, LmdbStore, apply

if __name__ == "__main__":
    directory = DataDirectory.open(Path(sys.argv[1]), now_ms=2)
    store = LmdbStore(directory.data_file, step_bytes=1 << 20)
    apply(store, {b"from": b"the child"})
    print("held", flush=True)
    sys.stdin.read()
