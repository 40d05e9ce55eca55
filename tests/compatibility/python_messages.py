"""Messages of azure-servicebus, from and to the suite's own; its synchronous and asynchronous halves share them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageState
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from tests.compatibility.values import Amqp, Body, Kind, Message, Received, State

PARTITION_KEY: Final = "x-opt-partition-key"
SCHEDULED: Final = "x-opt-scheduled-enqueue-time"

SERVICE_ANNOTATIONS: Final = {
    "x-opt-deadletter-source",
    "x-opt-enqueue-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-lock-token",
    "x-opt-locked-until",
    "x-opt-message-state",
    "x-opt-partition-id",
    "x-opt-sequence-number",
    PARTITION_KEY,
    SCHEDULED,
}
"""Annotations that the service makes, or that have a property of their own."""

_STATES: Final = {
    ServiceBusMessageState.ACTIVE: State.ACTIVE,
    ServiceBusMessageState.DEFERRED: State.DEFERRED,
    ServiceBusMessageState.SCHEDULED: State.SCHEDULED,
}


def outgoing(message: Message) -> ServiceBusMessage | AmqpAnnotatedMessage:
    """Make the message that the SDK sends: its simple one wherever that has room for everything."""
    is_simple = message.body.kind is Kind.DATA and len(message.body.content) == 1
    return _simple(message) if is_simple and message.amqp is None else _annotated(message)


def _simple(message: Message) -> ServiceBusMessage:
    return ServiceBusMessage(
        message.body.content[0],
        message_id=message.message_id,  # type: ignore[arg-type]  # the SDK takes every kind of id
        correlation_id=message.correlation_id,  # type: ignore[arg-type]
        session_id=message.session_id,
        reply_to_session_id=message.reply_to_session_id,
        partition_key=message.partition_key,
        content_type=message.content_type,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        time_to_live=message.time_to_live,
        scheduled_enqueue_time_utc=message.scheduled_enqueue_time,
        application_properties=dict(message.application_properties) or None,  # type: ignore[arg-type]
    )


def _annotated(message: Message) -> AmqpAnnotatedMessage:
    amqp = message.amqp or Amqp()
    annotations: dict[str, Any] = dict(amqp.annotations)
    if message.partition_key is not None:
        annotations[PARTITION_KEY] = message.partition_key
    if message.scheduled_enqueue_time is not None:
        annotations[SCHEDULED] = message.scheduled_enqueue_time
    return AmqpAnnotatedMessage(
        header=_present(durable=amqp.durable, priority=amqp.priority, time_to_live=_span_ms(message.time_to_live)),
        properties=_present(
            message_id=message.message_id,
            user_id=amqp.user_id,
            to=message.to,
            subject=message.subject,
            reply_to=message.reply_to,
            correlation_id=message.correlation_id,
            content_type=message.content_type,
            content_encoding=amqp.content_encoding,
            creation_time=_moment_ms(amqp.creation_time),
            absolute_expiry_time=_moment_ms(amqp.absolute_expiry_time),
            group_id=message.session_id,
            group_sequence=amqp.group_sequence,
            reply_to_group_id=message.reply_to_session_id,
        ),
        application_properties=dict(message.application_properties) or None,
        annotations=annotations or None,
        delivery_annotations=dict(amqp.delivery_annotations) or None,
        footer=dict(amqp.footer) or None,
        **{f"{message.body.kind.value}_body": message.body.content},
    )


def incoming(received: Any) -> Received:
    """Read a message that the SDK received."""
    raw = received.raw_amqp_message
    header, properties = raw.header, raw.properties
    message = Message(
        body=_body(raw),
        message_id=_text(received.message_id),
        correlation_id=_text(received.correlation_id),
        session_id=received.session_id,
        reply_to_session_id=received.reply_to_session_id,
        partition_key=received.partition_key,
        content_type=received.content_type,
        subject=received.subject,
        to=received.to,
        reply_to=received.reply_to,
        time_to_live=received.time_to_live,
        scheduled_enqueue_time=received.scheduled_enqueue_time_utc,
        application_properties=_map(received.application_properties),
        amqp=Amqp(
            durable=header and header.durable,
            priority=header and header.priority,
            user_id=properties and properties.user_id,
            content_encoding=_text(properties and properties.content_encoding),
            creation_time=_moment(properties and properties.creation_time),
            absolute_expiry_time=_moment(properties and properties.absolute_expiry_time),
            group_sequence=properties and properties.group_sequence,
            annotations=_own(raw.annotations),
            delivery_annotations=_own(raw.delivery_annotations),
            footer=_map(raw.footer),
        ),
    )
    return Received(
        message=message,
        sequence_number=received.sequence_number,
        enqueued_sequence_number=received.enqueued_sequence_number,
        enqueued_time=received.enqueued_time_utc,
        delivery_count=received.delivery_count,
        lock_token=None if received.lock_token is None else str(received.lock_token),
        locked_until=received.locked_until_utc,
        expires_at=received.expires_at_utc,
        state=_STATES[received.state],
        dead_letter_reason=received.dead_letter_reason,
        dead_letter_description=received.dead_letter_error_description,
        dead_letter_source=received.dead_letter_source,
        original=received,
    )


def _body(raw: AmqpAnnotatedMessage) -> Body:
    if raw.body_type is AmqpMessageBodyType.DATA:
        return Body(Kind.DATA, [bytes(section) for section in raw.body])
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return Body(Kind.SEQUENCE, [_text(section) for section in raw.body])
    return Body(Kind.VALUE, _text(raw.body))


def _text(value: Any) -> Any:
    """Tell text from bytes: the SDK hands out both as bytes, and the suite's bytes are never UTF-8."""
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value
        case list():
            return [_text(item) for item in value]
        case dict():
            return {_text(key): _text(item) for key, item in value.items()}
        case _:
            return value


def _map(section: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {} if section is None else _text(dict(section))


def _own(annotations: Mapping[Any, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in _map(annotations).items() if key not in SERVICE_ANNOTATIONS}


def _present(**fields: Any) -> dict[str, Any] | None:
    return {name: value for name, value in fields.items() if value is not None} or None


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def _moment_ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _span_ms(span: timedelta | None) -> int | None:
    return None if span is None else round(span.total_seconds() * 1000)
