"""A facet as it is now."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pairbus.server.throttle.facet import Facet


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetStatus:
    """The last reading of a facet, and whether requests are denied for it."""

    facet: Facet
    threshold: float | None
    reading: float | None = None
    is_denying: bool = False

    def after(self, reading: float | None) -> FacetStatus:
        """What follows from a reading. One that could not be had changes nothing."""
        if reading is None or self.threshold is None:
            return replace(self, reading=reading)
        is_past = self.facet.is_past(reading, self.threshold, was_past=self.is_denying)
        return replace(self, reading=reading, is_denying=is_past)

    @property
    def pressure(self) -> float | None:
        """How near the threshold is: 1 at the threshold, more beyond it; ``None`` where there is none."""
        if self.reading is None or self.threshold is None:
            return None
        part, whole = (self.threshold, self.reading) if self.facet.is_floor else (self.reading, self.threshold)
        return part / whole if whole else float("inf")

    @property
    def shown_reading(self) -> str:
        return "unknown" if self.reading is None else self.facet.shown(self.reading)

    @property
    def shown_threshold(self) -> str:
        return "none" if self.threshold is None else self.facet.shown(self.threshold)

    @property
    def reason(self) -> str:
        """Why a request is denied, for whoever has made it."""
        return (
            f"the node is short of something that all entities share: '{self.facet.name}' is at {self.shown_reading}, "
            f"and its threshold is {self.shown_threshold}; wait at least 10 seconds, then try again"
        )
