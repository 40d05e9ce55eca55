"""The server's metrics, for Prometheus, and its health."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString
from starlette.responses import JSONResponse, Response

from pairbus.broker import Address, EntityInfo, Namespace, Right
from pairbus.fault_kinds import FaultKind
from pairbus.ledger import LIVES, OPERATIONS, LedgerStatus
from pairbus.server.amqp.services import UnprovenConnections
from pairbus.server.counters import Counters
from pairbus.server.entity_traffic import MAX_ENTITIES, OTHER, EntityTraffic, EntityTrafficMetrics
from pairbus.server.health import health_of
from pairbus.server.host import NamespaceHost
from pairbus.server.http.credentials import Credentials
from pairbus.server.peer_limits import AddressLimit, LoginLimiter
from pairbus.server.supervision.supervisor import ComponentState, Supervisor
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.server.throttle.throttle import Throttle
from pairbus.store import GroupCommitter, StoreError, StoreFullError
from pairbus.store.group_committer import COMMIT_BOUNDS_S
from pairbus.wire import Condition

disable_created_metrics()  # type: ignore[no-untyped-call]  # the creation times of counters are not used

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The metrics of one server, with a separate registry. No label ever names an entity."""

    def __init__(
        self,
        counters: Counters,
        committer: GroupCommitter | None = None,
        throttle: Throttle | None = None,
        traffic: EntityTraffic | None = None,
    ) -> None:
        self.counters = counters
        self.traffic = traffic or EntityTraffic()
        """The counters of entities, which only those see who may see entities."""
        self.registry = registry = CollectorRegistry()
        registry.register(Traffic(counters, committer, throttle))
        self.http = Counter(
            "pairbus_http_requests", "Requests over HTTP", ["route", "method", "status"], registry=registry
        )
        self.http_seconds = Histogram(
            "pairbus_http_request_seconds", "Time to answer over HTTP", ["route"], buckets=_SECONDS, registry=registry
        )


class Traffic(Collector):
    """The server's own counters, read on request: counting must cost nothing."""

    def __init__(self, counters: Counters, committer: GroupCommitter | None, throttle: Throttle | None = None) -> None:
        self._counters = counters
        self._committer = committer
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
        refused = {Condition.INTERNAL_ERROR.value: 0, **counted.refused}  # alerts must see the first one increase it
        yield _totals("pairbus_requests_refused", "Requests refused", ["condition"], _one(refused))
        yield _totals(
            "pairbus_limit_exceeded",
            "Limits reached: requests and connections denied, or not read for now",
            ["limit"],
            _one(counted.limits),
        )
        operations = {(operation, str(status)): number for (operation, status), number in counted.requests.items()}
        yield _totals(
            "pairbus_management_operations",
            "Operations on entities, over AMQP or HTTP",
            ["operation", "status"],
            operations,
        )
        committer = self._committer
        if committer is None:
            yield _commits([0] * (len(COMMIT_BOUNDS_S) + 1), 0.0)
        else:
            yield _commits(committer.commit_histogram, committer.commit_seconds)
        failed = 0 if committer is None else committer.failed_commit_count
        yield _total("pairbus_commits_failed", "Commits that failed, tests of a failing storage included", failed)
        yield from _facets(self._throttle)


def _commits(counts: Sequence[int], seconds: float) -> Metric:
    bounds = [*map(floatToGoString, COMMIT_BOUNDS_S), "+Inf"]
    buckets = [*zip(bounds, map(float, accumulate(counts)), strict=True)]
    return HistogramMetricFamily(
        "pairbus_commit_seconds", "Time to write a commit to disk", buckets=buckets, sum_value=seconds
    )


"""Advice about damaged pages, by whether the data file still has them."""


class StorageReading(NamedTuple):
    """Measurements of a namespace's store."""

    quarantined: int = 0
    damaged_pages: int = 0
    rebuilds: int = 0
    scrubbed_records: int = 0
    scrub_passes: int = 0
    scrub_progress: float = 0.0
    last_scrub_s: float = 0.0
    is_stalled: bool = False
    ids_in_memory: int = 0


class StorageMetrics(Collector):
    """Damage and stalls of a namespace's store, and what it holds in memory for duplicate detection."""

    def __init__(self, read: Callable[[], StorageReading]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        reading = self._read()
        yield _total("pairbus_records_quarantined", "Damaged records that were quarantined", reading.quarantined)
        yield _total("pairbus_pages_damaged", "Damaged pages of the store that were found", reading.damaged_pages)
        yield _total("pairbus_store_rebuilds", "Times that the damaged data file was rebuilt", reading.rebuilds)
        yield _total("pairbus_scrub_records", "Records that scrubbing has read", reading.scrubbed_records)
        yield _total("pairbus_scrub_passes", "Complete passes of scrubbing", reading.scrub_passes)
        for name, help_text, value in (
            ("pairbus_scrub_progress_ratio", "Share of the current pass that is done", reading.scrub_progress),
            ("pairbus_scrub_last_pass_timestamp_seconds", "When the last complete pass ended", reading.last_scrub_s),
            ("pairbus_storage_stalled", "1 while a commit is overdue", int(reading.is_stalled)),
            ("pairbus_duplicate_ids_in_memory", "Message ids held for duplicate detection", reading.ids_in_memory),
        ):
            gauge = GaugeMetricFamily(name, help_text)
            gauge.add_metric([], value)
            yield gauge


class StorageState(NamedTuple):
    """The reason why the store accepts no sends, except for a stall; all fields are false while it does."""

    is_failing: bool = False
    is_full: bool = False

    @classmethod
    def of(cls, host: NamespaceHost) -> StorageState:
        """Return the state of the trouble that ``/health`` reports."""
        trouble = host.trouble()
        if trouble is None:
            return cls()
        is_full = isinstance(trouble.error, StoreFullError) or (trouble.error is None and not host.committer.is_loading)
        return cls(is_failing=not is_full, is_full=is_full)


class StorageStateMetrics(Collector):
    """True if the store fails or is full."""

    def __init__(self, state: StorageState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        for name, help_text, value in (
            ("pairbus_storage_failing", "1 while commits fail, or the store cannot be read", self._state.is_failing),
            ("pairbus_storage_full", "1 while the store has no space for more messages", self._state.is_full),
        ):
            yield GaugeMetricFamily(name, help_text, value=value)


class FaultMetrics(Collector):
    """Numbers of injected faults by kind. No label names an entity."""

    def __init__(self, counts: Mapping[FaultKind, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        engaged = GaugeMetricFamily("pairbus_faults_engaged", "Injected faults that are engaged", labels=["kind"])
        for kind in FaultKind:
            engaged.add_metric([kind], self._counts.get(kind, 0))
        yield engaged


class ComponentMetrics(Collector):
    """The states of the supervised components, and blocks of the event loop. No label names an entity."""

    def __init__(self, supervisor: Supervisor, watchdog: LoopWatchdog) -> None:
        self._supervisor = supervisor
        self._watchdog = watchdog

    def collect(self) -> Iterator[Metric]:
        yield _totals(
            "pairbus_component_restarts",
            "Restarts of components that have failed",
            ["component"],
            _one(self._supervisor.restarts),
        )
        states = {status.kind: ComponentState.RUNNING for status in self._supervisor.statuses()}
        for status in self._supervisor.statuses():  # of several entities, the worst state counts
            states[status.kind] = max(states[status.kind], status.state, key=[*ComponentState].index)
        state = GaugeMetricFamily(
            "pairbus_component_state", "1 for the state that a component is in", labels=["component", "state"]
        )
        for kind, current in states.items():
            for each in ComponentState:
                state.add_metric([kind, each], int(each is current))
        yield state
        watchdog = self._watchdog
        yield _total("pairbus_loop_blocked", "Times that the event loop was blocked", watchdog.blocked_count)
        yield CounterMetricFamily(
            "pairbus_loop_blocked_seconds",
            "Time for which the event loop was blocked",
            value=watchdog.blocked_seconds,
        )


def _messages(counted: Counters) -> Iterator[Metric]:
    """Yield message metrics from the application's side, and under their old names, which counted from the server's."""
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


class UnprovenConnectionMetrics(Collector):
    """The resource use of unproven peers, and their refusals."""

    def __init__(
        self, unproven: UnprovenConnections, turns: Sized, addresses: AddressLimit, guesses: LoginLimiter
    ) -> None:
        self._unproven = unproven
        self._turns = turns
        self._addresses = addresses
        self._guesses = guesses

    def collect(self) -> Iterator[Metric]:
        unproven, guesses = self._unproven, self._guesses
        for name, help_text, reading in (
            ("pairbus_unproven_connections", "Connections that have shown no key or token yet", len(unproven)),
            ("pairbus_unproven_bytes", "Bytes buffered for unproven connections", unproven.held_bytes),
            (
                "pairbus_unproven_waiting",
                "Unproven connections that wait for a turn of the event loop",
                len(self._turns),
            ),
        ):
            gauge = GaugeMetricFamily(name, help_text)
            gauge.add_metric([], reading)
            yield gauge
        evicted, crowded = unproven.evicted_count, self._addresses.refused_count
        yield _total(
            "pairbus_connections_evicted", "Connections without a key that were closed to make room for others", evicted
        )
        yield _total("pairbus_connections_crowded", "Connections refused because their address has too many", crowded)
        for name, help_text, counts in (
            ("pairbus_logins_failed", "Logins with a wrong key or signature", guesses.failed_counts),
            (
                "pairbus_logins_refused",
                "Logins answered with server busy",
                guesses.refused_counts,
            ),
        ):
            family = CounterMetricFamily(name, help_text, labels=["protocol"])
            for protocol, count in counts.items():
                family.add_metric([protocol], count)
            yield family


def _facets(throttle: Throttle) -> Iterator[Metric]:
    labels = ["facet", "unit"]
    readings = GaugeMetricFamily("pairbus_facet_reading", "Current readings of what all entities share", labels=labels)
    thresholds = GaugeMetricFamily("pairbus_facet_threshold", "Thresholds at which requests are denied", labels=labels)
    denying = GaugeMetricFamily(
        "pairbus_facet_denying", "1 for a facet that currently denies requests", labels=["facet"]
    )
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
    yield GaugeMetricFamily(
        "pairbus_send_share",
        "Messages per second that each entity, or partition, may send while a facet denies requests; else infinity",
        throttle.shares.share,
    )
    yield _totals(
        "pairbus_facet_denied", "Requests and connections denied with server busy", ["facet"], _one(throttle.denied)
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


class LedgerMetrics(Collector):
    """The ledger's own numbers, read on request."""

    def __init__(self, status: Callable[[], LedgerStatus]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        rows = CounterMetricFamily("pairbus_ledger_rows", "Rows of the ledger that are on disk", labels=["table"])
        rows.add_metric([OPERATIONS], status.operations_written)
        rows.add_metric([LIVES], status.events_written)
        yield rows
        yield CounterMetricFamily("pairbus_ledger_files", "Parquet files that are complete", value=status.files_closed)
        yield GaugeMetricFamily(
            "pairbus_ledger_events_waiting",
            "Events of messages that are not on disk yet",
            value=status.events_waiting,
        )
        yield CounterMetricFamily(
            "pairbus_ledger_events_missed", "Events that were dropped for lack of space", value=status.events_missed
        )
        yield GaugeMetricFamily(
            "pairbus_ledger_failing",
            "1 while the ledger cannot be written; the log says why",
            value=status.error is not None,
        )


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

    @property
    def address(self) -> Address:
        if self.kind != "subscription":
            return Address.of(self.path)
        topic, _, name = self.path.rpartition("/Subscriptions/")
        return Address.of(topic, name)


def occupants(namespace: Namespace, now_ms: int) -> list[Occupant]:
    found = [Occupant("queue", info.path, info) for info in namespace.queues(now_ms)]
    for topic in namespace.topics(now_ms):
        found.append(Occupant("topic", topic.path, topic))
        found += [
            Occupant("subscription", f"{topic.path}/Subscriptions/{info.path}", info)
            for info in namespace.subscriptions(topic.path, now_ms)
        ]
    return found


class TotalMetrics(Collector):
    """Sums over all entities: they reveal no single entity."""

    def __init__(self, found: list[Occupant]) -> None:
        self._found = found

    def collect(self) -> Iterator[GaugeMetricFamily]:
        entities = GaugeMetricFamily("pairbus_entities", "Number of entities", labels=["kind"])
        for kind in ("queue", "topic", "subscription"):
            entities.add_metric([kind], sum(occupant.kind == kind for occupant in self._found))
        yield entities
        messages = GaugeMetricFamily("pairbus_messages", "Messages of all entities", labels=["state"])
        for state, count in _STATES.items():
            messages.add_metric([state], sum(count(occupant.info) for occupant in self._found))
        yield messages
        # A topic's size includes that of its subscriptions.
        size = sum(occupant.info.size_bytes for occupant in self._found if occupant.kind != "subscription")
        yield GaugeMetricFamily("pairbus_size_bytes", "Size of all messages", value=size)


class EntityMetrics(Collector):
    """Metrics of each entity by its path; those beyond the limit are counted together, as the counters do."""

    def __init__(self, found: Sequence[Occupant], max_entities: int = MAX_ENTITIES) -> None:
        self._found = found[:max_entities]
        self._others = found[max_entities:]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        labels = ["entity", "kind"]
        messages = GaugeMetricFamily("pairbus_entity_messages", "Messages of an entity", labels=[*labels, "state"])
        sizes = GaugeMetricFamily("pairbus_entity_size_bytes", "Size of an entity's messages", labels=labels)
        for occupant in self._found:
            sizes.add_metric([occupant.path, occupant.kind], occupant.info.size_bytes)
            for state, count in _STATES.items():
                messages.add_metric([occupant.path, occupant.kind, state], count(occupant.info))
        if self._others:
            sizes.add_metric([OTHER, OTHER], sum(occupant.info.size_bytes for occupant in self._others))
            for state, count in _STATES.items():
                total = sum(count(occupant.info) for occupant in self._others)
                messages.add_metric([OTHER, OTHER, state], total)
        yield messages
        yield sizes


_KEPT_MS: Final = 5_000


class Monitoring:
    """Answers without reading entities, unless the client may see them."""

    def __init__(
        self,
        host: NamespaceHost,
        metrics: Metrics,
        *,
        open_metrics: bool,
        is_draining: Callable[[], bool],
        supervisor: Supervisor | None = None,
    ) -> None:
        self._host = host
        self._metrics = metrics
        self._open_metrics = open_metrics
        self._is_draining = is_draining
        self._supervisor = supervisor
        self._found: list[Occupant] | None = None
        self._counted_ms = 0

    def health(self) -> Response:
        health = health_of(self._host, self._supervisor, is_draining=self._is_draining())
        status = HTTPStatus.OK if health.is_serving else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": health.status, "name": self._host.name, "problems": health.problems}, status)

    def metrics(self, credentials: Credentials) -> Response:
        registry, host = CollectorRegistry(), self._host
        registry.register(StorageStateMetrics(StorageState.of(host)))
        registry.register(FaultMetrics({} if host.faults is None else host.faults.counts(host.now_ms())))
        found = self._occupants()
        if found is not None:
            registry.register(TotalMetrics(found))
            if self._may_see_entities(credentials):
                registry.register(EntityMetrics(found, self._metrics.traffic.max_entities))
                names = {each.address: (each.path, each.kind) for each in found}
                registry.register(EntityTrafficMetrics(self._metrics.traffic, names))
        body = generate_latest(self._metrics.registry) + generate_latest(registry)
        return Response(body, headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    def _occupants(self) -> list[Occupant] | None:
        """Return all entities, cached for a moment: counting takes a while. ``None`` if the store cannot be read."""
        now_ms = self._host.now_ms()
        if now_ms - self._counted_ms >= _KEPT_MS or self._found is None:
            try:
                self._found = occupants(self._host.use_namespace(), now_ms)
            except StoreError:
                self._found = None
            self._counted_ms = now_ms
        return self._found

    def reads_credentials(self, operation: str) -> bool:
        """Return whether the response to an open request depends on its credentials."""
        return operation == "metrics" and not self._open_metrics

    def _may_see_entities(self, credentials: Credentials) -> bool:
        """Return whether the client may see entities; raises ``UnauthorizedError`` for invalid credentials."""
        if self._open_metrics:
            return True
        if credentials.text is None:
            return False
        now_ms = self._host.wall_ms()
        if not credentials.allows("", Right.MANAGE, now_ms):
            credentials.require("", Right.LISTEN, now_ms)
        return True
