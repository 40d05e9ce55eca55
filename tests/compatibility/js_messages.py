"""Messages of @azure/service-bus, from and to the suite's own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.compatibility.node import Handle
from tests.compatibility.python_messages import PARTITION_KEY, SCHEDULED, SERVICE_ANNOTATIONS
from tests.compatibility.values import Amqp, Body, Id, Kind, Message, Received, State


def outgoing(message: Message) -> dict[str, Any]:
    """Make the message that the SDK sends: its simple one wherever that has room for everything."""
    return _simple(message) if message.body.kind is Kind.DATA and message.amqp is None else _annotated(message)


def _simple(message: Message) -> dict[str, Any]:
    return _present(
        body=_content(message.body),
        messageId=_id_out(message.message_id),
        correlationId=_id_out(message.correlation_id),
        sessionId=message.session_id,
        replyToSessionId=message.reply_to_session_id,
        partitionKey=message.partition_key,
        contentType=message.content_type,
        subject=message.subject,
        to=message.to,
        replyTo=message.reply_to,
        timeToLive=_span_ms(message.time_to_live),
        scheduledEnqueueTimeUtc=message.scheduled_enqueue_time,
        applicationProperties=dict(message.application_properties) or None,
    )


def _annotated(message: Message) -> dict[str, Any]:
    amqp = message.amqp or Amqp()
    assert amqp.user_id is None, "the SDK has no place for it"
    annotations = _present(
        **amqp.annotations, **{PARTITION_KEY: message.partition_key, SCHEDULED: message.scheduled_enqueue_time}
    )
    return {
        "bodyType": message.body.kind.value,
        "body": _content(message.body),
        **_present(
            header=_present(durable=amqp.durable, priority=amqp.priority, timeToLive=_span_ms(message.time_to_live)),
            properties=_present(
                messageId=_id_out(message.message_id),
                to=message.to,
                subject=message.subject,
                replyTo=message.reply_to,
                correlationId=_id_out(message.correlation_id),
                contentType=message.content_type,
                contentEncoding=amqp.content_encoding,
                creationTime=_moment_ms(amqp.creation_time),
                absoluteExpiryTime=_moment_ms(amqp.absolute_expiry_time),
                groupId=message.session_id,
                groupSequence=amqp.group_sequence,
                replyToGroupId=message.reply_to_session_id,
            ),
            applicationProperties=dict(message.application_properties) or None,
            messageAnnotations=annotations or None,
            deliveryAnnotations=dict(amqp.delivery_annotations) or None,
            footer=dict(amqp.footer) or None,
        ),
    }


def _content(body: Body) -> Any:
    if body.kind is Kind.VALUE:
        return body.content
    (section,) = body.content
    return section


def incoming(received: Handle) -> Received:
    """Read a message that the SDK received."""
    fields = received.fields
    raw = fields["raw"]
    header, properties = raw["header"] or {}, raw["properties"] or {}
    message = Message(
        body=_body(fields["body"], raw["bodyType"]),
        message_id=_id_in(fields["messageId"]),
        correlation_id=_id_in(fields["correlationId"]),
        session_id=fields["sessionId"],
        reply_to_session_id=fields["replyToSessionId"],
        partition_key=fields["partitionKey"],
        content_type=fields["contentType"],
        subject=fields["subject"],
        to=fields["to"],
        reply_to=fields["replyTo"],
        time_to_live=_span(fields["timeToLive"]),
        scheduled_enqueue_time=_moment(fields["scheduledEnqueueTimeUtc"]),
        application_properties=fields["applicationProperties"] or {},
        amqp=Amqp(
            durable=header.get("durable"),
            priority=header.get("priority"),
            content_encoding=properties.get("contentEncoding"),
            creation_time=_moment(properties.get("creationTime")),
            absolute_expiry_time=_moment(properties.get("absoluteExpiryTime")),
            group_sequence=properties.get("groupSequence"),
            annotations=_own(raw["messageAnnotations"]),
            delivery_annotations=_own(raw["deliveryAnnotations"]),
            footer=raw["footer"] or {},
        ),
    )
    return Received(
        message=message,
        sequence_number=fields["sequenceNumber"],
        enqueued_sequence_number=fields["enqueuedSequenceNumber"],
        enqueued_time=fields["enqueuedTimeUtc"],
        delivery_count=fields["deliveryCount"] or 0,
        lock_token=fields["lockToken"],
        locked_until=fields["lockedUntilUtc"],
        expires_at=fields["expiresAtUtc"],
        state=State(fields["state"]),
        dead_letter_reason=fields["deadLetterReason"],
        dead_letter_description=fields["deadLetterErrorDescription"],
        dead_letter_source=fields["deadLetterSource"],
        original=received,
    )


def _id_out(found: Id | None) -> Any:
    """The SDK sends buffers as UUIDs."""
    return found.bytes if isinstance(found, UUID) else found


def _id_in(found: Any) -> Id | None:
    return UUID(bytes=found) if isinstance(found, bytes) else found


def _body(content: Any, kind: str) -> Body:
    match Kind(kind):
        case Kind.VALUE:
            return Body(Kind.VALUE, content)
        case Kind.DATA:
            return Body(Kind.DATA, content if isinstance(content, list) else [content])
        case Kind.SEQUENCE:
            return Body(Kind.SEQUENCE, [content])


def _own(annotations: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (annotations or {}).items() if key not in SERVICE_ANNOTATIONS}


def _present(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _moment(found: Any) -> datetime | None:
    return datetime.fromtimestamp(found / 1000, UTC) if isinstance(found, int | float) else found


def _moment_ms(moment: datetime | None) -> int | None:
    return None if moment is None else round(moment.timestamp() * 1000)


def _span(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def _span_ms(span: timedelta | None) -> int | None:
    return None if span is None else round(span.total_seconds() * 1000)
