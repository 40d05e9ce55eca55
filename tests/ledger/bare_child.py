"""A machine without pyarrow: the ledger's package can be imported, and opening a ledger names the missing package."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.modules["pyarrow"] = None  # type: ignore[assignment]

    import pairbus.ledger

    assert pairbus.ledger.units_of(65_537) == 2
    for ask in (
        lambda: pairbus.ledger.Ledger.open(Path(sys.argv[1]), "contoso"),
        lambda: pairbus.ledger.read_open(Path(sys.argv[1]), pairbus.ledger.LIVES),
    ):
        try:
            ask()
        except pairbus.ledger.PyArrowMissingError as error:
            print(error)
