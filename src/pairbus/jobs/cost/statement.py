"""A bill as a value: what is shown to somebody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Final

from pairbus.jobs.cost.month import MonthlyBill, rounded
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.ledger.operation import Kind, Stage


class By(StrEnum):
    """What the lines of a bill are put together by."""

    ENTITY = "entity"
    HOUR = "hour"
    STAGE = "stage"


GROUPS: Final[Mapping[By, tuple[str, ...]]] = {
    By.ENTITY: ("namespace", "entity"),
    By.HOUR: ("hour",),
    By.STAGE: ("stage", "kind"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStep:
    """Something that a pair does and a single namespace does not."""

    name: str
    stages: tuple[Stage, ...]
    kind: Kind | None = None
    """``None`` for all kinds that no step before has."""


DIVERTED_STEPS: Final = (
    PairingStep(name="send to backlog", stages=(Stage.BACKLOG,), kind=Kind.SEND),
    PairingStep(name="receive from backlog", stages=(Stage.SYPHON,), kind=Kind.RECEIVE),
    PairingStep(name="send to primary", stages=(Stage.SYPHON,), kind=Kind.SEND),
    PairingStep(name="receive from primary", stages=(Stage.RETURNED,), kind=Kind.RECEIVE),
)
"""The four charges of a diverted message."""

_HOME: Final = 2

LOOKS: Final = "looks of a syphon into the backlog"
"""Peeks: a syphon on Spark peeks at every message to carry it, one in the process at idle queues now and then."""

PINGS: Final = "pings"
"""Those that have reached the primary: of others no ledger tells."""

PAIRING_STEPS: Final = (
    *DIVERTED_STEPS,
    PairingStep(name=LOOKS, kind=Kind.PEEK, stages=(Stage.SYPHON,)),
    PairingStep(name="settling and the like", stages=(Stage.BACKLOG, Stage.SYPHON, Stage.RETURNED)),
    PairingStep(name=PINGS, stages=(Stage.PING,)),
    PairingStep(name="idle polls", stages=(Stage.IDLE,)),
)
"""These, and what else a pair does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """A line of a bill."""

    labels: tuple[str, ...]
    """What it is about, one for each of the bill's groups."""

    operations: int
    failed: int
    messages: int
    bytes: int
    units: int
    amount: Decimal


def added_up(lines: Sequence[StatementLine]) -> StatementLine:
    """All lines as one, which has no labels."""
    return StatementLine(
        labels=(),
        operations=sum(line.operations for line in lines),
        failed=sum(line.failed for line in lines),
        messages=sum(line.messages for line in lines),
        bytes=sum(line.bytes for line in lines),
        units=sum(line.units for line in lines),
        amount=sum((line.amount for line in lines), Decimal(0)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A bill: by month and meter, by what was asked for, and what pairing has to do with it."""

    card: RateCard
    by: By
    months: Mapping[date, MonthlyBill]
    """By the first day of each."""

    lines: tuple[StatementLine, ...]
    steps: tuple[StatementLine, ...]
    """The four charges of diverted messages, and what else a pair does."""

    @property
    def groups(self) -> tuple[str, ...]:
        """What the labels of the lines are."""
        return GROUPS[self.by]

    @property
    def total(self) -> Decimal:
        return sum((month.total for month in self.months.values()), Decimal(0))

    @property
    def pairing_total(self) -> StatementLine:
        """All that the pair did."""
        return added_up(self.steps)

    @property
    def four_charges(self) -> Decimal:
        """Of all diverted messages."""
        return added_up(self.steps[: len(DIVERTED_STEPS)]).amount

    @property
    def diverted_messages(self) -> int:
        return self.steps[0].messages

    @property
    def messages_home(self) -> int:
        """Messages that came home from a backlog: the primary's ledger tells of these, without the secondary's too."""
        return self.steps[_HOME].messages

    @property
    def per_diverted_message(self) -> Decimal | None:
        """The four charges of one diverted message, on average; ``None`` if there was none."""
        if not self.diverted_messages:
            return None
        return rounded(self.four_charges / self.diverted_messages)
