"""What one end of a connection allows and offers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

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
"""The settings that are numbers, each with its lowest and highest value."""


MAX_VALUES: Final = 8_192
"""How many values the performative of a frame may hold, nested ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much of our memory and time a peer may take. A server widens them once the peer has proved who it is."""

    sessions: int
    """How many sessions it may have begun."""
    links: int
    """How many links it may have attached on all sessions together."""
    incomplete_bytes: int
    """How much we hold of messages that have not arrived whole, on all links together."""
    values: int = MAX_VALUES
    """How many values the performative of one frame may hold, nested ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """The settings of one end of a connection, all of them with a bound."""

    container_id: str
    """Names this end; sent in open."""
    hostname: str | None = None
    """The host that a client wants to reach; sent in open and in SASL init."""
    max_frame_size: int = 65536
    """The largest frame that we accept, in bytes; at least 512."""
    channel_max: int = 4999
    """The highest channel that the peer may use: one less than the number of its sessions."""
    handle_max: int = 255
    """The highest handle that the peer may use in a session: one less than the number of its links."""
    max_links: int = 10_000
    """How many links the peer may have attached on all sessions together."""
    max_unsettled: int = 20_000
    """How many deliveries of a session may wait to be settled by us."""
    max_message_size: int = 100 * 1024 * 1024
    """The largest message that we accept on a link that names no limit of its own, in bytes."""
    max_incomplete_bytes: int = 256 * 1024 * 1024
    """How much we hold of messages that have not arrived whole, on all links together."""
    incoming_window: int = 5000
    """How many transfer frames the peer may send in a session before it hears from us again."""
    idle_time_out_ms: int | None = None
    """How often the peer should let us hear from it; sent in open. ``None``: it need not.

    The peer is given up after twice that time, as part 2.4.5 advises: a heartbeat may come a little late.
    """
    strict: bool = True
    """Whether a peer that sends beyond link credit or session window has its link or session ended.

    The Azure SDK for Python looks at neither, so a server for it is not strict. ``max_unsettled`` and
    ``max_incomplete_bytes`` bound what such a peer can make the engine hold; messages that the application holds are
    for the application to bound, by not reading on.
    """
    reject_oversized: bool = False
    """Whether a message beyond the link's limit is rejected, and the link goes on, instead of being detached."""
    properties: dict[str, Any] = field(default_factory=dict)
    """Sent in open."""

    @property
    def bounds(self) -> Bounds:
        """The bounds of a peer that is trusted with all of this."""
        return Bounds(sessions=self.channel_max + 1, links=self.max_links, incomplete_bytes=self.max_incomplete_bytes)

    def __post_init__(self) -> None:
        if not isinstance(self.container_id, str) or not self.container_id:
            raise ValueError(f"container_id is {self.container_id!r}; it must be a name")
        if not (self.hostname is None or isinstance(self.hostname, str)):
            raise ValueError(f"hostname is {self.hostname!r}; it must be a name or None")
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if name == "idle_time_out_ms" and value is None:
                continue
            if not isinstance(value, int) or not low <= value <= high:
                raise ValueError(f"{name} is {value!r}; it must be between {low} and {high}")
