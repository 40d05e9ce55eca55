"""Offsets of streams, with the messages of the batch that ends there.

The offset of a consuming stream identifies its batch exactly. Competing receivers share a queue, so the messages of a
batch are not a contiguous range of numbers. With exact numbers a batch can be read again, and only messages that it
held are removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pairbus.spark.errors import OffsetError
from pairbus.spark.sequences import SequenceMarks, SequenceRanges

_VERSION: Final = 1
_MARKS_VERSION: Final = 2
"""The version of browse offsets with one number for each partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """Messages of one entity."""

    numbers: SequenceRanges = field(default_factory=SequenceRanges)
    until_ms: int = 0
    """Enqueued time of the last of them. A recreated queue counts from one again: a message with one of these numbers
    that was enqueued later is another message."""

    sessions: tuple[SequenceRanges, ...] = ()
    """The messages of each session, if the entity requires sessions: one task reads those of a session, in order."""

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def holds(self, number: int, enqueued_ms: int) -> bool:
        return enqueued_ms <= self.until_ms and number in self.numbers

    def only(self, numbers: Iterable[int]) -> Portion:
        """Return the part with the given numbers."""
        return replace(self, numbers=self.numbers & SequenceRanges.of(numbers))

    def without(self, numbers: Iterable[int]) -> Portion:
        return replace(self, numbers=self.numbers - SequenceRanges.of(numbers))

    @property
    def chains(self) -> list[Portion]:
        """The parts of which each must be read by one task, in order; none without sessions."""
        parts = (replace(self, numbers=self.numbers & session, sessions=()) for session in self.sessions)
        return [part for part in parts if part]


NOTHING: Final = Portion()


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """Processed messages that are not known to be removed.

    Portions are never joined: each has a separate time, and leftovers of a deleted queue must not stand for messages of
    the one that replaced it.
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
        """Remove numbers from one portion only: another may hold the same ones, if the entity was recreated."""
        rest = (portion.without(gone) if portion.until_ms == until_ms else portion for portion in self.portions)
        return Leftovers(portions=tuple(portion for portion in rest if portion))

    def without(self, messages: Iterable[tuple[int, int]]) -> Leftovers:
        """Return the leftovers without some messages, given by number and enqueued time."""
        gone = [*messages]
        rest = (
            portion.without(number for number, enqueued_ms in gone if portion.holds(number, enqueued_ms))
            for portion in self.portions
        )
        return Leftovers(portions=tuple(portion for portion in rest if portion))


NO_LEFTOVERS: Final = Leftovers()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOffset:
    """The position of a consuming stream."""

    batch: int = 0
    """Increases with each batch, so that two differ even if they hold the same messages."""

    held: Mapping[str, Portion] = field(default_factory=dict)
    """The messages of the batch that ends here, by entity."""

    left: Mapping[str, Leftovers] = field(default_factory=dict)
    """Messages of earlier batches that are not known to be removed yet, by entity."""

    def to_json(self) -> dict[str, Any]:
        left = {path: [_to_json(one) for one in found.portions] for path, found in sorted(self.left.items()) if found}
        held = {path: _to_json(portion) for path, portion in sorted(self.held.items()) if portion}
        return {"version": _VERSION, "batch": self.batch, "held": held, "left": left}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ConsumeOffset:
        """Parse the result of ``to_json``. Raise ``OffsetError``."""
        _check(value, {"version", "batch", "held", "left"})
        try:
            held = {str(path): _read(entry) for path, entry in value["held"].items()}
            left = {
                str(path): Leftovers(portions=tuple(_read(entry) for entry in entries))
                for path, entries in value["left"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise OffsetError(f"invalid tables of messages in the offset {value!r:.200}: {error}") from error
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

    Everything up to that number was read, in the order of a peek: partition by partition. Messages that reached a lower
    partition afterwards were not.
    """

    seen: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"version": _VERSION, "seen": dict(sorted(self.seen.items()))}


def read_browse_offset(value: Mapping[str, Any]) -> BrowseOffset | SingleNumberOffset:
    """Parse an offset of a browsing stream, of this version or an earlier one. Raise ``OffsetError``."""
    is_earlier = isinstance(value, dict) and value.get("version") == _VERSION
    _check(value, {"version", "seen"}, _VERSION if is_earlier else _MARKS_VERSION)
    if not isinstance(value["seen"], dict):
        raise OffsetError(f"expected a table of sequence numbers in the offset, got {value['seen']!r:.100}")
    if is_earlier:
        return SingleNumberOffset(seen={str(path): _number(last) for path, last in value["seen"].items()})
    return BrowseOffset(seen={str(path): _marks(numbers) for path, numbers in value["seen"].items()})


def _marks(value: Any) -> SequenceMarks:
    if not isinstance(value, list):
        raise OffsetError(f"expected a list of sequence numbers in the offset, got {value!r:.100}")
    return SequenceMarks.of(map(_number, value))


def _check(value: Mapping[str, Any], keys: set[str], version: int = _VERSION) -> None:
    if not isinstance(value, dict) or set(value) != keys or value["version"] != version:
        raise OffsetError(
            f"{value!r:.200} is not an offset of this stream; a checkpoint belongs to one query with one mode, and to"
            " versions of pairbus that write offsets of the same kind. Use another checkpoint directory"
        )


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise OffsetError(f"expected a number in the offset, got {value!r:.100}")
    return value


def _to_json(portion: Portion) -> dict[str, Any]:
    sessions = {"sessions": [str(session) for session in portion.sessions]} if portion.sessions else {}
    return {"numbers": str(portion.numbers), "until": portion.until_ms, **sessions}


def _read(entry: Any) -> Portion:
    return Portion(
        numbers=SequenceRanges.parse(entry["numbers"]),
        until_ms=_number(entry["until"]),
        sessions=tuple(map(SequenceRanges.parse, entry.get("sessions", ()))),
    )
