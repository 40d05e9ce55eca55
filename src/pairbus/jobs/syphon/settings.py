"""The settings of the Spark syphon and of its command, and the files with connection strings for executors."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pairbus.client.factory import MessagingFactory
from pairbus.pairing.syphon.interface import SyphonSettings
from pairbus.spark.connections import ConnectionReference
from pairbus.spark.options import duration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession  # an optional dependency, which the command line checks for later

LONG_POLL: Final = duration(
    timedelta(seconds=1), timedelta(days=1), "a time from 1 second to 1 day, such as 30s, 15m or 1h"
)
"""The format of the option for the long poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyphonConfig:
    """The namespaces of the pair, and how to deliver its backlog."""

    primary: ConnectionReference
    secondary: ConnectionReference
    name: str | None = None
    """The name in the paths of the backlog queues; ``None`` for the name that the primary announces."""

    backlog_queues: int | None = None
    """Number of backlog queues; ``None`` for all that exist."""

    settings: SyphonSettings = field(default_factory=SyphonSettings)
    once: bool = False
    """True to end when the existing messages are delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSyphonSettings:
    """The Spark session of a syphon, and the connections of its executors to the two namespaces."""

    session: SparkSession | None = None
    """The session to run in; by default the active one, or a new one."""

    master: str = "local[*]"
    """The master of a new session."""

    checkpoint: str | Path | None = None
    """The checkpoint directory of the query. The backlog itself records what has to be delivered, so without one, or
    with another one, nothing is lost and nothing is delivered twice."""

    primary: str | None = None
    secondary: str | None = None
    """The connection strings for executors: ``env:NAME`` or ``file:/path``. By default they are
    written to a file that only this user can read, which works for executors on this machine."""

    max_messages: int = 40_000
    """Maximum number of messages in a batch."""

    config: Mapping[str, str] = field(default_factory=dict)
    """The configuration of a new session."""

    def __post_init__(self) -> None:
        if self.max_messages < 1:
            raise ValueError(f"max_messages must be >= 1, got {self.max_messages}")


class ConnectionFiles:
    """Files with connection strings that only processes of this user can read, for executors on this machine.

    Plans, logs and checkpoints contain only their paths. On Linux they are in memory, and disappear with this process;
    elsewhere they are on disk.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._paths: dict[str, Path] = {}

    @property
    def directory(self) -> Path:
        """A temporary directory, deleted with the files."""
        if self._directory is None:
            self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-syphon-")))
        return self._directory

    def reference(self, factory: MessagingFactory, name: str) -> str:
        """Write the connection string of a factory to a file; return the reference to it. Raise ``ValueError``."""
        text = factory.connection_string
        if text is None:
            raise ValueError(
                f"the factory of the {name} namespace has no connection string for the executors;"
                f" set one: SparkSyphonSettings({name}='env:NAME')"
            )
        if name not in self._paths:
            self._paths[name] = self._in_memory(text) or self._on_disk(name, text)
        return f"file:{self._paths[name]}"

    def _in_memory(self, text: str) -> Path | None:
        if sys.platform != "linux":
            return None
        file = os.memfd_create("pairbus")
        self._stack.callback(os.close, file)
        os.write(file, text.encode())
        path = Path(f"/proc/{os.getpid()}/fd/{file}")
        return path if os.access(path, os.R_OK) else None

    def _on_disk(self, name: str, text: str) -> Path:
        path = self.directory / name
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        return path

    def close(self) -> None:
        self._stack.close()
        self._directory = None
        self._paths.clear()
