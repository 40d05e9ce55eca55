"""Counters of a server since its start."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pairbus.broker import Address
from pairbus.server.connection_limits import LIMIT_NAMES


@dataclass(slots=True)
class Counters:
    """Plain numbers, incremented where events happen, and read by metrics, the console and the ledger."""

    messages_sent: int = 0
    """Messages sent by applications, confirmed or rejected."""
    messages_delivered: int = 0
    """Messages delivered to applications."""
    bytes_sent: int = 0
    bytes_delivered: int = 0
    pings: Counter[Address] = field(default_factory=Counter)
    """Pings, by the entity that they were sent to."""
    drills: Counter[Address] = field(default_factory=Counter)
    """Messages of drills in backlog queues, by queue."""
    settled: Counter[str] = field(default_factory=Counter)
    """Settled messages, by disposition."""
    refused: Counter[str] = field(default_factory=Counter)
    """Rejected requests, by error condition."""
    limits: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(LIMIT_NAMES, 0)))
    """Rejections, by the limit that caused them."""
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Requests to management nodes, by operation and status."""
    connections: Counter[str] = field(default_factory=Counter)
    """Open connections, by protocol."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Accepted connections, by protocol."""
    links: Counter[str] = field(default_factory=Counter)
    """Attached links, by kind."""
    peak_connections: int = 0
    """Maximum number of open connections since ``take_peak``."""

    def refuse(self, condition: str, limit: str = "", count: int = 1) -> None:
        """Count rejections, and the limit that caused them, if there is one."""
        self.refused[condition] += count
        if limit:
            self.limits[limit] += count

    def connected(self, protocol: str) -> None:
        self.connections[protocol] += 1
        self.accepted[protocol] += 1
        self.peak_connections = max(self.peak_connections, self.connections.total())

    def take_peak(self) -> int:
        peak, self.peak_connections = self.peak_connections, self.connections.total()
        return max(peak, self.peak_connections)
