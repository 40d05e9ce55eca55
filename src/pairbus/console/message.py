"""A message to look at: what is known of it, and its body as text, as JSON or as bytes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pairbus.broker import NEVER, Delivery, MessageState
from pairbus.broker.reasons import DESCRIPTION_PROPERTY, REASON_PROPERTY
from pairbus.client.amqp_json import type_name
from pairbus.console.wording import moment, number, size
from pairbus.server.messages import delivered_payload
from pairbus.spark.value_text import text_of
from pairbus.wire import ProtocolError, Sections
from pairbus.wire.sections import DATA

SHOWN_BYTES: Final = 64 * 1024
"""How much of a body is shown."""

_LINE: Final = 16


class View(StrEnum):
    """How a body is shown."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownValue:
    """An AMQP value as a person reads it."""

    text: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """A message that was looked at."""

    sequence: int
    message_id: str
    session_id: str
    enqueued: str
    size: str
    deliveries: int
    state: str
    reason: str
    description: str
    """Why it is a dead letter, if it is one."""

    facts: tuple[tuple[str, str], ...]
    """Everything else that is known, as names and values."""

    properties: tuple[tuple[str, ShownValue], ...]
    """The application properties."""

    body: bytes
    body_kind: str


def show(delivery: Delivery) -> ShownMessage:
    """Look at a message, whatever is in it."""
    record = delivery.record
    sections, properties = _read(delivery)
    body, kind = (b"", "cannot be read") if sections is None else _body(sections)
    return ShownMessage(
        sequence=record.sequence,
        message_id=record.message_id,
        session_id=record.session_id or "",
        enqueued=moment(record.enqueued_ms),
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


def _read(delivery: Delivery) -> tuple[Sections | None, dict[str, ShownValue]]:
    try:
        sections = Sections(delivered_payload(delivery))
        return sections, {str(name): shown_value(value) for name, value in sections.application_properties().items()}
    except ProtocolError:
        return None, {}


def _text_of_property(properties: dict[str, ShownValue], name: str) -> str:
    return properties[name].text if name in properties else ""


def _facts(delivery: Delivery, sections: Sections | None) -> list[tuple[str, str]]:
    record = delivery.record
    facts = {
        "Sequence number": number(record.sequence),
        "Message id": record.message_id,
        "Session id": record.session_id,
        "Partition key": record.partition_key,
        "State": MessageState(record.state).name.lower(),
        "Enqueued": moment(record.enqueued_ms),
        "Expires": None if record.expires_ms == NEVER else moment(record.expires_ms),
        "Scheduled for": None if record.scheduled_ms is None else moment(record.scheduled_ms),
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
    """Return the bytes of a body, or its value as text, and what kind of body it is."""
    try:
        if all(code == DATA for code, *_ in sections.body):
            return sections.data(), "bytes"
        values = sections.decode_body()
    except ProtocolError:
        return b"", "cannot be read"
    value = values[0] if len(values) == 1 else values
    if type(value) is bytes:
        return value, "AMQP value, binary"
    return _text(value).encode("utf-8", "replace"), f"AMQP value, {type_name(value)}"


def shown_value(value: object) -> ShownValue:
    return ShownValue(text=_text(value), type=type_name(value))


def _text(value: object) -> str:
    """Write a value as text. Bytes are shown as the text that they are, or in hexadecimal digits."""
    if type(value) is bytes:
        return value.decode() if _is_text(value) else value.hex(" ")
    text = text_of(value)
    return "null" if text is None else text


def best_view(body: bytes) -> View:
    """How a body is shown to somebody who has not said how."""
    if as_json(body) is not None:
        return View.JSON
    return View.TEXT if _is_text(body) else View.HEX


def body_text(body: bytes, view: View) -> str:
    """The body as it is shown; of a long one the beginning."""
    if view is View.JSON:
        pretty = as_json(body)
        if pretty is not None:
            return pretty
    shown = body[:SHOWN_BYTES]
    return _hex(shown) if view is View.HEX else shown.decode("utf-8", "replace")


def as_json(body: bytes) -> str | None:
    """An object or a list, laid out; ``None`` if the body is none, or is too long for it."""
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
