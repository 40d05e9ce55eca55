"""Connection strings in files that only this user can read: for the processes that Spark starts on this machine."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

from pairbus.client.factory import MessagingFactory


class ConnectionFiles:
    """They are made when they are needed, and go when they are not. A plan, a log or a checkpoint has their paths."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory: Path | None = None

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
        path = self.directory / name
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(text)
        return f"file:{path}"

    def close(self) -> None:
        self._stack.close()
        self._directory = None
