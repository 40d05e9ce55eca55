"""Opens a store with little address space, and prints how much it took."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from pairbus.store import LmdbStore, apply

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
    store = LmdbStore(Path(sys.argv[1]), step_bytes=1 << 20)
    apply(store, {b"key": b"value"})
    assert store.get(b"key") == b"value"
    print(store.max_bytes)
