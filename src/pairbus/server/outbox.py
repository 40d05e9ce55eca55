"""What has happened to messages, kept in the store until it is in the ledger: a crash takes nothing from it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, Protocol

from pairbus.ledger.life import Event, Extent, Life, extent_of, pack_lives, unpack_lives
from pairbus.ledger.operation import Stage
from pairbus.server.lives import LARGEST_ORDINAL, Lives, start_of
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_TOLD_ANEW: Final = frozenset({Event.STARTED, Event.FOUND, Event.STOPPED})
"""Events that the store does not keep: the next start tells the first two by itself, and a kill has no last."""

_NOT_KEPT: Final = b""
"""Stands for events that there was no room for; so does their number in decimal digits, where that found room."""

_AT_A_TIME: Final = 20_000
"""So many events that were put off are handed over in one go: nobody is served meanwhile."""

_MOST_CARRIED: Final = 20_000
"""So many receipts at most are added to one entry of the store."""

_EVENTS_AN_ENTRY: Final = 10
"""What it costs to unpack one, besides its events."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""So much is kept while the ledger cannot be written; what happens then is in memory alone."""


class Store(Protocol):
    """Where it is kept: with each commit, what that has done."""

    def put_in_outbox(self, number: int, content: bytes) -> bool: ...

    def remove_from_outbox(self, numbers: Iterable[int]) -> None: ...

    def outbox(self) -> Sequence[tuple[int, bytes]]: ...


class Book(Protocol):
    """Where it is bound for: a ledger."""

    @property
    def hand_overs_written(self) -> int: ...

    @property
    def lives_room(self) -> int: ...

    def write_lives(self, lives: Sequence[Life]) -> int: ...

    def ordinals_from(self, first: Life) -> AbstractSet[int]: ...


class Envelope(NamedTuple):
    """What a commit has done."""

    lives: Sequence[Life]
    number: int | None
    """Where it is in the store, if it is."""

    content: bytes = b""
    """What is there, or nothing if there was no room."""

    unkept: int = 0
    """How many events a mark stands for."""

    carried: Sequence[Life] = ()
    """Events of earlier envelopes that are in the store with this one; those have given them to the ledger."""


class HandOver(NamedTuple):
    """What was given to the ledger in one go."""

    number: int
    in_store: Sequence[int]
    """The numbers of what is in the store of it."""

    size: int
    """What that takes there."""

    unkept: int = 0
    last: int = 0
    """The largest ordinal among its events."""


class Outbox:
    """Carries events from commits to the ledger. Each is in the store, or in the ledger, or in both; never in neither.

    What changes nothing in the store, as a receipt with a lock, makes no commit. It is in neither until the ledger has
    written it or the next commit carries it: a crash before that undoes it. So what a crash takes comes after all that
    it leaves, and the ledger has no holes.

    While the ledger has no room, what is in the store is put off, and handed over later, in its order. Until then it is
    in memory as it is in the store: no more than may be there, and much smaller than events are.
    """

    def __init__(self, lives: Lives, store: Store, book: Book, most_bytes: int = MOST_BYTES) -> None:
        self._lives = lives
        self._store = store
        self._book = book
        self._most_bytes = most_bytes
        self._bytes = 0
        """What is in the store."""

        self._unkept = 0
        """How many events are not in the store, and may not be in the ledger."""

        self._marks: tuple[int, ...] = ()
        """The numbers of the last marks: of the one that counts, and the one before it."""

        self._carried: list[Life] = []
        """Events that are not in the store, and may not be in the ledger: the next commit takes them along."""

        self._ready: list[Envelope] = []
        """What is on disk, and not handed over yet."""

        self._put_off: deque[tuple[int, bytes]] = deque()
        self._recorded: dict[int, AbstractSet[int]] = {}
        """Ordinals that the ledger has of what was put off, where it has a part of it."""

        self._gaps_ms = 0
        """The time that gaps are given which were found at the start: one has the time of its end, at the latest."""

        self._handed_over: deque[HandOver] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether everything is in the ledger that is known to be on disk."""
        return not self._ready and not self._put_off and not self._handed_over

    def replay(self, now_ms: int) -> None:
        """At the start: have everything handed over that the process before has not written, or may not have."""
        self._gaps_ms = now_ms
        entries = [(number, content, _extent(number, content, now_ms)) for number, content in self._store.outbox()]
        recorded = self._recorded_of([extent for _, _, extent in entries], now_ms)
        written: list[int] = []
        size = count = 0
        for number, content, extent in entries:
            known = {ordinal for ordinal in extent.ordinals if ordinal in recorded}
            self._bytes += len(content)
            if len(known) == len(extent.ordinals):
                written.append(number)
                size += len(content)
                continue
            self._put_off.append((number, content))
            count += len(extent.ordinals) - len(known)
            if known:
                self._recorded[number] = known
        if written:
            self._handed_over.append(HandOver(0, written, size))
        if count:
            _log.info("what had happened last was %d events that are not in the ledger; it gets them now", count)
        self.hand_over()

    def _recorded_of(self, extents: Sequence[Extent], now_ms: int) -> AbstractSet[int]:
        """What the ledger has of them, and maybe more."""
        possible = [extent for extent in extents if min(extent.ordinals, default=0) <= LARGEST_ORDINAL]
        if not possible:
            return frozenset()
        first_ms = min(now_ms, *(extent.first_ms for extent in possible))
        ordinal = min(min(extent.ordinals, default=0) for extent in possible)
        return self._book.ordinals_from(_gap(ordinal, 0, first_ms))

    def end(self) -> None:
        """Record that nothing happens any more."""
        self._lives.end()

    def seal(self) -> Envelope | None:
        """A commit begins: keep what has happened with it."""
        lives = self._lives.take()
        return self._put(lives) if lives else None

    def _put(self, lives: Sequence[Life]) -> Envelope:
        """If there is no room, a mark says that something was not kept."""
        kept = [life for life in lives if life.event not in _TOLD_ANEW]
        if not kept:
            return Envelope(lives, None)
        number = kept[-1].ordinal
        if self._bytes < self._most_bytes:
            carried = self._carried
            content = pack_lives([*carried, *kept])
            if self._store.put_in_outbox(number, content):
                self._bytes += len(content)
                self._carried = []
                return Envelope(lives, number, content, carried=carried)
        if self._mark(number, len(kept)):
            return Envelope(lives, number, unkept=len(kept))
        self._carried = [*self._carried, *kept][-_MOST_CARRIED:]
        return Envelope(lives, None)

    def _mark(self, number: int, count: int) -> bool:
        """The last mark stands for those before it, and says how many events that is at the most."""
        put = self._store.put_in_outbox
        if not put(number, b"%d" % (self._unkept + count)) and not put(number, _NOT_KEPT):
            return False
        self._store.remove_from_outbox(self._marks[-1:])
        self._marks = *self._marks[-1:], number
        self._unkept += count
        return True

    def committed(self, envelope: Envelope, error: StoreError | None) -> None:
        """The commit is done: what has happened is on disk. Or it has failed, and nothing has happened."""
        if error is None:
            self._ready.append(envelope)
            return
        self._bytes -= len(envelope.content)
        undone = {life.ordinal for life in envelope.lives}
        self._carried = [life for life in (*envelope.carried, *self._carried) if life.ordinal not in undone]
        if envelope.unkept:
            self._unkept -= envelope.unkept
            self._marks = self._marks[:-1]  # the one before it is still there

    def hand_over(self) -> None:
        """Give to the ledger what is on disk, as far as it has room, and remove from the store what the ledger has."""
        ready, self._ready = self._ready, []
        count = sum(len(envelope.lives) for envelope in ready)
        most = max(_AT_A_TIME, 2 * (count + _EVENTS_AN_ENTRY * len(ready)))  # or under load it would never end
        if self._put_off or count > self._book.lives_room:
            ready = [rest for rest in map(self._without_kept, ready) if rest.lives]
        if ready:
            self._write(ready)
        self._catch_up(most)
        self._clear(self._book.hand_overs_written)

    def _without_kept(self, envelope: Envelope) -> Envelope:
        """Put off what is in the store; what is left is nowhere else."""
        if envelope.number is None or envelope.unkept:
            return envelope
        self._put_off.append((envelope.number, envelope.content))
        if envelope.carried:
            self._recorded[envelope.number] = {life.ordinal for life in envelope.carried}
        return Envelope([life for life in envelope.lives if life.event in _TOLD_ANEW], None)

    def _catch_up(self, most: int) -> None:
        """Hand over what was put off, as far as there is room."""
        room = self._book.lives_room
        taken: list[Envelope] = []
        count = 0
        while self._put_off and count < room and count + _EVENTS_AN_ENTRY * len(taken) < most:
            number, content = self._put_off.popleft()
            recorded = self._recorded.pop(number, frozenset())
            lives = [life for life in self._unpacked(number, content) if life.ordinal not in recorded]
            taken.append(Envelope(lives, number, content))
            count += len(lives)
        if taken:
            self._write(taken)

    def _write(self, envelopes: Sequence[Envelope]) -> None:
        lives = [*chain.from_iterable(envelope.lives for envelope in envelopes)]
        marks = [envelope.number for envelope in envelopes if envelope.unkept]
        numbers = [envelope.number for envelope in envelopes if not envelope.unkept] + marks[-1:]
        self._handed_over.append(
            HandOver(
                self._book.write_lives(lives) if lives else 0,
                [number for number in numbers if number is not None],
                sum(len(envelope.content) for envelope in envelopes),
                sum(envelope.unkept for envelope in envelopes),
                max((life.ordinal for life in lives), default=0) if self._carried else 0,
            )
        )

    def _clear(self, written: int) -> None:
        """While a failed store is read anew nothing can be removed; there will be another time."""
        while self._handed_over and self._handed_over[0].number <= written:
            done = self._handed_over[0]
            try:
                self._store.remove_from_outbox(done.in_store)
            except StoreError:
                return
            self._handed_over.popleft()
            self._bytes -= done.size
            self._unkept -= done.unkept
            if self._carried:
                self._carried = [life for life in self._carried if life.ordinal > done.last]

    def _unpacked(self, number: int, content: bytes) -> list[Life]:
        """What an entry holds. What was not kept, and what cannot be read or written, is a gap."""
        fits = number <= LARGEST_ORDINAL
        try:
            lives = [] if _is_mark(content) else unpack_lives(content)
        except ValueError as error:
            _log.warning("what is under number %d in the outbox is left out of the ledger: %s", number, error)
            return [_gap(number if fits else 0, 1, self._gaps_ms)]
        if lives and fits:
            return lives
        return [_gap(number if fits else 0, len(lives) or _count_of(content), self._gaps_ms)]


def _is_mark(content: bytes) -> bool:
    return content == _NOT_KEPT or content.isdigit()


def _count_of(mark: bytes) -> int:
    return int(mark or b"1")


def _extent(number: int, content: bytes, now_ms: int) -> Extent:
    """Which events an entry holds. Of one that does not say, the ledger has the last, if it has them."""
    try:
        if not _is_mark(content):
            return extent_of(content)
    except ValueError:  # it is told when it is handed over
        pass
    started_ms = start_of(number)
    return Extent(started_ms if started_ms <= now_ms else 0, [number])


def _gap(ordinal: int, count: int, at_ms: int) -> Life:
    return Life(at_ms, ordinal, Event.MISSED, Stage.DIRECT, "", count, 0, "", None, None, 0)
