"""A message as a sender hands it in: what the service has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.dialect.annotations import PARTITION_KEY, PING_CONTENT_TYPE, SCHEDULED_ENQUEUE_TIME
from pairbus.wire import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    InvalidFieldError,
    Properties,
    Sections,
    encode,
)
from pairbus.wire.sections import PROPERTIES

_NO_ANNOTATIONS: Final[dict[Any, Any]] = {}


class SentMessage(NamedTuple):
    """What the sender set; ``payload`` is the whole encoded message."""

    payload: bytes
    message_id: str
    session_id: str | None
    partition_key: str | None
    time_to_live_ms: int | None
    scheduled_ms: int | None
    header_bytes: int
    """How much of the payload is not body."""

    is_ping: bool


def read_sent(payload: bytes, fresh_id: Callable[[], str]) -> SentMessage:
    """Read a message, all of it that a receiver would have to; raises ``ProtocolError``.

    One without a message id is given one: the SDK for JavaScript cannot settle without.
    """
    sections = Sections(payload)
    check_sections(sections)
    properties = sections.properties()
    if properties.message_id is None:
        properties = properties._replace(message_id=fresh_id())
        payload = _with_properties(sections, properties)
        sections = Sections(payload)
    annotations = _NO_ANNOTATIONS
    if MESSAGE_ANNOTATIONS in sections.spans:
        annotations = sections.message_annotations()
    return SentMessage(
        payload,
        _text(properties.message_id),
        properties.group_id,
        _text_annotation(annotations, PARTITION_KEY),
        sections.header().ttl,
        _time_annotation(annotations, SCHEDULED_ENQUEUE_TIME),
        len(payload) - sum([end - start for _, start, _, end in sections.body]),
        properties.content_type == PING_CONTENT_TYPE,
    )


def check_sections(sections: Sections) -> None:
    """Refuse now what every receiver would stumble over later."""
    spans = sections.spans
    if APPLICATION_PROPERTIES in spans:
        sections.application_properties()
    if DELIVERY_ANNOTATIONS in spans:
        sections.delivery_annotations()
    if FOOTER in spans:
        sections.footer()
    check_body(sections)


def check_body(sections: Sections) -> None:
    """Refuse a body that no receiver could read."""
    body = sections.body
    if len(body) != 1 or body[0][0] != DATA:
        sections.decode_body()
    elif sections.payload[body[0][2]] not in {0xA0, 0xB0}:
        raise InvalidFieldError("a data section is not binary")


def _with_properties(sections: Sections, properties: Properties) -> bytes:
    """The same message with other properties, in the standard's order."""
    payload = sections.payload
    head = b"".join([sections.raw(code) for code in range(0x70, PROPERTIES)])
    body = b"".join([payload[start:end] for _, start, _, end in sections.body])
    # A message without a body has none that an SDK would read; the standard wants at least one section.
    if not body:
        body = bytes((0x00, 0x53, AMQP_VALUE, 0x40))
    tail = sections.raw(FOOTER)
    return head + encode(properties) + sections.raw(APPLICATION_PROPERTIES) + body + tail


def _text(identity: object) -> str:
    """A message id as the text that duplicates are found by; it keeps its own type in the message."""
    if type(identity) is str:
        return identity
    if isinstance(identity, bytes):
        return identity.hex()
    return str(identity) if isinstance(identity, UUID) else str(int(identity))  # type: ignore[call-overload]


def _text_annotation(annotations: dict[Any, Any], name: str) -> str | None:
    value = annotations.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidFieldError(f"{name} is {value!r:.100}, which is no text")


def _time_annotation(annotations: dict[Any, Any], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise InvalidFieldError(f"{name} is {value!r:.100}, which is no time")
