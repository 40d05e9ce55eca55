"""Messages as lines of JSON, with everything needed to send them again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from threading import Thread
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
from pairbus.client.errors import InvalidMessageError
from pairbus.client.message import AmqpView, BodyKind, BrokeredMessage, encode_brokered
from pairbus.client.received_message import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON, ReceivedMessage
from pairbus.dialect.paths import split_entity_path
from pairbus.wire import Sections

_CHUNK_BYTES: Final = 256 * 1024
_MS: Final = timedelta(milliseconds=1)
DEAD_LETTER_PROPERTIES: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION})
"""The application properties that dead-lettering adds."""

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
"""Fields that the namespace sets; they are ignored when the message is sent again."""

SENT: Final = (
    *("body", "body_base64", "body_kind", "message_id", "correlation_id", *TEXTS),
    *("time_to_live_ms", "scheduled_enqueue_time", "application_properties", "amqp"),
)
"""Fields that are sent."""

_NORMAL: Final = AmqpView()
_OTHER_ENDS: Final = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Characters that some readers take for the end of a line; JSON does not escape them."""


class MessageLineError(ValueError):
    """A line is not a valid message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBatch:
    """Messages that were read together, with their line numbers."""

    first_line: int
    last_line: int
    messages: list[BrokeredMessage]
    size_bytes: int


# Messages to lines.


def line_of(message: ReceivedMessage, entity: str) -> str:
    """Return a message as one line, without the line break. Raise ``InvalidMessageError`` if it cannot be decoded."""
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
    """Return the properties without those added by dead-lettering, which have fields and are not sent again."""
    path = split_entity_path(entity)
    added = DEAD_LETTER_PROPERTIES if path is not None and path.sub_queue is not None else frozenset()
    return {name: json_of(value) for name, value in properties.items() if name not in added}


def _body(message: ReceivedMessage, sections: Sections) -> dict[str, Any]:
    match message.body_kind:
        case BodyKind.VALUE:
            # In a list, because null is a valid body.
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
    """Return the fields that differ from the defaults, without times that are derived from a time to live."""
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


def read_batches(file: BinaryIO, first_line: int = 1) -> Iterator[LineBatch]:
    """Yield the messages of a file in batches, as they can be read.

    Raise ``MessageLineError``, which names the line, if one is invalid.
    """
    for numbers, lines in _numbered(file):
        wanted = [(number, line) for number, line in zip(numbers, lines, strict=True) if number >= first_line]
        messages = [_message(number, line) for number, line in wanted if line.strip()]
        if messages:
            yield LineBatch(
                first_line=wanted[0][0],
                last_line=wanted[-1][0],
                messages=messages,
                size_bytes=sum(map(len, lines)) + len(lines),
            )


def _numbered(file: BinaryIO) -> Iterator[tuple[range, list[bytes]]]:
    """Yield complete lines with their numbers as soon as they can be read from the file or pipe."""
    number = 1
    for lines in _lines(file):
        yield range(number, number + len(lines)), lines
        number += len(lines)


def _lines(file: BinaryIO) -> Iterator[list[bytes]]:
    read: Any = getattr(file, "read1", file.read)
    pieces: list[bytes] = []
    while chunk := read(_CHUNK_BYTES):
        *complete, rest = chunk.split(b"\n")
        if complete:
            yield [b"".join((*pieces, complete[0])), *complete[1:]]
            pieces = []
        pieces.append(rest)
    last = b"".join(pieces)
    if last:
        yield [last]


def _message(number: int, line: bytes) -> BrokeredMessage:
    try:
        message = message_of(line)
        encode_brokered(message)  # so that the error names the line
    except InvalidMessageError as error:
        raise MessageLineError(f"line {number:,}: {error.message}") from None
    except ValueError as error:
        raise MessageLineError(f"line {number:,}: {error}") from None
    return message


def message_of(line: str | bytes) -> BrokeredMessage:
    """Return the message of a line. Raise ``ValueError`` if it is invalid."""
    document = _parsed(line)
    for name in document:
        if name not in SENT and name not in READ_ONLY:
            nearest = get_close_matches(name, SENT, n=1)
            advice = f"did you mean '{nearest[0]}'?" if nearest else f"use one of {', '.join(SENT)}"
            raise ValueError(f"unknown field {name!r:.50}; {advice}")
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
        raise ValueError("the line is not valid UTF-8") from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg}, at column {error.colno:,}") from None
    if not isinstance(document, dict):
        raise ValueError('the line must be a JSON object such as {"body": "one espresso"}')  # noqa: TRY004 (bad input)
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
        raise ValueError(f"body_kind must be one of {', '.join(kinds)}, got {name!r:.50}")
    return kinds[name]


def _body_of(given: Mapping[str, Any], kind: BodyKind) -> Any:
    if "body_base64" in given:
        if "body" in given or kind is not BodyKind.DATA:
            raise ValueError("body_base64 replaces body and body_kind; remove them")
        return _read("body_base64", given, octets_of)
    body = given.get("body", b"")
    if kind is BodyKind.DATA:
        return body  # anything but text is sent as its JSON
    if not isinstance(body, list) or (kind is BodyKind.VALUE and len(body) != 1):
        length = " of one item" if kind is BodyKind.VALUE else ""
        raise ValueError(f"body must be a list{length} if body_kind is {kind.name.lower()}")
    values = _read("body", given, value_of)
    return values if kind is BodyKind.SEQUENCE else values[0]


def _milliseconds(given: Any) -> timedelta:
    return timedelta(milliseconds=whole_of(given))


def _values(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError("must be a JSON object of names and values")  # noqa: TRY004 (bad input)
    return {name: _read(name, given, value_of) for name in given}


def _view_of(given: Any) -> AmqpView:
    if not isinstance(given, dict):
        raise ValueError("must be a JSON object of names and values")  # noqa: TRY004 (bad input)
    unknown = given.keys() - _VIEW.keys()
    if unknown:
        raise ValueError(f"unknown field {min(unknown)!r:.50}; use one of {', '.join(_VIEW)}")
    return AmqpView(**{name: _read(name, given, _VIEW[name]) for name in given})


def _truth(given: Any) -> bool:
    if not isinstance(given, bool):
        raise ValueError(f"must be true or false, got {given!r:.50}")  # noqa: TRY004 (bad input)
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


_AHEAD: Final = 2
"""The number of batches to read ahead."""


async def read_ahead(batches: Iterator[LineBatch]) -> AsyncIterator[LineBatch]:
    """Yield the batches, which a thread reads ahead. Raise the error that reading raises."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[LineBatch | Exception | None] = asyncio.Queue(_AHEAD)

    def put(one: LineBatch | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(waiting.put(one), loop).result()

    def read() -> None:
        with suppress(CancelledError, RuntimeError):  # the consumer has stopped
            for one in _with_end(batches):
                put(one)

    # Not an executor thread: the event loop would wait for it, and input from a terminal may never arrive.
    Thread(target=read, name="pairbus-feed", daemon=True).start()
    while (one := await waiting.get()) is not None:
        if isinstance(one, Exception):
            raise one
        yield one


def _with_end(batches: Iterator[LineBatch]) -> Iterator[LineBatch | Exception | None]:
    try:
        yield from batches
    except (OSError, ValueError) as error:
        yield error
    yield None
