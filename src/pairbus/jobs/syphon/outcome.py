"""What became of the messages of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Self

import pyarrow as pa

from pairbus.spark.sequence_ranges import SequenceRanges


class Kind(Enum):
    """What can become of a message."""

    DELIVERED = "delivered"
    """Its destination has confirmed it, and it is removed from the backlog."""
    UNREMOVED = "unremoved"
    """Its destination has confirmed it, and it could not be removed: it comes again."""
    PARKED = "parked"
    """Its destination does not take it at the moment: it lies deferred in the backlog."""
    FOUND = "found parked"
    """It lay parked already, somebody else has left it so."""
    GIVEN_BACK = "given back"
    """The primary namespace is away: it lies in the backlog as before."""
    DEAD_LETTERED = "dead-lettered"
    """It can never be delivered."""


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
class Outcome:
    """Messages of one backlog queue that the same has become of."""

    kind: Kind
    queue: str
    destination: str | None
    session_id: str | None = None
    """What they have to stay in order with, of those that are parked."""

    numbers: SequenceRanges
    cause: str | None = None
    """Why they were not taken."""

    reason: str | None = None
    description: str | None = None
    message_id: str | None = None
    """Of one that was dead-lettered."""

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
            kind=Kind(row["kind"]),
            numbers=SequenceRanges.parse(row["numbers"]),
            message_id=row["message_id"],
            **fields,
        )


def record_batch(outcomes: Iterable[Outcome]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([outcome.row() for outcome in outcomes], schema=_ARROW)
