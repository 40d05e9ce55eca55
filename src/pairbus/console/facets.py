"""What the server's throttle knows, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pairbus.console.wording import number
from pairbus.server.host import NamespaceHost
from pairbus.server.throttle.status import FacetStatus
from pairbus.server.throttle.throttle import Throttle

_NEAR: Final = 0.8
"""From which share of its threshold on a facet is said to be near it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetLine:
    """A facet, as a line of a table."""

    name: str
    title: str
    reading: str
    threshold: str
    state: str
    denied: str


def facet_lines(throttle: Throttle) -> list[FacetLine]:
    return [
        FacetLine(
            name=status.facet.name,
            title=status.facet.title,
            reading=status.shown_reading,
            threshold=status.shown_threshold,
            state=_state(status),
            denied=number(throttle.denied[status.facet.name]),
        )
        for status in throttle.statuses
    ]


def busy_reason(host: NamespaceHost) -> str | None:
    """Why sends are denied now; ``None`` while they are not."""
    return host.throttle.reason("send") or host.deny("send", None)


def _state(status: FacetStatus) -> str:
    if status.is_denying:
        return "denies now"
    if status.pressure is None:
        return ""
    return "near the threshold" if status.pressure >= _NEAR else "well"
