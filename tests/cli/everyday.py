"""A namespace, and the everyday commands that use it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

from typer.testing import CliRunner

from pairbus.blocking import (
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    QueueDescription,
    ReceivedMessage,
    ReceiveMode,
)
from pairbus.cli.main import app
from pairbus.testing import RunningNamespace
from tests.cli.test_cli import ENVIRONMENT, PAIRBUS, PATIENCE_S

SOON = timedelta(seconds=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def reason(self) -> str:
        """Return the one line that a failed command prints."""
        (line,) = self.stderr.splitlines()
        assert line.startswith("pairbus: ")
        assert "Traceback" not in line
        return line


class CommandFixture:
    """A namespace as the user of the commands sees it."""

    def __init__(self, namespace: RunningNamespace) -> None:
        self.namespace = namespace

    @property
    def environment(self) -> dict[str, str]:
        return ENVIRONMENT | {"PAIRBUS_CONNECTION": self.namespace.connection_string, "COLUMNS": "200"}

    def run(self, *arguments: object, stdin: bytes | None = None, **variables: str) -> Done:
        """Run a command in this process."""
        environment = self.environment | variables
        result = CliRunner().invoke(app, [*map(str, arguments)], input=stdin, env=environment)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Done(code=result.exit_code, stdout=result.stdout, stderr=result.stderr)

    def spoken(self, *arguments: object, stdin: bytes | None = None) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.code, done.stderr) == (0, "")
        return done.stdout

    @contextmanager
    def started(self, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """Start a command in a separate process."""
        command = [*PAIRBUS, *map(str, arguments)]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=self.environment, bufsize=0, **(pipes | options)) as process:
            try:
                yield process
            finally:
                process.kill()

    # Entities and messages.

    def queue(self, **settings: Any) -> str:
        """Create a queue."""
        path = f"queue-{uuid4().hex[:8]}"
        with NamespaceManager.from_connection_string(self.namespace.connection_string) as manager:
            manager.create_queue(QueueDescription(path, **settings))
        return path

    def send(self, path: str, *messages: BrokeredMessage | str) -> None:
        made = [BrokeredMessage(one) if isinstance(one, str) else one for one in messages]
        with MessagingFactory.from_connection_string(self.namespace.connection_string) as factory:
            factory.create_message_sender(path).send(made)

    def receive(self, path: str, count: int = 1, wait: timedelta = SOON) -> list[ReceivedMessage]:
        """Receive and complete messages in order."""
        found: list[ReceivedMessage] = []
        with MessagingFactory.from_connection_string(self.namespace.connection_string) as factory:
            receiver = factory.create_message_receiver(
                path, ReceiveMode.RECEIVE_AND_DELETE
            )  # no lock expires meanwhile
            while len(found) < count and (messages := receiver.receive(count - len(found), wait)):
                found += messages
        for message in found:
            message.application_properties, message.body, message.delivery_count, message.message_id  # noqa: B018
        return found

    def count(self, path: str) -> int:
        """Count the messages in any state."""
        with NamespaceManager.from_connection_string(self.namespace.connection_string) as manager:
            return manager.get_queue_runtime_info(path).message_count


def interrupt(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    """Press Ctrl-C, or send another signal; return the exit code and standard error."""
    process.send_signal(number)
    code = process.wait(PATIENCE_S)  # its standard input stays open, so that only the signal ends it
    assert process.stderr is not None
    return code, process.stderr.read().decode()
