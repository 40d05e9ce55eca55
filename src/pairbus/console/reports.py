"""What applications have told of their pairs: the last report of each, until nothing is heard of it any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pairbus.dialect.backlog_path import is_drill_path
from pairbus.pairing.policy import EntityState
from pairbus.pairing.report import HEARTBEAT_S, EntityReport, PairReport, SwitchReport
from pairbus.server.errors import ServerBusyError

EXPIRES_MS: Final = int(3 * HEARTBEAT_S * 1_000)
"""Who misses three heartbeats is gone, or cannot reach this namespace."""

MOST_APPLICATIONS: Final = 500
MOST_ENTITIES: Final = 10_000
"""Of all applications together."""

_JITTER_MS: Final = 2_000
"""Clocks that differ by less count as equal: so long a report may be under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The last report of an application, and when it came."""

    report: PairReport
    heard_ms: int
    ahead_ms: int = 0
    """How much later it is here than by the clock of the application."""

    def here_ms(self, at_ms: int) -> int:
        """A time of the application's by our own clock; nothing has happened after it was told."""
        return max(0, min(at_ms + self.ahead_ms, self.heard_ms))


Row = tuple[Heard, EntityReport]
"""An entity, as an application sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Switches that were not known before."""

    heard: Heard
    switches: tuple[SwitchReport, ...]
    missed: int
    """How many there were besides, too many to be told."""


class Reports:
    """Bounded in number, and by what all of them hold together."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._rows: list[Row] | None = None
        """In order, once somebody has asked for them."""

    def __len__(self) -> int:
        return len(self._heard)

    def __iter__(self) -> Iterator[Heard]:
        return iter(self._heard.values())

    @property
    def rows(self) -> Sequence[Row]:
        """All entities: those that are not healthy first, then by name."""
        if self._rows is None:
            self._rows = sorted(((heard, one) for heard in self for one in heard.report.entities), key=_place)
        return self._rows

    def tells_of_diversion(self, primary: str) -> bool:
        """Tell whether some application says that it diverts messages for a primary namespace, other than of drills."""
        return any(
            entity.is_diverting and not is_drill_path(entity.path)
            for heard, entity in self.rows
            if heard.report.primary.lower() == primary.lower()
        )

    def take(self, report: PairReport, now_ms: int) -> News | None:
        """Keep it in the place of the one before; ``None`` if it is older than that one.

        Raises ``ServerBusyError`` when there is no room.
        """
        self.expire(now_ms)
        before = self._heard.get(report.pair_id)
        if before is not None and report.number <= before.report.number:
            return None
        self._check_room(report, before)
        known = report.switched - len(report.switches) if before is None else before.report.switched
        fresh = tuple(one for one in report.switches if one.number > known)
        heard = Heard(
            report=replace(report, switches=()),
            heard_ms=now_ms,
            ahead_ms=_ahead(0 if before is None else before.ahead_ms, now_ms - report.sent_ms),
        )
        self._heard[report.pair_id] = heard
        self._rows = None
        return News(heard=heard, switches=fresh, missed=max(0, report.switched - known - len(fresh)))

    def expire(self, now_ms: int) -> None:
        for pair_id, heard in [*self._heard.items()]:
            if now_ms - heard.heard_ms >= EXPIRES_MS:
                del self._heard[pair_id]
                self._rows = None

    def _check_room(self, report: PairReport, before: Heard | None) -> None:
        others = [heard for heard in self if heard is not before]
        if len(others) >= MOST_APPLICATIONS:
            raise ServerBusyError(f"{MOST_APPLICATIONS:,} applications report already; no more are kept")
        if _entity_count(others) + len(report.entities) > MOST_ENTITIES:
            raise ServerBusyError(f"the states of {MOST_ENTITIES:,} entities are kept, and no more")


def _place(row: Row) -> tuple[bool, str, str, int, str]:
    heard, entity = row
    report = heard.report
    return (entity.state is EntityState.HEALTHY, report.application, report.host, report.process, entity.path)


def _entity_count(heard: Iterable[Heard]) -> int:
    return sum(len(one.report.entities) for one in heard)


def _ahead(before_ms: int, measured_ms: int) -> int:
    """What was measured, unless that is what was thought before but for the time on the way."""
    return before_ms if abs(measured_ms - before_ms) < _JITTER_MS else measured_ms
