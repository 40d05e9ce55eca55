"""The decision which requests a node denies, and for which facet."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from pairbus.broker import NewMessage
from pairbus.dialect.management import Operation
from pairbus.server.settings import Settings, SettingsError
from pairbus.server.supervision.supervisor import Problem
from pairbus.server.throttle.gauges import Gauges, LagSample
from pairbus.server.throttle.shares import EntityBudgets, FairShares

_SIZES: Final = ("bytes", "KB", "MB", "GB", "TB")
_KILO: Final = 1024


class Unit(StrEnum):
    """The unit of a facet."""

    BYTES = "bytes"
    RATIO = "ratio"
    SECONDS = "seconds"
    CONNECTIONS = "connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facet:
    """One measured resource with its threshold, and the operations that it denies."""

    name: str
    title: str
    """The display name."""

    unit: Unit
    setting: str
    """The setting of its threshold."""

    threshold: Callable[[Settings], float | None]
    """``None``: it is read, but never denies anything."""

    read: Callable[[Gauges], float | None]
    denies: frozenset[str]
    """The operations that are denied when it is past its threshold."""

    is_floor: bool = False
    """True if low readings, not high ones, are the problem."""

    denies_all_at: float = 1.0
    """The pressure from which everyone's sends are denied; below it, only those of entities beyond their shares."""

    relief: float = 0.9
    """The hysteresis: how far below the threshold it must fall before requests are accepted again."""

    def is_past(self, reading: float, threshold: float, *, was_past: bool) -> bool:
        """Return whether a reading is past the threshold, or not far enough below it yet."""
        slack = self.relief if was_past else 1.0
        return reading <= threshold / slack if self.is_floor else reading >= threshold * slack

    def shown(self, value: float) -> str:
        """Return a reading or a threshold in readable form."""
        match self.unit:
            case Unit.BYTES:
                return _size(value)
            case Unit.RATIO:
                return f"{value * 100:.0f} %"
            case Unit.SECONDS:
                return f"{value:.2f} s"
            case Unit.CONNECTIONS:
                return f"{value:,.0f}"


def _size(value: float) -> str:
    for unit in _SIZES:
        if value < _KILO or unit == _SIZES[-1]:
            break
        value /= _KILO
    return f"{value:,.0f} {unit}" if unit == _SIZES[0] or value >= 10 else f"{value:.1f} {unit}"


# Operations in neither set are never denied. Receiving, settling and cancelling free space; a receiver may have to set
# the state of its session before it can settle; keys may have to be changed to keep an attacker out; reads cost
# nothing. Links may be attached as well: receivers need theirs to free space, and senders get the error at the first
# message, which every SDK understands.
ADDING: Final = frozenset(
    {
        "send",
        Operation.SCHEDULE_MESSAGE,
        Operation.ADD_RULE,
        "put-entity",
        "put-subscription",
        "put-rule",
    }
)
"""Operations that add data."""

SHARED: Final = frozenset({"send", Operation.SCHEDULE_MESSAGE})
"""The operations of which each entity has a share while the node is short of processing time."""

REMOVING_MANY: Final = frozenset({"purge", Operation.BATCH_DELETE_MESSAGES, "delete-entity", "delete-subscription"})
"""Operations that free space but are much work: denied if the node is short of processing time."""


def _portion(percent: float | None, whole: float) -> float | None:
    return None if percent is None else percent / 100 * whole


def _mebibytes(count: int | None) -> int | None:
    return None if count is None else count << 20


def _delay_s(settings: Settings) -> float | None:
    return None if settings.throttle_delay_ms is None else settings.throttle_delay_ms / 1_000


FACETS: Final = (
    Facet(
        name="connections",
        title="Connections",
        unit=Unit.CONNECTIONS,
        setting="max_connections",
        threshold=lambda settings: settings.max_connections,
        read=lambda gauges: gauges.connection_count(),
        denies=frozenset(),  # connections beyond the limit are closed before they can request anything
        relief=1.0,  # each closed connection makes room for another
    ),
    Facet(
        name="store",
        title="Store",
        unit=Unit.BYTES,
        setting="throttle_store_percent",
        threshold=lambda settings: _portion(settings.throttle_store_percent, settings.max_store_bytes),
        read=lambda gauges: gauges.used_bytes(),
        denies=ADDING,
    ),
    Facet(
        name="disk",
        title="Free disk space",
        unit=Unit.BYTES,
        setting="throttle_disk_mb",
        threshold=lambda settings: _mebibytes(settings.throttle_disk_mb),
        read=lambda gauges: gauges.disk_bytes(),
        denies=ADDING,
        is_floor=True,
    ),
    Facet(
        name="memory",
        title="Process memory",
        unit=Unit.BYTES,
        setting="throttle_memory_mb",
        threshold=lambda settings: _mebibytes(settings.throttle_memory_mb),
        read=lambda gauges: gauges.memory_bytes(),
        denies=ADDING,
    ),
    Facet(
        name="processor",
        title="Processor",
        unit=Unit.RATIO,
        setting="throttle_processor_percent",
        threshold=lambda settings: _portion(settings.throttle_processor_percent, 1.0),
        read=lambda gauges: gauges.loop_lag.processor,
        denies=ADDING | REMOVING_MANY,
        denies_all_at=math.inf,  # a loop that is always busy may work well: whether it does, the delay shows
    ),
    Facet(
        name="delay",
        title="Event loop delay",
        unit=Unit.SECONDS,
        setting="throttle_delay_ms",
        threshold=_delay_s,
        read=lambda gauges: gauges.loop_lag.delay_s,
        denies=ADDING | REMOVING_MANY,
        denies_all_at=4.0,
    ),
)
"""In the order of evaluation: a denial names the first facet that denies the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetStatus:
    """The last reading of a facet, and whether requests are denied for it."""

    facet: Facet
    threshold: float | None
    reading: float | None = None
    is_denying: bool = False
    is_denying_all: bool = False
    """True if sends are denied to everyone, not only to entities beyond their shares."""

    def after(self, reading: float | None) -> FacetStatus:
        """Return the status after a reading. A missing reading changes nothing."""
        if reading is None or self.threshold is None:
            return replace(self, reading=reading)
        is_past = self.facet.is_past(reading, self.threshold, was_past=self.is_denying)
        highest = self.threshold * self.facet.denies_all_at
        is_far_past = is_past and self.facet.is_past(reading, highest, was_past=self.is_denying_all)
        return replace(self, reading=reading, is_denying=is_past, is_denying_all=is_far_past)

    @property
    def is_sharing(self) -> bool:
        """Return whether entities beyond their shares are denied, and no others."""
        return self.is_denying and not self.is_denying_all

    @property
    def denied_operations(self) -> frozenset[str]:
        """Return the operations that are denied to everyone."""
        if not self.is_denying:
            return frozenset()
        return self.facet.denies - SHARED if self.is_sharing else self.facet.denies

    @property
    def pressure(self) -> float | None:
        """Return the reading relative to the threshold: 1 at the threshold, more beyond it; ``None`` without a
        threshold.
        """
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
        """Return the reason of a denial, for the client."""
        return f"{self._shortage}; wait at least 10 seconds, then try again"

    def reason_for(self, share: float) -> str:
        """Return the reason of a denial to an entity beyond its share, in messages a second."""
        return (
            f"{self._shortage}; meanwhile each entity, or partition of one, may send {share:,.0f} messages a second,"
            " and this one sends more; wait at least 10 seconds, then try again"
        )

    @property
    def _shortage(self) -> str:
        return (
            f"the node is short of a resource that all entities share: '{self.facet.name}' is at"
            f" {self.shown_reading}, and its threshold is {self.shown_threshold}"
        )


class Throttle:
    """The facets of a node. They are read periodically; a request only looks at the result."""

    def __init__(self, settings: Settings | None = None) -> None:
        """Read the thresholds from the settings. Without settings there are none, and nothing is ever denied."""
        self._statuses = {
            facet.name: FacetStatus(facet=facet, threshold=None if settings is None else facet.threshold(settings))
            for facet in FACETS
        }
        self._denials: dict[str, FacetStatus] = {}
        """By operation; empty while nothing is denied."""

        self.is_busy = False
        """True if any operation is denied."""

        self.denied: Counter[str] = Counter({facet.name: 0 for facet in FACETS})
        """Requests and connections denied by each facet."""

        self.shares = FairShares()
        self._tightest: FacetStatus | None = None
        """The facet for which shares are limited."""

        self.counts_sends = any(
            status.threshold is not None and status.facet.denies_all_at > 1 for status in self._statuses.values()
        )
        """True if sends have to be counted by ``deny_send``, since there may be a need to divide them."""

    @property
    def statuses(self) -> tuple[FacetStatus, ...]:
        return tuple(self._statuses.values())

    def update(self, readings: Mapping[str, float | None]) -> list[FacetStatus]:
        """Take a reading of each facet, by name; return those whose denial has started or ended."""
        before = self._statuses
        self._statuses = {name: status.after(readings.get(name)) for name, status in before.items()}
        self._denials = {
            operation: status for status in reversed(self._statuses.values()) for operation in status.denied_operations
        }
        self.is_busy = bool(self._denials)
        return [status for name, status in self._statuses.items() if status.is_denying != before[name].is_denying]

    def divide_sends(self, now_s: float) -> None:
        """Give each entity its share of the sends that the node can take, by the last readings; call it after each
        ``update``.
        """
        sharing = [status for status in self._statuses.values() if status.is_sharing]
        self._tightest = max(sharing, key=lambda status: status.pressure or 0.0, default=None)
        self.shares.divide(None if self._tightest is None else self._tightest.pressure, now_s)

    def deny_send(self, budgets: EntityBudgets, messages: Sequence[NewMessage], now_s: float) -> str | None:
        """Count messages; return why they are denied, or ``None`` if the entity is within its share."""
        is_admitted = self.shares.admit(budgets.charge(messages, self.shares), now_s)
        if is_admitted or self._tightest is None:
            return None
        self.denied[self._tightest.facet.name] += 1
        return self._tightest.reason_for(self.shares.share)

    def reason(self, operation: str) -> str | None:
        """Return why an operation is denied now; ``None`` if it is not."""
        denial = self._denials.get(operation)
        return None if denial is None else denial.reason

    def deny(self, operation: str) -> str | None:
        """Return why a request is denied, and count the denial; ``None`` if it is not."""
        denial = self._denials.get(operation)
        if denial is None:
            return None
        self.denied[denial.facet.name] += 1
        return denial.reason

    def admit(self, name: str, reading: float) -> bool:
        """Return whether one more is allowed of what is counted continuously, not periodically."""
        status = self._statuses[name].after(reading)
        self.denied[name] += status.is_denying
        return not status.is_denying


_log = logging.getLogger(__name__)

_EVERY_S: Final = 1.0
_OVERDUE_S: Final = 3.0
"""Time by which a reading may be late before the timer counts as dead."""

_MOST_NAMED: Final = 10
"""Maximum number of entities in one log line."""


class ThrottleTimer:
    """Runs on the loop that it measures: its own lateness is a reading, too."""

    def __init__(self, throttle: Throttle, gauges: Gauges, loop: asyncio.AbstractEventLoop) -> None:
        self._throttle = throttle
        self._gauges = gauges
        self._loop = loop
        self._due_s = loop.time()
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Take the first reading; raises ``SettingsError`` for a threshold of a facet that cannot be read here."""
        self._tick()
        for status in self._throttle.statuses:
            if status.threshold is not None and status.reading is None:
                facet = status.facet
                raise SettingsError(
                    f"{facet.setting}: this system has no reading of '{facet.name}', so it cannot have a threshold"
                )

    def problem(self) -> Problem | None:
        """Return that readings are overdue."""
        late_s = self._loop.time() - self._due_s
        return Problem(reason=f"readings are {late_s:.0f} s late") if late_s > _OVERDUE_S else None

    def restart(self) -> None:
        """Take readings again."""
        self.close()
        self._due_s = self._loop.time()
        self._tick()

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self) -> None:
        now_s = self._loop.time()
        self._gauges.loop_lag.beat(LagSample(due_s=self._due_s, at_s=now_s, cpu_s=time.thread_time()))
        self._due_s = now_s + _EVERY_S
        self._handle = self._loop.call_at(self._due_s, self._tick)
        for status in self._throttle.update({facet.name: facet.read(self._gauges) for facet in FACETS}):
            if status.is_denying:
                _log.warning('throttling started facet=%s reason="%s"', status.facet.name, status.reason)
            else:
                _log.info("throttling ended facet=%s reading=%s", status.facet.name, status.shown_reading)
        if denied := self._throttle.shares.take_newly_denied():
            names = ",".join(denied[:_MOST_NAMED])
            share = self._throttle.shares.share
            _log.warning(
                "sends beyond the fair share denied count=%d entities=%s share=%.0f", len(denied), names, share
            )
        self._throttle.divide_sends(now_s)
