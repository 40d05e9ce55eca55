"""What has happened since the start, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Plain numbers, counted where things happen and read by whoever reports them."""

    messages_received: int = 0
    """Sent to us, and confirmed or refused."""
    messages_delivered: int = 0
    bytes_received: int = 0
    bytes_delivered: int = 0
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
