"""Quarantine of unreadable messages, which are never lost without a trace, and repair of an entity.

An audit notices an entity whose index is inconsistent, and it is loaded from the store again. The store is the truth:
what was confirmed is there. Everything here is done in small steps between other requests, so other entities go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice, takewhile
from typing import Final

from pairbus.broker import errors
from pairbus.broker.context import BrokerContext
from pairbus.broker.descriptions import Value
from pairbus.broker.entity import Entity, ReceivableEntity, TopicEntity
from pairbus.broker.errors import EntityUnavailableError
from pairbus.broker.message import NEVER, Amendments, MessageState, Record, unreadable
from pairbus.broker.ports import IndexFault, IndexReloaded, MessageEvent, Quarantined, SessionLost
from pairbus.broker.queue import Queue
from pairbus.broker.router import Failure, Router
from pairbus.broker.session import Sequences

RECORD: Final = "record"
BODY: Final = "body"


class Quarantine:
    """Takes damaged messages out of their queues and puts a stub of each into the dead-letter queue.

    What is left of a damaged message stays in the store, out of reach of receivers, for an operator to examine.
    """

    def __init__(self, context: BrokerContext, router: Router, owner_of: Callable[[Queue], Entity]) -> None:
        self._context = context
        self._router = router
        self._owner_of = owner_of

    def read(self, queue: Queue, sequence: int, now_ms: int) -> Record | None:
        """Read the record of a message that no receiver holds; quarantine the message if that fails."""
        record = self._context.records.record(queue.place, sequence)
        if record is None:
            self.add(queue, sequence, None, now_ms)
        return record

    def read_body(self, queue: Queue, record: Record, now_ms: int) -> bytes | None:
        """Read the body of a message that was taken from its queue; quarantine the message if that fails."""
        body = self._context.records.body(record.body_id)
        if body is None:
            self.add(queue, record.sequence, record, now_ms)
        return body

    def add(self, queue: Queue, sequence: int, record: Record | None, now_ms: int) -> None:
        """Quarantine a message that no receiver holds; ``record`` is ``None`` if the record itself is damaged."""
        queue.set_aside(sequence, record)
        if record is not None:
            self._context.records.set_aside_body(record.body_id)
            self._context.bodies.release(record)
        self.leave_stub(queue, sequence, record, now_ms)

    def leave_stub(self, queue: Queue, sequence: int, record: Record | None, now_ms: int) -> None:
        """Dead-letter a stub of a message that is already out of service, and report it."""
        damaged = RECORD if record is None else BODY
        location = self._context.records.location(queue.place, sequence, None if record is None else record.body_id)
        where = " ".join(f"{name}={value}" for name, value in location)
        failure = Failure(
            errors.DAMAGED,
            f"message {sequence} of '{queue.address}' is lost: its {damaged} is damaged in the store ({where});"
            " restore it with pairbus repair or from a backup, or send it again",
        )
        stub = _stub(sequence, record, len(self._context.stub_body))
        self._router.place_stub(_holders(self._owner_of(queue)), stub, failure, now_ms)
        message_id = "" if record is None else record.message_id
        self._context.notices.append(Quarantined(queue.address, sequence, message_id, damaged, location))


class LostMessages:
    """A background job that leaves stubs of the messages that a repair of the data directory has lost.

    A commit has both a stub and the note that it exists: after a kill, the next start continues with the others.
    """

    def __init__(self, context: BrokerContext, quarantine: Quarantine, lost: list[tuple[Queue, int]]) -> None:
        self._context = context
        self._quarantine = quarantine
        self._lost = lost[::-1]

    def step(self, now_ms: int) -> bool:
        """Leave one stub; return whether there are more to leave."""
        if self._lost:
            self._leave_stub(*self._lost[-1], now_ms)
            self._lost.pop()  # last: if the store cannot be read now, it is tried again
        return bool(self._lost)

    def _leave_stub(self, queue: Queue, sequence: int, now_ms: int) -> None:
        records, event_sink = self._context.records, self._context.event_sink
        record = records.lost_record(queue.place, sequence)
        if not queue.is_retired:
            self._quarantine.leave_stub(queue, sequence, record, now_ms)
            if event_sink is not None:
                event_sink.note(MessageEvent.SET_ASIDE, queue.address, record or unreadable(sequence))
        records.set_aside_lost(queue.place, sequence, record)


def _holders(owner: Entity) -> Iterable[ReceivableEntity]:
    """Return the entities whose dead-letter queues get the stub. A topic has none: all its subscriptions might have got
    it.
    """
    return owner.subscriptions.values() if isinstance(owner, TopicEntity) else (owner,)


def _stub(sequence: int, record: Record | None, size: int) -> Record:
    known = unreadable(sequence) if record is None else record
    before = known.amendments or Amendments()
    system: dict[str, Value] = {"MessageId": known.message_id} if known.message_id else {}
    if known.session_id is not None:
        system["SessionId"] = known.session_id
    return known._replace(
        size=size,
        expires_ms=NEVER,
        scheduled_ms=None,
        state=MessageState.ACTIVE,
        original_sequence=known.original_sequence or sequence,
        shared=False,
        amendments=Amendments(user=before.user, system={**system, **before.system}),
    )


PAGE: Final = 1_000
"""Messages that a reload reads at a time."""

AUDITED: Final = 30
"""Messages that one step of an audit compares with the store: about half a millisecond."""

_HEAD: Final = 200
"""Messages at the front of a queue that are compared after each change of the queue."""

_SESSIONS_AT_ONCE: Final = 200
"""Sessions that one step of an audit checks."""

_SESSIONS_COUNTED: Final = 1_000
"""Most sessions of a queue whose messages are counted in one step."""


class IndexAudit:
    """Compares the index of queues with their counts and with the store.

    Each of its methods is one pass: an iterator whose steps take a millisecond at most, and yield a fault or ``None``.
    Other requests may run between two steps.
    """

    def __init__(
        self,
        all_queues: Callable[[], Iterable[Queue]],
        context: BrokerContext,
        is_exempt: Callable[[int], bool] = lambda _entity_id: False,
    ) -> None:
        """``is_exempt`` returns whether an entity must not be compared, because pages of its records are damaged."""
        self._all_queues = all_queues
        self._context = context
        self._is_exempt = is_exempt
        self._touched: dict[int, Queue] = {}
        """Queues that have changed since they were compared."""

    def counts(self) -> Iterator[IndexFault | None]:
        """Compare the counts of each queue: all steps together take a few microseconds for each queue."""
        for queue in self._all_queues():
            if queue.is_touched:
                queue.is_touched = False
                self._touched[id(queue)] = queue
            yield self._fault(queue, queue.count_problem(_SESSIONS_COUNTED))

    def touched(self) -> Iterator[IndexFault | None]:
        """Compare the queues in which ``counts`` has seen changes: of long ones, the front and the end."""
        for key in [*self._touched]:
            queue = self._touched.pop(key)
            yield from self._pages(queue, 0, _HEAD)
            last = queue.present.last()
            if last is not None and len(queue) > _HEAD:
                yield from self._pages(queue, max(0, last - AUDITED), AUDITED)

    def everything(self) -> Iterator[IndexFault | None]:
        """Compare every message and every session of all queues."""
        for queue in self._all_queues():
            for fault in chain(self._sets(queue), self._pages(queue, 0, None)):
                yield fault
                if fault is not None:
                    break

    def _sets(self, queue: Queue) -> Iterator[IndexFault | None]:
        """Compare the counts of all sets of a queue and its sessions with their contents, and with each other."""
        yield self._fault(queue, _set_problem(queue.sets) or queue.count_problem(_SESSIONS_COUNTED))
        sessions = list(queue.sessions or ())
        for start in range(0, len(sessions), _SESSIONS_AT_ONCE):
            page = sessions[start : start + _SESSIONS_AT_ONCE]
            sets = (each for session in page for each in (session.present, session.ready))
            yield self._fault(queue, _set_problem(sets))

    def _pages(self, queue: Queue, start: int, limit: int | None) -> Iterator[IndexFault | None]:
        """Compare the messages from ``start`` on with the store, about ``limit`` of them."""
        position: int | None = start
        compared = 0
        while position is not None and self._can_compare(queue) and (limit is None or compared < limit):
            stored, after = self._context.records.sequences(queue.place, position, AUDITED)
            fault = self._fault(queue, _difference(queue, stored, position, after))
            yield fault
            compared += AUDITED
            position = after if fault is None else None

    def _fault(self, queue: Queue, reason: str | None) -> IndexFault | None:
        """Return the fault of a queue, unless it has turned out meanwhile that it cannot be compared."""
        return None if reason is None or not self._can_compare(queue) else IndexFault(queue.address, reason)

    def _can_compare(self, queue: Queue) -> bool:
        return not queue.is_suspended and not queue.is_retired and not self._is_exempt(queue.place.entity_id)


def _set_problem(sets: Iterable[Sequences]) -> str | None:
    if all(each.is_consistent for each in sets):
        return None
    return "a set of sequence numbers has another count than numbers"


def _difference(queue: Queue, stored: list[int], start: int, after: int | None) -> str | None:
    """Return how a page of the index differs from that of the store, or ``None``."""
    found = queue.present.since(start)
    if after is not None:
        found = takewhile(lambda sequence: sequence < after, found)
    indexed = list(islice(found, 2 * len(stored) + AUDITED))
    if indexed != stored:
        lost, extra = len({*stored} - {*indexed}), len({*indexed} - {*stored})
        return f"the index lacks {lost} messages of the store, and has {extra} that the store lacks"
    if not all(map(queue.is_resting, indexed)):
        return "a message is not exactly one of ready, locked, deferred or scheduled"
    return None


class EntityReload:
    """A background job that loads the messages of one entity from the store again.

    Meanwhile new messages are accepted, and none is delivered. Locks on messages and sessions end, as with a restart.
    """

    def __init__(
        self,
        context: BrokerContext,
        quarantine: Quarantine,
        entity: Entity,
        is_alive: Callable[[Entity], bool],
        loaded: Callable[[ReceivableEntity], None],
    ) -> None:
        """``loaded`` is called at the end, with an entity that has receivers."""
        self._context = context
        self._quarantine = quarantine
        self._entity = entity
        self._is_alive = is_alive
        self._loaded = loaded
        self._found = self._sequences()
        for queue in entity.queues():
            for session in queue.begin_reload():
                if session.token is not None:
                    context.notices.append(SessionLost(queue.address, session.id, session.token))

    def step(self, now_ms: int) -> bool:
        """Load one message; return whether there are more."""
        try:
            found = next(self._found, None)
            if found is not None:
                self._load(*found, now_ms)
        except BaseException:  # the store cannot be read now: start again later, without what is loaded already
            self._found = self._sequences()
            raise
        if found is None:
            self._finish()
        return found is not None

    def _sequences(self) -> Iterator[tuple[Queue, int]]:
        for queue in self._entity.queues():
            start: int | None = 0
            while start is not None:
                page, start = self._context.records.sequences(queue.place, start, PAGE)
                yield from ((queue, sequence) for sequence in page)

    def _load(self, queue: Queue, sequence: int, now_ms: int) -> None:
        records = self._context.records
        if not self._is_alive(self._entity):
            record = records.record(queue.place, sequence)
            records.remove_record(queue.place, sequence)
            if record is not None:
                self._context.bodies.release(record)
        elif sequence not in queue.present:
            record = records.record(queue.place, sequence)
            if record is not None:
                queue.restore(record)
            elif records.sequences(queue.place, sequence, 1)[0][:1] == [sequence]:  # not removed meanwhile, but damaged
                self._quarantine.add(queue, sequence, None, now_ms)

    def _finish(self) -> None:
        if not self._is_alive(self._entity):
            return
        for queue in self._entity.queues():
            queue.end_reload()
        if isinstance(self._entity, ReceivableEntity):
            self._loaded(self._entity)
        count = sum(map(len, self._entity.queues()))
        self._context.notices.append(IndexReloaded(self._entity.address, count))


def check_loaded(queue: Queue) -> None:
    """Raise ``EntityUnavailableError`` while a queue is suspended, for requests whose answer would be incomplete."""
    if queue.is_suspended:
        address = str(queue.address)
        raise EntityUnavailableError(
            f"'{address}' cannot be read now: its index was inconsistent, and is loaded from the store again;"
            " retry in a few seconds",
            address,
        )
