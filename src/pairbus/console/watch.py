"""Looks at the namespace again and again: the numbers of now, the last hour, and what is new."""

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
from pairbus.console.census import Census, EntityCount, take_census
from pairbus.console.destinations import Destinations
from pairbus.console.diary import Diary, Switch
from pairbus.console.reports import Reports
from pairbus.console.timeline import Point, Timeline
from pairbus.pairing.report import PairReport, Receiver
from pairbus.server.amqp.services import AmqpServices
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_WATCHED_S: Final = 1.0
_UNWATCHED_S: Final = 5.0
_SHARE: Final = 20
"""Counting takes no more than the twentieth part of the time."""

_WINDOW_MS: Final = 5_000
"""How far back rates look, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What the counters and the books said at one time."""

    census: Census
    sent: int
    received: int
    pings: Counter[Address]
    commits: int
    commit_s: float
    drills: Counter[Address] = field(default_factory=Counter)
    at_s: float = field(default_factory=time.monotonic)

    @property
    def at_ms(self) -> int:
        return self.census.at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What happens a second, between two readings."""

    before: Reading
    after: Reading

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
        """How long a commit took; ``None`` if there was none."""
        commits = self.after.commits - self.before.commits
        return (self.after.commit_s - self.before.commit_s) / commits * 1_000 if commits else None

    def arriving(self, path: str) -> float:
        return self.arrived(path) / self.seconds

    def leaving(self, path: str) -> float:
        return self.left(path) / self.seconds

    def arrived(self, path: str) -> int:
        now, then = self._both(path)
        return 0 if now is None else max(0, now.arrived - (0 if then is None else then.arrived))

    def left(self, path: str) -> int:
        now, then = self._both(path)
        return 0 if now is None else max(0, now.left - (0 if then is None else then.left))

    def _both(self, path: str) -> tuple[EntityCount | None, EntityCount | None]:
        return self.after.census.entities.get(path), self.before.census.entities.get(path)


class Watch:
    """Reads as long as it runs: often while somebody looks, seldom otherwise."""

    def __init__(self, services: AmqpServices) -> None:
        self.services = services
        self.started_ms = services.host.now_ms()
        self.timeline = Timeline()
        self.diary = Diary(self.started_ms)
        self.destinations = Destinations()
        self.reports = Reports()
        self.diverted_count = 0
        """How many messages came to backlog queues since the start."""
        self.syphoned_count = 0
        self._drills: Counter[str] = Counter()
        """Messages of drills by primary that were counted, and are not among those that came to its backlog yet."""
        self._readings: deque[Reading] = deque()
        self._pointed: Reading | None = None
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def reading(self) -> Reading:
        return self._readings[-1]

    @property
    def rates(self) -> Rates:
        return Rates(before=self._readings[0], after=self._readings[-1])

    @property
    def watchers(self) -> int:
        return self._watchers

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Somebody looks."""
        self._watchers += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def changed(self) -> None:
        """Wait for the next reading."""
        await asyncio.shield(self._changed)

    def hear(self, report: PairReport) -> None:
        """An application tells of its pair; raises ``ServerBusyError`` when too many do."""
        now_ms = self.services.host.now_ms()
        news = self.reports.take(report, now_ms)
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
                is_of_ours=report.receiver is Receiver.PRIMARY,
            )
            self.diary.note_switch(switch, news.heard.here_ms(one.at_ms))
        if news.missed:
            self.diary.note_missed(f"{report.application} ({process})", news.missed, now_ms)

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self.read()
            except StoreError as error:
                _log.warning("the console cannot count: %s", error)
            except Exception:  # noqa: BLE001 (a defect of ours must not leave the pages without numbers for good)
                _log.exception("the console cannot count")
            taken = time.monotonic() - began
            await self._pause(max(_WATCHED_S, taken * _SHARE), max(_UNWATCHED_S, taken * _SHARE))

    async def refresh(self) -> None:
        """See that the numbers are of now, for somebody who has just come."""
        async with self._one_at_a_time:
            if time.monotonic() - self.reading.at_s >= _WATCHED_S:
                await self._read()

    async def read(self) -> None:
        """Read once, and tell those who wait."""
        async with self._one_at_a_time:
            await self._read()

    async def _read(self) -> None:
        services = self.services
        census = await take_census(services.host)
        commits, commit_s = services.host.commits()
        self._take(
            Reading(
                census=census,
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

    async def _pause(self, watched_s: float, unwatched_s: float) -> None:
        if self._watchers:
            await asyncio.sleep(watched_s)
            return
        self._wanted.clear()
        try:
            async with asyncio.timeout(unwatched_s):
                await self._wanted.wait()
        except TimeoutError:
            pass

    def _take(self, reading: Reading) -> None:
        before = self._readings[-1] if self._readings else reading
        readings = self._readings
        readings.append(reading)
        while len(readings) > 2 and reading.at_ms - readings[1].at_ms >= _WINDOW_MS:
            readings.popleft()
        self._note(Rates(before=before, after=reading))
        if self.timeline.is_due(reading.at_ms):
            self._point(Rates(before=self._pointed or reading, after=reading))
            self._pointed = reading

    def _note(self, rates: Rates) -> None:
        now_ms = rates.after.at_ms
        self.reports.expire(now_ms)
        totals: dict[str, list[int]] = {}
        for queue in rates.after.census.backlog:
            sums = totals.setdefault(queue.primary or "", [0, 0, 0])
            arrived = rates.arrived(queue.path)
            for index, value in enumerate((queue.message_count, arrived, rates.left(queue.path))):
                sums[index] += value
            if arrived or (rates.before is rates.after and queue.active):
                self.destinations.look(self.services.host, queue, now_ms)
            self._drills[queue.primary or ""] += rates.after.drills[queue.address] - rates.before.drills[queue.address]
        for primary, (depth, diverted, syphoned) in totals.items():
            self.diverted_count += diverted
            self.syphoned_count += syphoned
            drills = min(diverted, self._drills[primary])
            self._drills[primary] -= drills
            is_told = self.reports.tells_of_diversion(primary)
            self.diary.note_backlog(primary, depth, diverted - drills, syphoned, now_ms, is_told=is_told, drills=drills)
        for address, count in (rates.after.pings - rates.before.pings).items():
            self.diary.note_pings(str(address), count, now_ms)

    def _point(self, rates: Rates) -> None:
        census = rates.after.census
        backlog = census.backlog
        depth = sum(queue.message_count for queue in backlog)
        self.timeline.add(
            Point(
                at_ms=rates.after.at_ms,
                waiting=census.active - sum(queue.active for queue in backlog),
                dead_letters=census.dead_letters,
                sent=rates.sent,
                received=rates.received,
                backlog=depth,
                diverted=sum(rates.arriving(queue.path) for queue in backlog),
                syphoned=sum(rates.leaving(queue.path) for queue in backlog),
                pings=(rates.after.pings - rates.before.pings).total(),
            )
        )
