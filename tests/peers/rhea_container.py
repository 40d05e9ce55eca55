"""rhea, in a process of its own, as a client or as a listener that a test tells what to do."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.peers.presence import find_node
from tests.waiting import eventually

NODE = find_node()
SCRIPT = Path(__file__).with_name("rhea_container.js")


class RheaContainer:
    """A process that runs ``rhea_container.js``. Whatever rhea complains about fails the ``with`` at its end."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        """The events of rhea."""
        self._line = b""

    def __enter__(self) -> Self:
        self._complaints = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [NODE, SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, bufsize=0
        )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def start(self) -> None:
        """Do what comes first."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            eventually(lambda: self._process.poll() is not None)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()
            self._complaints.seek(0)
            complaints = self._complaints.read().decode()
            self._complaints.close()
        if kind is None:
            assert complaints == ""
            assert self._process.returncode == 0

    def do(self, command: str, **details: Any) -> None:
        """Ask rhea to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **details}).encode() + b"\n")

    def wait_for(self, event: str, count: int = 1, **details: Any) -> dict[str, Any]:
        """Wait until an event has happened ``count`` times, and return the last of them."""
        return eventually(lambda: self.all(event, **details)[count - 1 : count], step=self.step)[0]

    def all(self, event: str, **details: Any) -> list[dict[str, Any]]:
        """Everything of a kind that has happened."""
        wanted = {"event": event, **details}
        return [reported for reported in self.events if wanted.items() <= reported.items()]

    def until(self, condition: Callable[[], Any]) -> Any:
        return eventually(condition, step=self.step)

    def step(self) -> None:
        """Take in what rhea tells, waiting 10 ms for it at the most."""
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], 0.01)[0]:
            return
        reported = stdout.read(1 << 20)
        assert reported, "rhea is gone"
        *lines, self._line = (self._line + reported).split(b"\n")
        self.events.extend(json.loads(line) for line in lines)


class RheaClient(RheaContainer):
    """A connection of rhea's to a port of the loopback interface."""

    def __init__(self, port: int, **options: Any) -> None:
        super().__init__()
        self._options = {"host": "127.0.0.1", "port": port, **options}

    def start(self) -> None:
        self.do("connect", options=self._options)

    def freeze(self) -> None:
        """Stop rhea in its tracks, until ``thaw``."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


class RheaListener(RheaContainer):
    """A port of the loopback interface on which rhea answers whoever opens, begins and attaches."""

    def __init__(self, *, user: str | None = None, password: str | None = None, **options: Any) -> None:
        super().__init__()
        self._listen = {"user": user, "password": password, "options": options}
        self.port = 0

    def start(self) -> None:
        self.do("listen", **self._listen)
        self.port = self.wait_for("listening")["port"]


def data(content: bytes) -> dict[str, Any]:
    """Make the body of a message that is one data section."""
    return {"$": "data", "v": base64.b64encode(content).decode()}


def buffer(content: bytes) -> dict[str, Any]:
    """Make bytes, as rhea takes them and tells them."""
    return {"$": "buffer", "v": base64.b64encode(content).decode()}


def typed(kind: str, value: Any) -> dict[str, Any]:
    """Make a value of an AMQP type that JavaScript cannot tell from others."""
    return {"$": kind, "v": value}
