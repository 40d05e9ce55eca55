"""How much there is in ledgers, and what Spark is told accordingly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pairbus.jobs.ledger.tables import Paths, is_address, plain_places
from pairbus.spark.session import LIGHT

_LITTLE_BYTES: Final = 8 * 1024 * 1024

FEW_ROWS: Final = {**LIGHT, "spark.sql.shuffle.partitions": "2"}
"""To plan the work and to compile it takes longer then than the work."""


def session_config(ledgers: Paths, otherwise: Mapping[str, str]) -> Mapping[str, str]:
    """What a session is started with that is to read these ledgers."""
    return FEW_ROWS if is_little(ledgers) else otherwise


def is_little(ledgers: Paths) -> bool:
    """Whether there are few rows in them, as far as this machine can tell: at an address there may be any number."""
    left = _LITTLE_BYTES
    for place in plain_places(ledgers):
        if is_address(place):
            return False
        for file in Path(place).rglob("*"):
            left -= file.stat().st_size if file.is_file() else 0
            if left < 0:
                return False
    return True
