"""A namespace server that is killed while it takes messages in, and what is there afterwards."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from pairbus.cli.demo.engines import say
from pairbus.cli.demo.till import Till

KILLS: Final = 3
CONFIRMED_EACH: Final = 2_000
_SETTINGS: Final = """
name = "contoso"
port = [0]
log_level = "warning"

[[queues]]
name = "orders"
"""


class Survivor:
    """Serves a namespace, has it killed in the middle of its work, and serves it again from the same directory."""

    def __init__(self) -> None:
        self.confirmed: list[str] = []

    def run(self) -> bool:
        """Run the demo; return whether everything that was confirmed is there, once."""
        with TemporaryDirectory(prefix="pairbus-demo-") as directory:
            path = Path(directory)
            (path / "settings.toml").write_text(_SETTINGS)
            for number in range(KILLS):
                self.crash(path, number)
            return self.report(path)

    def crash(self, path: Path, number: int) -> None:
        """Send until enough is confirmed; then kill the server, whatever it is doing."""
        before = len(self.confirmed)
        with serving(path) as (process, connection_string), Till(connection_string) as till:
            ids = (f"{number}-{each}" for each in count())
            for message_id in till.send("orders", ids):
                self.confirmed.append(message_id)
                if len(self.confirmed) - before == CONFIRMED_EACH:
                    process.kill()
                    break
        say("server", f"killed after {len(self.confirmed) - before:,} messages were confirmed")

    def report(self, path: Path) -> bool:
        start = time.perf_counter()
        with serving(path) as (_, connection_string), Till(connection_string) as till:
            say("server", f"back after {time.perf_counter() - start:.2f} s")
            found = Counter(till.receive("orders"))
        lost = sum(message_id not in found for message_id in self.confirmed)
        twice = sum(number > 1 for number in found.values())
        unconfirmed = len(found) - (len(self.confirmed) - lost)
        print(f"\nconfirmed {len(self.confirmed):,}, received {len(found):,}, lost {lost}, twice {twice}")
        print(f"taken in but not confirmed before the kill: {unconfirmed}")
        return lost == 0 and twice == 0


@contextmanager
def serving(path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``pairbus serve`` as a process of its own, and the connection string that it prints."""
    command = [sys.executable, "-m", "pairbus.cli.main", "serve"]
    options = ["--config", str(path / "settings.toml"), "--data", str(path / "contoso")]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 (ourselves)
        try:
            yield process, _connection_string(process)
        finally:
            process.terminate()


def _connection_string(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if line.startswith("Endpoint="):
            return line.strip()
    raise RuntimeError("the server did not start")
