"""What lies in the namespace at the moment, for Prometheus: in all, or entity by entity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pairbus.broker import EntityInfo, Namespace

_STATES: Final[dict[str, Callable[[EntityInfo], int]]] = {
    "active": lambda info: info.active_count,
    "dead-letter": lambda info: info.dead_letter_count,
    "scheduled": lambda info: info.scheduled_count,
    "transfer-dead-letter": lambda info: info.transfer_dead_letter_count,
}


@dataclass(frozen=True, slots=True)
class Occupant:
    """An entity of a kind with its full path."""

    kind: str
    path: str
    info: EntityInfo


def occupants(namespace: Namespace, now_ms: int) -> list[Occupant]:
    found = [Occupant("queue", info.path, info) for info in namespace.queues(now_ms)]
    for topic in namespace.topics(now_ms):
        found.append(Occupant("topic", topic.path, topic))
        found += [
            Occupant("subscription", f"{topic.path}/Subscriptions/{info.path}", info)
            for info in namespace.subscriptions(topic.path, now_ms)
        ]
    return found


class Totals(Collector):
    """Sums over all entities: nothing in it tells one from another."""

    def __init__(self, found: list[Occupant]) -> None:
        self._found = found

    def collect(self) -> Iterator[GaugeMetricFamily]:
        entities = GaugeMetricFamily("pairbus_entities", "Entities", labels=["kind"])
        for kind in ("queue", "topic", "subscription"):
            entities.add_metric([kind], sum(occupant.kind == kind for occupant in self._found))
        yield entities
        messages = GaugeMetricFamily("pairbus_messages", "Messages of all entities", labels=["state"])
        for state, count in _STATES.items():
            messages.add_metric([state], sum(count(occupant.info) for occupant in self._found))
        yield messages
        # A topic's size has that of its subscriptions in it.
        size = sum(occupant.info.size_bytes for occupant in self._found if occupant.kind != "subscription")
        yield GaugeMetricFamily("pairbus_size_bytes", "Size of all messages", value=size)


class Entities(Collector):
    """Each entity by its path."""

    def __init__(self, found: list[Occupant]) -> None:
        self._found = found

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["entity", "kind"]
        messages = GaugeMetricFamily("pairbus_entity_messages", "Messages of an entity", labels=[*labels, "state"])
        sizes = GaugeMetricFamily("pairbus_entity_size_bytes", "Size of an entity's messages", labels=labels)
        for occupant in self._found:
            sizes.add_metric([occupant.path, occupant.kind], occupant.info.size_bytes)
            for state, count in _STATES.items():
                messages.add_metric([occupant.path, occupant.kind, state], count(occupant.info))
        yield messages
        yield sizes
