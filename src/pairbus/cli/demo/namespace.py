"""A namespace of the demo, served by a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from pairbus.server.settings import PREFIX

_FAREWELL_S: Final = 15.0
_LAST_LINES: Final = 5


class NamespaceStartError(RuntimeError):
    """A namespace of the demo could not be served."""


class DemoNamespace:
    """A ``pairbus serve`` process with a ledger, which can be killed and started again from its data directory."""

    def __init__(self, name: str, directory: Path, entities: str = "") -> None:
        """Prepare a namespace; ``entities`` is the part of the settings file that declares queues and topics."""
        self.name: Final = name
        self.ledger: Final = directory / name / "ledger"
        self.connection_string = ""
        self._directory = directory / name
        self._entities = entities
        self._port = 0
        self._process: subprocess.Popen[str] | None = None

    @property
    def console(self) -> str:
        """The address of the console."""
        return f"http://localhost:{self._port}/console"

    @property
    def process_id(self) -> int | None:
        """The id of the server process, if it runs."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, always on the same port, and wait until it listens. Raise ``NamespaceStartError``."""
        self._directory.mkdir(exist_ok=True)
        settings = self._directory / "settings.toml"
        settings.write_text(f'name = "{self.name}"\nlog_level = "warning"\n{self._entities}', encoding="utf-8")
        with self._log.open("a") as log:
            # In a separate process group: Ctrl-C goes to the demo, which stops its servers itself.
            self._process = subprocess.Popen(  # noqa: S603 (our own command)
                [
                    *(sys.executable, "-m", "pairbus", "serve", "--config", str(settings), "--port", str(self._port)),
                    *("--data", str(self._directory / "data"), "--ledger", str(self.ledger), "--ledger-lives"),
                ],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
                process_group=0,
            )
        self.connection_string = self._read_connection_string(self._process)
        self._port = int(self.connection_string.split(";")[0].rpartition(":")[2].rstrip("/"))

    def kill(self) -> None:
        """Kill the server with SIGKILL, so that it cannot write or send anything more."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the server with SIGTERM. Can be called more than once."""
        self._end(signal.SIGTERM)

    @property
    def _log(self) -> Path:
        return self._directory / "log.txt"

    def _read_connection_string(self, process: subprocess.Popen[str]) -> str:
        for line in process.stdout or ():
            if line.startswith("Endpoint="):
                return line.strip()
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        raise NamespaceStartError(
            f"the namespace {self.name} could not be served: {' '.join(lines) or 'the server gave no reason'}"
        )

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(with_signal)  # does nothing if the process has ended
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_FAREWELL_S)
        finally:  # even if Ctrl-C is pressed again
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
