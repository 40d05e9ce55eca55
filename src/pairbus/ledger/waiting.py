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


_NOTHING: Final = Life(0, 0, Event.MISSED, Stage.DIRECT, "", 0, 0, "", None, None, 0)


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
    hand_over: int
    """The last hand-over of events that is in it, or was before."""


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
        self._lives: deque[tuple[int, Sequence[Life]]] = deque()
        """With the numbers of their hand-overs."""

        self._hand_over = 0
        self._taken = 0
        self._gap: Life | None = None
        """Stands for what was missed since there was no room."""

    def add_operations(self, second: Second) -> None:
        with self._lock:
            if len(self._seconds) < _MOST_SECONDS:
                self._seconds.append(second)
            else:
                for counted in second.counted():
                    self._merge(counted)

    def add_lives(self, lives: Sequence[Life]) -> int:
        """Returns the number of the hand-over."""
        with self._lock:
            self._hand_over += 1
            room = max(0, self._most_lives - self.lives)
            kept = lives if len(lives) <= room else lives[:room]
            if kept:
                self._end_gap(self._hand_over - 1)
                self._lives.append((self._hand_over, kept))
                self.lives += len(kept)
            self._widen_gap(lives[len(kept) :])
            return self._hand_over

    def take(self) -> Taken | None:
        """All operations, and as many events as are worth a flush, in their order; nothing if there is nothing."""
        with self._lock:
            seconds, self._seconds = self._seconds, []
            merged, self._merged = self._merged, {}
            if not self._lives:
                self._end_gap(self._hand_over)
            groups = self._pop_lives()
            self._taken = groups[-1][0] if groups else self._taken
        lives = [*chain.from_iterable(group for _, group in groups)]
        return Taken(seconds, [*merged.values()], lives, self._taken) if seconds or merged or lives else None

    def done(self, lives: int) -> None:
        """So many events are on disk."""
        with self._lock:
            self.lives -= lives

    def give_up(self, lives: Sequence[Life], now_ms: int) -> None:
        """These were taken, and can never be written: something about them is no number, or no time."""
        told = sum(life.sequence for life in lives if life.event is Event.MISSED)
        with self._lock:
            self.lives -= len(lives)
            self._widen_gap([_NOTHING._replace(at_ms=now_ms) for life in lives if life.event is not Event.MISSED])
            if told:  # gaps that were to be written with them
                gap = self._gap or _NOTHING._replace(at_ms=now_ms)
                self._gap = gap._replace(sequence=gap.sequence + told)

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

    def _pop_lives(self) -> list[tuple[int, Sequence[Life]]]:
        groups: list[tuple[int, Sequence[Life]]] = []
        count = 0
        while self._lives and count < _CHUNK:
            groups.append(self._lives.popleft())
            count += len(groups[-1][1])
        return groups

    def _widen_gap(self, missed: Sequence[Life]) -> None:
        """A gap has the time of its end: whoever reads from the middle of it on has to find it."""
        if not missed:
            return
        self.lives_missed += len(missed)
        gap = self._gap
        if gap is None:
            gap = _NOTHING._replace(ordinal=missed[0].ordinal)
        self._gap = gap._replace(at_ms=missed[-1].at_ms, sequence=gap.sequence + len(missed))

    def _end_gap(self, hand_over: int) -> None:
        if self._gap is not None:
            self._lives.append((hand_over, (self._gap,)))
            self.lives += 1
            self._gap = None
