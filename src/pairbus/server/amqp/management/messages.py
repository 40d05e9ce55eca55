"""Messages that are not received over a link: looked at, scheduled, deferred, settled from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from pairbus.broker import Address, Delivery, Disposition, Settle, Verdict
from pairbus.dialect.annotations import SCHEDULED_ENQUEUE_TIME
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.dialect.management import Response
from pairbus.server.amqp.management.call import Call
from pairbus.server.errors import BadRequestError
from pairbus.server.messages import delivered_payload, received_message, values_from_wire
from pairbus.wire import Array, Int, Timestamp

_LOOKED_AT_BYTES: Final = 1024 * 1024
"""What one answer holds of messages that were only looked at; the client asks again from where it got to."""

_DEFERRED_BYTES: Final = 16 * 1024 * 1024
"""What one answer holds of deferred messages; more has to be asked for in parts."""

NO_MESSAGES: Final = Response(
    status=204, description="No messages", condition=ServiceBusCondition.MESSAGE_NOT_FOUND, body={}
)

_DISPOSITIONS: Final = {
    "completed": Disposition.COMPLETE,
    "abandoned": Disposition.ABANDON,
    "defered": Disposition.DEFER,  # so the protocol spells it
    "suspended": Disposition.DEAD_LETTER,
}


def peek(call: Call) -> Response:
    found = call.namespace.peek(
        call.address,
        call.number("from-sequence-number", 0),
        call.number("message-count", 1),
        call.now_ms,
        call.optional_text("session-id"),
        max_bytes=_LOOKED_AT_BYTES,
    )
    messages = [{"message": delivered_payload(each, call.address)} for each in found]
    return Response(body={"messages": messages}) if messages else NO_MESSAGES


def schedule(call: Call) -> Response:
    messages = [received_message(_encoded(item)) for item in call.items("messages")]
    if any(message.scheduled_ms is None for message in messages):
        raise BadRequestError(f"each message needs the time that it is scheduled for, as {SCHEDULED_ENQUEUE_TIME}")
    numbers = call.namespace.send(call.address, messages, call.now_ms)
    return Response(body={"sequence-numbers": _longs(number or 0 for number in numbers)})


def _encoded(item: object) -> bytes:
    payload = item.get("message") if isinstance(item, dict) else None
    if not isinstance(payload, bytes):
        raise BadRequestError("each of 'messages' is a map with the encoded message as 'message'")
    return payload


def cancel_scheduled(call: Call) -> Response:
    call.namespace.cancel_scheduled(call.address, call.numbers("sequence-numbers"), call.now_ms)
    return Response()


def receive_deferred(call: Call) -> Response:
    found = call.namespace.receive_deferred(
        call.address,
        call.numbers("sequence-numbers"),
        call.now_ms,
        delete=call.number("receiver-settle-mode", 1) == 0,
        session_token=call.session_token(),
        max_bytes=_DEFERRED_BYTES,
    )
    messages = [_deferred(delivery, call.address) for delivery in found]
    counters = call.peer.counters
    counters.messages_delivered += len(messages)
    counters.bytes_delivered += sum(len(message["message"]) for message in messages)
    return Response(body={"messages": messages}) if messages else NO_MESSAGES


def _deferred(delivery: Delivery, address: Address) -> dict[str, Any]:
    token = delivery.lock_token or bytes(16)
    return {"lock-token": UUID(bytes_le=token), "message": delivered_payload(delivery, address)}


def update_disposition(call: Call) -> Response:
    """Settle messages by their lock tokens, all or none as far as a transaction goes."""
    status = call.text("disposition-status")
    disposition = _DISPOSITIONS.get(status)
    if disposition is None:
        raise BadRequestError(f"'{status}' is no disposition; possible are {', '.join(_DISPOSITIONS)}")
    verdict = Verdict(
        disposition=disposition,
        properties=values_from_wire(call.mapping("properties-to-modify")),
        reason=call.optional_text("deadletter-reason"),
        description=call.optional_text("deadletter-description"),
    )
    settlements = [Settle(call.address, token, verdict) for token in call.lock_tokens("lock-tokens")]
    most = call.peer.host.limits.messages_per_transaction
    for start in range(0, len(settlements), most):
        call.namespace.transact(settlements[start : start + most], call.now_ms)
    call.peer.counters.settled[disposition.name.lower()] += len(settlements)
    return Response()


def renew_locks(call: Call) -> Response:
    namespace, now_ms = call.namespace, call.now_ms
    ends = [namespace.renew_lock(call.address, token, now_ms) for token in call.lock_tokens("lock-tokens")]
    return Response(body={"expirations": Array(tuple(Timestamp(end_ms) for end_ms in ends))})


def delete_messages(call: Call) -> Response:
    count = call.namespace.delete_messages(
        call.address,
        call.number("message-count"),
        call.now_ms,
        enqueued_before_ms=call.number("enqueued-time-utc"),
        session_token=call.session_token(),
    )
    return Response(body={"message-count": Int(count)}) if count else NO_MESSAGES


def _longs(numbers: Iterable[int]) -> Array:
    """Numbers of eight bytes each: the SDK for JavaScript reads no others."""
    return Array(tuple(numbers), b"\x81")
