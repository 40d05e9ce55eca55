"""The queues of two virtual hosts of RabbitMQ, and which of the backlog holds what is for which destination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tests.client.rabbitmq_server import PASSWORD, USER

BACKLOG: Final = "backlog"
PRIMARY: Final = "primary"
VIRTUAL_HOSTS: Final = (BACKLOG, PRIMARY)

EXCHANGE: Final = "orders"
"""In both virtual hosts. A shovel cannot route by a property, but it keeps the routing key: that is the destination."""

Definitions = dict[str, list[dict[str, Any]]]
"""The definitions file that RabbitMQ imports."""

_KEPT: Final = {"durable": True, "auto_delete": False, "arguments": {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """So many queues in the backlog, each with its share of the destinations."""

    queues: int
    destinations: int

    def __post_init__(self) -> None:
        if not 1 <= self.queues <= self.destinations:
            raise ValueError(f"{self.queues} queues cannot share {self.destinations} destinations: each needs one")

    @property
    def backlog(self) -> list[str]:
        return [f"backlog-{number}" for number in range(self.queues)]

    def destination(self, number: int) -> str:
        """Return the destination of the message with this number, in rotation."""
        return f"orders-{number % self.destinations}"

    def expected(self, messages: int) -> dict[str, int]:
        """Return the number of messages that each destination gets."""
        share, rest = divmod(messages, self.destinations)
        return {self.destination(number): share + (number < rest) for number in range(self.destinations)}

    def definitions(self) -> Definitions:
        """Everything that is there before a message is."""
        to_backlog = {
            self.destination(number): f"backlog-{number % self.queues}" for number in range(self.destinations)
        }
        to_primary = {target: target for target in to_backlog}
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        return {
            "users": [{"name": USER, "password": PASSWORD, "tags": "administrator"}],
            "vhosts": [{"name": host} for host in VIRTUAL_HOSTS],
            "permissions": [{"user": USER, "vhost": host, **everything} for host in VIRTUAL_HOSTS],
            "exchanges": [
                {"name": EXCHANGE, "vhost": host, "type": "direct", "internal": False, **_KEPT}
                for host in VIRTUAL_HOSTS
            ],
            "queues": [_queue(BACKLOG, name) for name in self.backlog] + [_queue(PRIMARY, name) for name in to_primary],
            "bindings": [_binding(BACKLOG, *pair) for pair in to_backlog.items()]
            + [_binding(PRIMARY, *pair) for pair in to_primary.items()],
        }

    def shovels(self, backlog_uri: str, primary_uri: str) -> Definitions:
        """One for each queue of the backlog; the prefetch count is RabbitMQ's default, 1,000."""
        way = {
            "src-protocol": "amqp091",
            "src-uri": backlog_uri,
            "dest-protocol": "amqp091",
            "dest-uri": primary_uri,
            "dest-exchange": EXCHANGE,
            "ack-mode": "on-confirm",
        }
        return {
            "parameters": [
                {"component": "shovel", "vhost": BACKLOG, "name": queue, "value": way | {"src-queue": queue}}
                for queue in self.backlog
            ]
        }


def _queue(host: str, name: str) -> dict[str, Any]:
    return {"name": name, "vhost": host, **_KEPT}


def _binding(host: str, key: str, queue: str) -> dict[str, Any]:
    return {
        "vhost": host,
        "source": EXCHANGE,
        "destination": queue,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
    }
