"""What has happened since the start, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pairbus.broker import Address


@dataclass(slots=True)
class Counters:
    """Plain numbers, counted where things happen and read by whoever reports them."""

    messages_sent: int = 0
    """By applications to the namespace, confirmed or refused."""
    messages_delivered: int = 0
    """To applications."""
    bytes_sent: int = 0
    bytes_delivered: int = 0
    pings: Counter[Address] = field(default_factory=Counter)
    """By the entity that was asked whether it is well."""
    drills: Counter[Address] = field(default_factory=Counter)
    """Messages of drills that came to backlog queues, by queue."""
    settled: Counter[str] = field(default_factory=Counter)
    """By disposition."""
    refused: Counter[str] = field(default_factory=Counter)
    """By error condition."""
    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """On management nodes: by operation and status."""
    connections: Counter[str] = field(default_factory=Counter)
    """Open now, by protocol."""
    accepted: Counter[str] = field(default_factory=Counter)
    """Ever accepted, by protocol."""
    links: Counter[str] = field(default_factory=Counter)
    """Attached now, by kind."""
    peak_connections: int = 0
    """The most that were open at a time since ``take_peak``."""

    def connected(self, protocol: str) -> None:
        self.connections[protocol] += 1
        self.accepted[protocol] += 1
        self.peak_connections = max(self.peak_connections, self.connections.total())

    def take_peak(self) -> int:
        peak, self.peak_connections = self.peak_connections, self.connections.total()
        return max(peak, self.peak_connections)
