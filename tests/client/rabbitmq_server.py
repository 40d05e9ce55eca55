"""Debian's RabbitMQ as child processes of ours: own directory, own node name, own ports, own port mapper."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

USER: Final = "guest"
PASSWORD: Final = "guest"  # noqa: S105 (RabbitMQ's own, for connections from the same machine)

DURABLE_QUEUE: Final = "kept"
"""A queue that is there from the beginning and outlives the node; one that a link brings about does not."""

_SCRIPTS: Final = "/usr/lib/rabbitmq/bin"
"""Before the PATH: there is a script of the same name on it that runs as the system's own user and directories."""

_START_S: Final = 90.0
_STOP_S: Final = 30.0
_PAUSE_S: Final = 0.05

_CONFIGURATION: Final = """\
listeners.tcp.default = 127.0.0.1:{port}
load_definitions = {definitions}
amqp1_0.default_user = guest
log.console = true
log.console.level = error
log.file = false
"""

_DEFINITIONS: Final = {
    "users": [{"name": USER, "password": PASSWORD, "tags": "administrator"}],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": USER, "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "queues": [{"name": DURABLE_QUEUE, "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}],
}


def missing() -> str | None:
    """Return what is not installed; ``None`` if everything is."""
    for program in ("rabbitmq-server", "epmd"):
        if _find(program) is None:
            return f"{program} is not installed (Debian: rabbitmq-server)"
    return None


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class RabbitMqServer:
    """A node with AMQP 0-9-1 and 1.0 on one port, for ``guest`` and for anonymous clients.

    It keeps its port and its data when it is stopped and started again.
    """

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._directory = directory
        self._mapper_port = free_port()
        self._node_port = free_port()
        self._mapper: subprocess.Popen[bytes] | None = None
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that does the work: the script's only child."""
        assert self._node is not None
        children = Path(f"/proc/{self._node.pid}/task/{self._node.pid}/children").read_text(encoding="ascii")
        return int(children.split()[0])

    def start(self) -> None:
        """Start it, and wait until it listens."""
        environment = self._environment()
        mapper = [_program("epmd"), "-port", str(self._mapper_port), "-address", "127.0.0.1"]
        self._mapper = subprocess.Popen(mapper, env=environment, stderr=subprocess.DEVNULL)
        self._until_it_listens(self._mapper, self._mapper_port)
        with (self._directory / "output").open("ab") as output:
            self._node = subprocess.Popen(
                [_program("rabbitmq-server")],
                env=environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._until_it_listens(self._node, self.port)

    def stop(self) -> None:
        """Stop it in an orderly way, and the port mapper after it."""
        for process in (self._node, self._mapper):
            if process is None or process.poll() is not None:
                continue
            process.send_signal(signal.SIGTERM)
            process.wait(_STOP_S)
        self._node = self._mapper = None

    def _environment(self) -> dict[str, str]:
        where = self._directory
        where.mkdir(parents=True, exist_ok=True)
        (where / "plugins").write_text("[rabbitmq_amqp1_0].\n", encoding="ascii")
        definitions = where / "definitions.json"
        definitions.write_text(json.dumps(_DEFINITIONS), encoding="ascii")
        configuration = _CONFIGURATION.format(port=self.port, definitions=definitions)
        (where / "rabbitmq.conf").write_text(configuration, encoding="utf-8")
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return own | {
            "HOME": str(where),
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_FLAGS": "-start_epmd false",
            "RABBITMQ_NODENAME": f"pairbus-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(where / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(where / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(where / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(where / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(where / "data"),
            "RABBITMQ_LOG_BASE": str(where / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_GENERATED_CONFIG_DIR": str(where / "generated"),
            "RABBITMQ_PID_FILE": str(where / "pid"),
        }

    def _until_it_listens(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1.0).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"RabbitMQ has not come up: {self._last_words()}") from None
                time.sleep(_PAUSE_S)
            else:
                return

    def _last_words(self) -> str:
        output = self._directory / "output"
        return output.read_text(encoding="utf-8", errors="replace")[-2_000:] if output.exists() else "it says nothing"


def _find(program: str) -> str | None:
    return shutil.which(program, path=os.pathsep.join([_SCRIPTS, os.environ.get("PATH", os.defpath)]))


def _program(name: str) -> str:
    found = _find(name)
    assert found is not None, missing()
    return found
