"""The sampler: it reads counters and entity counts at intervals, and keeps current rates and the last hour."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pairbus.broker import Address
from pairbus.console.counts import BacklogDestinations, EntityCount, EntityCounts, count_entities
from pairbus.console.pair_events import PairEventLog, Switch
from pairbus.console.reports import Reports
from pairbus.fault_kinds import CrashComponent
from pairbus.heartbeat import Heartbeat
from pairbus.pairing.report import PairReport, ReportRecipient
from pairbus.server.amqp.services import AmqpServices
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_VIEWED_S: Final = 1.0
"""Interval between samples while a page is open."""

_UNVIEWED_S: Final = 5.0
_PAUSE_FACTOR: Final = 20
"""The sampler pauses for at least this multiple of the time that the last sample took."""

_WINDOW_MS: Final = 5_000
"""Minimum time range of rates."""

STEP_MS: Final = 5_000
KEPT_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Counts at a time, and rates since the previous point."""

    at_ms: int
    waiting: int
    """Active messages of all entities except backlog queues."""

    dead_letters: int
    sent: float
    """Messages sent to this namespace per second."""

    received: float
    backlog: int
    """Messages in the backlog queues of this namespace."""

    diverted: float
    syphoned: float
    pings: int
    """Number of pings since the previous point."""


class Timeline:
    """The points of the last hour."""

    def __init__(self) -> None:
        self._points: deque[Point] = deque(maxlen=KEPT_MS // STEP_MS)

    def __iter__(self) -> Iterator[Point]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)

    @property
    def last(self) -> Point | None:
        return self._points[-1] if self._points else None

    def is_due(self, now_ms: int) -> bool:
        return self.last is None or now_ms - self.last.at_ms >= STEP_MS

    def add(self, point: Point) -> None:
        self._points.append(point)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerReading:
    """The values of all counters at one time."""

    counts: EntityCounts
    sent: int
    received: int
    pings: Counter[Address]
    commits: int
    commit_s: float
    drills: Counter[Address] = field(default_factory=Counter)
    at_s: float = field(default_factory=time.monotonic)

    @property
    def at_ms(self) -> int:
        return self.counts.at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The differences between two readings."""

    before: SamplerReading
    after: SamplerReading

    @property
    def seconds(self) -> float:
        return max(self.after.at_s - self.before.at_s, 0.001)

    @property
    def sent(self) -> float:
        return (self.after.sent - self.before.sent) / self.seconds

    @property
    def received(self) -> float:
        return (self.after.received - self.before.received) / self.seconds

    @property
    def commit_ms(self) -> float | None:
        """The average duration of a commit; ``None`` if there was none."""
        commits = self.after.commits - self.before.commits
        return (self.after.commit_s - self.before.commit_s) / commits * 1_000 if commits else None

    def arriving(self, path: str) -> float:
        """Return the messages that arrived per second."""
        return self.arrived(path) / self.seconds

    def leaving(self, path: str) -> float:
        """Return the messages that left per second."""
        return self.left(path) / self.seconds

    def arrived(self, path: str) -> int:
        now, then = self._both(path)
        return 0 if now is None else max(0, now.arrived - (0 if then is None else then.arrived))

    def left(self, path: str) -> int:
        now, then = self._both(path)
        return 0 if now is None else max(0, now.left - (0 if then is None else then.left))

    def _both(self, path: str) -> tuple[EntityCount | None, EntityCount | None]:
        return self.after.counts.entities.get(path), self.before.counts.entities.get(path)


class Sampler:
    """Takes a sample every second while a page is open, and every five seconds otherwise."""

    def __init__(self, services: AmqpServices) -> None:
        self.services = services
        self.started_ms = services.host.now_ms()
        self.heartbeat = Heartbeat()
        self.timeline = Timeline()
        self.events = PairEventLog(self.started_ms)
        self.destinations = BacklogDestinations()
        self.reports = Reports()
        self.diverted_count = 0
        """Messages that arrived in backlog queues since the start."""
        self.syphoned_count = 0
        self._drills: Counter[str] = Counter()
        """Messages of drills by primary that are counted, but not yet seen among the arrivals of its backlog."""
        self._readings: deque[SamplerReading] = deque()
        self._last_point: SamplerReading | None = None
        self._viewers = 0
        self._viewed = asyncio.Event()
        self._lock = asyncio.Lock()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def reading(self) -> SamplerReading:
        return self._readings[-1]

    @property
    def rates(self) -> Rates:
        return Rates(before=self._readings[0], after=self._readings[-1])

    @property
    def viewers(self) -> int:
        """The number of open pages."""
        return self._viewers

    @contextmanager
    def viewing(self) -> Iterator[None]:
        """Count a page as open."""
        self._viewers += 1
        self._viewed.set()
        try:
            yield
        finally:
            self._viewers -= 1

    async def changed(self) -> None:
        """Wait for the next sample."""
        await asyncio.shield(self._changed)

    def add_report(self, report: PairReport) -> None:
        """Store the report of an application; raise ``ServerBusyError`` if there are too many."""
        now_ms = self.services.host.now_ms()
        news = self.reports.add(report, now_ms)
        if news is None:
            return
        process = f"{report.host}, process {report.process}"
        for one in news.switches:
            switch = Switch(
                application=report.application,
                processes=frozenset({process}),
                primary=report.primary,
                path=one.path,
                state=one.state,
                reason=one.reason,
                is_local=report.receiver is ReportRecipient.PRIMARY,
            )
            self.events.add_switch(switch, news.last.local_ms(one.at_ms))
        if news.missed:
            self.events.add_missed(f"{report.application} ({process})", news.missed, now_ms)

    async def run(self) -> None:
        """Take samples until cancelled."""
        while True:
            started_s = time.monotonic()
            self.heartbeat.beat()
            if self.services.host.faults:
                self.services.host.faults.crash(CrashComponent.CONSOLE)
            try:
                await self.sample()
            except StoreError as error:
                _log.warning('console sample failed, retrying error="%s"', error)
            pause_s = (time.monotonic() - started_s) * _PAUSE_FACTOR
            await self._pause(max(_VIEWED_S, pause_s), max(_UNVIEWED_S, pause_s))

    async def refresh(self) -> None:
        """Take a sample unless the last one is recent."""
        async with self._lock:
            if time.monotonic() - self.reading.at_s >= _VIEWED_S:
                await self._sample()

    async def sample(self) -> None:
        """Take a sample, and wake up the streams that wait for it."""
        async with self._lock:
            await self._sample()

    async def _sample(self) -> None:
        services = self.services
        counts = await count_entities(services.host)
        committer = services.host.committer
        commits, commit_s = committer.commit_count, committer.commit_seconds
        self._add(
            SamplerReading(
                counts=counts,
                sent=services.counters.messages_sent,
                received=services.counters.messages_delivered,
                pings=services.counters.pings.copy(),
                drills=services.counters.drills.copy(),
                commits=commits,
                commit_s=commit_s,
            )
        )
        self._changed.set_result(None)
        self._changed = asyncio.get_running_loop().create_future()

    async def _pause(self, viewed_s: float, unviewed_s: float) -> None:
        self.heartbeat.beat(unviewed_s)
        if self._viewers:
            await asyncio.sleep(viewed_s)
            return
        self._viewed.clear()
        try:
            async with asyncio.timeout(unviewed_s):
                await self._viewed.wait()
        except TimeoutError:
            pass

    def _add(self, reading: SamplerReading) -> None:
        before = self._readings[-1] if self._readings else reading
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and reading.at_ms - readings[1].at_ms >= _WINDOW_MS:
            readings.popleft()
        self._add_events(Rates(before=before, after=reading))
        if self.timeline.is_due(reading.at_ms):
            self._add_point(Rates(before=self._last_point or reading, after=reading))
            self._last_point = reading

    def _add_events(self, rates: Rates) -> None:
        now_ms = rates.after.at_ms
        self.reports.expire(now_ms)
        totals: dict[str, list[int]] = {}
        for queue in rates.after.counts.backlog:
            sums = totals.setdefault(queue.primary or "", [0, 0, 0])
            arrived = rates.arrived(queue.path)
            for index, value in enumerate((queue.message_count, arrived, rates.left(queue.path))):
                sums[index] += value
            if arrived or (rates.before is rates.after and queue.active):
                self.destinations.peek(self.services.host, queue, now_ms)
            self._drills[queue.primary or ""] += rates.after.drills[queue.address] - rates.before.drills[queue.address]
        for primary, (depth, diverted, syphoned) in totals.items():
            self.diverted_count += diverted
            self.syphoned_count += syphoned
            drills = min(diverted, self._drills[primary])
            self._drills[primary] -= drills
            self.events.add_backlog(
                primary,
                depth,
                diverted - drills,
                syphoned,
                now_ms,
                is_reported=self.reports.has_diversion(primary),
                drills=drills,
            )
        for address, count in (rates.after.pings - rates.before.pings).items():
            self.events.add_pings(str(address), count, now_ms)

    def _add_point(self, rates: Rates) -> None:
        counts = rates.after.counts
        backlog = counts.backlog
        self.timeline.add(
            Point(
                at_ms=rates.after.at_ms,
                waiting=counts.active - sum(queue.active for queue in backlog),
                dead_letters=counts.dead_letters,
                sent=rates.sent,
                received=rates.received,
                backlog=sum(queue.message_count for queue in backlog),
                diverted=sum(rates.arriving(queue.path) for queue in backlog),
                syphoned=sum(rates.leaving(queue.path) for queue in backlog),
                pings=(rates.after.pings - rates.before.pings).total(),
            )
        )
