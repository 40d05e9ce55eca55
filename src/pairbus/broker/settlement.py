"""What becomes of a message that a receiver has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from pairbus.broker import reasons
from pairbus.broker.address import Part
from pairbus.broker.chronicle import Moment
from pairbus.broker.context import Context
from pairbus.broker.entity import Holder
from pairbus.broker.errors import InvalidOperationError, InvalidRequestError
from pairbus.broker.kinds import check_text, check_values
from pairbus.broker.limits import Limits
from pairbus.broker.lock import Lock
from pairbus.broker.message import MessageState, Record
from pairbus.broker.quarantine import Quarantine
from pairbus.broker.queue import Queue
from pairbus.broker.router import Failure, Router, amended, amendments_bytes
from pairbus.broker.values import Value


class Disposition(Enum):
    """What a receiver says of a message."""

    COMPLETE = auto()
    ABANDON = auto()
    DEFER = auto()
    DEAD_LETTER = auto()
    RELEASE = auto()
    """Given back unseen: this does not count as a delivery."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A disposition with what goes with it."""

    disposition: Disposition = Disposition.COMPLETE
    properties: Mapping[str, Value] = field(default_factory=dict)
    """Application properties to set, where the message stays."""

    reason: str | None = None
    description: str | None = None

    def changes(self) -> dict[str, Value]:
        """The properties to set, with what a dead letter is told of its reason."""
        words = {reasons.REASON_PROPERTY: self.reason, reasons.DESCRIPTION_PROPERTY: self.description}
        return {**self.properties, **{name: value for name, value in words.items() if value is not None}}


COMPLETE: Final = Verdict()
"""What nearly every receiver says of nearly every message."""


class Settlement:
    """Ends locks, by a receiver's word or because their time is up."""

    def __init__(
        self, context: Context, router: Router, quarantine: Quarantine, holder: Callable[[Queue], Holder]
    ) -> None:
        self._context = context
        self._router = router
        self._quarantine = quarantine
        self._holder = holder
        self._actions: dict[Disposition, Callable[[Queue, Record, Verdict, int], None]] = {
            Disposition.COMPLETE: self._complete,
            Disposition.ABANDON: self._abandon,
            Disposition.DEFER: self._defer,
            Disposition.DEAD_LETTER: self._dead_letter,
            Disposition.RELEASE: self._release,
        }

    def settle(self, queue: Queue, lock: Lock, verdict: Verdict, now_ms: int) -> None:
        queue.unlock(lock)
        self._actions[verdict.disposition](queue, lock.record, verdict, now_ms)

    def end(self, queue: Queue, lock: Lock, now_ms: int) -> None:
        """The lock has run out: a delivery that failed."""
        queue.unlock(lock)
        self._fail(queue, lock.record, now_ms)

    def discard(self, queue: Queue, record: Record, moment: Moment = Moment.COMPLETED) -> None:
        """Remove a message that was taken, with its body."""
        self._note(moment, queue, record)
        queue.remove(record)
        self._context.bodies.release(record)

    def expire(self, queue: Queue, record: Record, now_ms: int) -> None:
        """A message that was taken has outlived its time."""
        holder = self._holder(queue)
        if holder.description.dead_letter_on_expiration:
            failure = Failure(reasons.EXPIRED, "the message outlived its time to live")
            self._move_to_dead_letters(queue, record, failure, now_ms)
        else:
            self.discard(queue, record, Moment.EXPIRED)

    def _complete(self, queue: Queue, record: Record, _verdict: Verdict, _now_ms: int) -> None:
        self.discard(queue, record)

    def _abandon(self, queue: Queue, record: Record, verdict: Verdict, now_ms: int) -> None:
        self._fail(queue, amended(record, verdict.properties), now_ms)

    def _release(self, queue: Queue, record: Record, _verdict: Verdict, now_ms: int) -> None:
        self._note(Moment.ABANDONED, queue, record)
        self._rest(queue, record, queue.rest, now_ms)

    def _defer(self, queue: Queue, record: Record, verdict: Verdict, _now_ms: int) -> None:
        # Put off is not failed: the count stays.
        self._note(Moment.DEFERRED, queue, record)
        queue.put_back(amended(record, verdict.properties)._replace(state=MessageState.DEFERRED))

    def _dead_letter(self, queue: Queue, record: Record, verdict: Verdict, now_ms: int) -> None:
        self._move_to_dead_letters(queue, amended(record, verdict.changes()), None, now_ms)

    def _move_to_dead_letters(self, queue: Queue, record: Record, failure: Failure | None, now_ms: int) -> None:
        holder = self._holder(queue)
        forwards = holder.description.forward_dead_letters_to is not None
        if not forwards or self._quarantine.read_body(queue, record, now_ms) is not None:
            self._router.dead_letter(holder, queue, record, failure, now_ms)

    def _forward(self, queue: Queue, record: Record, now_ms: int) -> bool:
        """Move a message on if its queue forwards; a damaged one is quarantined, for no rule could match it."""
        holder = self._holder(queue)
        if not self._router.forwards_from(holder, queue):
            return False
        damaged = self._quarantine.read_body(queue, record, now_ms) is None
        return damaged or self._router.forward_waiting(holder, queue, record, now_ms)

    def _fail(self, queue: Queue, record: Record, now_ms: int) -> None:
        record = record._replace(delivery_count=record.delivery_count + 1)
        holder = self._holder(queue)
        most = holder.description.max_delivery_count
        if queue.place.part == Part.MAIN and record.delivery_count >= most:
            failure = Failure(reasons.MAX_DELIVERY_COUNT, f"the message could not be consumed in {most} deliveries")
            self._move_to_dead_letters(queue, record, failure, now_ms)
        else:
            self._note(Moment.ABANDONED, queue, record)
            self._rest(queue, record, queue.put_back, now_ms)

    def _rest(self, queue: Queue, record: Record, put: Callable[[Record], None], now_ms: int) -> None:
        if record.state is MessageState.ACTIVE and record.expires_ms <= now_ms:
            self.expire(queue, record, now_ms)
        elif record.state is not MessageState.ACTIVE or not self._forward(queue, record, now_ms):
            put(record)

    def _note(self, moment: Moment, queue: Queue, record: Record) -> None:
        if self._context.chronicle is not None:
            self._context.chronicle.note(moment, queue.address, record)


def check_verdict(queue: Queue, lock: Lock, verdict: Verdict, limits: Limits) -> None:
    where = str(queue.address)
    if not isinstance(verdict, Verdict) or not isinstance(verdict.disposition, Disposition):
        raise InvalidRequestError(f"{verdict!r} is no Verdict with a Disposition", where)
    check_values(verdict.properties, "the properties to change", where)
    check_text(verdict.reason, "the reason", where)
    check_text(verdict.description, "the description", where)
    changed = amended(lock.record, verdict.changes()).amendments
    if changed is not None and amendments_bytes(changed) > limits.header_bytes:
        raise InvalidRequestError(f"the changed properties have more than {limits.header_bytes} bytes", where)
    if verdict.disposition is Disposition.DEAD_LETTER and queue.place.part != Part.MAIN:
        raise InvalidOperationError(
            f"'{queue.address}' holds dead letters: complete the message instead", str(queue.address)
        )
