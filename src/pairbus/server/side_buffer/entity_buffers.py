"""The buffered batches of each entity, and whether sends to the entity go to the buffer."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Final

from pairbus.broker import Address, NewMessage
from pairbus.server.side_buffer.archive import BufferEntry
from pairbus.store import CommitId, StoreError

BATCHES_PER_COMMIT: Final = 500
"""Batches merged with one commit: more than arrive meanwhile, and other requests are served between two commits."""

BYTES_PER_COMMIT: Final = 4 * 1024 * 1024


class EntityBufferState(Enum):
    HOLDING = auto()
    """Sends go to the buffer, behind what is there."""

    CLOSING = auto()
    """The last batches are being merged. Sends wait in memory for a moment, to be stored behind them.

    Without this state, an entity with steady sends would never leave the buffer.
    """

    OPEN = auto()
    """The buffer of the entity is empty: sends go to the store again."""


class Transition(Enum):
    NEARLY_EMPTY = auto()
    """Few batches are left, and are about to be merged."""

    EMPTIED = auto()
    """The broker has all batches, and no more are being written."""

    BLOCKED = auto()
    """The batches could not be merged, or their commit failed."""


TRANSITIONS: Final = {
    (EntityBufferState.HOLDING, Transition.NEARLY_EMPTY): EntityBufferState.CLOSING,
    (EntityBufferState.HOLDING, Transition.BLOCKED): EntityBufferState.HOLDING,
    # Batches that were already being written have arrived.
    (EntityBufferState.CLOSING, Transition.NEARLY_EMPTY): EntityBufferState.CLOSING,
    (EntityBufferState.CLOSING, Transition.BLOCKED): EntityBufferState.HOLDING,
    # The broker has everything, durable or not: order is kept from here on, and a commit that fails undoes later sends
    # as well.
    (EntityBufferState.CLOSING, Transition.EMPTIED): EntityBufferState.OPEN,
}


@dataclass(slots=True)
class BufferCounts:
    """Numbers of messages."""

    held: int = 0
    """In the buffer now."""

    taken: int = 0
    """Buffered since the start."""

    merged: int = 0
    """Merged into the store since the start."""

    set_aside: int = 0
    """Put into quarantine since the start; a damaged place counts as one."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingSend:
    """A send that is neither in the buffer nor in the store yet."""

    address: Address
    messages: Sequence[NewMessage]
    done: Callable[[Exception | None], object]
    cause: StoreError | None
    """The error to report to the sender if the buffer cannot take the send, either."""

    content: bytes
    accepted_ms: int
    commit: CommitId | None
    """The commit that has the messages, too, if it succeeds."""

    overdue: Callable[[], object]
    """Called if the disk of the buffer does not answer: ``done`` is called when it does."""

    is_ready: bool
    """True if all earlier sends to the entity have an outcome: those that fail are buffered before this one."""


class EntityBuffer:
    """The buffered batches of one entity, in order."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.state = EntityBufferState.HOLDING
        self.entries: deque[BufferEntry] = deque()
        self.writing = 0
        """Number of batches that are being written."""

        self.arrivals: deque[PendingSend] = deque()
        """Sends that cannot be written yet."""

    def move_to(self, transition: Transition) -> None:
        """Change the state. Raise ``KeyError`` if the transition is impossible in this state."""
        self.state = TRANSITIONS[self.state, transition]

    def pop_ready(self) -> PendingSend | None:
        """Remove and return the next send to write, in order; ``None`` if there is none."""
        if self.state is EntityBufferState.HOLDING and self.arrivals and self.arrivals[0].is_ready:
            return self.arrivals.popleft()
        return None

    @property
    def is_empty(self) -> bool:
        return not self.entries and not self.writing and not self.arrivals

    def first(self, max_count: int = BATCHES_PER_COMMIT, max_bytes: int = BYTES_PER_COMMIT) -> list[BufferEntry]:
        """Return the next entries to merge."""
        return first_of(self.entries, max_count, max_bytes)

    def take(self, count: int) -> list[BufferEntry]:
        return [self.entries.popleft() for _ in range(count)]

    def put_back(self, entries: Sequence[BufferEntry]) -> None:
        self.entries.extendleft(reversed(entries))


def first_of(
    entries: Iterable[BufferEntry], max_count: int = BATCHES_PER_COMMIT, max_bytes: int = BYTES_PER_COMMIT
) -> list[BufferEntry]:
    """Return the first entries up to a number and a total size; at least one, if there is any."""
    first: list[BufferEntry] = []
    size = 0
    for entry in islice(entries, max_count):
        size += entry.size
        if first and size > max_bytes:
            break
        first.append(entry)
    return first


class EntityBuffers:
    """The buffers of all entities, by address. Empty ones are removed."""

    def __init__(self) -> None:
        self._buffers: dict[Address, EntityBuffer] = {}
        self._needed: Counter[int] = Counter()
        """Bytes of unmerged batches, by the base of their segment."""

    def __contains__(self, address: Address) -> bool:
        return address in self._buffers

    def __iter__(self) -> Iterator[EntityBuffer]:
        return iter([*self._buffers.values()])

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def rotated(self, number: int) -> list[EntityBuffer]:
        """Return all buffers; each number starts with another one."""
        buffers = [*self._buffers.values()]
        first = number % max(1, len(buffers))
        return buffers[first:] + buffers[:first]

    def is_current(self, buffer: EntityBuffer) -> bool:
        """Return whether the buffer was not removed since."""
        return self._buffers.get(buffer.address) is buffer

    def get(self, address: Address) -> EntityBuffer:
        """Return the buffer of an entity; a new one if there is none."""
        buffer = self._buffers.get(address)
        if buffer is None:
            buffer = self._buffers[address] = EntityBuffer(address)
        return buffer

    def oldest_ms(self) -> int | None:
        """Return when the oldest unmerged batch was accepted; ``None`` if there is none."""
        return min((buffer.entries[0].accepted_ms for buffer in self if buffer.entries), default=None)

    def remove(self, address: Address) -> None:
        del self._buffers[address]

    def remove_if_empty(self, buffer: EntityBuffer) -> None:
        if buffer.is_empty and self.is_current(buffer):
            del self._buffers[buffer.address]

    def add(self, address: Address, entry: BufferEntry) -> None:
        """Add a batch that is on disk."""
        self.get(address).entries.append(entry)
        self._count([entry])

    def discard(self, entries: Iterable[BufferEntry]) -> None:
        """Note that batches are in the store or in quarantine, and need no disk space any more."""
        for entry in entries:
            self._needed[entry.stored.base] -= entry.size

    # Segments

    def needed_bytes(self, base: int) -> int:
        """Return how many bytes of a segment are not merged."""
        return self._needed[base]

    def in_segment(self, base: int) -> list[BufferEntry]:
        """Return the unmerged batches of a segment."""
        return [entry for buffer in self for entry in buffer.entries if entry.stored.base == base]

    def replace(self, moved: Mapping[BufferEntry, BufferEntry]) -> None:
        """Replace entries whose batches were moved; each keeps its place in its entity."""
        for buffer in self:
            if any(entry in moved for entry in buffer.entries):
                buffer.entries = deque(moved.get(entry, entry) for entry in buffer.entries)
        self._count(moved.values())
        self.discard(moved)

    def forget(self, base: int) -> None:
        """Note that a segment was deleted."""
        del self._needed[base]

    def _count(self, entries: Iterable[BufferEntry]) -> None:
        for entry in entries:
            self._needed[entry.stored.base] += entry.size
