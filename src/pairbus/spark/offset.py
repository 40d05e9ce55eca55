"""How far a stream has come: what the batch that ends there held of each entity.

An offset of a stream that consumes *is* its batch. A queue gives its messages to whoever asks first, so what a stream
gets of it is no range: the numbers between belong to others. Kept as exact numbers, a batch can be read once more, and
nothing is removed that it did not hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pairbus.spark.errors import OffsetError
from pairbus.spark.sequence_ranges import SequenceRanges

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Messages of one entity."""

    numbers: SequenceRanges = field(default_factory=SequenceRanges)
    until_ms: int = 0
    """When the last of them was enqueued. A queue that is made anew counts from one again: what has one of these
    numbers, and was enqueued later, is another message."""

    def __or__(self, other: Portion) -> Portion:
        return Portion(numbers=self.numbers | other.numbers, until_ms=max(self.until_ms, other.until_ms))

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def holds(self, number: int, enqueued_ms: int) -> bool:
        return enqueued_ms <= self.until_ms and number in self.numbers

    def only(self, numbers: Iterable[int]) -> Portion:
        """What it has of some numbers."""
        return Portion(numbers=self.numbers & SequenceRanges.of(numbers), until_ms=self.until_ms)

    def without(self, numbers: SequenceRanges) -> Portion:
        left = self.numbers - numbers
        return Portion(numbers=left, until_ms=self.until_ms) if left else NOTHING


NOTHING: Final = Portion()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOffset:
    """Where a stream that consumes has come to."""

    batch: int = 0
    """Counts up with each batch, so that two are different even if they hold the same messages."""

    held: Mapping[str, Portion] = field(default_factory=dict)
    """What the batch that ends here holds, by entity."""

    left: Mapping[str, Portion] = field(default_factory=dict)
    """What earlier batches held, and is not known to be removed yet, by entity."""

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "batch": self.batch, "held": _written(self.held), "left": _written(self.left)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ConsumeOffset:
        """Read what ``to_json`` gives; raises ``OffsetError``."""
        _check(value, {"version", "batch", "held", "left"})
        return cls(batch=_number(value["batch"]), held=_read(value["held"]), left=_read(value["left"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseOffset:
    """Where a stream that only looks has come to: the last number that it has seen of each entity."""

    seen: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "seen": dict(sorted(self.seen.items()))}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> BrowseOffset:
        """Read what ``to_json`` gives; raises ``OffsetError``."""
        _check(value, {"version", "seen"})
        if not isinstance(value["seen"], dict):
            raise OffsetError(f"{value['seen']!r:.100} is no table of sequence numbers")
        return cls(seen={str(path): _number(number) for path, number in value["seen"].items()})


def _check(value: Mapping[str, Any], keys: set[str]) -> None:
    if not isinstance(value, dict) or set(value) != keys or value["version"] != _VERSION:
        raise OffsetError(
            f"{value!r:.200} is no offset of this stream; a checkpoint belongs to one query, with one mode, and to"
            " versions of pairbus that write offsets of the same kind"
        )


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OffsetError(f"{value!r:.100} is no number")
    return value


def _written(portions: Mapping[str, Portion]) -> dict[str, Any]:
    return {
        path: {"numbers": str(portion.numbers), "until": portion.until_ms}
        for path, portion in sorted(portions.items())
        if portion
    }


def _read(value: Any) -> dict[str, Portion]:
    try:
        return {
            str(path): Portion(numbers=SequenceRanges.parse(entry["numbers"]), until_ms=_number(entry["until"]))
            for path, entry in value.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OffsetError(f"{value!r:.200} is no table of messages: {error}") from error
