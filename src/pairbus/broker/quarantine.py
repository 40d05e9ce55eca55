"""Quarantine of unreadable messages: out of service, but never lost without a trace (E6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from pairbus.broker import errors
from pairbus.broker.context import BrokerContext
from pairbus.broker.descriptions import Value
from pairbus.broker.entity import Entity, ReceivableEntity, TopicEntity
from pairbus.broker.message import NEVER, Amendments, MessageState, Record, unreadable
from pairbus.broker.ports import Quarantined
from pairbus.broker.queue import Queue
from pairbus.broker.router import Failure, Router

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
        failure = Failure(
            errors.DAMAGED,
            f"message {sequence} of '{queue.address}' is lost: its {damaged} is damaged in the store ({location});"
            " restore it with pairbus repair or from a backup, or send it again",
        )
        stub = _stub(sequence, record, len(self._context.stub_body))
        self._router.place_stub(_holders(self._owner_of(queue)), stub, failure, now_ms)
        message_id = "" if record is None else record.message_id
        self._context.notices.append(Quarantined(queue.address, sequence, message_id, damaged, location))


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
