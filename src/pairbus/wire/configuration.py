"""The configuration and limits of one end of a connection, and the allocation of channel and handle numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final


class NumberPool:
    """Allocates the lowest free number, in time that does not depend on how many are in use."""

    __slots__ = ("_next", "_returned")

    def __init__(self) -> None:
        self._next = 0
        self._returned: list[int] = []

    def lowest(self) -> int:
        """The number that ``take`` would return."""
        return self._returned[0] if self._returned else self._next

    def take(self) -> int:
        if self._returned:
            return heappop(self._returned)
        self._next += 1
        return self._next - 1

    def give_back(self, number: int) -> None:
        heappush(self._returned, number)


_BOUNDS: Final = (
    ("max_frame_size", 512, 2**32 - 1),
    ("channel_max", 0, 2**16 - 1),
    ("handle_max", 0, 2**32 - 1),
    ("max_links", 0, 2**32),
    ("max_unsettled", 1, 2**31 - 1),
    ("max_message_size", 1, 2**63 - 1),
    ("max_incomplete_bytes", 1, 2**63 - 1),
    ("incoming_window", 1, 2**31 - 1),
    ("idle_time_out_ms", 1, 2**32 - 1),
)
"""The numeric settings, each with its minimum and maximum."""


MAX_VALUES: Final = 8_192
"""The maximum number of values in the performative of a frame, including nested ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Limits on our memory and time per peer. A server raises them once the peer is authenticated."""

    sessions: int
    """The maximum number of sessions."""
    links: int
    """The maximum number of links on all sessions together."""
    incomplete_bytes: int
    """The maximum number of buffered bytes of incomplete messages, on all links together."""
    values: int = MAX_VALUES
    """The maximum number of values in the performative of one frame, including nested ones."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of these limits in errors, where the owner of the connection has its own."""

    def name_of(self, bound: str) -> str:
        """Return the name of a limit for an error."""
        return self.names.get(bound, bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings of one end of a connection; every setting is bounded."""

    container_id: str
    """The name of this end; sent in open."""
    hostname: str | None = None
    """The host that a client connects to; sent in open and in SASL init."""
    max_frame_size: int = 65536
    """The largest frame that we accept, in bytes; at least 512."""
    channel_max: int = 4999
    """The highest channel of the peer: one less than the number of its sessions."""
    handle_max: int = 255
    """The highest handle of the peer in a session: one less than the number of its links."""
    max_links: int = 10_000
    """The maximum number of links of the peer on all sessions together."""
    max_unsettled: int = 20_000
    """The maximum number of deliveries in a session that we have not settled."""
    max_message_size: int = 100 * 1024 * 1024
    """The largest message that we accept on a link without its own limit, in bytes."""
    max_incomplete_bytes: int = 256 * 1024 * 1024
    """The maximum number of buffered bytes of incomplete messages, on all links together."""
    incoming_window: int = 5000
    """The number of transfer frames that the peer may send in a session before we update the window."""
    idle_time_out_ms: int | None = None
    """The interval within which the peer has to send a frame; sent in open. ``None``: no limit.

    The connection is closed after twice that time, as part 2.4.5 advises: a heartbeat may be a little late.
    """
    strict: bool = True
    """True if a link or session is ended when the peer exceeds its link credit or session window.

    The Azure SDK for Python observes neither, so a server for it is not strict. ``max_unsettled`` and
    ``max_incomplete_bytes`` bound the memory that such a peer can claim in the engine; the application bounds the
    messages that it holds itself, by pausing reading.
    """
    reject_oversized: bool = False
    """True if a message beyond the link's limit is rejected while the link stays attached, instead of detaching it."""
    properties: dict[str, Any] = field(default_factory=dict)
    """Sent in open."""

    @property
    def bounds(self) -> Bounds:
        """The bounds of a fully trusted peer."""
        return Bounds(sessions=self.channel_max + 1, links=self.max_links, incomplete_bytes=self.max_incomplete_bytes)

    def __post_init__(self) -> None:
        if not isinstance(self.container_id, str) or not self.container_id:
            raise ValueError(f"container_id must be a non-empty string, got {self.container_id!r}")
        if not (self.hostname is None or isinstance(self.hostname, str)):
            raise ValueError(f"hostname must be a string or None, got {self.hostname!r}")
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if name == "idle_time_out_ms" and value is None:
                continue
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} must be an integer from {low} to {high}, got {value!r}")
