"""The encoding of a message in its usual form, section by section; it runs for every message that is sent.

Whatever is not usual is left to the caller, who has the errors for values that cannot be sent.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from pairbus.dialect.sent import data_head
from pairbus.wire import APPLICATION_PROPERTIES, PROPERTIES, Header, encode
from pairbus.wire.encoder import (
    enclose_fields,
    enclose_map,
    encode_boolean,
    encode_double,
    encode_long,
    encode_string,
    encode_symbol,
)

LONGEST_ID: Final = 128
"""The maximum length of an id, in characters."""

_DURABLE_HEADER: Final = encode(Header(durable=True))
_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES))
_APPLICATION_PROPERTIES: Final = bytes((0x00, 0x53, APPLICATION_PROPERTIES))
_CONTENT_TYPE: Final = 6
"""The index of the content type, which is a symbol, among the properties."""


def encode_usual(message: Any, data_kind: object) -> bytes | None:
    """Return the encoded message: bytes or text with properties that are texts; ``None`` if it is another one.

    ``message`` is a ``BrokeredMessage``, and ``data_kind`` the kind of a body of bytes.
    """
    try:
        return _encode(message, data_kind)
    except (AttributeError, OverflowError, TypeError, ValueError, struct.error):  # UnicodeEncodeError is a ValueError
        return None


def _encode(message: Any, data_kind: object) -> bytes | None:
    if (
        message.body_kind is not data_kind
        or message.amqp is not None
        or message.time_to_live is not None
        or message.scheduled_enqueue_time is not None
        or message.partition_key is not None
        or message.via_partition_key is not None
    ):
        return None
    body: object = message.body
    if type(body) is str:
        body = body.encode()
    if type(body) is not bytes:
        return None
    properties = _encode_properties(message)
    application = _encode_application(message.application_properties)
    if properties is None or application is None:
        return None
    return b"".join((_DURABLE_HEADER, properties, application, data_head(len(body)), body))


def _encode_properties(message: Any) -> bytes | None:
    message_id, session_id = message.message_id, message.session_id
    values = (
        message_id,
        None,
        message.to,
        message.label,
        message.reply_to,
        message.correlation_id,
        message.content_type,
        None,
        None,
        None,
        session_id,
        None,
        message.reply_to_session_id,
    )
    if len(message_id) > LONGEST_ID or (session_id is not None and len(session_id) > LONGEST_ID):
        return None
    fields, count, nulls = b"", 0, 0
    for index, value in enumerate(values):
        if value is None:
            nulls += 1
        elif type(value) is str:
            fields += b"\x40" * nulls + (encode_symbol(value) if index == _CONTENT_TYPE else encode_string(value))
            count += nulls + 1
            nulls = 0
        else:
            return None
    return _PROPERTIES + enclose_fields(count, fields)


def _encode_application(properties: Any) -> bytes | None:
    if type(properties) is not dict:
        return None
    if not properties:
        return b""
    pairs = b""
    for name, value in properties.items():
        if type(name) is not str:
            return None
        kind = type(value)
        if kind is str:
            encoded = encode_string(value)
        elif kind is int:
            encoded = encode_long(value)
        elif kind is bool:
            encoded = encode_boolean(value)
        elif kind is float:
            encoded = encode_double(value)
        else:
            return None
        pairs += encode_string(name) + encoded
    return _APPLICATION_PROPERTIES + enclose_map(len(properties), pairs)
