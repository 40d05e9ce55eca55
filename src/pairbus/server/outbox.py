"""Keeps lifecycle events in the store until the ledger has written them, so that a crash loses none."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, Protocol

from pairbus.ledger.events import EventRange, LedgerEvent, LifecycleEvent, Stage, extent_of, pack_events, unpack_events
from pairbus.server.event_recorder import LARGEST_ORDINAL, EventRecorder, start_of
from pairbus.store import StoreError

_log = logging.getLogger(__name__)

_NOT_STORED: Final = frozenset({LedgerEvent.STARTED, LedgerEvent.FOUND, LedgerEvent.STOPPED})
"""Events that the store does not keep: the next start records the first two again, and a kill has no last event."""

_EMPTY_MARK: Final = b""
"""A mark stands for events without room in the store: their number in decimal digits, or this if that has no room."""

_MAX_CATCH_UP: Final = 20_000
"""Maximum number of deferred events handed over at a time: no request is served meanwhile."""

_MAX_CARRIED: Final = 20_000
"""Maximum number of earlier events added to one entry of the store."""

_EVENTS_PER_ENTRY: Final = 10
"""Cost of unpacking an entry, besides its events, in events."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of the outbox while the ledger cannot be written; later events are in memory only."""


class OutboxStore(Protocol):
    """The part of the store that keeps entries: each is written with the commit that it describes."""

    def put_in_outbox(self, number: int, content: bytes) -> bool: ...

    def remove_from_outbox(self, numbers: Iterable[int]) -> None: ...

    def outbox(self) -> Sequence[tuple[int, bytes]]: ...


class OutboxLedger(Protocol):
    """The part of a ledger that records events."""

    @property
    def hand_overs_written(self) -> int: ...

    @property
    def event_room(self) -> int: ...

    def write_events(self, events: Sequence[LifecycleEvent]) -> int: ...

    def ordinals_from(self, first: LifecycleEvent) -> AbstractSet[int]: ...


class OutboxBatch(NamedTuple):
    """The events of one commit."""

    events: Sequence[LifecycleEvent]
    number: int | None
    """Number of its entry in the store, if it has one."""

    content: bytes = b""
    """Content of that entry; empty if there was no room."""

    unkept: int = 0
    """Number of events that its mark stands for."""

    carried: Sequence[LifecycleEvent] = ()
    """Events of earlier batches stored in this entry, too; those batches hand them over to the ledger."""


class HandOver(NamedTuple):
    """Events handed over to the ledger together."""

    number: int
    entries: Sequence[int]
    """Numbers of their entries in the store."""

    size: int
    """Size of these entries."""

    unkept: int = 0
    last: int = 0
    """Largest ordinal of the events."""


class Outbox:
    """Hands events of commits over to the ledger. Each event is in the store, in the ledger, or in both.

    Events that change nothing in the store, such as a receive with a lock, cause no commit. They are in neither until
    the ledger has written them or the next commit stores them: a crash before that undoes them. So the events lost in
    a crash are later than all that remain, and the ledger has no holes.

    While the ledger has no room, stored events are deferred, and handed over later, in order. Until then they stay in
    memory in their packed form, which is much smaller, and bounded like the entries in the store.
    """

    def __init__(
        self, recorder: EventRecorder, store: OutboxStore, ledger: OutboxLedger, max_bytes: int = MOST_BYTES
    ) -> None:
        self._recorder = recorder
        self._store = store
        self._ledger = ledger
        self._max_bytes = max_bytes
        self._bytes = 0
        """Size of all entries in the store."""

        self._unkept = 0
        """Number of events that are not in the store, and may not be in the ledger."""

        self._marks: tuple[int, ...] = ()
        """Numbers of the last two marks: the valid one, and the one before it."""

        self._carried: list[LifecycleEvent] = []
        """Events that are not in the store, and may not be in the ledger: the next commit stores them."""

        self._ready: list[OutboxBatch] = []
        """Durable batches that are not handed over yet."""

        self._deferred: deque[tuple[int, bytes]] = deque()
        """Entries to hand over later, by their numbers."""

        self._recorded: dict[int, AbstractSet[int]] = {}
        """Ordinals of deferred entries that the ledger has already, for entries of which it has a part."""

        self._gaps_ms = 0
        """Time of the gaps found at the start: a gap has the time of its end, or a later one."""

        self._handed_over: deque[HandOver] = deque()

    @property
    def is_empty(self) -> bool:
        """Return whether the ledger has all events that are known to be durable."""
        return not self._ready and not self._deferred and not self._handed_over

    def replay(self, now_ms: int) -> None:
        """Hand over, at the start, the events that the process before has not written, or may not have."""
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
            self._deferred.append((number, content))
            count += len(extent.ordinals) - len(known)
            if known:
                self._recorded[number] = known
        if written:
            self._handed_over.append(HandOver(0, written, size))
        if count:
            _log.info("replaying outbox events=%d", count)
        self.hand_over()

    def _recorded_of(self, extents: Sequence[EventRange], now_ms: int) -> AbstractSet[int]:
        """Return the ordinals that the ledger has of these entries, and possibly others."""
        possible = [extent for extent in extents if min(extent.ordinals, default=0) <= LARGEST_ORDINAL]
        if not possible:
            return frozenset()
        first_ms = min(now_ms, *(extent.first_ms for extent in possible))
        ordinal = min(min(extent.ordinals, default=0) for extent in possible)
        return self._ledger.ordinals_from(_gap(ordinal, 0, first_ms))

    def note_alive(self, now_ms: int) -> None:
        """Record that the namespace is running, if it has recorded nothing for a while."""
        self._recorder.note_alive(now_ms)

    def end(self) -> None:
        """Record the last event of the namespace."""
        self._recorder.end()

    def seal(self) -> OutboxBatch | None:
        """Store the events since the last commit with the one that begins."""
        events = self._recorder.take()
        return self._put(events) if events else None

    def _put(self, events: Sequence[LifecycleEvent]) -> OutboxBatch:
        """Store events, or a mark if there is no room for them."""
        kept = [event for event in events if event.event not in _NOT_STORED]
        if not kept:
            return OutboxBatch(events, None)
        number = kept[-1].ordinal
        if self._bytes < self._max_bytes:
            carried = self._carried
            content = pack_events([*carried, *kept])
            if self._store.put_in_outbox(number, content):
                self._bytes += len(content)
                self._carried = []
                return OutboxBatch(events, number, content, carried=carried)
        if self._mark(number, len(kept)):
            return OutboxBatch(events, number, unkept=len(kept))
        self._carried = [*self._carried, *kept][-_MAX_CARRIED:]
        return OutboxBatch(events, None)

    def _mark(self, number: int, count: int) -> bool:
        """Store a mark that replaces the earlier ones, with an upper bound of its events; return whether it fits."""
        put = self._store.put_in_outbox
        if not put(number, b"%d" % (self._unkept + count)) and not put(number, _EMPTY_MARK):
            return False
        self._store.remove_from_outbox(self._marks[-1:])
        self._marks = *self._marks[-1:], number
        self._unkept += count
        return True

    def committed(self, batch: OutboxBatch, error: StoreError | None) -> None:
        """Note that a commit is durable, or that it has failed and its events are undone."""
        if error is None:
            self._ready.append(batch)
            return
        self._bytes -= len(batch.content)
        undone = {event.ordinal for event in batch.events}
        self._carried = [event for event in (*batch.carried, *self._carried) if event.ordinal not in undone]
        if batch.unkept:
            self._unkept -= batch.unkept
            self._marks = self._marks[:-1]  # the one before it is still there

    def hand_over(self) -> None:
        """Hand over durable events as far as the ledger has room, and remove the entries that it has written."""
        ready, self._ready = self._ready, []
        count = sum(len(batch.events) for batch in ready)
        budget = max(_MAX_CATCH_UP, 2 * (count + _EVENTS_PER_ENTRY * len(ready)))  # else it never catches up under load
        if self._deferred or count > self._ledger.event_room:
            ready = [rest for rest in map(self._defer, ready) if rest.events]
        if ready:
            self._write(ready)
        self._catch_up(budget)
        self._clear(self._ledger.hand_overs_written)

    def _defer(self, batch: OutboxBatch) -> OutboxBatch:
        """Defer the stored events of a batch, and return the others, which are nowhere else."""
        if batch.number is None or batch.unkept:
            return batch
        self._deferred.append((batch.number, batch.content))
        if batch.carried:
            self._recorded[batch.number] = {event.ordinal for event in batch.carried}
        return OutboxBatch([event for event in batch.events if event.event in _NOT_STORED], None)

    def _catch_up(self, budget: int) -> None:
        """Hand over deferred entries, as far as the ledger has room, up to a budget in events."""
        room = self._ledger.event_room
        taken: list[OutboxBatch] = []
        count = 0
        while self._deferred and count < room and count + _EVENTS_PER_ENTRY * len(taken) < budget:
            number, content = self._deferred.popleft()
            recorded = self._recorded.pop(number, frozenset())
            events = [event for event in self._unpacked(number, content) if event.ordinal not in recorded]
            taken.append(OutboxBatch(events, number, content))
            count += len(events)
        if taken:
            self._write(taken)

    def _write(self, batches: Sequence[OutboxBatch]) -> None:
        events = [*chain.from_iterable(batch.events for batch in batches)]
        marks = [batch.number for batch in batches if batch.unkept]
        numbers = [batch.number for batch in batches if not batch.unkept] + marks[-1:]
        self._handed_over.append(
            HandOver(
                self._ledger.write_events(events) if events else 0,
                [number for number in numbers if number is not None],
                sum(len(batch.content) for batch in batches),
                sum(batch.unkept for batch in batches),
                max((event.ordinal for event in events), default=0) if self._carried else 0,
            )
        )

    def _clear(self, written: int) -> None:
        """Remove the entries that the ledger has written; later, if the store is being reloaded after a failure."""
        while self._handed_over and self._handed_over[0].number <= written:
            done = self._handed_over[0]
            try:
                self._store.remove_from_outbox(done.entries)
            except StoreError:
                return
            self._handed_over.popleft()
            self._bytes -= done.size
            self._unkept -= done.unkept
            if self._carried:
                self._carried = [event for event in self._carried if event.ordinal > done.last]

    def _unpacked(self, number: int, content: bytes) -> list[LifecycleEvent]:
        """Return the events of an entry. A mark, and what cannot be read or written, becomes a gap."""
        fits = number <= LARGEST_ORDINAL
        try:
            events = [] if _is_mark(content) else unpack_events(content)
        except ValueError as error:
            _log.warning('outbox entry unreadable, recorded as a gap number=%d error="%s"', number, error)
            return [_gap(number if fits else 0, 1, self._gaps_ms)]
        if events and fits:
            return events
        return [_gap(number if fits else 0, len(events) or _count_of(content), self._gaps_ms)]


def _is_mark(content: bytes) -> bool:
    return content == _EMPTY_MARK or content.isdigit()


def _count_of(mark: bytes) -> int:
    return int(mark or b"1")


def _extent(number: int, content: bytes, now_ms: int) -> EventRange:
    """Return the extent of an entry. Of a mark or an unreadable entry, only the last ordinal is known."""
    try:
        if not _is_mark(content):
            return extent_of(content)
    except ValueError:  # logged when it is handed over
        pass
    started_ms = start_of(number)
    return EventRange(started_ms if started_ms <= now_ms else 0, [number])


def _gap(ordinal: int, count: int, at_ms: int) -> LifecycleEvent:
    return LifecycleEvent(at_ms, ordinal, LedgerEvent.MISSED, Stage.DIRECT, "", count, 0, "", None, None, 0)
