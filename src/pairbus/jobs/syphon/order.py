"""What somebody asks of a syphon that runs by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from pairbus.pairing.syphon import SyphonSettings
from pairbus.spark.connection_reference import ConnectionReference


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonOrder:
    """Which pair, and how."""

    primary: ConnectionReference
    secondary: ConnectionReference
    name: str | None = None
    """What the backlog queues call the primary; ``None`` for the first part of its host name."""

    backlog_queues: int | None = None
    """How many there are; ``None`` for all that are found."""

    settings: SyphonSettings = field(default_factory=SyphonSettings)
    once: bool = False
    """Whether it ends when it has brought home what is there."""
