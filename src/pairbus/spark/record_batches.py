"""Messages as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from pairbus.client.message import BodyKind
from pairbus.client.received_message import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    MessageState,
    ReceivedMessage,
)
from pairbus.dialect.annotations import (
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    MESSAGE_STATE,
    PARTITION_ID,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
    VIA_PARTITION_KEY,
)
from pairbus.dialect.sent import Enqueued, read_enqueued
from pairbus.spark.filters import column_of, matches
from pairbus.spark.schema import arrow_schema
from pairbus.spark.value_text import text_of, type_of
from pairbus.wire import Header, Properties, ProtocolError, Sections

NO_NUMBER: Final = -1
"""The sequence number of a message that has none. No message has this number, and the column has no nulls."""

_LARGEST: Final = (1 << 63) - 1
_LONGEST_TTL_MS: Final = 0xFFFFFFFF
_EARLIEST_MS: Final = -62_135_596_800_000
_LATEST_MS: Final = 253_402_300_799_999
"""The range of Python's ``datetime``, the years 1 to 9999: rows with other times could not be collected."""

_MS: Final = pa.timestamp("ms", tz="UTC")
_US: Final = pa.timestamp("us", tz="UTC")
_NOT_READ: Final[Any] = Header(None, None, None, None, None)  # type: ignore[arg-type]
_KINDS: Final = {kind.value: kind.name.lower() for kind in BodyKind}
_STATES: Final = {state.value: state.name.lower() for state in MessageState}
_ACTIVE: Final = MessageState.ACTIVE.name.lower()


class RecordBatches:
    """Converts pages of messages to record batches of one schema; only sections that the columns need are decoded.

    A malformed message does not stop the others: its unreadable columns are null. Its ``payload`` is complete.
    """

    def __init__(self, schema: StructType, filters: Sequence[Filter] = ()) -> None:
        """``filters`` select rows; the other columns are decoded only for these."""
        self._schema = arrow_schema(schema)
        self._columns = [(_COLUMNS[field.name], field.type) for field in self._schema]
        self._filters = [(one, column_of(one)) for one in filters]

    def of(
        self, entity: str, messages: Sequence[ReceivedMessage], tokens: Mapping[int, str] | None = None
    ) -> pa.RecordBatch:
        """Return the messages of an entity; ``tokens`` has the lock tokens of locked ones by sequence number."""
        page = self._filtered(_Page(entity, [message.payload for message in messages], tokens or {}))
        columns = [_array(read(page), kind) for read, kind in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _filtered(self, page: _Page) -> _Page:
        for one, name in self._filters:
            chosen = matches(one, _array(_COLUMNS[name](page), self._schema.field(name).type))
            page = page if all(chosen) else page.only(chosen)
        return page


class _Page:
    """A page of messages, and the sections decoded so far."""

    def __init__(self, entity: str, payloads: list[bytes], tokens: Mapping[int, str]) -> None:
        self.entity = entity
        self.payloads = payloads
        self.tokens = tokens

    def only(self, chosen: Iterable[bool]) -> _Page:
        """Return the chosen messages."""
        return _Page(self.entity, [*compress(self.payloads, chosen)], self.tokens)

    @cached_property
    def enqueued(self) -> list[Enqueued]:
        return [read_enqueued(payload) for payload in self.payloads]

    @cached_property
    def numbers(self) -> list[int]:
        numbers = [one.sequence_number for one in self.enqueued]
        return [number if number is not None and number <= _LARGEST else NO_NUMBER for number in numbers]

    @cached_property
    def sections(self) -> list[Sections | None]:
        return [_sections(payload) for payload in self.payloads]

    @cached_property
    def headers(self) -> list[Header]:
        return self._each(Sections.header, _NOT_READ)

    @cached_property
    def properties(self) -> list[Properties]:
        return self._each(Sections.properties, Properties())

    @cached_property
    def annotations(self) -> list[dict[Any, Any] | None]:
        return self._each(Sections.message_annotations, None)

    @cached_property
    def application_properties(self) -> list[dict[str, Any] | None]:
        return self._each(Sections.application_properties, None)

    @cached_property
    def lengths_ms(self) -> list[int | None]:
        """Times to live; one longer than the header can hold is computed from creation and expiry time."""
        lengths_ms = [header.ttl for header in self.headers]
        if _LONGEST_TTL_MS not in lengths_ms:
            return lengths_ms
        return [_length_ms(ttl, properties) for ttl, properties in zip(lengths_ms, self.properties, strict=True)]

    def _each(self, read: Callable[[Sections], Any], unreadable: object) -> list[Any]:
        found: list[Any] = []
        for sections in self.sections:
            try:
                found.append(unreadable if sections is None else read(sections))
            except ProtocolError:
                found.append(unreadable)
        return found

    def bodies(self) -> list[bytes | None]:
        return self._each(_body, None)

    def body_kinds(self) -> list[str | None]:
        return self._each(_body_kind, None)


def _sections(payload: bytes) -> Sections | None:
    try:
        return Sections(payload)
    except ProtocolError:
        return None


# Values made from sections.


def _body(sections: Sections) -> bytes | None:
    """Return a binary body as it is, and any other as text, which is JSON for lists and maps."""
    if not sections.body:
        return b""
    kind = BodyKind(sections.body[0][0])
    if kind is BodyKind.DATA:
        return sections.data()
    values = sections.decode_body()
    value = values[0] if kind is BodyKind.VALUE else [item for section in values for item in section]
    if type(value) is bytes:
        return value
    text = text_of(value)
    return None if text is None else text.encode()


def _body_kind(sections: Sections) -> str:
    return _KINDS[sections.body[0][0] if sections.body else BodyKind.DATA.value]


def _length_ms(ttl: int | None, properties: Properties) -> int | None:
    created_ms, expires_ms = properties.creation_time, properties.absolute_expiry_time
    if ttl != _LONGEST_TTL_MS or created_ms is None or expires_ms is None:
        return ttl
    return max(ttl, expires_ms - created_ms)


def _expiry_ms(time_ms: int | None, length_ms: int | None) -> int | None:
    """Return the expiry time; ``None`` (never) if it is after the end of the calendar."""
    if time_ms is None or length_ms is None:
        return None
    expires_ms = time_ms + length_ms
    return expires_ms if expires_ms <= _LATEST_MS else None


def _state(found: Mapping[Any, Any] | None) -> str | None:
    if found is None:
        return None
    value = found.get(MESSAGE_STATE)
    return _STATES.get(value, _ACTIVE) if isinstance(value, int) else _ACTIVE


def _id(value: object) -> str | None:
    """Return an id as text: bytes in hex, as duplicate detection compares them, so that it survives a forward."""
    if value is None or type(value) is str:
        return value
    return value.hex() if isinstance(value, bytes) else text_of(value)


def _texts(properties: Mapping[str, Any] | None) -> list[tuple[str, str | None]] | None:
    return None if properties is None else [(name, text_of(value)) for name, value in properties.items()]


def _headers(properties: Mapping[str, Any] | None) -> list[dict[str, str | None]] | None:
    if properties is None:
        return None
    return [{"key": name, "value": text_of(value), "type": type_of(value)} for name, value in properties.items()]


# Columns made from a page.

_Column = Callable[[_Page], Any]
"""The values of a column: a list, or an Arrow array."""


def _property(name: str) -> _Column:
    read = attrgetter(name)
    return lambda page: list(map(read, page.properties))


def _identity(name: str) -> _Column:
    read = attrgetter(name)
    return lambda page: [_id(read(properties)) for properties in page.properties]


def _annotation(name: str) -> _Column:
    return lambda page: [found.get(name) if found else None for found in page.annotations]


def _enqueued_sequence_numbers(page: _Page) -> list[Any]:
    """Return the numbers of the entities that the messages were sent to; services omit the number of the same queue."""
    own = _annotation(SEQUENCE_NUMBER)(page)
    first = _annotation(ENQUEUE_SEQUENCE_NUMBER)(page)
    return [one or number for one, number in zip(first, own, strict=True)]


def _application_property(name: str) -> _Column:
    return lambda page: [text_of(found.get(name)) if found else None for found in page.application_properties]


def _expires_at(page: _Page) -> list[int | None]:
    return [_expiry_ms(one.time_ms, length_ms) for one, length_ms in zip(page.enqueued, page.lengths_ms, strict=True)]


_COLUMNS: Final[dict[str, _Column]] = {
    "entity": lambda page: pa.repeat(page.entity, len(page.payloads)),
    "sequence_number": lambda page: page.numbers,
    "enqueued_time": lambda page: [one.time_ms for one in page.enqueued],
    "body": _Page.bodies,
    "body_kind": _Page.body_kinds,
    "message_id": _identity("message_id"),
    "session_id": _property("group_id"),
    "correlation_id": _identity("correlation_id"),
    "label": _property("subject"),
    "content_type": _property("content_type"),
    "to": _property("to"),
    "reply_to": _property("reply_to"),
    "reply_to_session_id": _property("reply_to_group_id"),
    "partition_key": _annotation(PARTITION_KEY),
    "via_partition_key": _annotation(VIA_PARTITION_KEY),
    "time_to_live_ms": lambda page: page.lengths_ms,
    "expires_at": _expires_at,
    "scheduled_enqueue_time": _annotation(SCHEDULED_ENQUEUE_TIME),
    "delivery_count": lambda page: [header.delivery_count for header in page.headers],
    "state": lambda page: [_state(found) for found in page.annotations],
    "enqueued_sequence_number": _enqueued_sequence_numbers,
    "partition_id": _annotation(PARTITION_ID),
    "dead_letter_source": _annotation(DEAD_LETTER_SOURCE),
    "dead_letter_reason": _application_property(DEAD_LETTER_REASON),
    "dead_letter_error_description": _application_property(DEAD_LETTER_DESCRIPTION),
    "application_properties": lambda page: [_texts(found) for found in page.application_properties],
    "headers": lambda page: [_headers(found) for found in page.application_properties],
    "payload": lambda page: page.payloads,
    "lock_token": lambda page: [page.tokens.get(number) for number in page.numbers],
}
"""The reader of each column. Values of a malformed message may not have the type of the column."""


# Arrow arrays made from columns.


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return the values that fit the type, and null for others, which only malformed messages have."""
    if isinstance(values, pa.Array):
        return values
    try:
        return _converted(values, kind)
    except (ArithmeticError, TypeError, ValueError):
        return _converted([value if _fits(value, kind) else None for value in values], kind)


def _fits(value: object, kind: pa.DataType) -> bool:
    try:
        _converted([value], kind)
    except (ArithmeticError, TypeError, ValueError):
        return False
    return True


def _converted(values: list[Any], kind: pa.DataType) -> pa.Array:
    if kind != _US:
        return pa.array(values, kind)
    times_ms = pa.array(values, pa.int64())
    times_ms = pc.max_element_wise(times_ms, _EARLIEST_MS, skip_nulls=False)
    times_ms = pc.min_element_wise(times_ms, _LATEST_MS, skip_nulls=False)
    return times_ms.cast(_MS).cast(_US)
