"""What happens to a message, from its acceptance to its end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from pairbus.ledger.operation import Stage


class Event(StrEnum):
    """A point in the life of a message. What is in an entity was accepted there, or routed to it."""

    ACCEPTED = "accepted"
    """Taken from a sender, and on disk. The sequence number is that of the entity that it was sent to."""

    SCHEDULED = "scheduled"
    """It was accepted for a later time, and waits for that; then it is moved."""

    REPEATED = "repeated"
    """Sent again within the window of duplicate detection: taken from the sender, and dropped."""

    ROUTED = "routed"
    """Put into a queue or subscription by a topic's rules or by forwarding, with a number there."""

    RECEIVED = "received"
    """Given to a receiver."""

    COMPLETED = "completed"
    ABANDONED = "abandoned"
    """Given back by its receiver, or its lock has ended: it can be received again."""

    DEFERRED = "deferred"
    DEAD_LETTERED = "dead-lettered"
    """It is among the dead letters of its entity now; what happens to it there is told with the path of these."""

    MOVED = "moved"
    """It has left its queue, or the number that it had while it was scheduled: it is routed at the same time."""

    EXPIRED = "expired"
    """Its time to live was over, and it was removed (where dead letters are kept of these, it is dead-lettered)."""

    REMOVED = "removed"
    """Purged, or cancelled before its time. With the number 0: the entity was deleted, with everything in it."""

    SET_ASIDE = "set aside"
    """It cannot be read any more, and is not given to anyone."""

    STARTED = "started"
    """Not of a message: the namespace was read from its store, and reports what lies in it as ``found``.

    ``sequence`` is the ordinal of the last event that the store had confirmed before, 0 if there was none: whatever
    happened up to there belongs in the ledger.
    """

    STOPPED = "stopped"
    """Not of a message: the namespace was closed in good order. All events up to this one belong in the ledger."""

    FOUND = "found"
    """It lay in its queue when the namespace was started."""

    MISSED = "missed"
    """Nobody's event: so many events (``sequence``) could not be recorded, and are not in the ledger."""


class Life(NamedTuple):
    """An event as the ledger keeps it."""

    at_ms: int
    ordinal: int
    """Counts the events of a namespace; what has happened first has the smaller one."""

    event: Event
    stage: Stage
    entity: str
    sequence: int
    original_sequence: int
    """The number that the message was given by the entity it was sent to: what its copies have in common."""

    message_id: str
    session_id: str | None
    destination: str | None
    """Where a diverted message is bound for; of what was accepted in a backlog queue only."""

    size: int


class Extent(NamedTuple):
    """Which events were packed together."""

    first_ms: int
    ordinals: Sequence[int]


_AT: Final = Life._fields.index("at_ms")
_ORDINAL: Final = Life._fields.index("ordinal")
_EVENT: Final = Life._fields.index("event")
_STAGE: Final = Life._fields.index("stage")
_SEQUENCE: Final = Life._fields.index("sequence")
_ORIGINAL: Final = Life._fields.index("original_sequence")


def pack_lives(lives: Sequence[Life]) -> bytes:
    """Events as bytes that a later version can read, too.

    They are written by columns, of which most have one value throughout: what happens at a time is much alike.
    """
    columns: list[Sequence[object]] = [*zip(*lives, strict=True)]
    columns[_ORDINAL] = [life.ordinal - place for place, life in enumerate(lives)]
    columns[_ORIGINAL] = [life.original_sequence - life.sequence for life in lives]
    return json.dumps([len(lives), *map(_shortened, columns)], separators=(",", ":")).encode()


def unpack_lives(content: bytes) -> list[Life]:
    """Raises ``ValueError`` where it is nothing that was packed."""
    try:
        count, *short = json.loads(content)
        columns = [column if isinstance(column, list) else [column] * count for column in short]
        columns[_ORDINAL] = _ordinals(columns[_ORDINAL])
        columns[_EVENT] = [*map(Event, columns[_EVENT])]
        columns[_STAGE] = [*map(Stage, columns[_STAGE])]
        pairs = zip(columns[_ORIGINAL], columns[_SEQUENCE], strict=True)
        columns[_ORIGINAL] = [original + sequence for original, sequence in pairs]
        return [*map(Life._make, zip(*columns, strict=True))]
    except (TypeError, IndexError) as error:
        raise ValueError(f"these are no events: {error}") from error


def extent_of(content: bytes) -> Extent:
    """Which events were packed, for much less than it costs to unpack them. Raises ``ValueError`` as that does."""
    try:
        count, *columns = json.loads(content)
        times, ordinals = columns[_AT], columns[_ORDINAL]
        first_ms = int(min(times)) if isinstance(times, list) else int(times)
        return Extent(
            first_ms, _ordinals(ordinals) if isinstance(ordinals, list) else range(ordinals, ordinals + count)
        )
    except (TypeError, IndexError) as error:
        raise ValueError(f"these are no events: {error}") from error


def _ordinals(column: Sequence[int]) -> list[int]:
    return [ordinal + place for place, ordinal in enumerate(column)]


def _shortened(column: Sequence[object]) -> object:
    first = column[0]
    return first if column.count(first) == len(column) else column
