"""The page of a message: its properties, and its body as text, JSON or bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pairbus.broker import NEVER, DeliveredMessage, MessageNotFoundError, MessageState, QueuePart
from pairbus.broker.errors import DESCRIPTION_PROPERTY, REASON_PROPERTY
from pairbus.client.amqp_json import type_name
from pairbus.console.formatting import date_time, number, size
from pairbus.console.http import ConsoleEntity, ConsolePage, RequestContext, entity_of
from pairbus.server.messages import delivered_payload
from pairbus.spark.value_text import text_of
from pairbus.wire import ProtocolError, Sections
from pairbus.wire.sections import DATA

SHOWN_BYTES: Final = 64 * 1024
"""Maximum number of bytes of a body that are shown."""

_LINE: Final = 16


class BodyView(StrEnum):
    """The format in which a body is shown."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValue:
    """An AMQP value as text, with the name of its type."""

    text: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A message as texts."""

    sequence: int
    message_id: str
    session_id: str
    enqueued: str
    size: str
    deliveries: int
    state: str
    reason: str
    description: str
    """The reason and description of a dead letter; empty for other messages."""

    facts: tuple[tuple[str, str], ...]
    """All facts about the message, as names and values."""

    properties: tuple[tuple[str, ShownValue], ...]
    """The application properties."""

    body: bytes
    body_kind: str


def show(delivery: DeliveredMessage) -> ShownMessage:
    """Return a message as texts, even if it cannot be parsed."""
    record = delivery.record
    sections, properties = _read(delivery)
    body, kind = (b"", "unreadable") if sections is None else _body(sections)
    return ShownMessage(
        sequence=record.sequence,
        message_id=record.message_id,
        session_id=record.session_id or "",
        enqueued=date_time(record.enqueued_ms),
        size=size(record.size),
        deliveries=record.delivery_count,
        state=MessageState(record.state).name.lower(),
        reason=_text_of_property(properties, REASON_PROPERTY),
        description=_text_of_property(properties, DESCRIPTION_PROPERTY),
        facts=tuple(_facts(delivery, sections)),
        properties=tuple(properties.items()),
        body=body,
        body_kind=kind,
    )


def _read(delivery: DeliveredMessage) -> tuple[Sections | None, dict[str, ShownValue]]:
    try:
        sections = Sections(delivered_payload(delivery))
        return sections, {str(name): shown_value(value) for name, value in sections.application_properties().items()}
    except ProtocolError:
        return None, {}


def _text_of_property(properties: dict[str, ShownValue], name: str) -> str:
    return properties[name].text if name in properties else ""


def _facts(delivery: DeliveredMessage, sections: Sections | None) -> list[tuple[str, str]]:
    record = delivery.record
    facts = {
        "Sequence number": number(record.sequence),
        "Message id": record.message_id,
        "Session id": record.session_id,
        "Partition key": record.partition_key,
        "State": MessageState(record.state).name.lower(),
        "Enqueued": date_time(record.enqueued_ms),
        "Expires": None if record.expires_ms == NEVER else date_time(record.expires_ms),
        "Scheduled for": None if record.scheduled_ms is None else date_time(record.scheduled_ms),
        "Failed deliveries": number(record.delivery_count),
        "Size": size(record.size),
        "Dead letter of": record.dead_letter_source,
    }
    if sections is not None:
        sent = sections.properties()
        facts |= {
            "Content type": sent.content_type,
            "Subject": sent.subject,
            "Correlation id": None if sent.correlation_id is None else _text(sent.correlation_id),
            "To": sent.to,
            "Reply to": sent.reply_to,
        }
    return [(name, value) for name, value in facts.items() if value is not None]


def _body(sections: Sections) -> tuple[bytes, str]:
    """Return the bytes of a body, or its value as text, and the kind of body."""
    try:
        if all(code == DATA for code, *_ in sections.body):
            return sections.data(), "bytes"
        values = sections.decode_body()
    except ProtocolError:
        return b"", "unreadable"
    value = values[0] if len(values) == 1 else values
    if type(value) is bytes:
        return value, "AMQP value, binary"
    return _text(value).encode("utf-8", "replace"), f"AMQP value, {type_name(value)}"


def shown_value(value: object) -> ShownValue:
    return ShownValue(text=_text(value), type=type_name(value))


def _text(value: object) -> str:
    """Return a value as text. Bytes are decoded if they are text, and written in hexadecimal otherwise."""
    if type(value) is bytes:
        return value.decode() if _is_text(value) else value.hex(" ")
    text = text_of(value)
    return "null" if text is None else text


def best_view(body: bytes) -> BodyView:
    """Return the default format of a body."""
    if as_json(body) is not None:
        return BodyView.JSON
    return BodyView.TEXT if _is_text(body) else BodyView.HEX


def body_text(body: bytes, view: BodyView) -> str:
    """Return the body in a format, cut after ``SHOWN_BYTES``."""
    if view is BodyView.JSON:
        pretty = as_json(body)
        if pretty is not None:
            return pretty
    shown = body[:SHOWN_BYTES]
    return _hex(shown) if view is BodyView.HEX else shown.decode("utf-8", "replace")


def as_json(body: bytes) -> str | None:
    """Return an indented object or list; ``None`` if the body is neither, or is too long."""
    if len(body) > SHOWN_BYTES or body.lstrip()[:1] not in {b"{", b"["}:
        return None
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _is_text(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return all(character >= " " or character in "\r\n\t" for character in text[:SHOWN_BYTES])


def _hex(body: bytes) -> str:
    lines = (body[start : start + _LINE] for start in range(0, len(body), _LINE))
    return "\n".join(_hex_line(index * _LINE, line) for index, line in enumerate(lines))


def _hex_line(offset: int, line: bytes) -> str:
    text = "".join(chr(octet) if 0x20 <= octet < 0x7F else "." for octet in line)
    return f"{offset:08x}  {line.hex(' '):<{_LINE * 3 - 1}}  {text}"


_VIEW_LABELS: Final = {BodyView.TEXT: "Text", BodyView.JSON: "JSON", BodyView.HEX: "Bytes"}


def message_page(context: RequestContext) -> ConsolePage:
    """Return the page of the message that the query names; raise ``BrokerError`` or ``BadRequestError``."""
    entity, sequence = entity_of(context.query), context.number("sequence")
    message = _find(context, entity, sequence)
    wanted = context.query.get("view", "")
    view = BodyView(wanted) if wanted in set(BodyView) else best_view(message.body)
    views = [each for each in BodyView if each is not BodyView.JSON or as_json(message.body) is not None]
    return ConsolePage(
        template="message.html",
        title=f"Message {number(sequence)} of {entity.path}",
        section="entities",
        values={
            "path": entity.path,
            "back": entity.link(),
            "message": message,
            "sequence": number(sequence),
            "views": [
                {
                    "link": entity.link("message", sequence=message.sequence, view=each.value),
                    "label": _VIEW_LABELS[each],
                    "is_current": each is view,
                }
                for each in views
            ],
            "size": size(len(message.body)),
            "shown_size": size(SHOWN_BYTES) if len(message.body) > SHOWN_BYTES else "",
            "body": body_text(message.body, view),
            "can_resubmit": entity.part is not QueuePart.MAIN and context.is_admin,
            "fields": {**entity.fields, "sequence": sequence},
        },
    )


def _find(context: RequestContext, entity: ConsoleEntity, sequence: int) -> ShownMessage:
    found = context.host.use_namespace().peek(entity.address, sequence, 1, context.host.now_ms())
    if not found or found[0].record.sequence != sequence:
        raise MessageNotFoundError(
            f"'{entity.address}' has no message {sequence}; it may have been received", entity.path
        )
    return show(found[0])
