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
from pairbus.spark.sequence_marks import SequenceMarks
from pairbus.spark.sequence_ranges import SequenceRanges

_VERSION: Final = 1
_MARKS_VERSION: Final = 2
"""The version of browse offsets with one number for each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Messages of one entity."""

    numbers: SequenceRanges = field(default_factory=SequenceRanges)
    until_ms: int = 0
    """When the last of them was enqueued. A queue that is made anew counts from one again: what has one of these
    numbers, and was enqueued later, is another message."""

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def holds(self, number: int, enqueued_ms: int) -> bool:
        return enqueued_ms <= self.until_ms and number in self.numbers

    def only(self, numbers: Iterable[int]) -> Portion:
        """What it has of some numbers."""
        return Portion(numbers=self.numbers & SequenceRanges.of(numbers), until_ms=self.until_ms)

    def without(self, numbers: Iterable[int]) -> Portion:
        return Portion(numbers=self.numbers - SequenceRanges.of(numbers), until_ms=self.until_ms)


NOTHING: Final = Portion()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What was dealt with, and is not known to be removed.

    Portions are never joined: each has a time of its own, and what is left of a queue that was made anew must not stand
    for messages of the new one.
    """

    portions: tuple[Portion, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.portions)

    def __len__(self) -> int:
        return sum(len(portion.numbers) for portion in self.portions)

    def __add__(self, portion: Portion) -> Leftovers:
        return Leftovers(portions=(*self.portions, portion)) if portion else self

    def holds(self, number: int, enqueued_ms: int) -> bool:
        return any(portion.holds(number, enqueued_ms) for portion in self.portions)

    def narrowed(self, until_ms: int, gone: SequenceRanges) -> Leftovers:
        """The rest without numbers of one portion: another may hold the same ones, if the entity was made anew."""
        rest = (portion.without(gone) if portion.until_ms == until_ms else portion for portion in self.portions)
        return Leftovers(portions=tuple(portion for portion in rest if portion))

    def without(self, messages: Iterable[tuple[int, int]]) -> Leftovers:
        """The rest without some messages, each known by its number and when it was enqueued."""
        gone = [*messages]
        rest = (
            portion.without(number for number, enqueued_ms in gone if portion.holds(number, enqueued_ms))
            for portion in self.portions
        )
        return Leftovers(portions=tuple(portion for portion in rest if portion))


NO_LEFTOVERS: Final = Leftovers()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOffset:
    """Where a stream that consumes has come to."""

    batch: int = 0
    """Counts up with each batch, so that two are different even if they hold the same messages."""

    held: Mapping[str, Portion] = field(default_factory=dict)
    """What the batch that ends here holds, by entity."""

    left: Mapping[str, Leftovers] = field(default_factory=dict)
    """What earlier batches held, and is not known to be removed yet, by entity."""

    def to_json(self) -> dict[str, Any]:
        left = {path: [_written(one) for one in found.portions] for path, found in sorted(self.left.items()) if found}
        held = {path: _written(portion) for path, portion in sorted(self.held.items()) if portion}
        return {"version": _VERSION, "batch": self.batch, "held": held, "left": left}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ConsumeOffset:
        """Read what ``to_json`` gives; raises ``OffsetError``."""
        _check(value, {"version", "batch", "held", "left"})
        try:
            held = {str(path): _read(entry) for path, entry in value["held"].items()}
            left = {
                str(path): Leftovers(portions=tuple(_read(entry) for entry in entries))
                for path, entries in value["left"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OffsetError(f"{value!r:.200} has no good tables of messages: {error}") from error
        return cls(batch=_number(value["batch"]), held=held, left=left)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowseOffset:
    """The position of a browsing stream: the last numbers that it has read of each entity."""

    seen: Mapping[str, SequenceMarks] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"version": _MARKS_VERSION, "seen": {path: [*marks] for path, marks in sorted(self.seen.items())}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleNumberOffset:
    """The position of a browsing stream as earlier versions wrote it: one number for each entity.

    Everything up to that number was read, in the order of a peek: partition by partition. What came into a lower
    partition afterwards was not.
    """

    seen: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "seen": dict(sorted(self.seen.items()))}


def read_browse_offset(value: Mapping[str, Any]) -> BrowseOffset | SingleNumberOffset:
    """Read an offset of a browsing stream, of this version or an earlier one. Raises ``OffsetError``."""
    is_earlier = isinstance(value, dict) and value.get("version") == _VERSION
    _check(value, {"version", "seen"}, _VERSION if is_earlier else _MARKS_VERSION)
    if not isinstance(value["seen"], dict):
        raise OffsetError(f"{value['seen']!r:.100} is no table of sequence numbers")
    if is_earlier:
        return SingleNumberOffset(seen={str(path): _number(last) for path, last in value["seen"].items()})
    return BrowseOffset(seen={str(path): _marks(numbers) for path, numbers in value["seen"].items()})


def _marks(value: Any) -> SequenceMarks:
    if not isinstance(value, list):
        raise OffsetError(f"{value!r:.100} is no list of sequence numbers")
    return SequenceMarks.of(map(_number, value))


def _check(value: Mapping[str, Any], keys: set[str], version: int = _VERSION) -> None:
    if not isinstance(value, dict) or set(value) != keys or value["version"] != version:
        raise OffsetError(
            f"{value!r:.200} is no offset of this stream; a checkpoint belongs to one query, with one mode, and to"
            " versions of pairbus that write offsets of the same kind"
        )


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OffsetError(f"{value!r:.100} is no number")
    return value


def _written(portion: Portion) -> dict[str, Any]:
    return {"numbers": str(portion.numbers), "until": portion.until_ms}


def _read(entry: Any) -> Portion:
    return Portion(numbers=SequenceRanges.parse(entry["numbers"]), until_ms=_number(entry["until"]))
