"""E6: a process whose event loop stays blocked exits, and its service manager has it serving again within 30 s.

The loop blocks for a real reason: it writes log lines to a pipe that is not read, as when a log collector hangs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from configparser import ConfigParser
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from pairbus.dialect.connection_string import parse_connection_string
from pairbus.wire import ACCEPTED, plain
from tests.server.amqp.wire_client import HungUpError, WireClient, body_of, text_message
from tests.waiting import eventually

pytestmark = pytest.mark.slow

PAGE: Final = Path(__file__).parents[3] / "docs/how-to/operate.md"
BLOCKED: Final = 4
NOTICED_S: Final = 5.0
REPAIRED_S: Final = 30.0


def unit() -> ConfigParser:
    """Return the systemd unit of a namespace, as documented."""
    found = ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(PAGE.read_text("utf-8").partition("```ini\n")[2].partition("```")[0])
    return found


class Manager:
    """Starts ``pairbus serve``, and starts it again when it exits, as systemd does with the documented unit."""

    def __init__(self, directory: Path) -> None:
        self.data = directory / "data"
        self.exit_codes: list[int] = []
        self._log = directory / "served.log"
        self._connection_file = directory / "connection.txt"
        config = directory / "served.toml"
        config.write_text('name = "contoso"\n[[queues]]\nname = "orders"\n', encoding="utf-8")
        arguments = ["--config", config, "--data", self.data, "--port", 0, "--connection-file", self._connection_file]
        self._command = [sys.executable, "-m", "pairbus.cli.main", "serve", "--trace-frames", *map(str, arguments)]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopping = False
        self._thread = Thread(target=self._run, daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_stopping = True
            if self._process is not None:
                self._process.kill()
            self._thread.join(60)

    def _run(self) -> None:
        service = unit()["Service"]
        assert service["Restart"] == "on-failure"
        final = {0, *map(int, service["RestartPreventExitStatus"].split())}
        with self._log.open("wb") as log:
            stderr: int = subprocess.PIPE  # that nobody reads
            while not self._is_stopping:
                with subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=stderr) as self._process:
                    code = self._process.wait()
                self._connection_file.unlink(missing_ok=True)  # before the code is seen
                self.exit_codes.append(code)
                if self.exit_codes[-1] in final:
                    return
                stderr = log.fileno()

    def connect(self) -> WireClient:
        """Connect to the namespace as soon as it is served."""
        text = eventually(lambda: self._connection_file.exists() and self._connection_file.read_text("utf-8").strip())
        connection = parse_connection_string(text)
        assert connection.port is not None
        assert connection.key is not None
        return WireClient(connection.port, sasl=plain("RootManageSharedAccessKey", connection.key)).open()


def send_until_lost(client: WireClient, confirmed: list[str]) -> float:
    """Send until the connection is lost, which is when the process exits; return when the last send began."""
    sender = client.sender("orders")
    while True:
        began_s = time.time()
        body = str(len(confirmed))
        try:
            assert client.send(sender, text_message(body)) == ACCEPTED
        except (OSError, HungUpError):
            return began_s
        confirmed.append(body)


def test_e6_process_with_a_blocked_loop_exits_and_serves_again_in_time(tmp_path: Path) -> None:
    manager = Manager(tmp_path)
    confirmed: list[str] = []
    with manager.running():
        client = manager.connect()
        began_s = send_until_lost(client, confirmed)
        client.socket.close()
        eventually(lambda: manager.exit_codes)
        with manager.connect() as other:
            assert other.send(other.sender("orders"), text_message("after")) == ACCEPTED
            repaired_s = time.time() - began_s
            receiver = other.receiver("orders", credit=len(confirmed) + 2, deletes=True)
            received: list[str] = []
            while "after" not in received:
                received = [body_of(each).decode() for each in other.receive(receiver, len(received) + 1)]
        assert manager.exit_codes == [BLOCKED]
    (bundle,) = (manager.data / "diagnostics").glob("*-loop.json")
    assert bundle.stat().st_mtime - began_s <= NOTICED_S
    assert repaired_s <= REPAIRED_S
    # The send that got no answer may be stored, too.
    assert received[:-1] in (confirmed, [*confirmed, str(len(confirmed))])
