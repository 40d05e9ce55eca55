"""What can be set for the syphon on Spark, beside what every syphon has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSyphonSettings:
    """Where it runs, and how it gets to the two namespaces from there."""

    session: SparkSession | None = None
    """The session that it runs in; without one it uses the one that is active, or starts its own."""

    master: str = "local[*]"
    """Where a session of its own runs."""

    checkpoint: str | Path | None = None
    """Where the query keeps its place. The backlog itself says what has to be brought home, so without one, or with
    another one, nothing is lost and nothing is brought home twice."""

    primary: str | None = None
    secondary: str | None = None
    """Where executors find the connection strings: ``env:NAME`` or ``file:/path``. Without them they are written into
    a file that only this user can read, which does for executors on this machine."""

    max_messages: int = 40_000
    """How many messages a batch holds at most."""

    config: Mapping[str, str] = field(default_factory=dict)
    """For a session of its own."""

    def __post_init__(self) -> None:
        if self.max_messages < 1:
            raise ValueError(f"max_messages is {self.max_messages}; it must be at least 1")
