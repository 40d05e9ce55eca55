"""A model of the syphon on Spark with a backlog that no test machine holds: what grows, and which part is busy first.

The model is discrete: tasks take groups of messages from the secondary namespace, restore them, send them to the
primary and complete them; each namespace serves one request at a time. What each step costs was measured with few
messages; the table says with which command. The model has no network, no retries and no other clients.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from typing import Final

HOUR_S: Final = 3_600.0
MESSAGES: Final = 1_000_000_000
QUEUES: Final = 1_000
EXECUTORS: Final = 100
_SYPHON: Final = "benchmarks.syphon --in-process"
_QUEUES: Final = "benchmarks.spark_queues"
_SERVER: Final = "benchmarks.server_scale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The processor time of a message in each part, in microseconds."""

    secondary_us: float
    """To deliver it with a lock, and to remove it."""

    task_us: float
    """To receive, restore, send and settle it."""

    primary_us: float
    """To accept it."""


PLAIN: Final = Costs(secondary_us=33, task_us=28, primary_us=23)
COMPILED: Final = Costs(secondary_us=20, task_us=16, primary_us=11)
COSTS: Final = {"plain": PLAIN, "compiled": COMPILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A measured figure and the module that prints it."""

    value: float
    unit: str
    command: str


BATCH_S: Final = Constant(value=0.30, unit="s a batch", command=_QUEUES)
PLAN_MS: Final = Constant(value=2.26, unit="ms of processor a queue", command=_QUEUES)
OFFSET_BYTES: Final = Constant(value=56.03, unit="bytes a queue", command=_QUEUES)
QUEUE_KB: Final = Constant(value=18.94, unit="KB a queue", command=_QUEUES)
PARKED_BYTES: Final = Constant(value=92, unit="bytes a parked message", command=_QUEUES)
LINK_KB: Final = Constant(value=14.6, unit="KB a connection and link", command=_SERVER)
CONSTANTS: Final = {
    "a batch, however many messages it has": BATCH_S,
    "planning of a table or browsing stream": PLAN_MS,
    "offset of a consuming stream": OFFSET_BYTES,
    "driver of a consuming stream": QUEUE_KB,
    "driver of the syphon": PARKED_BYTES,
    "namespace": LINK_KB,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A backlog, and what delivers it."""

    messages: int = MESSAGES
    queues: int = QUEUES
    executors: int = EXECUTORS
    cores: int = 4
    """Tasks of an executor at a time, each in a process with a connection of its own to both namespaces."""

    destinations: int = QUEUES
    batch_messages: int = 40_000
    """The messages of a batch; the next one starts when all tasks of the last one have ended."""

    group: int = 200
    """The messages that a task receives, sends and completes at a time."""

    secondaries: int = 1
    primaries: int = 1
    """The namespaces or owners over which the entities are spread, each with a core of its own."""

    costs: Costs = PLAIN

    @property
    def tasks(self) -> int:
        return self.executors * self.cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The time that a scenario takes, and the part of it for which each part is busy."""

    hours: float
    busy: dict[str, float]

    @property
    def bottleneck(self) -> str:
        return max(self.busy, key=lambda part: self.busy[part])


class _Station:
    """Some servers with a queue in front of them: a request is served when one of them is free."""

    def __init__(self, servers: int) -> None:
        self.busy_s = 0.0
        self._free_s = [0.0] * servers

    def serve(self, arrives_s: float, takes_s: float) -> float:
        """Return when a request ends. Requests must arrive in order."""
        ends_s = max(arrives_s, self._free_s[0]) + takes_s
        heapreplace(self._free_s, ends_s)
        self.busy_s += takes_s
        return ends_s


def simulate(scenario: Scenario) -> Result:
    """Simulate one batch after another has filled the stations, and scale it to the whole backlog.

    All batches are the same, since a task receives for itself: whatever it takes from the backlog, it takes as many.
    """
    secondary, primary = _Station(scenario.secondaries), _Station(scenario.primaries)
    costs, groups = scenario.costs, -(-scenario.batch_messages // scenario.group)
    takes_s = {
        "receive": scenario.group * costs.secondary_us / 2e6,
        "restore": scenario.group * costs.task_us / 1e6,
        "send": scenario.group * costs.primary_us / 1e6,
        "complete": scenario.group * costs.secondary_us / 2e6,
    }
    tasks = min(scenario.tasks, groups)
    events = [(BATCH_S.value, task, 0) for task in range(tasks)]
    """Times at which tasks arrive at their next step, with the task and the step."""

    heapify(events)
    begun, ended_s, task_s = 0, 0.0, 0.0
    while events:
        now_s, task, step = events[0]
        match _STEPS[step]:
            case "receive" if begun == groups:
                events = [event for event in events if event[1] != task]
                heapify(events)
                continue
            case "receive":
                begun += 1
                ends_s = secondary.serve(now_s, takes_s["receive"])
            case "restore":
                ends_s = now_s + takes_s["restore"]
                task_s += takes_s["restore"]
            case "send":
                ends_s = primary.serve(now_s, takes_s["send"])
            case _:
                ends_s = secondary.serve(now_s, takes_s["complete"])
        ended_s = max(ended_s, ends_s)
        heapreplace(events, (ends_s, task, (step + 1) % len(_STEPS)))
    batches = scenario.messages / scenario.batch_messages
    return Result(
        hours=batches * ended_s / HOUR_S,
        busy={
            "secondary": secondary.busy_s / ended_s / scenario.secondaries,
            "primary": primary.busy_s / ended_s / scenario.primaries,
            "tasks": task_s / ended_s / scenario.tasks,
            "driver": BATCH_S.value / ended_s,
        },
    )


_STEPS: Final = ("receive", "restore", "send", "complete")

LARGE_BATCH: Final = 1_000_000

SCENARIOS: Final[dict[str, Scenario]] = {
    "1 executor, batches of 40,000": Scenario(executors=1),
    "100 executors, batches of 40,000": Scenario(),
    "100 executors, batches of 1,000,000": Scenario(batch_messages=LARGE_BATCH),
    "the same, 2 secondaries": Scenario(batch_messages=LARGE_BATCH, secondaries=2),
    "the same, 2 secondaries, 2 primaries": Scenario(batch_messages=LARGE_BATCH, secondaries=2, primaries=2),
    "the same, 8 secondaries, 8 primaries": Scenario(batch_messages=LARGE_BATCH, secondaries=8, primaries=8),
}


def growth(scenario: Scenario) -> Iterator[tuple[str, float, str]]:
    """Yield what grows, how large it is in a scenario, and its unit."""
    links = scenario.tasks * (1 + scenario.destinations)
    yield "planning of a table or browsing stream", scenario.queues * PLAN_MS.value / 1e3, "s of processor"
    yield "offset of a batch of a consuming stream", scenario.queues * OFFSET_BYTES.value / 1024, "KB"
    yield "driver of a consuming stream", scenario.queues * QUEUE_KB.value / 1024, "MB"
    yield "driver of the syphon, all messages parked", scenario.messages * PARKED_BYTES.value / 1024**3, "GB"
    yield "connections of each namespace", scenario.tasks, ""
    yield "links of the primary at most, each task to each destination", links - scenario.tasks, ""
    yield "memory of the primary for them", (links - scenario.tasks) * LINK_KB.value / 1024**2, "GB"


def lines() -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{'measured with few messages':44}{'value':>9} {'unit':26} by python -m"
    for text, constant in CONSTANTS.items():
        yield f"  {text:42}{constant.value:9,.2f} {constant.unit:26} {constant.command}"
    for build, costs in COSTS.items():
        for part, cost_us in (
            ("secondary", costs.secondary_us),
            ("task", costs.task_us),
            ("primary", costs.primary_us),
        ):
            yield f"  {f'{part}, {build}':42}{cost_us:9,.2f} {'µs a message':26} {_SYPHON}"
    yield f"with {MESSAGES:,} messages, {QUEUES:,} queues, {QUEUES:,} destinations, {EXECUTORS} executors of 4 cores"
    for text, value, unit in growth(Scenario()):
        yield f"  {text:62}{value:12,.1f} {unit}".rstrip()
    for build, costs in COSTS.items():
        yield f"{f'{MESSAGES:,} messages, {build}':42}{'hours':>8}" + "".join(f"{part:>11}" for part in _PARTS)
        for text, scenario in SCENARIOS.items():
            result = simulate(replace(scenario, costs=costs))
            busy = "".join(f"{result.busy[part]:11.1%}" for part in _PARTS)
            yield f"  {text:40}{result.hours:8.1f}{busy}   {result.bottleneck} first"


_PARTS: Final = ("secondary", "primary", "tasks", "driver")


def report() -> None:
    for line in lines():
        print(line)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    report()
