"""What was handed over and is not on disk yet, within bounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain
from threading import Lock
from typing import Final, NamedTuple

from pairbus.ledger.life import Event, Life
from pairbus.ledger.operation import SUCCEEDED, Kind, Sort, Stage, Tally
from pairbus.ledger.stem import HOUR_MS

_MINUTE_MS: Final = 60_000
_MOST_SECONDS: Final = 60
"""So many hand-overs are kept as they are: as long as somebody takes them soon, they are worth no work."""

_CHUNK: Final = 50_000
"""Events that are taken at a time."""

_CONNECTIONS: Final = Sort(Kind.CONNECTION, Stage.DIRECT, "", SUCCEEDED, "")


class Counted(NamedTuple):
    """Operations of one sort that were done within a second, or longer if there was no room for more."""

    at_ms: int
    sort: Sort
    tally: Tally
    connections: int
    """The most that were open at a time; a sort of its own has these."""


class Second(NamedTuple):
    """What was handed over at a time."""

    at_ms: int
    rows: Sequence[tuple[Sort, Tally]]
    connections: int

    def counted(self) -> Iterator[Counted]:
        for sort, tally in self.rows:
            yield Counted(self.at_ms, sort, tally, 0)
        if self.connections:
            yield Counted(self.at_ms, _CONNECTIONS, Tally(), self.connections)


class Taken(NamedTuple):
    """What somebody is going to write."""

    seconds: Sequence[Second]
    merged: Sequence[Counted]
    lives: Sequence[Life]


class Waiting:
    """Takes rows from one thread and gives them to another; neither waits for longer than it takes to append."""

    def __init__(self, most_lives: int, most_operations: int) -> None:
        self.lives = 0
        """How many events there are, with those that were taken and are not on disk yet."""

        self.lives_missed = 0
        self._most_lives = most_lives
        self._most_operations = most_operations
        self._lock = Lock()
        self._seconds: list[Second] = []
        self._merged: dict[tuple[int, Sort], Counted] = {}
        self._lives: deque[Sequence[Life]] = deque()
        self._gap: Life | None = None
        """Stands for what was missed since there was no room."""

    def add_operations(self, second: Second) -> None:
        with self._lock:
            if len(self._seconds) < _MOST_SECONDS:
                self._seconds.append(second)
            else:
                for counted in second.counted():
                    self._merge(counted)

    def add_lives(self, lives: Sequence[Life]) -> None:
        with self._lock:
            room = max(0, self._most_lives - self.lives)
            kept = lives if len(lives) <= room else lives[:room]
            if kept:
                self._end_gap()
                self._lives.append(kept)
                self.lives += len(kept)
            if len(kept) < len(lives):
                self._widen_gap(lives[len(kept)], len(lives) - len(kept))

    def take(self) -> Taken | None:
        """All operations, and as many events as are worth a flush, in their order; nothing if there is nothing."""
        with self._lock:
            seconds, self._seconds = self._seconds, []
            merged, self._merged = self._merged, {}
            if not self._lives:
                self._end_gap()
            groups = self._pop_lives()
        lives = [*chain.from_iterable(groups)]
        return Taken(seconds, [*merged.values()], lives) if seconds or merged or lives else None

    def done(self, lives: int) -> None:
        """So many events are on disk."""
        with self._lock:
            self.lives -= lives

    def give_up(self, lives: int) -> None:
        """So many events can never be written."""
        with self._lock:
            self.lives -= lives
            self.lives_missed += lives

    # Operations

    def _merge(self, counted: Counted) -> None:
        """Count what belongs together: the more there is, the coarser. In the end entities and keys are lost."""
        filled = len(self._merged) / self._most_operations
        at_ms, sort = counted.at_ms, counted.sort
        if filled >= 0.5:
            at_ms -= at_ms % (_MINUTE_MS if filled < 0.75 else HOUR_MS)
        if filled >= 1:
            sort = sort._replace(entity="", who="")
        found = self._merged.get((at_ms, sort)) or Counted(at_ms, sort, Tally(), 0)
        found.tally.merge(counted.tally)
        self._merged[at_ms, sort] = found._replace(connections=max(found.connections, counted.connections))

    # Events

    def _pop_lives(self) -> list[Sequence[Life]]:
        groups: list[Sequence[Life]] = []
        count = 0
        while self._lives and count < _CHUNK:
            groups.append(self._lives.popleft())
            count += len(groups[-1])
        return groups

    def _widen_gap(self, first: Life, count: int) -> None:
        self.lives_missed += count
        if self._gap is None:
            self._gap = Life(first.at_ms, first.ordinal, Event.MISSED, Stage.DIRECT, "", 0, 0, "", None, None, 0)
        self._gap = self._gap._replace(sequence=self._gap.sequence + count)

    def _end_gap(self) -> None:
        if self._gap is not None:
            self._lives.append((self._gap,))
            self.lives += 1
            self._gap = None
