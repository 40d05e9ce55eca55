"""How much there is in ledgers, and what Spark is told accordingly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pairbus.jobs.ledger.tables import Paths, is_address, plain_places
from pairbus.spark.session import LIGHT

FEW_ROWS: Final = {**LIGHT, "spark.sql.shuffle.partitions": "2"}
"""To compile the work as well as it goes, and to divide it, takes longer then than the work."""

HANDFUL: Final = {
    **FEW_ROWS,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
}
"""So does, for still less, to compile it at all, and to plan it anew on the way."""

_BY_SIZE: Final = ((256 * 1024, HANDFUL), (32 * 1024 * 1024, FEW_ROWS))
"""Up to how many bytes which of them is the fastest, on two processors."""


def session_config(ledgers: Paths, otherwise: Mapping[str, str]) -> Mapping[str, str]:
    """What a session is started with that is to read these ledgers."""
    most, _ = _BY_SIZE[-1]
    size = _size(ledgers, most)
    return next((config for limit, config in _BY_SIZE if size <= limit), otherwise)


def _size(ledgers: Paths, most: int) -> int:
    """How many bytes there are, as far as this machine can tell: at an address there may be any number.

    It is not counted beyond ``most``.
    """
    size = 0
    for place in plain_places(ledgers):
        if is_address(place):
            return most + 1
        for file in Path(place).rglob("*"):
            size += _size_of(file)
            if size > most:
                return size
    return size


def _size_of(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:  # a server writes this ledger, and has just made a Parquet file of a journal
        return 0
