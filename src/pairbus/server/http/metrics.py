"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from pairbus.server.address_limit import AddressLimit
from pairbus.server.amqp.unproven import Unproven
from pairbus.server.counters import Counters
from pairbus.server.guesses import Guesses
from pairbus.server.throttle.throttle import Throttle

disable_created_metrics()  # type: ignore[no-untyped-call]  # when a counter was made is of no use to anyone

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Commits = Callable[[], tuple[int, float]]
"""How many commits there were, and how many seconds they took together."""


class Metrics:
    """Counts of one server, with a registry of its own. No label ever names an entity."""

    def __init__(
        self, counters: Counters, commits: Commits = lambda: (0, 0.0), throttle: Throttle | None = None
    ) -> None:
        self.counters = counters
        self.registry = registry = CollectorRegistry()
        registry.register(Traffic(counters, commits, throttle))
        self.http = Counter(
            "pairbus_http_requests", "Requests over HTTP", ["route", "method", "status"], registry=registry
        )
        self.http_seconds = Histogram(
            "pairbus_http_request_seconds", "Time to answer over HTTP", ["route"], buckets=_SECONDS, registry=registry
        )


class Traffic(Collector):
    """The server's own counters, read when someone asks: counting has to cost nothing."""

    def __init__(self, counters: Counters, commits: Commits, throttle: Throttle | None = None) -> None:
        self._counters = counters
        self._commits = commits
        self._throttle = throttle or Throttle()

    def collect(self) -> Iterator[Metric]:
        counted = self._counters
        yield from _messages(counted)
        open_now = GaugeMetricFamily("pairbus_connections_open", "Connections that are open", labels=["protocol"])
        for protocol, number in counted.connections.items():
            open_now.add_metric([protocol], number)
        yield open_now
        links = GaugeMetricFamily("pairbus_links_open", "Links that are attached", labels=["kind"])
        for kind, number in counted.links.items():
            links.add_metric([kind], number)
        yield links
        yield _totals("pairbus_connections", "Connections accepted", ["protocol"], _one(counted.accepted))
        yield _totals("pairbus_messages_settled", "Messages settled", ["outcome"], _one(counted.settled))
        yield _totals("pairbus_requests_refused", "Requests refused", ["condition"], _one(counted.refused))
        operations = {(operation, str(status)): number for (operation, status), number in counted.requests.items()}
        yield _totals(
            "pairbus_management_operations",
            "Operations on entities, over AMQP or HTTP",
            ["operation", "status"],
            operations,
        )
        count, seconds = self._commits()
        yield SummaryMetricFamily("pairbus_commit_seconds", "Writing to disk", count_value=count, sum_value=seconds)
        yield from _facets(self._throttle)


class StorageReading(NamedTuple):
    """What is measured of a namespace's store."""

    quarantined: int = 0
    is_stalled: bool = False
    ids_in_memory: int = 0


class StorageMetrics(Collector):
    """Damage and stalls of a namespace's store, and what it holds in memory for duplicate detection."""

    def __init__(self, read: Callable[[], StorageReading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        yield _total("pairbus_records_quarantined", "Damaged records that were quarantined", reading.quarantined)
        for name, help_text, value in (
            ("pairbus_storage_stalled", "1 while a commit is overdue", int(reading.is_stalled)),
            ("pairbus_duplicate_ids_in_memory", "Message ids held for duplicate detection", reading.ids_in_memory),
        ):
            gauge = GaugeMetricFamily(name, help_text)
            gauge.add_metric([], value)
            yield gauge


def _messages(counted: Counters) -> Iterator[Metric]:
    """Count messages from the application's side, and under the names of before, which counted from the server's."""
    sent, delivered = "Messages that applications sent", "Messages that applications received"
    sent_bytes, delivered_bytes = "Bytes that applications sent", "Bytes that applications received"
    for name, old, what, value in (
        ("application_messages_sent", "messages_received", sent, counted.messages_sent),
        ("application_messages_received", "messages_sent", delivered, counted.messages_delivered),
        ("application_sent_bytes", "received_bytes", sent_bytes, counted.bytes_sent),
        ("application_received_bytes", "sent_bytes", delivered_bytes, counted.bytes_delivered),
    ):
        yield _total(f"pairbus_{name}", what, value)
        yield _total(f"pairbus_{old}", f"Deprecated, use pairbus_{name}_total: {what.lower()}", value)


class StrangerMetrics(Collector):
    """What peers that have shown no key take, and what was denied them."""

    def __init__(self, unproven: Unproven, addresses: AddressLimit, guesses: Guesses) -> None:
        self._unproven = unproven
        self._addresses = addresses
        self._guesses = guesses

    def collect(self) -> Iterator[Metric]:
        unproven, guesses = self._unproven, self._guesses
        for name, help_text, reading in (
            ("pairbus_unproven_connections", "Connections that have shown no key or token yet", len(unproven)),
            ("pairbus_unproven_bytes", "Bytes held of what has not arrived whole on these", unproven.held_bytes),
        ):
            gauge = GaugeMetricFamily(name, help_text)
            gauge.add_metric([], reading)
            yield gauge
        evicted, crowded = unproven.evicted_count, self._addresses.refused_count
        yield _total("pairbus_connections_evicted", "Connections without a key that made room for others", evicted)
        yield _total("pairbus_connections_crowded", "Connections refused because their address has too many", crowded)
        for name, help_text, counts in (
            ("pairbus_logins_failed", "Log-ins with a wrong key or signature", guesses.failed_counts),
            ("pairbus_logins_refused", "Log-ins not looked at after too many failed ones", guesses.refused_counts),
        ):
            family = CounterMetricFamily(name, help_text, labels=["protocol"])
            for protocol, count in counts.items():
                family.add_metric([protocol], count)
            yield family


def _facets(throttle: Throttle) -> Iterator[Metric]:
    labels = ["facet", "unit"]
    readings = GaugeMetricFamily("pairbus_facet_reading", "What all entities share, as it is now", labels=labels)
    thresholds = GaugeMetricFamily("pairbus_facet_threshold", "From where on requests are denied", labels=labels)
    denying = GaugeMetricFamily("pairbus_facet_denying", "1 for a facet that denies requests now", labels=["facet"])
    for status in throttle.statuses:
        facet = status.facet
        if status.reading is not None:
            readings.add_metric([facet.name, facet.unit], status.reading)
        if status.threshold is not None:
            thresholds.add_metric([facet.name, facet.unit], status.threshold)
        denying.add_metric([facet.name], status.is_denying)
    yield readings
    yield thresholds
    yield denying
    yield _totals(
        "pairbus_facet_denied", "Requests denied with server busy, and connections", ["facet"], _one(throttle.denied)
    )


def _one(counts: dict[str, int]) -> dict[tuple[str, ...], int]:
    return {(label,): number for label, number in counts.items()}


def _total(name: str, what: str, value: int) -> Metric:
    return CounterMetricFamily(name, what, value=value)


def _totals(
    name: str, what: str, labels: list[str], counts: dict[tuple[str, ...], int] | dict[tuple[str, str], int]
) -> Metric:
    family = CounterMetricFamily(name, what, labels=labels)
    for values, number in counts.items():
        family.add_metric(values, number)
    return family
