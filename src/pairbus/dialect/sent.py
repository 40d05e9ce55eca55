"""A message as a sender hands it in: what the service has to know of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from pairbus.dialect.annotations import PARTITION_KEY, PING_CONTENT_TYPE, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from pairbus.wire import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    InvalidFieldError,
    Sections,
)

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

    A message without an id is given one, because the SDK for JavaScript cannot settle without. The payload stays as it
    was sent, so that its size is the one that the sender counted; ``stamp`` writes the id into what is delivered.
    """
    sections = Sections(payload)
    check_sections(sections)
    properties = sections.properties()
    annotations = _NO_ANNOTATIONS
    if MESSAGE_ANNOTATIONS in sections.spans:
        annotations = sections.message_annotations()
        _text_annotation(annotations, VIA_PARTITION_KEY)
    return SentMessage(
        payload,
        fresh_id() if properties.message_id is None else _text(properties.message_id),
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


def _text(identity: object) -> str:
    """A message id as the text that duplicates are found by; it keeps its own type in the message."""
    if type(identity) is str:
        return identity
    if isinstance(identity, bytes):
        return identity.hex()
    return str(identity) if isinstance(identity, UUID) else str(int(identity))  # type: ignore[call-overload]


def _text_annotation(annotations: dict[Any, Any], name: str) -> str | None:
    value = annotations.get(name)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidFieldError(f"{name} must be text in UTF-8, got {value!r:.100}") from error
    if value is None or isinstance(value, str):
        return value
    raise InvalidFieldError(f"{name} must be a string or binary, got {value!r:.100}")


def _time_annotation(annotations: dict[Any, Any], name: str) -> int | None:
    value = annotations.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise InvalidFieldError(f"{name} is {value!r:.100}, which is no time")
