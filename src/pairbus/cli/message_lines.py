"""Messages as lines of JSON, with everything that sending them again needs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any, BinaryIO, Final, NoReturn

from pairbus.client.amqp_json import (
    base64_text,
    json_of,
    moment_of,
    moment_text,
    octets_of,
    text_of,
    value_of,
    whole_of,
)
from pairbus.client.amqp_view import AmqpView
from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import BodyKind, BrokeredMessage, encode_brokered
from pairbus.client.received_message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, ReceivedMessage
from pairbus.dialect.entity_path import split_entity_path
from pairbus.wire import Sections

_CHUNK_BYTES: Final = 256 * 1024
_MS: Final = timedelta(milliseconds=1)
DEAD_LETTER_PROPERTIES: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION})
"""What dead-lettering adds to the application's."""

TEXTS: Final = (
    "session_id",
    "partition_key",
    "via_partition_key",
    "label",
    "content_type",
    "to",
    "reply_to",
    "reply_to_session_id",
)
READ_ONLY: Final = (
    "entity",
    "sequence_number",
    "enqueued_sequence_number",
    "enqueued_time",
    "expires_at",
    "delivery_count",
    "state",
    "partition_id",
    "dead_letter_source",
    "dead_letter_reason",
    "dead_letter_error_description",
)
"""What the namespace has said of a message; who sends it again is told anew."""

SENT: Final = (
    *("body", "body_base64", "body_kind", "message_id", "correlation_id", *TEXTS),
    *("time_to_live_ms", "scheduled_enqueue_time", "application_properties", "amqp"),
)
"""What is sent."""

_NORMAL: Final = AmqpView()
_OTHER_ENDS: Final = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""What ends a line too, to some who read them; JSON leaves it as it is."""


class MessageLineError(ValueError):
    """A line is no message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Messages that were read together, with the lines that they stand in."""

    first_line: int
    last_line: int
    messages: list[BrokeredMessage]
    size_bytes: int


# Messages to lines.


def line_of(message: ReceivedMessage, entity: str) -> str:
    """One line, without its end. Raises ``InvalidMessageError`` for a message that cannot be read."""
    text = json.dumps(document_of(message, entity), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_OTHER_ENDS)


def document_of(message: ReceivedMessage, entity: str) -> dict[str, Any]:
    sections = Sections(message.payload)
    document: dict[str, Any] = {
        "entity": entity,
        "sequence_number": message.sequence_number,
        "enqueued_sequence_number": message.enqueued_sequence_number or None,
        "enqueued_time": moment_text(message.enqueued_time),
        "expires_at": None if message.expires_at is None else moment_text(message.expires_at),
        "delivery_count": message.delivery_count,
        "state": message.state.name.lower(),
        "partition_id": message.partition_id,
        "dead_letter_source": message.dead_letter_source,
        "dead_letter_reason": message.dead_letter_reason,
        "dead_letter_error_description": message.dead_letter_error_description,
        "message_id": json_of(sections.properties().message_id),
        "correlation_id": json_of(message.correlation_id),
        **{name: getattr(message, name) for name in TEXTS},
        "time_to_live_ms": None if message.time_to_live is None else message.time_to_live // _MS,
        "scheduled_enqueue_time": None
        if message.scheduled_enqueue_time is None
        else moment_text(message.scheduled_enqueue_time),
        "application_properties": _properties(sections.application_properties(), entity) or None,
        "amqp": _view(message) or None,
        **_body(message, sections),
    }
    return {name: value for name, value in document.items() if value is not None}


def _properties(properties: Mapping[str, Any], entity: str) -> dict[str, Any]:
    """Without what dead-lettering has added: that is told beside them, and not sent again."""
    path = split_entity_path(entity)
    added = DEAD_LETTER_PROPERTIES if path is not None and path.sub_queue is not None else frozenset()
    return {name: json_of(value) for name, value in properties.items() if name not in added}


def _body(message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    match message.body_kind:
        case BodyKind.VALUE:
            # In a list, because a body of nothing is a body.
            return {"body_kind": "value", "body": [json_of(sections.decode_body()[0])]}
        case BodyKind.SEQUENCE:
            items = [item for section in sections.decode_body() for item in section]
            return {"body_kind": "sequence", "body": json_of(items)}
    octets: bytes = message.body
    try:
        return {"body": octets.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64_text(octets)}


def _view(message: ReceivedMessage) -> dict[str, Any]:
    """What is not as usual of it. The times go with a time to live, if there is one, and are made anew from that."""
    view = message.amqp or _NORMAL
    if message.time_to_live is not None:
        view = replace(view, creation_time=None, absolute_expiry_time=None)
    return {
        field.name: _plain(getattr(view, field.name))
        for field in fields(AmqpView)
        if getattr(view, field.name) != getattr(_NORMAL, field.name)
    }


def _plain(value: Any) -> Any:
    match value:
        case datetime():
            return moment_text(value)
        case bytes():
            return base64_text(value)
        case Mapping():
            return {name: json_of(one) for name, one in value.items()}
    return value


# Lines to messages.


def read_batches(file: BinaryIO, first_line: int = 1) -> Iterator[Batch]:
    """The messages of a file, those together that could be read together.

    Raises ``MessageLineError``, which names the line.
    """
    for numbers, lines in _numbered(file):
        wanted = [(number, line) for number, line in zip(numbers, lines, strict=True) if number >= first_line]
        messages = [_message(number, line) for number, line in wanted if line.strip()]
        if messages:
            yield Batch(
                first_line=wanted[0][0],
                last_line=wanted[-1][0],
                messages=messages,
                size_bytes=sum(map(len, lines)) + len(lines),
            )


def _numbered(file: BinaryIO) -> Iterator[tuple[range, list[bytes]]]:
    """Whole lines as they come: from a pipe, whatever is there."""
    number = 1
    for lines in _lines(file):
        yield range(number, number + len(lines)), lines
        number += len(lines)


def _lines(file: BinaryIO) -> Iterator[list[bytes]]:
    read: Any = getattr(file, "read1", file.read)
    pieces: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        *whole, rest = chunk.split(b"\n")
        if whole:
            yield [b"".join((*pieces, whole[0])), *whole[1:]]
            pieces = []
        pieces.append(rest)
    last = b"".join(pieces)
    if last:
        yield [last]


def _message(number: int, line: bytes) -> BrokeredMessage:
    try:
        message = message_of(line)
        encode_brokered(message)  # what cannot be sent is told with its line
    except InvalidMessageError as error:
        raise MessageLineError(f"line {number:,}: {error.message}") from None
    except ValueError as error:
        raise MessageLineError(f"line {number:,}: {error}") from None
    return message


def message_of(line: str | bytes) -> BrokeredMessage:
    """The message of a line. Raises ``ValueError``."""
    document = _parsed(line)
    for name in document:
        if name not in SENT and name not in READ_ONLY:
            nearest = get_close_matches(name, SENT, n=1)
            advice = f"is '{nearest[0]}' meant?" if nearest else f"there are {', '.join(SENT)}"
            raise ValueError(f"a message has no {name!r:.50}; {advice}")
    given = {name: document[name] for name in SENT if document.get(name) is not None}
    kind = _body_kind(given)
    return BrokeredMessage(
        _body_of(given, kind),
        body_kind=kind,
        message_id=_read("message_id", given, value_of),
        correlation_id=_read("correlation_id", given, value_of),
        **{name: _read(name, given, text_of) for name in TEXTS},
        time_to_live=_read("time_to_live_ms", given, _milliseconds),
        scheduled_enqueue_time=_read("scheduled_enqueue_time", given, moment_of),
        application_properties=_read("application_properties", given, _values),
        amqp=_read("amqp", given, _view_of),
    )


def _parsed(line: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(line, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ValueError("it is no text in UTF-8") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg}, at column {error.colno:,}") from None
    if not isinstance(document, dict):
        raise ValueError('it is no JSON object such as {"body": "one espresso"}')  # noqa: TRY004 (of whoever wrote it)
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'JSON has no {name}; write {{"double": "{name}"}}')


def _read(name: str, given: Mapping[str, Any], read: Any) -> Any:
    if name not in given:
        return None
    try:
        return read(given[name])
    except (ArithmeticError, RecursionError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None


def _body_kind(given: Mapping[str, Any]) -> BodyKind:
    name = given.get("body_kind", "data")
    kinds = {kind.name.lower(): kind for kind in BodyKind}
    if not isinstance(name, str) or name not in kinds:
        raise ValueError(f"body_kind: {name!r:.50} is none of {', '.join(kinds)}")
    return kinds[name]


def _body_of(given: Mapping[str, Any], kind: BodyKind) -> Any:
    if "body_base64" in given:
        if "body" in given or kind is not BodyKind.DATA:
            raise ValueError("body_base64: it is there instead of a body")
        return _read("body_base64", given, octets_of)
    body = given.get("body", b"")
    if kind is BodyKind.DATA:
        return body  # what is no text is sent as the JSON that it is
    if not isinstance(body, list) or (kind is BodyKind.VALUE and len(body) != 1):
        raise ValueError(f"body: of the kind {kind.name.lower()} it is a list{' of one' * (kind is BodyKind.VALUE)}")
    values = _read("body", given, value_of)
    return values if kind is BodyKind.SEQUENCE else values[0]


def _milliseconds(given: Any) -> timedelta:
    return timedelta(milliseconds=whole_of(given))


def _values(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("they are names with their values, in braces")  # noqa: TRY004 (of whoever wrote it)
    return {name: _read(name, given, value_of) for name in given}


def _view_of(given: Any) -> AmqpView:
    if not isinstance(given, dict):
        raise ValueError("it is names with their values, in braces")  # noqa: TRY004 (of whoever wrote it)
    unknown = given.keys() - _VIEW.keys()
    if unknown:
        raise ValueError(f"there is no {min(unknown)!r:.50}; there are {', '.join(_VIEW)}")
    return AmqpView(**{name: _read(name, given, _VIEW[name]) for name in given})


def _truth(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"{given!r:.50} is not true or false")  # noqa: TRY004 (of whoever wrote it)
    return given


_VIEW: Final[dict[str, Callable[[Any], Any]]] = {
    "durable": _truth,
    "priority": whole_of,
    "user_id": octets_of,
    "content_encoding": text_of,
    "creation_time": moment_of,
    "absolute_expiry_time": moment_of,
    "group_sequence": whole_of,
    "annotations": _values,
    "delivery_annotations": _values,
    "footer": _values,
}
