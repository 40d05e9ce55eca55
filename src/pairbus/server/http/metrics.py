"""What the server counts, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts of one server, with a registry of its own. No label ever names an entity.

    Those with labels are used as ``metrics.links.labels("sender").inc()``; keep what ``labels`` gives where it is hot.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.connections = Gauge(
            "pairbus_connections_open", "Connections that are open", ["protocol"], registry=registry
        )
        self.links = Gauge("pairbus_links_open", "Links that are attached", ["kind"], registry=registry)
        self.received = Counter("pairbus_messages_received", "Messages taken in from senders", registry=registry)
        self.sent = Counter("pairbus_messages_sent", "Messages given out to receivers", registry=registry)
        self.settled = Counter("pairbus_messages_settled", "Messages settled", ["outcome"], registry=registry)
        self.refused = Counter("pairbus_requests_refused", "Requests refused", ["condition"], registry=registry)
        self.management = Counter(
            "pairbus_management_operations",
            "Operations on entities, over AMQP or HTTP",
            ["operation", "status"],
            registry=registry,
        )
        self.http = Counter(
            "pairbus_http_requests", "Requests over HTTP", ["route", "method", "status"], registry=registry
        )
        self.http_seconds = Histogram(
            "pairbus_http_request_seconds", "Time to answer over HTTP", ["route"], buckets=_SECONDS, registry=registry
        )
        self.commit_batches = Counter("pairbus_commit_batches", "Groups of changes made durable", registry=registry)
        self.commit_seconds = Histogram(
            "pairbus_commit_seconds", "Time until a group of changes is durable", buckets=_SECONDS, registry=registry
        )
