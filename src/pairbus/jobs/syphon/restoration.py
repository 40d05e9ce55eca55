"""A message of the backlog made what it was before it was diverted."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pairbus.client.received_message import ReceivedMessage
from pairbus.client.times import to_ms
from pairbus.dialect.transfer import Transfer, TransferError, restore
from pairbus.pairing.homecoming.bound import bound_for, key_of
from pairbus.pairing.homecoming.dead_letter_reason import DeadLetterReason, reason_of
from pairbus.pairing.syphon import TimeToLive


@dataclass(frozen=True, slots=True, eq=False)
class Homecomer:
    """A message on its way home, and the lock that it is removed by."""

    queue: str
    number: int
    token: UUID
    destination: str
    session_id: str | None
    payload: bytes
    """As its destination gets it."""

    key: str
    """Its destination, however that is capitalised."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcast:
    """A message that can never be delivered."""

    queue: str
    number: int
    token: UUID
    destination: str | None
    payload: bytes
    """As it lies in the backlog."""

    reason: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """How messages are restored."""

    time_to_live: TimeToLive

    def restored(
        self, queue: str, message: ReceivedMessage, number: int, token: UUID, now_ms: int
    ) -> Homecomer | Outcast:
        payload = message.payload
        try:
            transfer = bound_for(payload)
            left_ms = transfer.time_to_live_ms
            if left_ms is not None and self.time_to_live is TimeToLive.REMAINING:
                left_ms -= max(0, now_ms - to_ms(message.enqueued_time))
                if left_ms <= 0:
                    return _expired(queue, number, token, transfer, payload)
            restored = restore(payload, transfer, time_to_live_ms=left_ms)
        except TransferError as error:
            where = "" if error.path is None else f"the message for '{error.path}': "
            return Outcast(queue, number, token, error.path, payload, reason_of(error).value, f"{where}{error}")
        return Homecomer(queue, number, token, transfer.path, transfer.session_id, restored, key_of(transfer.path))


def _expired(queue: str, number: int, token: UUID, transfer: Transfer, payload: bytes) -> Outcast:
    text = f"the message for '{transfer.path}' has outlived its time to live in the backlog"
    return Outcast(queue, number, token, transfer.path, payload, DeadLetterReason.EXPIRED.value, text)
