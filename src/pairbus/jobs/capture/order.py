"""What somebody asks of a capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pairbus.jobs.capture.limits import WindowLimits
from pairbus.spark.connection_reference import ConnectionReference


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOrder:
    """Which messages, where to, and how."""

    source: ConnectionReference
    """Where the driver and all executors find the connection string."""

    entities: tuple[str, ...]
    """Queues and subscriptions, by name or pattern."""

    to: Path
    """A directory that the driver and all executors share."""

    limits: WindowLimits = field(default_factory=WindowLimits)
    checkpoint: str | None = None
    """Where Spark keeps its place; ``None`` for a place in the directory."""

    master: str = "local[*]"
    max_messages: int = 40_000
    """How many a batch takes at most."""

    once: bool = False
    """Whether it ends when it has captured what is there."""

    keep: bool = False
    """Whether messages are looked at, and stay."""
