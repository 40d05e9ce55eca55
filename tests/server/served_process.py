"""``pairbus serve`` in a separate process, whose log can be read while it runs."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from pairbus.dialect.connection_string import parse_connection_string
from pairbus.wire import plain
from tests.server.amqp.wire_client import WireClient

_ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if not name.startswith("PAIRBUS_")}
PATIENCE_S: Final = 120.0
"""Generous: the machine may be shared with many other tests."""


class ServedProcess:
    """A namespace that has printed its address."""

    def __init__(self, process: subprocess.Popen[str], connection_string: str, log: Path) -> None:
        connection = parse_connection_string(connection_string)
        assert connection.port is not None
        assert connection.key is not None
        self.process = process
        self.connection_string = connection_string
        self.port = connection.port
        self.key = connection.key
        self._log = log

    def connect(self) -> WireClient:
        return WireClient(self.port, sasl=plain("RootManageSharedAccessKey", self.key)).open()

    def lines(self, start: str) -> list[str]:
        """Return the messages of the log with a prefix, without the time and the logger."""
        logged = [line.partition(": ")[2] for line in self._log.read_text(encoding="utf-8").splitlines()]
        return [line for line in logged if line.startswith(start)]

    def errors(self) -> list[str]:
        return [line for line in self._log.read_text(encoding="utf-8").splitlines() if " ERROR " in line]

    def get(self, path: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def health(self) -> tuple[int, str, str]:
        """Return the HTTP status, the health status, and the problems."""
        status, body = self.get("/health")
        answer: dict[str, Any] = json.loads(body)
        return status, answer["status"], " ".join(answer["problems"])

    def has_ended(self) -> bool:
        """Return whether the process has ended completely.

        The kernel keeps a process that has ended until its last write has returned, and reports its exit status then.
        """
        if self.process.poll() is not None:
            return True
        stat = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii")
        return stat.rpartition(")")[2].split()[0] == "Z"


@contextmanager
def served_process(directory: Path, *arguments: object, largest_file: int | None = None) -> Iterator[ServedProcess]:
    """Serve a namespace with the queue ``orders``; its files may be limited in size, as by a full disk."""
    config = directory / "served.toml"
    config.write_text('name = "contoso"\n[[queues]]\nname = "orders"\n', encoding="utf-8")
    log = directory / "served.log"
    command = [sys.executable, "-m", "pairbus.cli.main", "serve", "--config", config, "--port", 0, *arguments]
    limit = None if largest_file is None else partial(_limit_files, largest_file)
    with (
        log.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            [*map(str, command)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=_ENVIRONMENT,
            preexec_fn=limit,  # noqa: PLW1509 (it does nothing that another thread could block)
        ) as process,
    ):
        try:
            assert process.stdout is not None
            endpoint = next((line for line in process.stdout if line.startswith("Endpoint=")), None)
            assert endpoint is not None, log.read_text(encoding="utf-8")
            yield ServedProcess(process, endpoint.strip(), log)
        finally:
            process.kill()


def _limit_files(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
