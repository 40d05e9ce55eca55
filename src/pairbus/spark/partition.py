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

    skips_scheduled: bool = False
    """Whether scheduled messages are left out: they get a new number when they are enqueued, and are read then."""

    def __reduce__(self) -> tuple[object, ...]:
        return _partition, (self.entity, self.portion, dict(self.tokens), self.skips_scheduled)


def _partition(entity: str, portion: Portion, tokens: dict[int, UUID], skips_scheduled: bool) -> MessagePartition:
    return MessagePartition(entity=entity, portion=portion, tokens=tokens, skips_scheduled=skips_scheduled)


def partitions(
    entity: str,
    portion: Portion,
    parts: int,
    tokens: Mapping[int, UUID] | None = None,
    *,
    skips_scheduled: bool = False,
) -> list[MessagePartition]:
    """A portion in as many parts as asked for, or as there are messages."""
    known = tokens or {}
    return [
        MessagePartition(
            entity=entity,
            portion=Portion(numbers=numbers, until_ms=portion.until_ms),
            tokens={number: known[number] for number in numbers if number in known} if known else {},
            skips_scheduled=skips_scheduled,
        )
        for numbers in portion.numbers.split(parts)
    ]
