"""The sections of a message, and a message made of them (part 3.2 of the standard)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pairbus.wire.composites import any_message_id, binary, boolean, composite, string, symbol, timestamp, ubyte, uint

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

SECTION_CODES: Final = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": AMQP_SEQUENCE,
    "amqp:amqp-value:*": AMQP_VALUE,
    "amqp:footer:map": FOOTER,
}
"""The code of each section by its symbolic descriptor."""


@composite("amqp:header:list", HEADER, provides="section")
class Header(NamedTuple):
    """The transfer properties of a message. A tuple, because one is created for every message."""

    durable: boolean = False
    priority: ubyte = 4
    ttl: uint | None = None
    first_acquirer: boolean = False
    delivery_count: uint = 0


@composite("amqp:properties:list", PROPERTIES, provides="section")
class Properties(NamedTuple):
    """The standard properties of a message. A tuple, because one is created for every message."""

    message_id: any_message_id | None = None
    user_id: binary | None = None
    to: string | None = None
    subject: string | None = None
    reply_to: string | None = None
    correlation_id: any_message_id | None = None
    content_type: symbol | None = None
    content_encoding: symbol | None = None
    absolute_expiry_time: timestamp | None = None
    creation_time: timestamp | None = None
    group_id: string | None = None
    group_sequence: uint | None = None
    reply_to_group_id: string | None = None


NO_HEADER: Final = Header()
NO_PROPERTIES: Final = Properties()


@dataclass(frozen=True, slots=True)
class Message:
    """A message with all its sections decoded.

    ``body_kind`` is ``DATA`` (each of ``body`` is bytes), ``AMQP_SEQUENCE`` (each is a list) or ``AMQP_VALUE`` (one
    value of any type).
    """

    header: Header = NO_HEADER
    delivery_annotations: dict[Any, Any] | None = None
    message_annotations: dict[Any, Any] | None = None
    properties: Properties = NO_PROPERTIES
    application_properties: dict[Any, Any] | None = None
    body: tuple[Any, ...] = ()
    body_kind: int = DATA
    footer: dict[Any, Any] | None = None
