"""A small model of two namespaces and the traffic between them, which knows the outcome of every message."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pairbus.ledger.events import LedgerEvent, Stage
from tests.jobs.reconcile.books import Clock, RecordedNamespace

PRIMARY: Final = "contoso"
SECONDARY: Final = "fabrikam"
BACKLOG: Final = f"{PRIMARY}/x-servicebus-transfer/0"
DEAD_LETTERS: Final = "/$DeadLetterQueue"


@dataclass(eq=False)
class Message:
    """A message in one place."""

    message_id: str
    session_id: str | None
    sent_ms: int
    """Time of its confirmation, on an exact clock."""

    is_restored: bool = False
    sequence: int = 0
    original: int = 0
    destination: str | None = None
    deliveries: int = 0
    received_ms: int = 0
    """Time of its first delivery."""


@dataclass(eq=False)
class Place:
    """A queue or a subscription."""

    path: str
    waiting: list[Message] = field(default_factory=list)
    received: list[Message] = field(default_factory=list)
    """In the order of their first delivery."""

    last: int = 0

    def number(self) -> int:
        self.last += 1
        return self.last


class PairModel:
    """Performs operations, and records them in both ledgers and in its counts."""

    def __init__(self, primary_ahead: timedelta = timedelta()) -> None:
        self.clock = Clock()
        self.primary = RecordedNamespace(PRIMARY, self.clock, primary_ahead)
        self.secondary = RecordedNamespace(SECONDARY, self.clock)
        self.primary.start()
        self.secondary.start()
        self.backlog = Place(BACKLOG)
        self.places: dict[str, Place] = {}
        self.topics: dict[str, tuple[str, ...]] = {}
        self.counts: dict[str, Counter[str]] = {}
        self.waits_ms: list[int] = []
        self._diverted_ms: dict[int, int] = {}
        self._topic_numbers: Counter[str] = Counter()

    def topic(self, name: str, *subscriptions: str) -> None:
        self.topics[name] = tuple(f"{name}/Subscriptions/{one}" for one in subscriptions)

    def place(self, path: str) -> Place:
        return self.places.setdefault(path, Place(path))

    def places_of(self, entity: str) -> Sequence[Place]:
        return [self.place(path) for path in self.topics.get(entity, (entity,))]

    def count(self, entity: str, **measures: int) -> None:
        self.counts.setdefault(entity.lower(), Counter()).update(measures)

    # Sending.

    def send(self, entity: str, message_id: str = "", session_id: str | None = None) -> None:
        self._accept(entity, Message(message_id, session_id, self.clock.tick()), Stage.DIRECT)
        self.count(entity, accepted=1)

    def _accept(self, entity: str, message: Message, stage: Stage) -> None:
        is_restored = stage is Stage.SYPHON
        if entity not in self.topics:
            place = self.place(entity)
            number = place.number()
            self.primary.note(LedgerEvent.ACCEPTED, stage, entity, number, None, *_names(message))
            place.waiting.append(_copy(message, number, number, is_restored=is_restored))
            return
        self._topic_numbers[entity] += 1
        original = self._topic_numbers[entity]
        life = self.primary.note(LedgerEvent.ACCEPTED, stage, entity, original, None, *_names(message))
        for place in self.places_of(entity):
            number = place.number()
            self.primary.note(LedgerEvent.ROUTED, stage, place.path, number, original, *_names(message))
            self.primary.same_time(life)
            place.waiting.append(_copy(message, number, original, is_restored=is_restored))
            self.count(place.path, routed=1)

    def divert(self, destination: str, message_id: str = "", session_id: str | None = None) -> Message:
        number = self.backlog.number()
        message = Message(message_id, session_id, self.clock.tick(), sequence=number, destination=destination)
        self.secondary.note(
            LedgerEvent.ACCEPTED, Stage.BACKLOG, BACKLOG, number, None, message_id, session_id, destination
        )
        self.backlog.waiting.append(message)
        self.count(destination, diverted=1, backlog_waiting=1)
        return message

    # The syphon.

    def syphon(self, message: Message, *, copies: int = 1, drops: int = 0) -> None:
        """Restore ``copies`` copies of a message; the destination drops ``drops`` of them as duplicates."""
        self._of_backlog(LedgerEvent.RECEIVED, message)
        for _ in range(copies):
            self._accept(self._bound(message), message, Stage.SYPHON)
            self.count(self._bound(message), syphoned=1)
        for _ in range(drops):
            self.primary.note(LedgerEvent.REPEATED, Stage.SYPHON, self._bound(message), 0, 0, *_names(message))
            self.count(self._bound(message), repeated=1)
        self._leave(message, LedgerEvent.COMPLETED)
        if copies > 1:
            self.count(self._bound(message), duplicated=copies - 1)
        if copies + drops == 0:
            self.count(self._bound(message), missing=1)

    def bury(self, message: Message) -> None:
        """Dead-letter a message in the backlog."""
        self._of_backlog(LedgerEvent.RECEIVED, message)
        self._leave(message, LedgerEvent.DEAD_LETTERED)
        letters = BACKLOG + DEAD_LETTERS
        self.secondary.note(LedgerEvent.ROUTED, Stage.DIRECT, letters, 1, message.sequence, message.message_id)
        self.count(self._bound(message), backlog_dead_lettered=1)

    def expire_in_backlog(self, message: Message) -> None:
        self._leave(message, LedgerEvent.EXPIRED)
        self.count(self._bound(message), backlog_expired=1)

    def give_back(self, message: Message) -> None:
        self._of_backlog(LedgerEvent.RECEIVED, message)
        self._of_backlog(LedgerEvent.ABANDONED, message)

    def park(self, message: Message) -> None:
        self._of_backlog(LedgerEvent.RECEIVED, message)
        self._of_backlog(LedgerEvent.DEFERRED, message)

    def drain(self) -> None:
        for message in list(self.backlog.waiting):
            self.syphon(message)

    def _bound(self, message: Message) -> str:
        assert message.destination is not None
        return message.destination

    def _of_backlog(self, event: LedgerEvent, message: Message) -> None:
        self.secondary.note(event, Stage.SYPHON, BACKLOG, message.sequence, None, message.message_id)

    def _leave(self, message: Message, event: LedgerEvent) -> None:
        self._of_backlog(event, message)
        self.backlog.waiting.remove(message)
        self.count(self._bound(message), backlog_waiting=-1)

    # Receiving.

    def receive(self, place: Place, message: Message) -> None:
        life = self._of_place(LedgerEvent.RECEIVED, place, message)
        message.deliveries += 1
        if message.deliveries == 1:
            message.received_ms = life
            place.received.append(message)
            self.count(place.path, received=1)

    def complete(self, place: Place, message: Message) -> None:
        self._end(LedgerEvent.COMPLETED, place, message, completed=1)

    def abandon(self, place: Place, message: Message) -> None:
        self._of_place(LedgerEvent.ABANDONED, place, message)

    def defer(self, place: Place, message: Message) -> None:
        self._of_place(LedgerEvent.DEFERRED, place, message)

    def dead_letter(self, place: Place, message: Message) -> None:
        self._end(LedgerEvent.DEAD_LETTERED, place, message, dead_lettered=1)
        letters = self.place(place.path + DEAD_LETTERS).number()
        self.primary.note(
            LedgerEvent.ROUTED, Stage.DIRECT, place.path + DEAD_LETTERS, letters, message.original, *_names(message)
        )

    def expire(self, place: Place, message: Message) -> None:
        self._end(LedgerEvent.EXPIRED, place, message, expired=1)

    def remove(self, place: Place, message: Message) -> None:
        self._end(LedgerEvent.REMOVED, place, message, removed=1)

    def receive_all(self) -> None:
        """Receive and complete all messages."""
        for place in list(self.places.values()):
            for message in list(place.waiting):
                self.receive(place, message)
                self.complete(place, message)

    def _of_place(self, event: LedgerEvent, place: Place, message: Message) -> int:
        stage = Stage.RETURNED if message.is_restored else Stage.DIRECT
        names = message.message_id, message.session_id
        return self.primary.note(event, stage, place.path, message.sequence, message.original, *names).at_ms

    def _end(self, event: LedgerEvent, place: Place, message: Message, **measures: int) -> None:
        self._of_place(event, place, message)
        place.waiting.remove(message)
        self.count(place.path, **measures)

    # Restarts.

    def restart(self) -> None:
        """Start both namespaces from their stores, which report the messages in them."""
        self.primary.start()
        for place in self.places.values():
            for message in place.waiting:
                stage = Stage.SYPHON if message.is_restored else Stage.DIRECT
                names = message.original, message.message_id, message.session_id
                self.primary.note(LedgerEvent.FOUND, stage, place.path, message.sequence, *names)
        self.secondary.start()
        for message in self.backlog.waiting:
            number, to = message.sequence, message.destination
            self.secondary.note(LedgerEvent.FOUND, Stage.BACKLOG, BACKLOG, number, number, *_names(message), to)

    def stop(self) -> None:
        self.primary.stop()
        self.secondary.stop()

    def alive(self) -> None:
        """Record that both namespaces are running."""
        self.primary.alive()
        self.secondary.alive()

    def lose(self, lives: int) -> None:
        """Kill the primary: its last events are not recorded."""
        del self.primary.lives[-lives:]

    # Expected results.

    def expected(self) -> dict[str, dict[str, int]]:
        """Return the counts of each entity that are not 0."""
        for place in self.places.values():
            if not place.path.endswith(DEAD_LETTERS):
                self.counts.setdefault(place.path.lower(), Counter())
                self.counts[place.path.lower()].update(self._state_of(place))
        named = {
            entity: {name: count for name, count in found.items() if count} for entity, found in self.counts.items()
        }
        self.counts.clear()
        return {entity: found for entity, found in named.items() if found}

    def _state_of(self, place: Place) -> dict[str, int]:
        late = [one for number, one in enumerate(place.received) if _is_late(one, place.received[:number])]
        in_session = [
            one
            for number, one in enumerate(place.received)
            if one.session_id is not None
            and _is_late(one, [other for other in place.received[:number] if other.session_id == one.session_id])
        ]
        return {
            "waiting": len(place.waiting),
            "out_of_order": len(late),
            "out_of_order_in_session": len(in_session),
        }


def _is_late(message: Message, before: Sequence[Message]) -> bool:
    return any(other.sent_ms > message.sent_ms for other in before)


def _names(message: Message) -> tuple[str, str | None]:
    return message.message_id, message.session_id


def _copy(message: Message, number: int, original: int, *, is_restored: bool) -> Message:
    return Message(
        message.message_id,
        message.session_id,
        message.sent_ms,
        is_restored=is_restored,
        sequence=number,
        original=original,
    )
