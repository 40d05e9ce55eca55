"""Messages of our own client, from and to the suite's own."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Final

from pairbus import AmqpView, BodyKind, BrokeredMessage, MessageState, ReceivedMessage
from tests.compatibility.values import Amqp, Body, Kind, Message, Received, State

JSON: Final = "application/json"

_KINDS: Final = {
    Kind.DATA: BodyKind.DATA,
    Kind.SEQUENCE: BodyKind.SEQUENCE,
    Kind.VALUE: BodyKind.VALUE,
}
_STATES: Final = {
    MessageState.ACTIVE: State.ACTIVE,
    MessageState.DEFERRED: State.DEFERRED,
    MessageState.SCHEDULED: State.SCHEDULED,
}

_VIEW: Final = tuple(field.name for field in fields(Amqp))


def outgoing(message: Message) -> BrokeredMessage:
    """Make the message that is sent."""
    return BrokeredMessage(
        _content(message.body),
        body_kind=_KINDS[message.body.kind],
        message_id=message.message_id,
        correlation_id=message.correlation_id,
        session_id=message.session_id,
        reply_to_session_id=message.reply_to_session_id,
        partition_key=message.partition_key,
        content_type=message.content_type,
        label=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        time_to_live=message.time_to_live,
        scheduled_enqueue_time=message.scheduled_enqueue_time,
        application_properties=message.application_properties,
        amqp=None if message.amqp is None else _view(message.amqp),
    )


def _view(amqp: Amqp) -> AmqpView:
    given: dict[str, Any] = {name: getattr(amqp, name) for name in _VIEW}
    return AmqpView(**{name: value for name, value in given.items() if value is not None})


def _content(body: Body) -> Any:
    if body.kind is Kind.VALUE:
        return body.content
    (section,) = body.content
    return section


def incoming(received: ReceivedMessage) -> Received:
    """Read a message that was received."""
    message = Message(
        body=_body(received),
        message_id=received.message_id,
        correlation_id=received.correlation_id,
        session_id=received.session_id,
        reply_to_session_id=received.reply_to_session_id,
        partition_key=received.partition_key,
        content_type=received.content_type,
        subject=received.label,
        to=received.to,
        reply_to=received.reply_to,
        time_to_live=received.time_to_live,
        scheduled_enqueue_time=received.scheduled_enqueue_time,
        application_properties=received.application_properties,
        amqp=None if received.amqp is None else Amqp(**{name: getattr(received.amqp, name) for name in _VIEW}),
    )
    return Received(
        message=message,
        sequence_number=received.sequence_number,
        enqueued_sequence_number=received.enqueued_sequence_number,
        enqueued_time=received.enqueued_time,
        delivery_count=received.delivery_count,
        lock_token=None if received.lock_token is None else str(received.lock_token),
        locked_until=received.locked_until,
        expires_at=received.expires_at,
        state=_STATES[received.state],
        dead_letter_reason=received.dead_letter_reason,
        dead_letter_description=received.dead_letter_error_description,
        dead_letter_source=received.dead_letter_source,
        original=received,
    )


def _body(received: ReceivedMessage) -> Body:
    if received.body_kind is BodyKind.VALUE:
        return Body(Kind.VALUE, received.body)
    return Body(Kind.DATA if received.body_kind is BodyKind.DATA else Kind.SEQUENCE, [received.body])


def content_of(received: ReceivedMessage) -> object:
    """Return the body as it was passed to the message: text, or the value of JSON, by the content type."""
    return received.json() if received.content_type == JSON else received.text()
