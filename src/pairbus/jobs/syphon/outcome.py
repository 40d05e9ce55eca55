"""The outcomes of the messages of a batch: rows for Spark, and a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

import pyarrow as pa

from pairbus.pairing.syphon.source import OutcomeKind, SettlementReport, SyphonMessage, message_id_of
from pairbus.spark.sequences import SequenceRanges

__all__ = ["OUTCOMES", "BatchReport", "DeliveryOutcome", "OutcomeKind", "OutcomeLog", "record_batch"]

OUTCOMES: Final = (
    "kind string, queue string, destination string, session_id string, numbers string, count long,"
    " cause string, reason string, description string, message_id string"
)
"""The columns of outcomes, for ``mapInArrow``."""

_ARROW: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("queue", pa.string()),
        ("destination", pa.string()),
        ("session_id", pa.string()),
        ("numbers", pa.string()),
        ("count", pa.int64()),
        ("cause", pa.string()),
        ("reason", pa.string()),
        ("description", pa.string()),
        ("message_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryOutcome:
    """Messages of one backlog queue with the same outcome."""

    kind: OutcomeKind
    queue: str
    destination: str | None
    session_id: str | None = None
    """The session of parked messages, which stay in order."""

    numbers: SequenceRanges
    cause: str | None = None
    """The reason why the destination did not accept them."""

    reason: str | None = None
    description: str | None = None
    message_id: str | None = None
    """The last three are those of a dead letter."""

    @property
    def count(self) -> int:
        return len(self.numbers)

    def row(self) -> dict[str, Any]:
        return {
            "kind": self.kind.value,
            "queue": self.queue,
            "destination": self.destination,
            "session_id": self.session_id,
            "numbers": str(self.numbers),
            "count": self.count,
            "cause": self.cause,
            "reason": self.reason,
            "description": self.description,
            "message_id": self.message_id,
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        fields = {name: row[name] for name in ("queue", "destination", "session_id", "cause", "reason", "description")}
        return cls(
            kind=OutcomeKind(row["kind"]),
            numbers=SequenceRanges.parse(row["numbers"]),
            message_id=row["message_id"],
            **fields,
        )


_UNSETTLED: Final = {
    OutcomeKind.DELIVERED: OutcomeKind.UNREMOVED,
    OutcomeKind.GIVEN_BACK: OutcomeKind.GIVEN_BACK,
}
"""The outcome of messages that could not be settled."""


class OutcomeLog:
    """Collects the outcomes of messages of one backlog queue. It keeps their numbers, and not the messages."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._numbers: defaultdict[tuple[OutcomeKind, str | None, str | None, str | None], list[int]]
        self._numbers = defaultdict(list)
        """By kind, destination, session and cause."""

        self._dead_letters: list[DeliveryOutcome] = []

    def settled(self, settlement: SettlementReport) -> None:
        """Add settled messages. A message that could not be dead-lettered is delivered again."""
        if settlement.kind is OutcomeKind.DEAD_LETTERED:
            self._dead_letters += [_dead_letter(self._queue, message, settlement) for message in settlement.settled]
            return
        for message in settlement.settled:
            self.add(settlement.kind, message.path, message.sequence, cause=settlement.cause)
        for message in settlement.unsettled:
            self.add(_UNSETTLED[settlement.kind], message.path, message.sequence, cause=settlement.cause)

    def add(
        self,
        kind: OutcomeKind,
        destination: str | None,
        sequence: int,
        session_id: str | None = None,
        cause: str | None = None,
    ) -> None:
        self._numbers[kind, destination, session_id, cause].append(sequence)

    def outcomes(self) -> list[DeliveryOutcome]:
        """Return one outcome for each dead letter, and of the others one for each kind and destination."""
        found = [
            DeliveryOutcome(
                kind=kind,
                queue=self._queue,
                destination=destination,
                session_id=session_id,
                numbers=SequenceRanges.of(numbers),
                cause=cause,
            )
            for (kind, destination, session_id, cause), numbers in self._numbers.items()
        ]
        return [*found, *self._dead_letters]


def _dead_letter(queue: str, message: SyphonMessage, settlement: SettlementReport) -> DeliveryOutcome:
    return DeliveryOutcome(
        kind=OutcomeKind.DEAD_LETTERED,
        queue=queue,
        destination=message.path,
        numbers=SequenceRanges.of([message.sequence]),
        reason=None if settlement.reason is None else settlement.reason.value,
        description=settlement.description,
        message_id=message_id_of(message.message),
    )


def record_batch(outcomes: Iterable[DeliveryOutcome]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([outcome.row() for outcome in outcomes], schema=_ARROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """The outcomes of one batch, and how long it took."""

    batch: int
    counts: Mapping[OutcomeKind, int]
    seconds: float
    destinations: Mapping[str, int] = field(default_factory=dict)
    """Number of delivered messages by destination."""

    causes: Mapping[str, str] = field(default_factory=dict)
    """The reasons why destinations did not accept their messages."""

    repeats_at_most: int | None = None
    """Maximum number of messages that are sent twice if the syphon is killed; ``None`` if unknown."""

    @property
    def delivered(self) -> int:
        return self.counts.get(OutcomeKind.DELIVERED, 0) + self.counts.get(OutcomeKind.UNREMOVED, 0)

    @property
    def outcomes(self) -> str:
        """The counts as text."""
        return ", ".join(f"{count:,} {kind.value}" for kind, count in self.counts.items() if count)

    @classmethod
    def of(cls, batch: int, outcomes: Iterable[DeliveryOutcome], seconds: float) -> BatchReport:
        counts: Counter[OutcomeKind] = Counter()
        destinations: Counter[str] = Counter()
        causes: dict[str, str] = {}
        for outcome in outcomes:
            counts[outcome.kind] += outcome.count
            path = outcome.destination or ""
            if outcome.kind in (OutcomeKind.DELIVERED, OutcomeKind.UNREMOVED):
                destinations[path] += outcome.count
            elif outcome.cause is not None:
                causes[path] = outcome.cause
        return cls(batch=batch, counts=counts, destinations=destinations, seconds=seconds, causes=causes)

    def __str__(self) -> str:
        rate = self.delivered / self.seconds if self.seconds else 0.0
        return f"batch {self.batch}: {self.outcomes or 'nothing'} in {self.seconds:.1f} s ({rate:,.0f} messages/s)"
