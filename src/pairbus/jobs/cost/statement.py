"""A bill as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pairbus.jobs.cost.month import MonthlyBill, rounded
from pairbus.jobs.cost.rate_card import RateCard
from pairbus.ledger.events import OperationKind, Stage
from pairbus.renamed import renamed


class GroupBy(StrEnum):
    """The grouping of the lines of a bill."""

    ENTITY = "entity"
    HOUR = "hour"
    STAGE = "stage"


GROUPS: Final[Mapping[GroupBy, tuple[str, ...]]] = {
    GroupBy.ENTITY: ("namespace", "entity"),
    GroupBy.HOUR: ("hour",),
    GroupBy.STAGE: ("stage", "kind"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairingStep:
    """An operation that only a pair performs, not a single namespace."""

    name: str
    stages: tuple[Stage, ...]
    kind: OperationKind | None = None
    """``None`` for all kinds that no earlier step covers."""


DIVERTED_STEPS: Final = (
    PairingStep(name="send to backlog", stages=(Stage.BACKLOG,), kind=OperationKind.SEND),
    PairingStep(name="receive from backlog", stages=(Stage.SYPHON,), kind=OperationKind.RECEIVE),
    PairingStep(name="send to primary", stages=(Stage.SYPHON,), kind=OperationKind.SEND),
    PairingStep(name="receive from primary", stages=(Stage.RETURNED,), kind=OperationKind.RECEIVE),
)
"""The four charges of a diverted message."""

_HOME: Final = 2

LOOKS: Final = "syphon peeks"
"""A syphon peeks at idle queues from time to time, and at the front of a queue with sessions."""

PINGS: Final = "pings"
"""Pings that have reached the primary; others are in no ledger."""

PAIRING_STEPS: Final = (
    *DIVERTED_STEPS,
    PairingStep(name=LOOKS, kind=OperationKind.PEEK, stages=(Stage.SYPHON,)),
    PairingStep(name="settlement and other operations", stages=(Stage.BACKLOG, Stage.SYPHON, Stage.RETURNED)),
    PairingStep(name=PINGS, stages=(Stage.PING,)),
    PairingStep(name="idle polls", stages=(Stage.IDLE,)),
)
"""The four charges, and the other operations of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementLine:
    """A line of a bill."""

    labels: tuple[str, ...]
    """One label for each of the bill's groups."""

    operations: int
    failed: int
    messages: int
    bytes: int
    units: int
    amount: Decimal


def added_up(lines: Sequence[StatementLine]) -> StatementLine:
    """Return the sum of lines, without labels."""
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
    """A bill: by month and meter, by the requested grouping, and the share of pairing."""

    card: RateCard
    by: GroupBy
    months: Mapping[date, MonthlyBill]
    """By the first day of each month."""

    lines: tuple[StatementLine, ...]
    steps: tuple[StatementLine, ...]
    """The four charges of diverted messages, and the other operations of a pair."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the labels."""
        return GROUPS[self.by]

    @property
    def total(self) -> Decimal:
        return sum((month.total for month in self.months.values()), Decimal(0))

    @property
    def pairing_total(self) -> StatementLine:
        """The sum of all operations of the pair."""
        return added_up(self.steps)

    @property
    def four_charges(self) -> Decimal:
        """The four charges of all diverted messages."""
        return added_up(self.steps[: len(DIVERTED_STEPS)]).amount

    @property
    def diverted_messages(self) -> int:
        return self.steps[0].messages

    @property
    def messages_restored(self) -> int:
        """Messages restored from a backlog, which the primary's ledger has even without the secondary's."""
        return self.steps[_HOME].messages

    @property
    def per_diverted_message(self) -> Decimal | None:
        """The average of the four charges of a diverted message; ``None`` if there was none."""
        if not self.diverted_messages:
            return None
        return rounded(self.four_charges / self.diverted_messages)


if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = renamed(__name__, {"By": "GroupBy"})
