"""Connection strings where only processes of this user can read them: for those that Spark starts on this machine."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pairbus.client.factory import MessagingFactory


class ConnectionFiles:
    """They are made when they are needed, and go when they are not. A plan, a log or a checkpoint has their paths.

    Where the system can, they are in memory and go with this process, however it ends. Elsewhere they are on disk.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory: Path | None = None
        self._paths: dict[str, Path] = {}

    @property
    def directory(self) -> Path:
        """A directory that goes with them."""
        if self._directory is None:
            self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pairbus-syphon-")))
        return self._directory

    def reference(self, factory: MessagingFactory, name: str) -> str:
        """Where processes of this machine find what a factory connects with. Raises ``ValueError``."""
        text = factory.connection_string
        if text is None:
            raise ValueError(
                f"the factory of the {name} namespace was not made from a connection string, so the executors cannot"
                f" connect as it does; say where they find one: SparkSyphonSettings({name}='env:NAME')"
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
