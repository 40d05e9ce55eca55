"""What one task reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from pairbus.spark.offset import Portion


@dataclass(frozen=True, kw_only=True)
class MessagePartition(InputPartition):
    """Messages of one entity, which it holds in the order of their numbers."""

    entity: str
    portion: Portion
    tokens: Mapping[int, UUID] = field(default_factory=dict)
    """The lock tokens of those that are locked for the stream."""

    def __reduce__(self) -> tuple[object, ...]:
        return _partition, (self.entity, self.portion, dict(self.tokens))


def _partition(entity: str, portion: Portion, tokens: dict[int, UUID]) -> MessagePartition:
    return MessagePartition(entity=entity, portion=portion, tokens=tokens)


def partitions(
    entity: str, portion: Portion, parts: int, tokens: Mapping[int, UUID] | None = None
) -> list[MessagePartition]:
    """A portion in as many parts as asked for, or as there are messages."""
    known = tokens or {}
    return [
        MessagePartition(
            entity=entity,
            portion=Portion(numbers=numbers, until_ms=portion.until_ms),
            tokens={number: known[number] for number in numbers if number in known} if known else {},
        )
        for numbers in portion.numbers.split(parts)
    ]
