"""The outcome of the demo, and its output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from typing import Final

from rich.console import Console
from rich.table import Table

from pairbus.cli.demo.application import PLACES
from pairbus.cli.demo.outage import Aftermath
from pairbus.jobs.cost.report import money_column
from pairbus.jobs.cost.statement import PINGS, Statement
from pairbus.jobs.reconcile.report import MissingMessage, Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The result of the reconciliation."""

    counts: Mapping[str, Mapping[str, int]]
    """Counts by entity and measure."""

    missing: tuple[MissingMessage, ...]
    waits: Waits
    """Times from diversion to delivery."""

    gaps: int
    """The number of gaps in the ledgers."""

    def of(self, measure: str, entities: frozenset[str]) -> int:
        """Return the sum of a measure over some entities."""
        return sum(counts[measure] for entity, counts in self.counts.items() if entity in entities)


_MOST_PROBLEMS: Final = 20

_ENTITIES: Final = frozenset(PLACES).union(*PLACES.values())
"""The entities of the application, without the queue of the drill."""

_COUNTS: Final = {
    "accepted": "accepted",
    "diverted": "diverted",
    "syphoned": "delivered",
    "repeated": "dropped",
    "received": "received",
    "missing": "missing",
    "duplicated": "duplicated",
}
_EXCEPTIONS: Final = {
    "waiting": "waiting",
    "dead_lettered": "dead-lettered",
    "expired": "expired",
    "unrecorded": "unrecorded",
}
"""States of messages that were not received; shown if there are any, so that the table adds up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOutcome:
    """The counts of the application and of the ledgers."""

    aftermath: Aftermath
    proof: Proof
    statement: Statement
    seconds: Mapping[str, float]
    """The duration of each step."""

    @property
    def is_fine(self) -> bool:
        """True if nothing was lost or duplicated, by the counts of the application and of the ledgers."""
        tally = self.aftermath.tally
        return not (tally.failed or tally.lost or tally.doubled or [*self.objections()])

    def objections(self) -> Iterator[str]:
        """Describe each discrepancy that the ledgers show."""
        proof, diverted = self.proof, self.aftermath.diverted
        if proof.gaps:
            yield f"{proof.gaps:,} gaps in the ledgers"
        missing = sum(one.entity in _ENTITIES for one in proof.missing)
        if missing:
            yield f"{missing:,} messages are missing"
        if self._unrecorded:
            yield f"{self._unrecorded:,} messages are not recorded as accepted"
        for measure, text in (("duplicated", "were delivered twice"), ("backlog_waiting", "wait in the backlog")):
            found = proof.of(measure, _ENTITIES)
            if found:
                yield f"{found:,} messages {text}"
        found = proof.of("diverted", _ENTITIES)
        if found < diverted:  # there can be more: messages that were sent twice because their confirmation was late
            yield f"only {found:,} of {diverted:,} messages were diverted"

    @property
    def _unrecorded(self) -> int:
        """The number of confirmed messages that the ledgers do not record."""
        accepted, diverted, repeated = (self.proof.of(name, _ENTITIES) for name in ("accepted", "diverted", "repeated"))
        return max(0, self.aftermath.tally.sent - (accepted + diverted - repeated))

    # Output.

    def print(self, console: Console) -> None:
        console.print()
        console.print(self._ledger_table())
        console.print(self._bill_table())
        if self._unanswered_pings:
            console.print(self._pings(), soft_wrap=True)
        console.print(self._times_table())
        for problem in islice(self.aftermath.tally.problems(), _MOST_PROBLEMS):
            console.print(problem, soft_wrap=True)
        for line in self.lines():
            console.print(line, soft_wrap=True)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the summary."""
        tally, waits = self.aftermath.tally, self.proof.waits
        yield f"sent {tally.sent:,}, of these diverted {self.aftermath.diverted:,}; failed {tally.failed:,}"
        yield f"received {tally.received:,} of {tally.expected:,}: the queue's once, the topic's by each subscription"
        yield f"lost {tally.lost:,}, duplicates {tally.doubled:,}"
        if tally.redelivered:
            yield f"delivered again {tally.redelivered:,}: the primary was killed before their completion was confirmed"
        yield f"the longest wait of a send: {tally.longest_wait_s:.2f} s"
        yield f"from diverted to delivered: p50 {_shown(waits.p50)}, longest {_shown(waits.longest)}"
        yield self._agreement()
        yield self._cost()

    def _agreement(self) -> str:
        objections = ", ".join(self.objections())
        return f"the ledgers do not agree: {objections}" if objections else "the ledgers agree: nothing is missing"

    def _cost(self) -> str:
        card, amount = self.statement.card, self.statement.pairing_total.amount
        price = f"{card.operations.tiers[0].price:f} {card.currency} for a million operations"
        return f"the outage cost {amount:.6f} {card.currency}, at {price} ({card.title})"

    @property
    def _unanswered_pings(self) -> int:
        """The number of pings that reached no namespace."""
        answered = sum(step.operations for step in self.statement.steps if step.labels == (PINGS,))
        return max(0, self.aftermath.pings - answered)

    def _pings(self) -> str:
        unanswered = f"{self._unanswered_pings:,} of {self.aftermath.pings:,} pings reached no namespace"
        return f"{unanswered}: they are in no ledger and are not billed"

    def _ledger_table(self) -> Table:
        columns = _COUNTS | {name: text for name, text in _EXCEPTIONS.items() if self.proof.of(name, _ENTITIES)}
        table = _table("Messages by the ledgers", "entity", *columns.values())
        for entity, counts in self.proof.counts.items():
            if entity in _ENTITIES:
                table.add_row(entity, *(f"{counts[name]:,}" for name in columns))
        return table

    def _bill_table(self) -> Table:
        table = _table("Cost of the outage", "step", "messages", "billed operations", self.statement.card.currency)
        sum_of_all = self.statement.pairing_total
        steps = [step for step in self.statement.steps if step.units or step.amount]
        *amounts, total = money_column([*(step.amount for step in steps), sum_of_all.amount])
        for step, amount in zip(steps, amounts, strict=True):
            table.add_row(step.labels[0], f"{step.messages:,}", f"{step.units:,}", amount)
        table.add_section()
        table.add_row("total", "", f"{sum_of_all.units:,}", total)
        return table

    def _times_table(self) -> Table:
        table = _table("Duration", "step", "seconds")
        for act, seconds in self.seconds.items():
            table.add_row(act, f"{seconds:.1f}")
        table.add_section()
        table.add_row("total", f"{sum(self.seconds.values()):.1f}")
        return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _shown(time: timedelta | None) -> str:
    return "unknown" if time is None else f"{time.total_seconds():.1f} s"
