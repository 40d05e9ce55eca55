"""A machine with Spark's packages and without lmdb: the open journals of a ledger can be read."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.modules["lmdb"] = None  # type: ignore[assignment]

    from pairbus.ledger import LIVES, read_open

    print(sum(table.num_rows for table in read_open(Path(sys.argv[1]), LIVES).values()))
