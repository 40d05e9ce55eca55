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
    """Nobody's event: the namespace was read from its store. What lies in it then is told anew."""

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


_ORDINAL: Final = Life._fields.index("ordinal")
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
        count, *columns = json.loads(content)
        places = range(count)
        rows = zip(places, *(one if isinstance(one, list) else [one] * count for one in columns), strict=True)
        return [_unpacked(place, Life(*row)) for place, *row in rows]
    except TypeError as error:
        raise ValueError(f"these are no events: {error}") from error


def _shortened(column: Sequence[object]) -> object:
    first = column[0]
    return first if column.count(first) == len(column) else column


def _unpacked(place: int, life: Life) -> Life:
    return life._replace(
        ordinal=life.ordinal + place,
        event=Event(life.event),
        stage=Stage(life.stage),
        original_sequence=life.original_sequence + life.sequence,
    )
