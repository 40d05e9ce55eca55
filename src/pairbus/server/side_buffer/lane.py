"""What a side buffer holds of one entity, and whether sends to it go there."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple

from pairbus.broker import Address, Message
from pairbus.server.side_buffer.shelf import Placed
from pairbus.store import StoreError

BATCH_PARCELS: Final = 500
"""How many sends are merged with one commit: more than come meanwhile, and others are served between two of them."""

BATCH_BYTES: Final = 4 * 1024 * 1024


class LaneState(Enum):
    HOLDING = auto()
    """Whatever is sent goes into the buffer, behind what is there."""

    CLOSING = auto()
    """The rest of what is there is being merged. What is sent waits, for a moment and in memory, to go behind it.

    Else it would never end where something is always on its way into the buffer.
    """

    OPEN = auto()
    """It is over: what is sent goes to the store again."""


class Turn(Enum):
    LITTLE_LEFT = auto()
    """What is there is about to be merged, and is not much."""

    EMPTIED = auto()
    """All of it was handed to the broker, and nothing more is on its way into the buffer."""

    REFUSED = auto()
    """It could not be merged, or was taken back."""


TURNS: Final = {
    (LaneState.HOLDING, Turn.LITTLE_LEFT): LaneState.CLOSING,
    (LaneState.HOLDING, Turn.REFUSED): LaneState.HOLDING,
    # More has come that was on its way already.
    (LaneState.CLOSING, Turn.LITTLE_LEFT): LaneState.CLOSING,
    (LaneState.CLOSING, Turn.REFUSED): LaneState.HOLDING,
    # It is over when the broker has it all, on disk or not: order holds from there on, and a commit that fails takes
    # what comes later back as well.
    (LaneState.CLOSING, Turn.EMPTIED): LaneState.OPEN,
}


class Entry(NamedTuple):
    """A parcel that is on disk."""

    position: int
    """Among those of its entity: where it lay first."""

    placed: Placed
    """Where it lies now."""

    size: int
    messages: int


@dataclass(slots=True, eq=False, kw_only=True)
class Item:
    """A send on its way."""

    address: Address
    messages: Sequence[Message]
    done: Callable[[Exception | None], object]
    cause: StoreError | None
    """What its sender is told if the buffer cannot take it, either."""

    content: bytes
    is_ready: bool
    """Whether all that its entity was sent before has its outcome: should that fail, it comes into the buffer first."""


def first_of(entries: Iterable[Entry], most: int, most_bytes: int) -> list[Entry]:
    """The first of them: so many, or so large together; one at the least."""
    first: list[Entry] = []
    size = 0
    for entry in islice(entries, most):
        size += entry.size
        if first and size > most_bytes:
            break
        first.append(entry)
    return first


class Lane:
    """The parcels of one entity, in order."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.state = LaneState.HOLDING
        self.entries: deque[Entry] = deque()
        self.underway = 0
        """How many are being written."""

        self.arrivals: deque[Item] = deque()
        """What has come and cannot be written yet."""

    def turn(self, turn: Turn) -> None:
        self.state = TURNS[self.state, turn]

    def next_ready(self) -> Item | None:
        """Take what is to be written next; nothing gets ahead of what came before it."""
        if self.state is LaneState.HOLDING and self.arrivals and self.arrivals[0].is_ready:
            return self.arrivals.popleft()
        return None

    @property
    def is_vacant(self) -> bool:
        return not self.entries and not self.underway and not self.arrivals

    def first(self, most: int, most_bytes: int) -> list[Entry]:
        """The next ones to be merged."""
        return first_of(self.entries, most, most_bytes)

    def take(self, number: int) -> list[Entry]:
        return [self.entries.popleft() for _ in range(number)]

    def put_back(self, entries: Sequence[Entry]) -> None:
        self.entries.extendleft(reversed(entries))
