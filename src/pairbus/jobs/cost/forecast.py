"""What pairing would cost, before it is switched on."""

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
from pairbus.ledger.operation import Kind, Stage, units_of
from pairbus.pairing.settings import MOST_PING_INTERVAL
from pairbus.pairing.syphon import IDLE_POLLS_PER_PEEK

DAYS: Final = 30
HOURS: Final = 24 * DAYS
"""Of the month that is forecast."""

_HOUR: Final = timedelta(hours=1)


_MOST: Final = 10**12
_LEAST: Final = {
    0: ("messages_per_day", "message_bytes", "receivers"),
    1: ("entities", "senders", "backlog_queues", "syphon_hosts"),
}


class Engine(StrEnum):
    """What a syphon does its work on."""

    SPARK = "spark"
    IN_PROCESS = "in-process"

    @property
    def other(self) -> Engine:
        return Engine.IN_PROCESS if self is Engine.SPARK else Engine.SPARK


class WorkloadError(ValueError):
    """A workload that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What an application does, and how it would be paired."""

    messages_per_day: int
    message_bytes: int = 1_000
    entities: int = 1
    """Queues and topics that are sent to."""

    senders: int = 1
    """Processes that send, each with a factory of its own."""

    receivers: int = 1
    """Processes that receive; each message is received once."""

    backlog_queues: int = 10
    outage_hours: Decimal = Decimal(0)
    """How long in a month the primary is down, with all its entities."""

    ping_interval: timedelta = timedelta(minutes=1)
    syphon_hosts: int = 1
    """Processes that run a syphon."""

    long_poll: timedelta = timedelta(minutes=15)
    engine: Engine = Engine.SPARK
    """Of the syphons."""

    def __post_init__(self) -> None:
        for least, names in _LEAST.items():
            for name in names:
                if not least <= getattr(self, name) <= _MOST:
                    raise WorkloadError(f"{name} is {getattr(self, name)}; it is {least} to {_MOST:,}")
        for name in ("ping_interval", "long_poll"):
            if getattr(self, name) <= timedelta(0):
                raise WorkloadError(f"{name} is {getattr(self, name)}; it is longer than nothing")
        if not self.outage_hours.is_finite() or not 0 <= self.outage_hours <= HOURS:
            raise WorkloadError(f"outage_hours is {self.outage_hours}; it is 0 to {HOURS}")

    @property
    def messages(self) -> int:
        return self.messages_per_day * DAYS

    @property
    def diverted(self) -> int:
        """Messages are sent evenly; those of the outage are diverted."""
        return round(self.messages * self.outage_hours / HOURS)

    @property
    def looks(self) -> int:
        """Count the peeks of the syphons.

        On Spark, a driver receives what is diverted, and a task peeks at it again to carry it. In the process, a syphon
        peeks at a queue after some receives that found nothing, for what another syphon may have left there.
        """
        return self.diverted if self.engine is Engine.SPARK else self.idle_polls // IDLE_POLLS_PER_PEEK

    @property
    def look_bytes(self) -> int:
        """Return the bytes that one of these peeks finds."""
        return self.message_bytes if self.engine is Engine.SPARK else 0

    @property
    def pings(self) -> int:
        """Each factory pings each entity that is down."""
        return round(self.entities * self.senders * self.outage_hours * Decimal(_HOUR / self.ping_interval))

    @property
    def idle_polls(self) -> int:
        """Each syphon waits at each backlog queue, all month: no more than that are in vain."""
        return round(self.backlog_queues * self.syphon_hosts * HOURS * Decimal(_HOUR / self.long_poll))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastLine:
    """Operations of one sort in a month."""

    name: str
    kind: Kind
    stage: Stage
    operations: int
    message_bytes: int = 0

    @property
    def units(self) -> int:
        return self.operations * units_of(self.message_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What another value of one setting would change."""

    name: str
    now: str
    then: str
    units: int
    """More operations than now that are billed; fewer if below zero."""

    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a month of a workload costs, with pairing and without."""

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
    """What pairing would cost, and what each setting has to do with it."""
    lines = tuple(_paired_lines(workload))
    return Forecast(
        workload=workload,
        card=card,
        lines=lines,
        unpaired=_unpaired_bill(workload, card),
        paired=_paired_bill(workload, card),
        knobs=tuple(_knobs(workload, card)),
    )


# What is done.


def _unpaired_lines(workload: Workload) -> Iterator[ForecastLine]:
    """What cannot be sent in the outage is taken to be sent later, by the application's own means."""
    yield from _direct(workload, workload.messages)


def _paired_lines(workload: Workload) -> Iterator[ForecastLine]:
    size, diverted = workload.message_bytes, workload.diverted
    yield from _direct(workload, workload.messages - diverted)
    for name, kind, stage in (
        ("send to backlog", Kind.SEND, Stage.BACKLOG),
        ("receive from backlog", Kind.RECEIVE, Stage.SYPHON),
        ("send to primary", Kind.SEND, Stage.SYPHON),
        ("receive from primary", Kind.RECEIVE, Stage.RETURNED),
    ):
        yield ForecastLine(name=name, kind=kind, stage=stage, operations=diverted, message_bytes=size)
    yield ForecastLine(
        name=LOOKS,
        kind=Kind.PEEK,
        stage=Stage.SYPHON,
        operations=workload.looks,
        message_bytes=workload.look_bytes,
    )
    yield ForecastLine(name=PINGS, kind=Kind.SEND, stage=Stage.PING, operations=workload.pings)
    yield ForecastLine(name="idle polls", kind=Kind.EMPTY_RECEIVE, stage=Stage.IDLE, operations=workload.idle_polls)
    asked = workload.backlog_queues * (workload.senders + workload.syphon_hosts)  # once, when they are paired
    yield ForecastLine(name="asking for backlog queues", kind=Kind.MANAGEMENT, stage=Stage.MANAGEMENT, operations=asked)


def _direct(workload: Workload, messages: int) -> Iterator[ForecastLine]:
    for name, kind in (("send", Kind.SEND), ("receive", Kind.RECEIVE)):
        yield ForecastLine(
            name=name, kind=kind, stage=Stage.DIRECT, operations=messages, message_bytes=workload.message_bytes
        )


# What it costs.


def _unpaired_bill(workload: Workload, card: RateCard) -> MonthlyBill:
    connections = workload.senders + workload.receivers
    return monthly_bill(_usage(_unpaired_lines(workload), card, connections, namespaces=1), card)


def _paired_bill(workload: Workload, card: RateCard) -> MonthlyBill:
    """Every sender has a connection to each namespace, and so has every syphon."""
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


# What the settings have to do with it.


def _knobs(workload: Workload, card: RateCard) -> Iterator[Knob]:
    """Each setting doubled; an outage that is none becomes an hour, and the engine the other one."""
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
    """A time in the largest unit that it is a whole number of."""
    for unit, name in ((_HOUR, "h"), (timedelta(minutes=1), "min"), (timedelta(seconds=1), "s")):
        if not time % unit:
            return f"{time // unit} {name}"
    return f"{time.total_seconds()} s"
