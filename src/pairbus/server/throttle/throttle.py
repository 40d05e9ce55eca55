"""Which requests a node denies, and for which facet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pairbus.server.settings import Settings
from pairbus.server.throttle.facets import FACETS
from pairbus.server.throttle.status import FacetStatus


class Throttle:
    """The facets of a node. They are read from time to time; a request only looks at what came of it."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Without settings there are no thresholds, and nothing is ever denied."""
        self._statuses = {
            facet.name: FacetStatus(facet=facet, threshold=None if settings is None else facet.threshold(settings))
            for facet in FACETS
        }
        self._denials: dict[str, FacetStatus] = {}
        """By operation; empty while all is well."""

        self.is_busy = False
        """Whether there is anything that is denied."""

        self.denied: Counter[str] = Counter({facet.name: 0 for facet in FACETS})
        """How many requests each facet has denied, or connections."""

    @property
    def statuses(self) -> tuple[FacetStatus, ...]:
        return tuple(self._statuses.values())

    def update(self, readings: Mapping[str, float | None]) -> list[FacetStatus]:
        """Take a reading of each facet, by name; those that deny from now on, or no longer."""
        before = self._statuses
        self._statuses = {name: status.after(readings.get(name)) for name, status in before.items()}
        self._denials = {
            operation: status
            for status in reversed(self._statuses.values())
            if status.is_denying
            for operation in status.facet.denies
        }
        self.is_busy = bool(self._denials)
        return [status for name, status in self._statuses.items() if status.is_denying != before[name].is_denying]

    def reason(self, operation: str) -> str | None:
        """Why an operation is denied now; ``None`` if it is not."""
        denial = self._denials.get(operation)
        return None if denial is None else denial.reason

    def deny(self, operation: str) -> str | None:
        """The same, for a request that has come: it is counted."""
        denial = self._denials.get(operation)
        if denial is None:
            return None
        self.denied[denial.facet.name] += 1
        return denial.reason

    def admit(self, name: str, reading: float) -> bool:
        """Whether there is room for one more of what is counted as it comes, and not only from time to time."""
        status = self._statuses[name].after(reading)
        self.denied[name] += status.is_denying
        return not status.is_denying
