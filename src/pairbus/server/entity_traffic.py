"""Counters of each entity: messages sent, received, completed, dead-lettered and expired, and their bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from pairbus.broker import Address, EventSink, MessageEvent, QueuePart, Record

_SENT: Final = MessageEvent.ACCEPTED
_REPEATED: Final = MessageEvent.REPEATED
_RECEIVED: Final = MessageEvent.RECEIVED
_COMPLETED: Final = MessageEvent.COMPLETED
_EXPIRED: Final = MessageEvent.EXPIRED
_EXPIRED_TO_DEAD_LETTERS: Final = MessageEvent.EXPIRED_TO_DEAD_LETTERS
_FOUND: Final = MessageEvent.FOUND
_ROUTED: Final = MessageEvent.ROUTED
_MAIN: Final = QueuePart.MAIN

MAX_ENTITIES: Final = 1_000
OTHER: Final = "other"
"""The label of all entities beyond the limit, and of those that were deleted, together."""

_PARTS: Final[Mapping[QueuePart, tuple[str, str]]] = {
    QueuePart.DEAD_LETTER: ("/$DeadLetterQueue", "dead-letter-queue"),
    QueuePart.TRANSFER_DEAD_LETTER: ("/$Transfer/$DeadLetterQueue", "transfer-dead-letter-queue"),
}


class TrafficCounts:
    """The counters of one entity, or of one of its dead-letter queues."""

    __slots__ = (
        "completed",
        "dead_lettered",
        "expired",
        "received",
        "received_bytes",
        "sent",
        "sent_bytes",
    )

    def __init__(self) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.received = 0
        self.received_bytes = 0
        self.completed = 0
        self.dead_lettered = 0
        self.expired = 0

    def add(self, other: TrafficCounts) -> None:
        self.sent += other.sent
        self.sent_bytes += other.sent_bytes
        self.received += other.received
        self.received_bytes += other.received_bytes
        self.completed += other.completed
        self.dead_lettered += other.dead_lettered
        self.expired += other.expired


class EntityTraffic:
    """Counts the events of the broker by entity, and passes them on to another sink, if there is one.

    The number of counted entities is limited: the rest are counted together, and so are deleted ones, so that the sum
    over all of them never falls. Operations whose commit fails are counted, too.
    """

    def __init__(self, max_entities: int = MAX_ENTITIES, then: EventSink | None = None) -> None:
        self.counts: dict[Address, TrafficCounts] = {}
        self.other = TrafficCounts()
        self.max_entities = max_entities
        self._then = then
        self._last_address: Address | None = None
        self._last = self.other

    def note(self, event: MessageEvent, address: Address, record: Record, body: bytes | None = None, /) -> None:
        # Called for each event of each message. Successive events are mostly of one queue, which passes the same
        # object: its counters are found without a lookup.
        if event is _ROUTED:
            if address.part is not _MAIN:
                self._find(Address(address.entity, address.subscription)).dead_lettered += 1
        elif event is not _FOUND:
            counts = self._last if address is self._last_address else self._find(address)
            if event is _RECEIVED:
                counts.received += 1
                counts.received_bytes += record.size
            elif event is _COMPLETED:
                counts.completed += 1
            elif event is _SENT or event is _REPEATED:
                counts.sent += 1
                counts.sent_bytes += record.size
            elif event is _EXPIRED or event is _EXPIRED_TO_DEAD_LETTERS:
                counts.expired += 1
        if self._then is not None:
            self._then.note(event, address, record, body)

    def _find(self, address: Address) -> TrafficCounts:
        counts = self.counts.get(address)
        if counts is None and len(self.counts) < self.max_entities:
            counts = self.counts[address] = TrafficCounts()
        self._last_address, self._last = address, counts or self.other
        return self._last

    def wants_found(self) -> bool:
        return self._then is not None and self._then.wants_found()

    def wants_body(self, address: Address, /) -> bool:
        return self._then is not None and self._then.wants_body(address)

    def note_gone(self, address: Address, /) -> None:
        self._last_address = None
        for part in QueuePart:
            gone = self.counts.pop(Address(address.entity, address.subscription, part), None)
            if gone is not None:
                self.other.add(gone)
        if self._then is not None:
            self._then.note_gone(address)


_METRICS: Final[Mapping[str, tuple[str, str]]] = {
    "messages_sent": ("sent", "Messages that applications sent to an entity"),
    "messages_received": ("received", "Messages that applications received from an entity"),
    "messages_completed": ("completed", "Messages of an entity that were completed"),
    "messages_dead_lettered": ("dead_lettered", "Messages that were moved to an entity's dead-letter queue"),
    "messages_expired": ("expired", "Messages that expired in an entity, dead-lettered or not"),
    "sent_bytes": ("sent_bytes", "Size of the messages that applications sent to an entity"),
    "received_bytes": ("received_bytes", "Size of the messages that applications received from an entity"),
}


class EntityTrafficMetrics(Collector):
    """The counters of entities by path and kind, as the other metrics of entities name them."""

    def __init__(self, traffic: EntityTraffic, names: Mapping[Address, tuple[str, str]]) -> None:
        """``names`` has the path, as it was created, and the kind of each existing entity."""
        self._traffic = traffic
        self._names = names

    def collect(self) -> Iterator[Metric]:
        rows = [(self._labels(address), counts) for address, counts in [*self._traffic.counts.items()]]
        rows.append(((OTHER, OTHER), self._traffic.other))
        for metric, (attribute, help_text) in _METRICS.items():
            family = CounterMetricFamily(f"pairbus_entity_{metric}", help_text, labels=["entity", "kind"])
            for labels, counts in rows:
                family.add_metric(labels, getattr(counts, attribute))
            yield family

    def _labels(self, address: Address) -> tuple[str, str]:
        main = Address(address.entity, address.subscription)
        path, kind = self._names.get(main, (str(main), "queue" if address.subscription is None else "subscription"))
        if address.part is _MAIN:
            return path, kind
        end, kind = _PARTS[address.part]
        return path + end, kind
