"""What the ledgers of both namespaces say became of the messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pairbus.jobs.reconcile.report import MissingMessage
from pairbus.jobs.reconcile.waits import Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What the reconciliation has found."""

    counts: Mapping[str, Mapping[str, int]]
    """By entity and measure."""

    missing: tuple[MissingMessage, ...]
    waits: Waits
    """From diverted to delivered."""

    gaps: int
    """How often a ledger has given up recording."""

    def of(self, measure: str, entities: frozenset[str]) -> int:
        """The sum of a measure over some entities."""
        return sum(counts[measure] for entity, counts in self.counts.items() if entity in entities)
