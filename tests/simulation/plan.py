"""The plan of a seed: the senders, the syphons, and the faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from tests.simulation.entities import ENTITIES, Entity
from tests.simulation.pair_world import PRIMARY, SECONDARY
from tests.simulation.planned_fault import ON_NETWORK, SWITCHES, TO_ENTITIES, TO_NAMESPACES, Kind, PlannedFault

_LONGEST_SKEW_S: Final = 150.0
_LONGEST_MISHAP_S: Final = 150.0


class Form(Enum):
    """The ways to send messages."""

    ONE = "one"
    LIST = "list"
    BATCH = "batch"
    BURST = "burst"
    """One by one, all at the same time."""
    HASTY = "hasty"
    """The same, with a short timeout."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that a sender sends."""

    at_s: float
    form: Form
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderPlan:
    """A sender, and what it sends, one after the other."""

    path: str
    steps: tuple[Step, ...]
    sessions: int
    is_brief: bool = False
    """True if it is created and closed each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process with a pair of factories of its own; one without senders is there to bring messages home."""

    name: str
    queue_count: int
    failover_s: float = 60.0
    ping_s: float = 60.0
    attempt_s: float = 5.0
    operation_s: float = 60.0
    enable_syphon: bool = False
    max_messages: int = 200
    long_poll_s: float = 900.0
    senders: tuple[SenderPlan, ...] = ()

    def __str__(self) -> str:
        what = ", ".join(f"'{one.path}' x{sum(step.count for step in one.steps)}" for one in self.senders)
        return (
            f"{self.name}: {self.queue_count} backlog queues, failover {self.failover_s:g} s, ping {self.ping_s:g} s, "
            f"attempt {self.attempt_s:g} s, operation {self.operation_s:g} s"
            f"{f', syphon of {self.max_messages}' if self.enable_syphon else ''}{f'; sends to {what}' if what else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run."""

    seed: int
    entities: tuple[Entity, ...]
    processes: tuple[ProcessPlan, ...]
    planned_faults: tuple[PlannedFault, ...]
    keeps_order: bool = False
    primary_skew_s: float = 0.0
    secondary_skew_s: float = 0.0

    @property
    def queue_count(self) -> int:
        return max(one.queue_count for one in self.processes)

    @property
    def deleted(self) -> frozenset[str]:
        """Entities that do not exist to the end."""
        return frozenset(one.path for one in self.planned_faults if one.kind is Kind.DELETE)

    def entity(self, path: str) -> Entity:
        return next(one for one in self.entities if one.path == path)

    def lines(self) -> list[str]:
        clocks = f"clocks {self.primary_skew_s:+.0f} s and {self.secondary_skew_s:+.0f} s"
        return [
            f"seed {self.seed}: {clocks}{', sessions in order' if self.keeps_order else ''}",
            *(f"  {one}" for one in self.processes),
            *(f"  {one}" for one in self.planned_faults),
        ]


def make_plan(seed: int) -> Plan:
    """The same for a seed each time."""
    return _Planner(seed).plan()


class _Planner:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random = Random(f"plan {seed}")  # noqa: S311 (it has to be repeatable)
        self._length_s = self._random.choice((60.0, 120.0, 240.0))
        self._keeps_order = self._random.random() < 0.25
        self._moments_s = [self._random.uniform(0.0, self._length_s) for _ in range(4)]
        """Times around which much happens, so that it happens at the same time."""

    def plan(self) -> Plan:
        random = self._random
        keeps_order = self._keeps_order
        entities = tuple(sorted(random.sample(ENTITIES, random.choice((1, 2, 3))), key=lambda one: one.path))
        if keeps_order and not any(one.has_sessions for one in entities):
            entities += (ENTITIES[2],)
        queues = random.choice((1, 1, 2, 3, 3, 5, 10))
        applications = tuple(self._application(f"app{number}", entities, queues) for number in range(self._few(3)))
        syphons = tuple(self._syphon(f"syphon{number}", queues) for number in range(random.choice((1, 1, 2))))
        processes = applications + syphons
        planned_faults = sorted(
            self._planned_faults(entities, queues, processes), key=lambda one: (one.at_s, one.end_s, str(one))
        )
        return Plan(
            seed=self._seed,
            entities=entities,
            processes=processes,
            planned_faults=tuple(planned_faults),
            keeps_order=keeps_order,
            primary_skew_s=self._skew_s(),
            secondary_skew_s=self._skew_s(),
        )

    def _few(self, most: int) -> int:
        return self._random.choice([number for number in range(1, most + 1) for _ in range(most + 1 - number)])

    def _skew_s(self) -> float:
        return self._random.choice((0.0, round(self._random.uniform(-_LONGEST_SKEW_S, _LONGEST_SKEW_S))))

    def _application(self, name: str, entities: tuple[Entity, ...], queues: int) -> ProcessPlan:
        random = self._random
        attempt_s = random.choice((1.0, 5.0, 5.0, 15.0))
        return ProcessPlan(
            name=name,
            queue_count=random.choice((queues, queues, random.randint(1, queues))),
            failover_s=random.choice((0.0, 0.0, 0.0, 10.0, 10.0, 60.0)),
            ping_s=random.choice((1.0, 5.0, 10.0, 30.0, 60.0)),
            attempt_s=attempt_s,
            operation_s=random.choice((20.0, 60.0, 120.0)),
            enable_syphon=random.random() < 0.25,
            max_messages=random.choice((1, 3, 200)),
            long_poll_s=random.choice((60.0, 900.0)),
            senders=tuple(self._sender(self._path(entities)) for _ in range(self._few(3))),
        )

    def _path(self, entities: tuple[Entity, ...]) -> str:
        """Return a destination; for ordered sends, one with sessions."""
        ordered = [one for one in entities if one.has_sessions] if self._keeps_order else []
        return self._random.choice(ordered or entities).path

    def _syphon(self, name: str, queues: int) -> ProcessPlan:
        random = self._random
        return ProcessPlan(
            name=name,
            queue_count=queues,
            attempt_s=random.choice((1.0, 5.0, 5.0, 15.0)),
            enable_syphon=True,
            max_messages=random.choice((1, 3, 200)),
            long_poll_s=random.choice((60.0, 900.0)),
        )

    def _sender(self, path: str) -> SenderPlan:
        random = self._random
        if random.random() < (0.6 if self._keeps_order else 0.1):
            return SenderPlan(path=path, steps=self._steadily(), sessions=random.choice((1, 2)))
        steps: list[Step] = []
        is_heavy = random.random() < 0.05
        for at_s in sorted(self._time_s() for _ in range(random.randint(3, 10))):
            form = random.choice((Form.ONE, Form.ONE, Form.ONE, Form.LIST, Form.BATCH, Form.BURST, Form.HASTY))
            most = 60 if is_heavy else 6
            steps.append(Step(at_s, form, 1 if form is Form.ONE else random.randint(1, most)))
        is_brief = random.random() < 0.2
        return SenderPlan(path=path, steps=tuple(steps), sessions=random.choice((1, 2, 4)), is_brief=is_brief)

    def _steadily(self) -> tuple[Step, ...]:
        """One message after the other, most of the time."""
        pace_s = self._random.choice((0.05, 0.3, 1.0, self._length_s / 40))
        begin_s = self._time_s() / 2
        return tuple(Step(round(begin_s + number * pace_s, 3), Form.ONE, 1) for number in range(40))

    def _time_s(self) -> float:
        """Any time, or one that is close to those at which other things happen."""
        random = self._random
        if random.random() < 0.4:
            return round(random.uniform(0.0, self._length_s), 1)
        near_s = random.choice((0.01, 0.1, 1.0, 10.0))
        return round(max(0.0, random.choice(self._moments_s) + random.uniform(-near_s, near_s)), 3)

    # What goes wrong.

    def _planned_faults(
        self, entities: tuple[Entity, ...], queues: int, processes: tuple[ProcessPlan, ...]
    ) -> Iterator[PlannedFault]:
        random = self._random
        yield self._outage()
        for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
            kind = random.choice((self._of_the_primary, self._of_the_primary, self._of_one_entity))
            yield kind(entities, processes)
        for _ in range(random.choice((0, 0, 1, 2))):
            yield self._of_the_secondary(processes)
        for _ in range(random.choice((0, 0, 1, 2, 4))):
            yield self._of_a_backlog_queue(queues)
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            syphons = [one.name for one in processes if not one.senders]
            yield self._planned_fault(random.choice((Kind.DIE, Kind.DIE, Kind.LEAVE)), process=random.choice(syphons))
        if random.random() < 0.2:
            senders = [one.name for one in processes if one.senders]
            yield self._planned_fault(random.choice((Kind.DIE, Kind.LEAVE)), process=random.choice(senders))
        if random.random() < 0.15:
            path = random.choice(("", random.choice(entities).path))
            yield self._planned_fault(Kind.ENGAGE, process=random.choice(processes).name, path=path)
        if random.random() < 0.08:
            yield self._planned_fault(Kind.DELETE, namespace=PRIMARY, path=random.choice(entities).path)

    def _outage(self) -> PlannedFault:
        """Return the outage of every run: long enough that messages are most likely diverted."""
        random = self._random
        kind = random.choice((*ON_NETWORK, Kind.KILL))
        at_s, lasts_s = random.uniform(0.0, self._length_s / 2), random.uniform(20.0, _LONGEST_MISHAP_S)
        return PlannedFault(
            kind=kind,
            at_s=round(at_s, 3),
            lasts_s=round(lasts_s, 3),
            namespace=PRIMARY,
            size=_size(kind, random),
            is_lossy=kind in ON_NETWORK and random.random() < 0.5,
        )

    def _of_the_primary(self, _entities: tuple[Entity, ...], processes: tuple[ProcessPlan, ...]) -> PlannedFault:
        kind = self._random.choice((*ON_NETWORK, *ON_NETWORK, *TO_NAMESPACES))
        return self._planned_fault(kind, namespace=PRIMARY, process=self._whom(kind, processes))

    def _of_the_secondary(self, processes: tuple[ProcessPlan, ...]) -> PlannedFault:
        kind = self._random.choice((*ON_NETWORK, *TO_NAMESPACES))
        return self._planned_fault(kind, namespace=SECONDARY, process=self._whom(kind, processes))

    def _whom(self, kind: Kind, processes: tuple[ProcessPlan, ...]) -> str:
        """Whom the bad way is for: all, or one of them."""
        is_for_one = kind in ON_NETWORK and self._random.random() < 0.25
        return self._random.choice(processes).name if is_for_one else ""

    def _of_one_entity(self, entities: tuple[Entity, ...], _processes: tuple[ProcessPlan, ...]) -> PlannedFault:
        entity = self._random.choice(entities)
        kind = self._random.choice(TO_ENTITIES)
        path = self._random.choice((entity.path, *entity.places)) if kind in SWITCHES else entity.path
        return self._planned_fault(kind, namespace=PRIMARY, path=path)

    def _of_a_backlog_queue(self, queues: int) -> PlannedFault:
        path = f"{PRIMARY}/x-servicebus-transfer/{self._random.randrange(queues)}"
        return self._planned_fault(self._random.choice(TO_ENTITIES), namespace=SECONDARY, path=path)

    def _planned_fault(self, kind: Kind, *, namespace: str = "", process: str = "", path: str = "") -> PlannedFault:
        random = self._random
        at_s, until_s = self._time_s(), self._time_s()
        if until_s <= at_s or random.random() < 0.3:
            until_s = at_s + _LONGEST_MISHAP_S ** random.random()
        return PlannedFault(
            kind=kind,
            at_s=at_s,
            lasts_s=round(until_s - at_s, 3),
            namespace=namespace,
            process=process,
            path=path,
            size=_size(kind, random),
            is_lossy=kind in ON_NETWORK and random.random() < 0.5,
        )


def _size(kind: Kind, random: Random) -> float:
    match kind:
        case Kind.SLOW:
            return random.choice((0.05, 0.4, 2.0, 7.0))
        case Kind.LEAP:
            return random.choice((5.0, 70.0, 150.0))
        case Kind.FLAKY:
            return random.randrange(1_000_000)
        case _:
            return 0.0
