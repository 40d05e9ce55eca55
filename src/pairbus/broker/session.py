"""Sessions of a queue, their locks, and the sorted sets that order messages."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final

from pairbus.broker.context import Deadlines
from pairbus.broker.message import NEVER, Record

CHUNK: Final = 1024
"""Most numbers in one chunk: inserting or removing one moves at most that many."""


class Sequences:
    """A sorted set of integers, kept as a list of sorted arrays.

    A queue of a million messages is a thousand arrays. Numbers are nearly always added at the end and removed from the
    front; anything else is two binary searches and a short move.
    """

    __slots__ = ("_chunks", "_count")

    def __init__(self) -> None:
        self._chunks: list[array[int]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return self.since(-1)

    def __contains__(self, number: int) -> bool:
        at = self._chunk_of(number)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        return chunk[bisect_left(chunk, number)] == number

    @property
    def is_consistent(self) -> bool:
        """Return whether the count is that of the numbers."""
        return self._count == sum(map(len, self._chunks))

    def first(self) -> int | None:
        return self._chunks[0][0] if self._chunks else None

    def last(self) -> int | None:
        return self._chunks[-1][-1] if self._chunks else None

    def add(self, number: int) -> None:
        """Add a number that is not in the set."""
        chunks = self._chunks
        self._count += 1
        if chunks and number < chunks[-1][-1]:
            self._insert(number)
        elif chunks and len(chunks[-1]) < CHUNK:
            chunks[-1].append(number)
        else:
            chunks.append(array("q", (number,)))

    def extend(self, numbers: Sequence[int]) -> None:
        """Add numbers in ascending order, all of them higher than those in the set."""
        chunks = self._chunks
        self._count += len(numbers)
        free = min(CHUNK - len(chunks[-1]) if chunks else 0, len(numbers))
        if free:
            chunks[-1].extend(numbers[:free])
        for start in range(free, len(numbers), CHUNK):
            chunks.append(array("q", numbers[start : start + CHUNK]))

    def pop_first(self) -> int:
        chunk = self._chunks[0]
        self._count -= 1
        number = chunk.pop(0)
        if not chunk:
            del self._chunks[0]
        return number

    def discard(self, number: int) -> bool:
        """Remove a number; return whether it was in the set."""
        at = self._chunk_of(number)
        if at == len(self._chunks):
            return False
        chunk = self._chunks[at]
        index = bisect_left(chunk, number)
        if chunk[index] != number:
            return False
        del chunk[index]
        self._count -= 1
        if len(chunk) < CHUNK // 4:
            self._shrink(at)
        return True

    def since(self, number: int) -> Iterator[int]:
        """Iterate over all numbers from this one on. The set must not change during the iteration."""
        at = self._chunk_of(number)
        if at < len(self._chunks):
            chunk = self._chunks[at]
            yield from chunk[bisect_left(chunk, number) :]
        for chunk in self._chunks[at + 1 :]:
            yield from chunk

    def _chunk_of(self, number: int) -> int:
        """Return the index of the first chunk whose last number is >= ``number``."""
        chunks = self._chunks
        if chunks and number <= chunks[0][-1]:  # where receivers work
            return 0
        return bisect_left(chunks, number, key=_last)

    def _insert(self, number: int) -> None:
        at = self._chunk_of(number)
        chunk = self._chunks[at]
        chunk.insert(bisect_right(chunk, number), number)
        if len(chunk) > CHUNK:
            half = len(chunk) // 2
            self._chunks[at : at + 1] = [chunk[:half], chunk[half:]]

    def _shrink(self, at: int) -> None:
        """Merge a short chunk with its neighbours, so that a few numbers do not cost an array each."""
        if not self._chunks[at]:
            del self._chunks[at]
            return
        for left in (at, at - 1):
            pair = self._chunks[left : left + 2] if left >= 0 else []
            if len(pair) == 2 and len(pair[0]) + len(pair[1]) <= CHUNK // 2:
                pair[0].extend(self._chunks.pop(left + 1))


def _last(chunk: array[int]) -> int:
    return chunk[-1]


class QueueSession:
    """One session of a queue: its messages, its lock, and whether it has a state."""

    __slots__ = ("id", "locked", "number", "present", "ready", "state_updated_ms", "token", "until_ms")

    def __init__(self, session_id: str, number: int) -> None:
        self.id = session_id
        self.number = number
        self.present = Sequences()
        self.ready = Sequences()
        self.locked: set[int] = set()
        self.token: bytes | None = None
        self.until_ms = 0
        self.state_updated_ms: int | None = None


class QueueSessions:
    """All sessions of a queue that have a message, a holder or a state."""

    __slots__ = ("_available", "_by_id", "_by_number", "_by_token", "_numbers", "deadlines")

    def __init__(self) -> None:
        self._by_id: dict[str, QueueSession] = {}
        self._by_number: dict[int, QueueSession] = {}
        self._by_token: dict[bytes, QueueSession] = {}
        self._available: OrderedDict[str, QueueSession] = OrderedDict()
        self._numbers = count(1)
        self.deadlines = Deadlines(self._is_held_until)

    def __iter__(self) -> Iterator[QueueSession]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def ready_count(self) -> int:
        return sum(len(session.ready) for session in self._by_id.values())

    def get(self, session_id: str) -> QueueSession | None:
        return self._by_id.get(session_id)

    def open(self, session_id: str) -> QueueSession:
        """Return the session with that id; create it if necessary."""
        session = self._by_id.get(session_id)
        if session is None:
            session = QueueSession(session_id, next(self._numbers))
            self._by_id[session_id] = self._by_number[session.number] = session
        return session

    def held(self, token: Any) -> QueueSession | None:
        return self._by_token.get(token)

    def numbered(self, number: int) -> QueueSession:
        return self._by_number[number]

    def next_available(self) -> QueueSession | None:
        """Return the session that has waited longest with a message and without a holder, or ``None``."""
        return next(iter(self._available.values()), None)

    def hold(self, session: QueueSession, token: bytes, until_ms: int) -> None:
        session.token = token
        self._by_token[token] = session
        self.extend(session, until_ms)
        self.settle(session)

    def extend(self, session: QueueSession, until_ms: int) -> None:
        """Extend the lock on a session to a time, or until it is released (``NEVER``)."""
        self._drop_deadline(session)
        session.until_ms = until_ms
        if until_ms != NEVER:
            self.deadlines.add(until_ms, session.number)

    def _drop_deadline(self, session: QueueSession) -> None:
        if session.until_ms not in {0, NEVER}:
            self.deadlines.drop()

    def let_go(self, session: QueueSession) -> None:
        if session.token is not None:
            del self._by_token[session.token]
            session.token = None
            self._drop_deadline(session)
            session.until_ms = 0
        self.settle(session)

    def settle(self, session: QueueSession) -> None:
        """Update the indexes after a session has changed."""
        if session.token is None and session.ready:
            self._available.setdefault(session.id, session)
        else:
            self._available.pop(session.id, None)
        if session.token is None and not session.present and session.state_updated_ms is None:
            self._by_id.pop(session.id, None)
            self._by_number.pop(session.number, None)

    def _is_held_until(self, due_ms: int, number: int) -> bool:
        session = self._by_number.get(number)
        return session is not None and session.token is not None and session.until_ms == due_ms


class Lock:
    """A lock on a message. It ends when the message is settled or at ``until_ms``; under a session, with the session's
    lock.
    """

    __slots__ = ("record", "session", "token", "until_ms")

    def __init__(self, token: bytes, record: Record, until_ms: int, session: QueueSession | None = None) -> None:
        self.token = token
        self.record = record
        self.until_ms = until_ms
        self.session = session
