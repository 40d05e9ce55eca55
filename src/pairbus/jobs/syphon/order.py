"""What somebody asks of a syphon that runs by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pairbus.pairing.syphon import SyphonSettings
from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.option import duration

LONG_POLL: Final = duration(
    timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s, 15m or 1h"
)
"""How a person writes how long a receive waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOrder:
    """Which pair, and how."""

    primary: ConnectionReference
    secondary: ConnectionReference
    name: str | None = None
    """What the backlog queues are named after; ``None`` for the name that the primary announces."""

    backlog_queues: int | None = None
    """How many there are; ``None`` for all that are found."""

    settings: SyphonSettings = field(default_factory=SyphonSettings)
    once: bool = False
    """Whether it ends when it has brought home what is there."""
