"""What the demo comes to, and how that is told."""

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
from pairbus.cli.demo.proof import Proof
from pairbus.jobs.cost.statement import Statement
from pairbus.jobs.reconcile.report import MissingMessage

_BLIND: Final = timedelta(seconds=2)
"""So much of a ledger may go with a process that is killed: it is written beside the messages, and not before them."""

_MOST_MISHAPS: Final = 20

_ENTITIES: Final = frozenset(PLACES).union(*PLACES.values())
"""Those of the application; a drill has had its own."""

_COUNTS: Final = {
    "accepted": "accepted",
    "diverted": "diverted",
    "syphoned": "came home",
    "repeated": "dropped",
    "received": "received",
    "missing": "missing",
    "duplicated": "doubled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the application has seen, and what the ledgers say."""

    aftermath: Aftermath
    proof: Proof
    statement: Statement
    seconds: Mapping[str, float]
    """How long each act took."""

    @property
    def is_fine(self) -> bool:
        """Whether nothing was lost and nothing doubled, by both."""
        tally = self.aftermath.tally
        return not (tally.failed or tally.lost or tally.doubled or [*self.objections()])

    def objections(self) -> Iterator[str]:
        """What the ledgers have against it."""
        proof, diverted = self.proof, self.aftermath.diverted
        if proof.gaps:
            yield f"they have {proof.gaps:,} gaps"
        missing = sum(not self._is_unrecorded(one) for one in self._missing)
        if missing:
            yield f"{missing:,} messages are missing"
        for measure, text in (("duplicated", "came home twice"), ("backlog_waiting", "wait in the backlog")):
            found = proof.of(measure, _ENTITIES)
            if found:
                yield f"{found:,} messages {text}"
        found = proof.of("diverted", _ENTITIES)
        if found < diverted:  # more is possible: what was sent twice, because its confirmation was late
            yield f"only {found:,} of {diverted:,} messages were diverted"

    @property
    def _missing(self) -> list[MissingMessage]:
        return [one for one in self.proof.missing if one.entity in _ENTITIES]

    def _is_unrecorded(self, message: MissingMessage) -> bool:
        """Whether it was received all the same: only the ledger's last moment before the kill is not there."""
        killed_at, accepted_at = self.aftermath.killed_at, message.accepted_at
        was_then = accepted_at is not None and abs(accepted_at - killed_at) <= _BLIND
        return was_then and self.aftermath.tally.has_received(message.entity, message.message_id)

    @property
    def untold(self) -> int:
        """How many messages the ledgers do not tell of: the primary was killed before their acceptance was recorded."""
        accepted, diverted, repeated = (self.proof.of(name, _ENTITIES) for name in ("accepted", "diverted", "repeated"))
        return max(0, self.aftermath.tally.sent - (accepted + diverted - repeated))

    # Telling it.

    def print(self, console: Console) -> None:
        console.print()
        for table in (self._ledger_table(), self._bill_table(), self._times_table()):
            console.print(table)
        for mishap in islice(self.aftermath.tally.mishaps(), _MOST_MISHAPS):
            console.print(mishap, soft_wrap=True)
        for line in self.lines():
            console.print(line, soft_wrap=True)

    def lines(self) -> Iterator[str]:
        """The sum of it."""
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
        objections, unrecorded = [*self.objections()], len(self._missing)
        if objections:
            return f"the ledgers do not agree: {', '.join(objections)}"
        if unrecorded:
            return (
                "the ledgers agree: nothing is missing; when the primary was killed, its ledger had not yet recorded "
                f"the receipt of {unrecorded:,} messages, which the application has"
            )
        return "the ledgers agree: nothing is missing"

    def _cost(self) -> str:
        card, amount = self.statement.card, sum(step.amount for step in self.statement.steps)
        price = f"{card.operations.tiers[0].price:f} {card.currency} for a million operations"
        return f"the outage cost {amount:.6f} {card.currency}, at {price} above those included ({card.title})"

    def _ledger_table(self) -> Table:
        table = _table("By the ledgers", "entity", *_COUNTS.values())
        for entity, counts in self.proof.counts.items():
            if entity in _ENTITIES:
                table.add_row(entity, *(f"{counts[name]:,}" for name in _COUNTS))
        if self.untold:
            table.caption = f"{self.untold:,} messages of the last moment before the kill are not recorded as accepted"
        return table

    def _bill_table(self) -> Table:
        table = _table("What the outage cost", "step", "messages", "billed operations", self.statement.card.currency)
        for step in self.statement.steps:
            if step.units:
                table.add_row(step.labels[0], f"{step.messages:,}", f"{step.units:,}", f"{step.amount:.6f}")
        return table

    def _times_table(self) -> Table:
        table = _table("How long it took", "act", "seconds")
        for act, seconds in self.seconds.items():
            table.add_row(act, f"{seconds:.1f}")
        table.add_section()
        table.add_row("together", f"{sum(self.seconds.values()):.1f}")
        return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _shown(time: timedelta | None) -> str:
    return "unknown" if time is None else f"{time.total_seconds():.1f} s"
