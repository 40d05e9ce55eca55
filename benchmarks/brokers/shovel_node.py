"""A RabbitMQ node that shovels what lies in the queues of one virtual host into those of another."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.brokers import rabbitmq
from benchmarks.brokers.topology import BACKLOG, PRIMARY, Topology
from benchmarks.processors import cpu_s
from tests.client.rabbitmq_server import PASSWORD, USER, RabbitMqServer, free_port

_CONTROL: Final = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
"""The script on the PATH has the same name, and runs as the system's own user and in its directories."""

_LIBRARY: Final = Path("/usr/lib/rabbitmq/lib")
_COMMAND_S: Final = 60.0


class ShovelError(Exception):
    """The shovels cannot be started, or do not do what they are for."""


def missing() -> str | None:
    """Return the reason why the broker cannot be measured; ``None`` if it can."""
    if reason := rabbitmq.missing():
        return reason
    if not _CONTROL.exists():
        return "rabbitmqctl is not installed (Debian: rabbitmq-server)"
    if not any(_LIBRARY.glob("*/plugins/rabbitmq_shovel-*")):
        return "RabbitMQ comes without its shovel (Debian: rabbitmq-server)"
    return None


class ShovelNode(RabbitMqServer):
    """A node with these queues. Its shovels are started separately, so that the backlog can be filled before.

    They connect to the node from inside it, as is RabbitMQ's custom for its own virtual hosts, or over TCP, as they
    would to another machine.
    """

    def __init__(self, directory: Path, topology: Topology, *, over_tcp: bool = False) -> None:
        super().__init__(directory)
        self._topology = topology
        self._over_tcp = over_tcp
        self._control_port = free_port()

    def uri(self, virtual_host: str) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{virtual_host}"

    def cpu_s(self) -> float:
        """Return the processor time of the node so far, in seconds."""
        return cpu_s(self.pid)

    def start_shovels(self) -> None:
        """Declare all in one command: with one command for each, the first would be done before the last begins."""
        file = self._directory / "shovels.json"
        shovels = self._topology.shovels(self._shovel_uri(BACKLOG), self._shovel_uri(PRIMARY))
        file.write_text(json.dumps(shovels), encoding="ascii")
        done = subprocess.run(
            [_CONTROL, "import_definitions", file],
            env=self._environment(),
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        if done.returncode != 0:
            raise ShovelError(f"RabbitMQ refuses the shovels: {(done.stdout + done.stderr)[-2_000:]}")

    def _shovel_uri(self, virtual_host: str) -> str:
        return self.uri(virtual_host) if self._over_tcp else f"amqp:///{virtual_host}"

    def _environment(self) -> dict[str, str]:
        environment = super()._environment()
        where = self._directory
        (where / "plugins").write_text("[rabbitmq_amqp1_0,rabbitmq_shovel].\n", encoding="ascii")
        (where / "definitions.json").write_text(json.dumps(self._topology.definitions()), encoding="ascii")
        return environment | {
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CTL_DIST_PORT_MIN": str(self._control_port),
            "RABBITMQ_CTL_DIST_PORT_MAX": str(self._control_port),
        }
