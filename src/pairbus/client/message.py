"""Messages as applications create and read them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pairbus.client.encoding import LONGEST_ID, encode_usual
from pairbus.client.errors import InvalidMessageError
from pairbus.client.validation import from_ms, to_ms
from pairbus.dialect.annotations import PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from pairbus.wire import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    EncodeError,
    Header,
    Message,
    Properties,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    encode,
    encode_message,
)

NORMAL: Final = 4
"""The default priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmqpView:
    """The fields of a message's AMQP header, properties and annotations that have no attribute of their own."""

    durable: bool = True
    priority: int = NORMAL
    user_id: bytes | None = None
    content_encoding: str | None = None
    creation_time: datetime | None = None
    absolute_expiry_time: datetime | None = None
    group_sequence: int | None = None
    annotations: Mapping[str, Any] = field(default_factory=dict)
    """Message annotations that are not attributes of the message."""

    delivery_annotations: Mapping[str, Any] = field(default_factory=dict)
    footer: Mapping[str, Any] = field(default_factory=dict)


JSON: Final = "application/json"
_LONGEST_TTL_MS: Final = 0xFFFFFFFF
_LATEST_MS: Final = 253_402_300_799_999
_MS: Final = timedelta(milliseconds=1)

MessageId = str | UUID | int | bytes
"""The types of a message id; usually a str."""


class BodyKind(Enum):
    """The AMQP section type of a body; ``DATA`` (bytes) suits most applications."""

    DATA = DATA
    """Bytes, including encoded text and JSON."""
    VALUE = AMQP_VALUE
    """One AMQP value: a string, a number, a list, a map …"""
    SEQUENCE = AMQP_SEQUENCE
    """A list of AMQP values."""


_BYTES: Final = BodyKind.DATA


class BrokeredMessage:
    """A message: a body, the properties that Service Bus defines, and application properties.

    The body may be bytes, a ``str`` (sent as UTF-8), or any value that ``json`` can serialize (sent as JSON, with the
    content type ``application/json`` unless another one is set).
    """

    __slots__ = (
        "amqp",
        "application_properties",
        "body",
        "body_kind",
        "content_type",
        "correlation_id",
        "label",
        "message_id",
        "partition_key",
        "reply_to",
        "reply_to_session_id",
        "scheduled_enqueue_time",
        "session_id",
        "time_to_live",
        "to",
        "via_partition_key",
    )

    body: Any
    body_kind: BodyKind
    message_id: MessageId
    session_id: str | None
    partition_key: str | None
    via_partition_key: str | None
    label: str | None
    content_type: str | None
    correlation_id: MessageId | None
    to: str | None
    reply_to: str | None
    reply_to_session_id: str | None
    time_to_live: timedelta | None
    scheduled_enqueue_time: datetime | None
    application_properties: dict[str, Any]
    amqp: AmqpView | None
    """The other AMQP fields of a message; ``None`` if none of them is set."""

    def __init__(
        self,
        body: Any = b"",
        *,
        message_id: MessageId | None = None,
        session_id: str | None = None,
        partition_key: str | None = None,
        via_partition_key: str | None = None,
        label: str | None = None,
        content_type: str | None = None,
        correlation_id: MessageId | None = None,
        to: str | None = None,
        reply_to: str | None = None,
        reply_to_session_id: str | None = None,
        time_to_live: timedelta | None = None,
        scheduled_enqueue_time: datetime | None = None,
        application_properties: Mapping[str, Any] | None = None,
        body_kind: BodyKind = BodyKind.DATA,
        amqp: AmqpView | None = None,
    ) -> None:
        self.body = body
        self.body_kind = body_kind
        self.amqp = amqp
        self.message_id = os.urandom(16).hex() if message_id is None else message_id
        self.session_id = session_id
        self.partition_key = partition_key
        self.via_partition_key = via_partition_key
        self.label = label
        self.content_type = content_type
        self.correlation_id = correlation_id
        self.to = to
        self.reply_to = reply_to
        self.reply_to_session_id = reply_to_session_id
        self.time_to_live = time_to_live
        self.scheduled_enqueue_time = scheduled_enqueue_time
        self.application_properties = {} if application_properties is None else dict(application_properties)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.message_id!r}>"

    def text(self) -> str:
        """Return the body as text; raises ``ValueError`` if it is not text."""
        if isinstance(self.body, str):
            return self.body
        if isinstance(self.body, bytes | bytearray | memoryview):
            return bytes(self.body).decode()
        raise ValueError(f"the body is {type(self.body).__name__}, not text")

    def json(self) -> Any:
        """Return the body parsed as JSON; raises ``ValueError`` if it is not JSON."""
        return json.loads(self.body) if isinstance(self.body, str | bytes | bytearray) else self.body


def messages_of(messages: Any) -> list[BrokeredMessage]:
    """Return a list of messages; raises ``InvalidMessageError`` if the argument is not an iterable of messages."""
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Iterable):
        kind = type(messages).__name__
        raise InvalidMessageError(f"a message must be a BrokeredMessage, got {kind}; pass BrokeredMessage(…)")
    return list(messages)


def encode_brokered(
    message: Any, scheduled: datetime | None = None, trace_context: Mapping[str, str] | None = None
) -> bytes:
    """Return the encoded message; raises ``InvalidMessageError``. ``scheduled`` overrides the message's own time.

    ``trace_context`` is added to the application properties; the message itself stays as it is.
    """
    if not isinstance(message, BrokeredMessage):
        kind = type(message).__name__
        raise InvalidMessageError(f"a message must be a BrokeredMessage, got {kind}; pass BrokeredMessage(…)")
    if scheduled is None and trace_context is None:
        usual = encode_usual(message, _BYTES)
        if usual is not None:
            return usual
    try:
        return _encode(message, message.scheduled_enqueue_time if scheduled is None else scheduled, trace_context)
    except (AttributeError, EncodeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        if isinstance(error, InvalidMessageError):
            raise
        raise InvalidMessageError(
            f"the message {message.message_id!r:.100} cannot be sent: {_culprit(message)}{error}"
        ) from error


_TEXTS: Final = ("label", "content_type", "to", "reply_to", "session_id", "reply_to_session_id", "partition_key")


def _culprit(message: BrokeredMessage) -> str:
    """Return a prefix that names the attribute or property at fault, if it can be identified."""
    for name in (*_TEXTS, "via_partition_key"):
        value = getattr(message, name)
        if value is not None and not isinstance(value, str):
            return f"{name} must be a str, got {value!r:.50}; "
    if isinstance(message.application_properties, Mapping):
        for name, value in message.application_properties.items():
            try:
                encode(_amqp_value(value))
            except (EncodeError, OverflowError, TypeError, ValueError):
                return f"the application property {name!r:.50}: "
    return ""


def _encode(
    message: BrokeredMessage, scheduled: datetime | None, trace_context: Mapping[str, str] | None = None
) -> bytes:
    """Encode any message, one section after the other; raises the error of what cannot be encoded."""
    body, content_type = _body(message)
    header, created_ms, expires_ms = _lifetime(message.time_to_live)
    annotations: dict[Any, Any] | None = None
    if message.partition_key is not None or message.via_partition_key is not None or scheduled is not None:
        annotations = _annotations(message, scheduled)
    _check_length("message_id", message.message_id)
    _check_length("session_id", message.session_id)
    properties = Properties(
        _identity(message.message_id),
        None,
        message.to,
        message.label,
        message.reply_to,
        None if message.correlation_id is None else _identity(message.correlation_id),
        None if content_type is None else Symbol(content_type),
        None,
        expires_ms,
        created_ms,
        message.session_id,
        None,
        message.reply_to_session_id,
    )
    application = _application(message.application_properties) if message.application_properties else None
    if trace_context is not None:
        application = {**(application or {}), **trace_context}
    if message.body_kind is not BodyKind.DATA or message.amqp is not None:
        whole = Message(header, None, annotations, properties, application, (body,), message.body_kind.value)
        return encode_message(whole if message.amqp is None else _with_view(whole, message.amqp))
    parts = [_DURABLE_HEADER if header is _DURABLE else encode(header)]
    if annotations:
        parts += (_MESSAGE_ANNOTATIONS, encode({Symbol(name): value for name, value in annotations.items()}))
    parts.append(encode(properties))
    if application:
        parts += (_APPLICATION_PROPERTIES, encode(application))
    parts += (_DATA, encode(body))
    return b"".join(parts)


def _with_view(message: Message, view: AmqpView) -> Message:
    """Return the message with the other AMQP fields; the times follow from the time to live, if there is one."""
    properties = message.properties
    created, expires = view.creation_time, view.absolute_expiry_time
    return replace(
        message,
        header=message.header._replace(durable=view.durable, priority=UByte(view.priority)),
        delivery_annotations=amqp_values(view.delivery_annotations) or None,
        message_annotations={**amqp_values(view.annotations), **(message.message_annotations or {})} or None,
        properties=properties._replace(
            user_id=view.user_id,
            content_encoding=None if view.content_encoding is None else Symbol(view.content_encoding),
            creation_time=properties.creation_time or (None if created is None else Timestamp(to_ms(created))),
            absolute_expiry_time=properties.absolute_expiry_time
            or (None if expires is None else Timestamp(to_ms(expires))),
            group_sequence=None if view.group_sequence is None else UInt(view.group_sequence),
        ),
        footer=amqp_values(view.footer) or None,
    )


def _body(message: BrokeredMessage) -> tuple[Any, str | None]:
    """Return the content of the body section, and the content type."""
    body = message.body
    if not isinstance(message.body_kind, BodyKind):
        raise InvalidMessageError(f"body_kind must be a BodyKind, got {message.body_kind!r:.100}")
    if message.body_kind is not BodyKind.DATA:
        return _amqp_value(body), message.content_type
    if isinstance(body, bytes):
        return body, message.content_type
    if isinstance(body, str):
        return body.encode(), message.content_type
    if isinstance(body, bytearray | memoryview):
        return bytes(body), message.content_type
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(), JSON if message.content_type is None else message.content_type


def _annotations(message: BrokeredMessage, scheduled: datetime | None) -> dict[Any, Any]:
    annotations: dict[Any, Any] = {}
    if message.partition_key is not None:
        _check_text("partition_key", message.partition_key)
        _check_length("partition_key", message.partition_key)
        if message.session_id is not None and message.session_id != message.partition_key:
            raise InvalidMessageError("session_id and partition_key must be equal if both are set")
        annotations[PARTITION_KEY] = message.partition_key
    if message.via_partition_key is not None:
        _check_text("via_partition_key", message.via_partition_key)
        annotations[VIA_PARTITION_KEY] = message.via_partition_key
    if scheduled is not None:
        if not isinstance(scheduled, datetime):
            raise InvalidMessageError(f"scheduled_enqueue_time must be a datetime, got {scheduled!r:.100}")
        annotations[SCHEDULED_ENQUEUE_TIME] = Timestamp(to_ms(scheduled))
    return annotations


_DURABLE: Final = Header(durable=True)
"""The header that makes a broker keep a message over a restart; a namespace always does."""

_FOR_EVER: Final = (_DURABLE, None, None)
_DURABLE_HEADER: Final = encode(_DURABLE)
_MESSAGE_ANNOTATIONS: Final = bytes((0x00, 0x53, MESSAGE_ANNOTATIONS))
_APPLICATION_PROPERTIES: Final = bytes((0x00, 0x53, APPLICATION_PROPERTIES))
_DATA: Final = bytes((0x00, 0x53, DATA))


def _lifetime(time_to_live: timedelta | None) -> tuple[Header, Timestamp | None, Timestamp | None]:
    """Return a header, the creation time and the expiry time, which cover times longer than the header can hold."""
    if time_to_live is None or time_to_live == timedelta.max:
        return _FOR_EVER
    if not isinstance(time_to_live, timedelta):
        raise InvalidMessageError(f"time_to_live must be a timedelta, got {time_to_live!r:.100}")
    length_ms = time_to_live // _MS
    if length_ms <= 0:
        raise InvalidMessageError(f"time_to_live must be at least one millisecond, got {time_to_live}")
    now_ms = int(time.time() * 1_000)
    return (
        _DURABLE._replace(ttl=UInt(min(length_ms, _LONGEST_TTL_MS))),
        Timestamp(now_ms),
        Timestamp(min(now_ms + length_ms, _LATEST_MS)),
    )


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidMessageError(f"{name} must be a str, got {value!r:.50}")


def _check_length(name: str, value: object) -> None:
    if isinstance(value, str | bytes) and len(value) > LONGEST_ID:
        raise InvalidMessageError(f"{name} has {len(value)} characters; at most {LONGEST_ID} are allowed")


def _identity(value: Any) -> Any:
    if type(value) is str:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return ULong(value)
    if isinstance(value, str):
        return str(value)  # not a subclass for one of AMQP's other text types
    if isinstance(value, bytes | UUID):
        return value
    raise InvalidMessageError(f"a message id must be a str, int, bytes or UUID, got {value!r:.100}")


def _application(properties: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in properties.items():
        if not isinstance(name, str):
            raise InvalidMessageError(f"the name of an application property must be a str, got {name!r:.100}")
        if isinstance(value, list | tuple | dict | set):
            raise InvalidMessageError(
                f"the application property {name!r:.100} is a {type(value).__name__}; only simple values are allowed"
            )
    return amqp_values(properties)


def amqp_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _amqp_value(value) for name, value in values.items()}


def _amqp_value(value: Any) -> Any:
    """Convert datetimes to AMQP timestamps, at any depth. The encoder rejects types that AMQP lacks."""
    if isinstance(value, datetime):
        return Timestamp(to_ms(value))
    if type(value) is list or type(value) is tuple:
        return [_amqp_value(item) for item in value]
    if type(value) is dict:
        return {name: _amqp_value(item) for name, item in value.items()}
    return value


def python_value(value: Any) -> Any:
    """Convert AMQP timestamps to datetimes, at any depth."""
    if type(value) is Timestamp:
        return from_ms(value)
    if type(value) is list:
        return [python_value(item) for item in value]
    if type(value) is dict:
        return {name: python_value(item) for name, item in value.items()}
    return value
