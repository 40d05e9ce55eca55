"""What has happened to messages, kept in the store until it is in the ledger: a crash takes nothing from it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, Protocol

from pairbus.ledger.life import Event, Life, pack_lives, unpack_lives
from pairbus.ledger.operation import Stage
from pairbus.server.lives import Lives, start_of
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_TOLD_ANEW: Final = frozenset({Event.STARTED, Event.FOUND})
"""The next start tells these by itself."""

_NOT_KEPT: Final = b""

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

    def write_lives(self, lives: Sequence[Life]) -> int: ...

    def ordinals_from(self, first: Life) -> AbstractSet[int]: ...


class Envelope(NamedTuple):
    """What a commit has done."""

    lives: Sequence[Life]
    number: int | None
    """Where it is in the store, if it is."""


class Outbox:
    """Carries events from commits to the ledger. Each is in the store, or in the ledger, or in both; never in neither.

    What changes nothing in the store, as a receipt with a lock, is in neither for a moment: a crash undoes it, too.
    """

    def __init__(self, lives: Lives, store: Store, book: Book, most_bytes: int = MOST_BYTES) -> None:
        self._lives = lives
        self._store = store
        self._book = book
        self._most_bytes = most_bytes
        self._sizes: dict[int, int] = {}
        """Of what is in the store, by its numbers."""

        self._bytes = 0
        self._last_mark: int | None = None
        self._ready: list[Life] = []
        """What is on disk, and not handed over yet."""

        self._ready_numbers: list[int] = []
        self._handed_over: deque[tuple[int, Sequence[int]]] = deque()
        """The numbers of hand-overs, and of what is in the store of them."""

    @property
    def is_empty(self) -> bool:
        """Whether everything is in the ledger that is known to be on disk."""
        return not self._ready and not self._handed_over

    def replay(self, now_ms: int, write: Callable[[list[Life]], int]) -> None:
        """At the start: hand over what the process before has not written, or may not have.

        ``write`` may wait for the ledger; there may be more than it keeps in memory.
        """
        entries = [(number, len(content), _unpacked(number, content)) for number, content in self._store.outbox()]
        found = [life for _, _, lives in entries for life in lives]
        recorded = self._book.ordinals_from(_earliest(found)) if found else frozenset()
        for number, size, lives in entries:
            self._keep(number, size)
            missing = [_dated(life, now_ms) for life in lives if life.ordinal not in recorded]
            if missing:
                self._handed_over.append((write(missing), [number]))
            else:
                self._ready_numbers.append(number)
        if found:
            _log.info("what had happened last was %d events; the ledger has them now", len(found))
        self.hand_over()

    def seal(self) -> Envelope | None:
        """A commit begins: keep what has happened with it."""
        lives = self._lives.take()
        return Envelope(lives, self._put(lives)) if lives else None

    def _put(self, lives: Sequence[Life]) -> int | None:
        """If there is no room, an empty entry says that something was not kept."""
        kept = [life for life in lives if life.event not in _TOLD_ANEW]
        if not kept:
            return None
        number = kept[-1].ordinal
        content = pack_lives(kept) if self._bytes < self._most_bytes else _NOT_KEPT
        if content and self._store.put_in_outbox(number, content):
            self._keep(number, len(content))
            return number
        return self._mark(number)

    def _mark(self, number: int) -> int | None:
        """The last such entry stands for those before it."""
        if not self._store.put_in_outbox(number, _NOT_KEPT):
            return None
        if self._last_mark is not None:
            self._store.remove_from_outbox([self._last_mark])
        self._last_mark = number
        return number

    def committed(self, envelope: Envelope, error: StoreError | None) -> None:
        """The commit is done: what has happened is on disk. Or it has failed, and nothing has happened."""
        if error is None:
            self._ready += envelope.lives
            if envelope.number is not None:
                self._ready_numbers.append(envelope.number)
        elif envelope.number is not None:
            self._forget(envelope.number)

    def hand_over(self) -> None:
        """Give to the ledger what is on disk, and remove from the store what the ledger has."""
        lives, self._ready = self._ready, []
        numbers, self._ready_numbers = self._ready_numbers, []
        if lives:
            self._handed_over.append((self._book.write_lives(lives), numbers))
        elif numbers:
            self._handed_over.append((0, numbers))
        self._clear(self._book.hand_overs_written)

    def _clear(self, written: int) -> None:
        """While a failed store is read anew nothing can be removed; there will be another time."""
        while self._handed_over and self._handed_over[0][0] <= written:
            numbers = self._handed_over[0][1]
            try:
                self._store.remove_from_outbox(numbers)
            except StoreError:
                return
            self._handed_over.popleft()
            for number in numbers:
                self._forget(number)

    def _keep(self, number: int, size: int) -> None:
        self._sizes[number] = size
        self._bytes += size

    def _forget(self, number: int) -> None:
        self._bytes -= self._sizes.pop(number, 0)


def _unpacked(number: int, content: bytes) -> list[Life]:
    """What an entry holds. What was not kept, or cannot be read, is a gap, unless the ledger has it."""
    if content == _NOT_KEPT:
        return [_gap(number)]
    try:
        return unpack_lives(content)
    except ValueError as error:
        _log.warning("what is under number %d in the outbox is left out of the ledger: %s", number, error)
        return [_gap(number)]


def _gap(number: int) -> Life:
    return Life(start_of(number), number, Event.MISSED, Stage.DIRECT, "", 1, 0, "", None, None, 0)


def _dated(life: Life, now_ms: int) -> Life:
    """A gap has the time of its end; here, of all that is known."""
    return life._replace(at_ms=now_ms) if life.event is Event.MISSED else life


def _earliest(lives: Sequence[Life]) -> Life:
    """The one with the smallest ordinal, and with the time of the first."""
    first = min(lives, key=lambda life: life.ordinal)
    return first._replace(at_ms=min(life.at_ms for life in lives))
