"""Forecast of the cost of pairing, before it is enabled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from pairbus.jobs.cost.month import MonthlyBill, MonthlyUsage, monthly_bill
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.jobs.cost.statement import LOOKS, PINGS
from pairbus.ledger.events import OperationKind, Stage, units_of
from pairbus.pairing.pair import MOST_PING_INTERVAL
from pairbus.pairing.syphon import IDLE_POLLS_PER_PEEK

DAYS: Final = 30
HOURS: Final = 24 * DAYS
"""Length of the forecast month."""

_HOUR: Final = timedelta(hours=1)


_MAX: Final = 10**12
_MINIMUMS: Final = {
    0: ("messages_per_day", "message_bytes", "receivers"),
    1: ("entities", "senders", "backlog_queues", "syphon_hosts"),
}


class Engine(StrEnum):
    """The engine of a syphon."""

    SPARK = "spark"
    IN_PROCESS = "in-process"

    @property
    def other(self) -> Engine:
        return Engine.IN_PROCESS if self is Engine.SPARK else Engine.SPARK


class WorkloadError(ValueError):
    """A value of a workload is out of range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload of an application, and the settings of its pairing."""

    messages_per_day: int
    message_bytes: int = 1_000
    entities: int = 1
    """Number of queues and topics that messages are sent to."""

    senders: int = 1
    """Number of sending processes, each with a separate factory."""

    receivers: int = 1
    """Number of receiving processes; each message is received once."""

    backlog_queues: int = 10
    outage_hours: Decimal = Decimal(0)
    """Hours a month in which the primary is down, with all its entities."""

    ping_interval: timedelta = timedelta(minutes=1)
    syphon_hosts: int = 1
    """Number of processes that run a syphon."""

    long_poll: timedelta = timedelta(minutes=15)
    engine: Engine = Engine.SPARK
    """The engine of the syphons."""

    def __post_init__(self) -> None:
        for minimum, names in _MINIMUMS.items():
            for name in names:
                if not minimum <= getattr(self, name) <= _MAX:
                    raise WorkloadError(f"{name} must be {minimum} to {_MAX:,}, got {getattr(self, name)}")
        for name in ("ping_interval", "long_poll"):
            if getattr(self, name) <= timedelta(0):
                raise WorkloadError(f"{name} must be > 0, got {getattr(self, name)}")
        if not self.outage_hours.is_finite() or not 0 <= self.outage_hours <= HOURS:
            raise WorkloadError(f"outage_hours must be 0 to {HOURS}, got {self.outage_hours}")

    @property
    def messages(self) -> int:
        return self.messages_per_day * DAYS

    @property
    def diverted(self) -> int:
        """Number of diverted messages: those of the outage, with messages distributed evenly."""
        return round(self.messages * self.outage_hours / HOURS)

    @property
    def looks(self) -> int:
        """Number of peeks of the syphons.

        They peek at idle queues, for messages that another syphon may have left there: on Spark once an hour, in the
        process after some empty receives.
        """
        if self.engine is Engine.SPARK:
            return self.backlog_queues * self.syphon_hosts * HOURS
        return self.idle_polls // IDLE_POLLS_PER_PEEK

    @property
    def pings(self) -> int:
        """Number of pings: each factory pings each entity that is down."""
        return round(self.entities * self.senders * self.outage_hours * Decimal(_HOUR / self.ping_interval))

    @property
    def idle_polls(self) -> int:
        """Number of idle polls, at most: each syphon polls each backlog queue all month."""
        return round(self.backlog_queues * self.syphon_hosts * HOURS * Decimal(_HOUR / self.long_poll))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLine:
    """Operations of one kind and stage in a month."""

    name: str
    kind: OperationKind
    stage: Stage
    operations: int
    message_bytes: int = 0

    @property
    def units(self) -> int:
        return self.operations * units_of(self.message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The effect of another value of one setting."""

    name: str
    now: str
    then: str
    units: int
    """Additional billed operations; negative if there are fewer."""

    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The cost of a month of a workload, with pairing and without."""

    workload: Workload
    card: RateCard
    lines: tuple[ForecastLine, ...]
    unpaired: MonthlyBill
    paired: MonthlyBill
    knobs: tuple[Knob, ...]

    @property
    def difference(self) -> Decimal:
        return self.paired.total - self.unpaired.total


def forecast(workload: Workload, card: RateCard) -> Forecast:
    """Return the cost of pairing, and the effect of each setting."""
    lines = tuple(_paired_lines(workload))
    return Forecast(
        workload=workload,
        card=card,
        lines=lines,
        unpaired=_unpaired_bill(workload, card),
        paired=_paired_bill(workload, card),
        knobs=tuple(_knobs(workload, card)),
    )


# Operations.


def _unpaired_lines(workload: Workload) -> Iterator[ForecastLine]:
    """Yield the operations without pairing; messages of the outage are assumed to be sent later by the application."""
    yield from _direct(workload, workload.messages)


def _paired_lines(workload: Workload) -> Iterator[ForecastLine]:
    size, diverted = workload.message_bytes, workload.diverted
    yield from _direct(workload, workload.messages - diverted)
    for name, kind, stage in (
        ("send to backlog", OperationKind.SEND, Stage.BACKLOG),
        ("receive from backlog", OperationKind.RECEIVE, Stage.SYPHON),
        ("send to primary", OperationKind.SEND, Stage.SYPHON),
        ("receive from primary", OperationKind.RECEIVE, Stage.RETURNED),
    ):
        yield ForecastLine(name=name, kind=kind, stage=stage, operations=diverted, message_bytes=size)
    yield ForecastLine(name=LOOKS, kind=OperationKind.PEEK, stage=Stage.SYPHON, operations=workload.looks)
    yield ForecastLine(name=PINGS, kind=OperationKind.SEND, stage=Stage.PING, operations=workload.pings)
    yield ForecastLine(
        name="idle polls", kind=OperationKind.EMPTY_RECEIVE, stage=Stage.IDLE, operations=workload.idle_polls
    )
    lookups = workload.backlog_queues * (workload.senders + workload.syphon_hosts)  # once, when they are paired
    yield ForecastLine(
        name="backlog queue lookups", kind=OperationKind.MANAGEMENT, stage=Stage.MANAGEMENT, operations=lookups
    )


def _direct(workload: Workload, messages: int) -> Iterator[ForecastLine]:
    for name, kind in (("send", OperationKind.SEND), ("receive", OperationKind.RECEIVE)):
        yield ForecastLine(
            name=name, kind=kind, stage=Stage.DIRECT, operations=messages, message_bytes=workload.message_bytes
        )


# Costs.


def _unpaired_bill(workload: Workload, card: RateCard) -> MonthlyBill:
    connections = workload.senders + workload.receivers
    return monthly_bill(_usage(_unpaired_lines(workload), card, connections, namespaces=1), card)


def _paired_bill(workload: Workload, card: RateCard) -> MonthlyBill:
    """Return the bill with pairing: each sender and each syphon has a connection to both namespaces."""
    connections = 2 * workload.senders + workload.receivers + 2 * workload.syphon_hosts
    return monthly_bill(_usage(_paired_lines(workload), card, connections, namespaces=2), card)


def _usage(lines: Iterator[ForecastLine], card: RateCard, connections: int, *, namespaces: int) -> MonthlyUsage:
    units = bytes_out = 0
    for line in lines:
        if line.kind in card.operations.billable:
            units += line.units
        if card.bandwidth is not None and line.kind in card.bandwidth.kinds and line.stage in card.bandwidth.stages:
            bytes_out += line.operations * line.message_bytes
    return MonthlyUsage(
        units=units,
        connection_peaks=connections * HOURS,
        bytes_out=bytes_out,
        namespace_hours=namespaces * HOURS,
    )


# Effects of settings.


def _knobs(workload: Workload, card: RateCard) -> Iterator[Knob]:
    """Double each setting; an outage of 0 becomes one hour, and the engine is replaced by the other one."""
    now = _paired_bill(workload, card)
    for name, before, after, changed in _changed(workload):
        then = _paired_bill(changed, card)
        yield Knob(
            name=name,
            now=before,
            then=after,
            units=then.usage.units - now.usage.units,
            amount=then.total - now.total,
        )


def _changed(workload: Workload) -> Iterator[tuple[str, str, str, Workload]]:
    queues, hosts, senders = 2 * workload.backlog_queues, 2 * workload.syphon_hosts, 2 * workload.senders
    pings, polls = min(2 * workload.ping_interval, MOST_PING_INTERVAL), 2 * workload.long_poll
    hours = min(Decimal(HOURS), 2 * workload.outage_hours) or Decimal(1)
    yield "backlog queues", str(workload.backlog_queues), str(queues), replace(workload, backlog_queues=queues)
    yield "syphon hosts", str(workload.syphon_hosts), str(hosts), replace(workload, syphon_hosts=hosts)
    yield "long poll", shown(workload.long_poll), shown(polls), replace(workload, long_poll=polls)
    yield "ping interval", shown(workload.ping_interval), shown(pings), replace(workload, ping_interval=pings)
    yield "senders", str(workload.senders), str(senders), replace(workload, senders=senders)
    yield "outage hours", _plain(workload.outage_hours), _plain(hours), replace(workload, outage_hours=hours)
    other = workload.engine.other
    yield "engine", workload.engine.value, other.value, replace(workload, engine=other)


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


def shown(time: timedelta) -> str:
    """Format a duration in the largest unit that divides it."""
    for unit, name in ((_HOUR, "h"), (timedelta(minutes=1), "min"), (timedelta(seconds=1), "s")):
        if not time % unit:
            return f"{time // unit} {name}"
    return f"{time.total_seconds()} s"
