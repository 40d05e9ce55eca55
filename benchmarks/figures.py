"""The results of a comparison: which rounds are trusted, their medians, the goals, and the table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Self

from benchmarks.brokers.azure import CONNECTIONS
from benchmarks.brokers.load import BATCH, COMPLETE, COMPLETE_BATCHES, SEND, SEND_BATCHES, WINDOW
from benchmarks.latency import Percentiles
from benchmarks.worker import Rate, Turn

COMPILED: Final = "pairbus, compiled"
PLAIN: Final = "pairbus, plain"
RABBITMQ: Final = "aio-pika, RabbitMQ"
JETSTREAM: Final = "nats-py, JetStream"
AZURE: Final = "azure-servicebus, pairbus"
CONTESTANTS: Final = (COMPILED, PLAIN, RABBITMQ, JETSTREAM, AZURE)

SHOWN_WORKLOADS: Final = (SEND, SEND_BATCHES, COMPLETE, COMPLETE_BATCHES)

MAX_OTHERS_SHARE: Final = 0.05
"""The part of the processors that others may take during a round whose figures are trusted."""

GOAL_BYTES: Final = 1024
"""The size of the messages for which there are goals."""

GOAL_RATE: Final = 1_000
"""The rate at which there is a goal for the latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One turn of a contestant."""

    contestant: str
    body_bytes: int
    turn: Turn

    @property
    def is_trusted(self) -> bool:
        return self.turn.others_share <= MAX_OTHERS_SHARE


@dataclass(frozen=True, slots=True)
class Summary:
    """The medians of a contestant's turns with messages of one size.

    They are of the trusted turns, if these are most of all turns; otherwise of all, and not to be trusted.
    """

    turns: tuple[Turn, ...]
    is_trusted: bool

    @classmethod
    def of(cls, results: Sequence[Result]) -> Self:
        trusted = [result for result in results if result.is_trusted]
        is_trusted = 2 * len(trusted) > len(results)
        return cls(tuple(result.turn for result in (trusted if is_trusted else results)), is_trusted)

    def rate(self, workload: str) -> Rate:
        rates = [turn.rates[workload] for turn in self.turns]
        return Rate(
            per_s=median(rate.per_s for rate in rates),
            client_us=median(rate.client_us for rate in rates),
            broker_us=median(rate.broker_us for rate in rates),
        )

    def latency(self, per_s: int) -> Percentiles:
        found = [turn.latencies[per_s] for turn in self.turns]
        slowest = [each.p999_ms for each in found if each.p999_ms is not None]
        return Percentiles(
            count=sum(each.count for each in found),
            p50_ms=median(each.p50_ms for each in found),
            p99_ms=median(each.p99_ms for each in found),
            p999_ms=median(slowest) if slowest else None,
        )

    @property
    def client_mb(self) -> float:
        return median(turn.client_bytes for turn in self.turns) / 1e6

    @property
    def broker_mb(self) -> float:
        return median(turn.broker_bytes for turn in self.turns) / 1e6


@dataclass(slots=True, kw_only=True)
class Comparison:
    """All that was measured, as it is stored in the JSON file."""

    conditions: list[str]
    """Sentences about the machine and the run."""

    rates: tuple[int, ...]
    results: list[Result] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Reasons for contestants without results."""

    def to_json(self) -> str:
        goals = [{"goal": goal.text, "measured": value, "verdict": verdict} for goal, value, verdict in judged(self)]
        return json.dumps({**dataclasses.asdict(self), "goals": goals}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        found: dict[str, Any] = json.loads(text)
        results = [
            Result(**{**result, "turn": Turn.from_json(json.dumps(result["turn"]))}) for result in found["results"]
        ]
        return cls(conditions=found["conditions"], rates=tuple(found["rates"]), results=results, absent=found["absent"])

    @property
    def sizes(self) -> list[int]:
        return sorted({result.body_bytes for result in self.results})

    @property
    def names(self) -> list[str]:
        return [name for name in CONTESTANTS if any(result.contestant == name for result in self.results)]

    def summary(self, contestant: str, body_bytes: int) -> Summary | None:
        results = self.of(contestant, body_bytes)
        return Summary.of(results) if results else None

    def of(self, contestant: str, body_bytes: int) -> list[Result]:
        return [r for r in self.results if r.contestant == contestant and r.body_bytes == body_bytes]

    def trusted(self, contestant: str, body_bytes: int) -> int:
        """Return the number of trusted turns."""
        return sum(result.is_trusted for result in self.of(contestant, body_bytes))


# Goals


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure of ours, alone or compared with that of another client and broker."""

    text: str
    limit: float
    is_minimum: bool
    measure: Callable[[Summary, Summary], float]
    """Called with the summary of ours and with that of the other."""

    other: str = COMPILED

    def verdict(self, value: float) -> str:
        is_reached = value >= self.limit if self.is_minimum else value <= self.limit
        return "reached" if is_reached else "missed"


def _rate_goal(workload: str, other: str, limit: float) -> Goal:
    def measure(ours: Summary, theirs: Summary) -> float:
        return ours.rate(workload).per_s / theirs.rate(workload).per_s

    return Goal(f"{workload}, rate relative to {other}", limit, True, measure, other)


def _broker_goal(workload: str, limit: float) -> Goal:
    return Goal(f"{workload}, µs of the server", limit, False, lambda ours, _: ours.rate(workload).broker_us)


def _client_goal(workload: str, limit: float) -> Goal:
    return Goal(f"{workload}, µs of the client", limit, False, lambda ours, _: ours.rate(workload).client_us)


def _latency_goal(other: str, limit: float) -> Goal:
    def measure(ours: Summary, theirs: Summary) -> float:
        return ours.latency(GOAL_RATE).p99_ms / theirs.latency(GOAL_RATE).p99_ms

    return Goal(f"p99 of a send at {GOAL_RATE:,} a second, relative to {other}", limit, False, measure, other)


GOALS: Final = (
    _rate_goal(SEND, RABBITMQ, 10.0),
    _rate_goal(SEND, JETSTREAM, 2.5),
    _rate_goal(SEND_BATCHES, RABBITMQ, 15.0),
    _rate_goal(SEND_BATCHES, JETSTREAM, 4.0),
    _rate_goal(COMPLETE, RABBITMQ, 7.0),
    _rate_goal(COMPLETE, JETSTREAM, 2.0),
    _rate_goal(COMPLETE_BATCHES, RABBITMQ, 7.0),
    _rate_goal(COMPLETE_BATCHES, JETSTREAM, 3.0),
    _broker_goal(SEND, 11.0),
    _broker_goal(SEND_BATCHES, 7.0),
    _broker_goal(COMPLETE, 13.0),
    _client_goal(SEND, 10.0),
    _client_goal(COMPLETE, 12.0),
    _latency_goal(RABBITMQ, 0.5),
)
"""For messages of ``GOAL_BYTES`` and the compiled build."""

NOT_MEASURED: Final = "not measured"
TOO_BUSY: Final = "the machine was too busy to judge"


def judged(comparison: Comparison) -> Iterator[tuple[Goal, float | None, str]]:
    """Yield each goal with what was measured and the verdict."""
    ours = comparison.summary(COMPILED, GOAL_BYTES)
    for goal in GOALS:
        theirs = comparison.summary(goal.other, GOAL_BYTES)
        try:
            value = None if ours is None or theirs is None else goal.measure(ours, theirs)
        except KeyError:  # this rate was not among those of the run
            value = None
        if value is None or ours is None or theirs is None:
            yield goal, None, NOT_MEASURED
        elif ours.is_trusted and theirs.is_trusted:
            yield goal, value, goal.verdict(value)
        else:
            yield goal, value, TOO_BUSY


# What is printed

NOTES: Final = f"""\
One client process loads one broker process, in turn. {WINDOW} messages are in flight, or prefetched; the Azure SDK has
one in flight on each of its {CONNECTIONS} connections. x: so many times as fast is the first column.
Sends: every client waits for confirmations. pairbus and RabbitMQ (durable classic queue, persistent messages, publisher
confirms) sync to disk before they confirm; JetStream (stream in files) confirms what it has written, and syncs later.
Completions: pairbus's client and the Azure SDK wait until each is confirmed; aio-pika and nats-py wait for one answer
after the last acknowledgement, because RabbitMQ and JetStream do not confirm them.
Batches: one transfer of {BATCH} messages to pairbus; {BATCH} publishes at once to RabbitMQ and JetStream, which have no
batches. Latency counts from when a message was due. Memory is private, and the most that was seen after any load."""


def size_name(body_bytes: int) -> str:
    return f"{body_bytes // 1024} KB" if body_bytes >= 1024 else f"{body_bytes} B"


def lines_of(comparison: Comparison) -> Iterator[str]:
    """Yield the lines of the report."""
    yield from comparison.conditions
    yield from NOTES.splitlines()
    for body_bytes in comparison.sizes:
        yield ""
        yield from _aligned(_rows(comparison, body_bytes))
    yield ""
    yield from _busy_lines(comparison)
    for name, reason in comparison.absent.items():
        yield f"Not measured: {name}: {reason}"
    yield f"Goals, for messages of {size_name(GOAL_BYTES)} and {COMPILED}:"
    for goal, value, verdict in judged(comparison):
        shown = "" if value is None else f"{value:.2f}"
        limit = f"{'at least' if goal.is_minimum else 'at most'} {goal.limit:g}"
        yield f"  {goal.text:72} {shown:>6}   to reach {limit:14} {verdict}"


def _rows(comparison: Comparison, body_bytes: int) -> Iterator[list[str]]:
    summaries = [comparison.summary(name, body_bytes) for name in comparison.names]
    yield [f"messages of {size_name(body_bytes)}", *comparison.names]
    for workload in SHOWN_WORKLOADS:
        first = summaries[0].rate(workload).per_s if summaries[0] else None
        yield [f"{workload}, a second", *(_rate_text(each, workload, first) for each in summaries)]
    for workload in SHOWN_WORKLOADS:
        yield [f"{workload}, CPU s a million, client + broker", *(_cpu_text(each, workload) for each in summaries)]
    for per_s in comparison.rates:
        name = f"send, {per_s:,} a second, ms: p50 / p99 / p99.9"
        yield [name, *(_latency_text(each, per_s) for each in summaries)]
    yield ["memory, MB: client + broker", *(_text(each, _memory_text) for each in summaries)]


def _text(summary: Summary | None, text: Callable[[Summary], str]) -> str:
    return "-" if summary is None else text(summary) + mark(summary)


def mark(summary: Summary) -> str:
    """Return the mark of figures that are not trusted."""
    return "" if summary.is_trusted else " !"


def _rate_text(summary: Summary | None, workload: str, first: float | None) -> str:
    def text(summary: Summary) -> str:
        per_s = summary.rate(workload).per_s
        return f"{per_s:,.0f}" if first is None or first == per_s else f"{per_s:,.0f} x {first / per_s:.2f}"

    return _text(summary, text)


def _cpu_text(summary: Summary | None, workload: str) -> str:
    def text(summary: Summary) -> str:
        rate = summary.rate(workload)
        return f"{rate.client_us:.1f} + {rate.broker_us:.1f}"

    return _text(summary, text)


def _latency_text(summary: Summary | None, per_s: int) -> str:
    def text(summary: Summary) -> str:
        found = summary.latency(per_s)
        p999 = "-" if found.p999_ms is None else milliseconds(found.p999_ms)
        return f"{milliseconds(found.p50_ms)} / {milliseconds(found.p99_ms)} / {p999}"

    return _text(summary, text)


def milliseconds(number: float) -> str:
    return f"{number:.2f}" if number < 100 else f"{number:,.0f}"


def _memory_text(summary: Summary) -> str:
    return f"{summary.client_mb:.0f} + {summary.broker_mb:.0f}"


def _aligned(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a line for each row: the first column is aligned on the left, the others on the right."""
    table = [*rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *others in table:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "   ".join((f"{first:{widths[0]}}", *cells))


def _busy_lines(comparison: Comparison) -> Iterator[str]:
    """Yield how much of the machine others took, and which figures that makes worthless."""
    busy = sum(not result.is_trusted for result in comparison.results)
    most = max((result.turn.others_share for result in comparison.results), default=0.0)
    yield (
        f"Other processes, or the host, took at most {most:.0%} of the processors during a round. Rounds in which they"
        f" took more than {MAX_OTHERS_SHARE:.0%} are left out: {busy} of {len(comparison.results)}."
    )
    for body_bytes in comparison.sizes:
        for name in comparison.names:
            summary = comparison.summary(name, body_bytes)
            if summary is not None and not summary.is_trusted:
                trusted, rounds = comparison.trusted(name, body_bytes), len(comparison.of(name, body_bytes))
                yield (
                    f"! The machine was too busy to trust {name}, {size_name(body_bytes)}:"
                    f" only {trusted} of {rounds} rounds were undisturbed, so none is left out"
                )
