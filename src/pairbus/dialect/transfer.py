"""The diverted form of a message: as stored in a backlog queue until it is delivered to its destination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, Self

from pairbus.dialect.annotations import LOCK_TOKEN
from pairbus.dialect.annotations import SCHEDULED_ENQUEUE_TIME as SCHEDULED_ANNOTATION
from pairbus.dialect.delivered import STAMPED, is_lock_alone, is_stamp_alone
from pairbus.dialect.sent import check_body, whole_number
from pairbus.wire import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    DecodeError,
    Header,
    Properties,
    ProtocolError,
    Sections,
    Symbol,
    Timestamp,
    decode,
    encode,
)
from pairbus.wire.decoder import decode_at, skip
from pairbus.wire.encoder import enclose_map
from pairbus.wire.sections import NO_HEADER, NO_PROPERTIES

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_ENQUEUE_TIME: Final = "x-ms-scheduledenqueuetimeutc"
RESERVED: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME})
"""The application properties that are reserved for diverted messages."""

_SCHEDULED: Final = frozenset({SCHEDULED_ANNOTATION})
_LOCK_NAMES: Final = frozenset({LOCK_TOKEN.encode()})
_STAMPED_NAMES: Final = frozenset(name.encode() for name in STAMPED | _SCHEDULED)
_RESERVED_NAMES: Final = frozenset(name.encode() for name in RESERVED)
_SHORT_TEXTS: Final = frozenset({0xA1, 0xA3})
_LONGEST_TTL_MS: Final = 0xFFFFFFFF
_LONGEST_MS: Final = (1 << 63) - 1
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the maximum time of Service Bus."""

_DURABLE_HEADER: Final = encode(Header(durable=True))
_SHORT_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES, 0xC0))
_CONTENT_TYPE_INDEX: Final = 6
_SESSION_INDEX: Final = 10
_APPLICATION_PROPERTIES: Final = bytes((0x00, 0x53, APPLICATION_PROPERTIES))
_SHORT_DATA: Final = bytes((0x00, 0x53, DATA, 0xA0))
_LONG_DATA: Final = bytes((0x00, 0x53, DATA, 0xB0))
_PATH_KEY: Final = encode(PATH)

_NULL: Final = b"\x40"
_SHORT_BYTES: Final = 255
_MAP32: Final = Struct(">II")
_MOST_BYTES: Final = sum(len(encode(name)) for name in RESERVED) + 12 + 9 + 9 + 1
"""The maximum size added apart from the path: the names, a section, a long, a timestamp, a null for a text."""


class TransferError(ValueError):
    """The reason why a message can never be delivered."""

    def __init__(self, reason: str, path: str | None = None) -> None:
        super().__init__(reason)
        self.path = path
        """The destination, if it is known."""

    def __reduce__(self) -> tuple[type[Self], tuple[str, str | None]]:
        return type(self), (str(self), self.path)


class DivertedMessage(NamedTuple):
    """The fields of a diverted message that a syphon needs."""

    path: str
    session_id: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None


class _Pair(NamedTuple):
    """A key of a map and its value, decoded and encoded."""

    key: Any
    value: bytes
    raw: bytes


def divert(payload: bytes, path: str) -> bytes:
    """Return the message for a backlog queue; raises ``TransferError`` if it has a reserved property."""
    return _divert_usual(payload, path) or _divert_any(payload, path)


def _divert_any(payload: bytes, path: str) -> bytes:
    with _reading(path):
        sections = Sections(payload)
        header, properties = sections.header(), sections.properties()
        noted = _pairs(sections, MESSAGE_ANNOTATIONS)
        named = _pairs(sections, APPLICATION_PROPERTIES)
        scheduled_ms = _scheduled_ms(noted)
    _refuse_reserved(named, path)
    transfer = DivertedMessage(path, properties.group_id, _length_ms(header, properties), scheduled_ms)
    bare = properties._replace(group_id=None)
    if transfer.time_to_live_ms is not None:
        bare = bare._replace(absolute_expiry_time=None)
    return _joined(
        sections,
        _fields_section(sections.raw(HEADER), header, header._replace(ttl=None)),
        sections.raw(DELIVERY_ANNOTATIONS),
        _map_section(MESSAGE_ANNOTATIONS, _without(noted, frozenset() if scheduled_ms is None else _SCHEDULED)),
        _fields_section(sections.raw(PROPERTIES), properties, bare),
        _map_section(APPLICATION_PROPERTIES, [*(pair.raw for pair in named), *_kept(transfer)]),
    )


def _divert_usual(payload: bytes, path: str) -> bytes | None:
    """Divert a message that has nothing to clear, in the form in which our client writes it, without decoding it.

    That is a durable header, properties that are ASCII, application properties, and a body of bytes. Returns ``None``
    for any other message.
    """
    try:
        start = _end_of_texts(payload, len(_DURABLE_HEADER)) if payload.startswith(_DURABLE_HEADER) else 0
        if not start:
            return None
        count, first, body = _unreserved(payload, start)
        if not body or not _is_data(payload, body):
            return None
    except (IndexError, ProtocolError):
        return None
    pairs = payload[first:body] + _PATH_KEY + encode(path)
    return b"".join((payload[:start], _APPLICATION_PROPERTIES, enclose_map(count + 1, pairs), payload[body:]))


def _end_of_texts(payload: bytes, start: int) -> int:
    """Return the end of a section of properties if all of them are short texts, and none is a session id; else 0."""
    if not payload.startswith(_SHORT_PROPERTIES, start):
        return 0
    end = start + 5 + payload[start + 4]
    count = payload[start + 5]
    position = start + 6
    if count > _SESSION_INDEX:
        return 0
    for index in range(count):
        if payload[position] == 0x40:
            position += 1
            continue
        text = position + 2
        if payload[position] != (0xA3 if index == _CONTENT_TYPE_INDEX else 0xA1):
            return 0
        position = text + payload[position + 1]
        if not payload[text:position].isascii():
            return 0
    return end if position == end else 0


def _unreserved(payload: bytes, start: int) -> tuple[int, int, int]:
    """Return the number of application properties at ``start``, the start of the first, and the end of the last.

    The end is 0 if there are others than those with short ASCII names that are not reserved.
    """
    if not payload.startswith(_APPLICATION_PROPERTIES, start):
        return 0, start, start
    count, first = _map_start(payload, start + 3)
    position, end = first, skip(payload, start + 3)
    for _ in range(count // 2):
        if payload[position] != 0xA1:
            return 0, 0, 0
        value = position + 2 + payload[position + 1]
        name = payload[position + 2 : value]
        if not name.isascii() or name in _RESERVED_NAMES:
            return 0, 0, 0
        position = skip(payload, value)
    return count // 2, first, end if position == end and count % 2 == 0 else 0


def _is_data(payload: bytes, start: int) -> bool:
    """Return True if one section of data is all that follows."""
    if payload.startswith(_LONG_DATA, start):
        return start + 8 + int.from_bytes(payload[start + 4 : start + 8]) == len(payload)
    return payload.startswith(_SHORT_DATA, start) and start + 5 + payload[start + 4] == len(payload)


def growth_bytes(path: str) -> int:
    """Return the maximum growth in bytes of any message when it is diverted."""
    return _MOST_BYTES + len(encode(path))


def header_bytes(payload: bytes) -> int:
    """Return the number of bytes of a message that are not body; raises ``TransferError``."""
    with _reading(None):
        return len(payload) - sum([end - start for _, start, _, end in Sections(payload).body])


def find_sections(payload: bytes) -> Sections:
    """Find the sections of a message; raises ``TransferError``."""
    try:
        return Sections(payload)
    except ProtocolError as error:
        raise _unreadable(error, None) from error


def read_transfer(payload: bytes) -> DivertedMessage:
    """Decode the destination, and every part of a diverted message that a service checks; raises ``TransferError``."""
    return read_sections(find_sections(payload))


def read_sections(sections: Sections) -> DivertedMessage:
    """Do the same as ``read_transfer`` for a message whose sections are known."""
    try:
        named = sections.application_properties()
    except ProtocolError as error:
        raise _unreadable(error, None) from error
    path = named.get(PATH)
    if path is None:
        raise TransferError(f"the message has no destination: the application property {PATH} is missing")
    if type(path) is not str or not path:
        raise TransferError(f"{PATH} must be a path, got {path!r:.100}")
    try:
        _check_rest(sections)
    except ProtocolError as error:
        raise _unreadable(error, path) from error
    return DivertedMessage(path, _session_id(named, path), _time_to_live_ms(named, path), _enqueue_time_ms(named, path))


def restore(payload: bytes, transfer: DivertedMessage, *, time_to_live_ms: int | None = None) -> bytes:
    """Return the message as the application sent it, without what the service adds; raises ``TransferError``.

    ``payload`` is the diverted message that the transfer was read from. ``time_to_live_ms`` overrides the original
    time to live, if it is given.
    """
    length_ms = transfer.time_to_live_ms if time_to_live_ms is None else time_to_live_ms
    ttl = None if length_ms is None else min(length_ms, _LONGEST_TTL_MS)
    try:
        sections = Sections(payload)
        return _joined(
            sections,
            _restored_header(sections.raw(HEADER), ttl),
            _restored_delivery_annotations(sections),
            _restored_annotations(sections, transfer.scheduled_ms),
            _restored_properties(sections, transfer.session_id, length_ms),
            _map_section(APPLICATION_PROPERTIES, _left(sections, APPLICATION_PROPERTIES, _RESERVED_NAMES)),
        )
    except ProtocolError as error:
        raise _unreadable(error, transfer.path) from error


@contextmanager
def _reading(path: str | None) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: ProtocolError, path: str | None) -> TransferError:
    return TransferError(f"the message cannot be read: {error.description}", path)


# Reading.


def _refuse_reserved(named: Iterable[_Pair], path: str) -> None:
    for pair in named:
        if isinstance(pair.key, str) and pair.key in RESERVED:
            raise TransferError(f"the application property {pair.key} is reserved for diverted messages", path)


def _length_ms(header: Header, properties: Properties) -> int | None:
    """Return the time to live; one beyond the header's range is the difference of creation and expiry time."""
    created_ms, expires_ms = properties.creation_time, properties.absolute_expiry_time
    if header.ttl != _LONGEST_TTL_MS or created_ms is None or expires_ms is None:
        return header.ttl
    return min(max(header.ttl, expires_ms - created_ms), _LONGEST_MS)


def _scheduled_ms(noted: Iterable[_Pair]) -> int | None:
    """Return the scheduled enqueue time; an invalid one is left for the service to reject."""
    for pair in noted:
        if isinstance(pair.key, str) and pair.key in _SCHEDULED:
            number = whole_number(decode(pair.value))
            if number is not None:
                return min(number, _LONGEST_MS)
    return None


def _check_rest(sections: Sections) -> None:
    """Decode what a service would check, apart from the application properties; raises ``ProtocolError``."""
    if not is_lock_alone(sections.raw(DELIVERY_ANNOTATIONS)):
        sections.delivery_annotations()
    if not is_stamp_alone(sections.raw(MESSAGE_ANNOTATIONS)):
        sections.message_annotations()
    if FOOTER in sections.spans:
        sections.footer()
    _header(sections.raw(HEADER))
    sections.properties()
    check_body(sections)


@lru_cache(maxsize=256)
def _header(section: bytes) -> Header:
    """Return a decoded header; cached, because most messages have one of a few."""
    return Sections(section).header()


def _session_id(named: dict[str, Any], path: str) -> str | None:
    value = named.get(SESSION_ID)
    if value is None or type(value) is str:
        return value
    raise TransferError(f"{SESSION_ID} must be a string, got {value!r:.100}", path)


def _time_to_live_ms(named: dict[str, Any], path: str) -> int | None:
    value = named.get(TIME_TO_LIVE)
    if value is None:
        return None
    number = None if isinstance(value, Timestamp) else whole_number(value)
    if number is not None and number > 0:
        return number
    raise TransferError(f"{TIME_TO_LIVE} must be a time to live in milliseconds, got {value!r:.100}", path)


def _enqueue_time_ms(named: dict[str, Any], path: str) -> int | None:
    value = named.get(SCHEDULED_ENQUEUE_TIME)
    if value is None:
        return None
    if type(value) is Timestamp:
        return int(value)
    raise TransferError(f"{SCHEDULED_ENQUEUE_TIME} must be a timestamp, got {value!r:.100}", path)


# Writing.


def _kept(transfer: DivertedMessage) -> list[bytes]:
    """Return the application properties that keep the cleared values, each as its key and value."""
    pairs = [encode(PATH) + encode(transfer.path)]
    if transfer.session_id is not None:
        pairs.append(encode(SESSION_ID) + encode(transfer.session_id))
    if transfer.time_to_live_ms is not None:
        pairs.append(encode(TIME_TO_LIVE) + encode(int(transfer.time_to_live_ms)))
    if transfer.scheduled_ms is not None:
        pairs.append(encode(SCHEDULED_ENQUEUE_TIME) + encode(Timestamp(transfer.scheduled_ms)))
    return pairs


@lru_cache(maxsize=256)
def _restored_header(section: bytes, ttl: int | None) -> bytes:
    sent = _header(section)._replace(ttl=ttl, first_acquirer=False, delivery_count=0)
    return b"" if sent == NO_HEADER else encode(sent)


def _restored_delivery_annotations(sections: Sections) -> bytes:
    if is_lock_alone(sections.raw(DELIVERY_ANNOTATIONS)):
        return b""
    return _map_section(DELIVERY_ANNOTATIONS, _left(sections, DELIVERY_ANNOTATIONS, _LOCK_NAMES))


def _restored_annotations(sections: Sections, scheduled_ms: int | None) -> bytes:
    """Drop the enqueue time in the message: it is the one of the backlog."""
    pairs: list[bytes] = []
    if not is_stamp_alone(sections.raw(MESSAGE_ANNOTATIONS)):
        pairs = _left(sections, MESSAGE_ANNOTATIONS, _STAMPED_NAMES)
    if scheduled_ms is not None:
        pairs.append(encode(Symbol(SCHEDULED_ANNOTATION)) + encode(Timestamp(scheduled_ms)))
    return _map_section(MESSAGE_ANNOTATIONS, pairs)


def _restored_properties(sections: Sections, session_id: str | None, length_ms: int | None) -> bytes:
    """Set the expiry time from the time to live if the creation time is known, as in a message sent directly."""
    section = sections.raw(PROPERTIES)
    if session_id is None and length_ms is None:
        return section
    if session_id is not None and (usual := _with_session(section, session_id)):
        return usual
    before = sections.properties()
    after = before
    if session_id is not None:
        after = after._replace(group_id=session_id)
    if length_ms is not None and before.creation_time is not None:
        expires_ms = min(before.creation_time + length_ms, _LATEST_MS)
        after = after._replace(absolute_expiry_time=Timestamp(expires_ms))
    return _fields_section(section, before, after)


def _with_session(section: bytes, session_id: str) -> bytes | None:
    """Append a session id to short properties without a creation time; returns ``None`` for others."""
    count = section[5] if section.startswith(_SHORT_PROPERTIES) else 0
    if (section and not count) or count >= _SESSION_INDEX:
        return None
    fields = section[6:] + _NULL * (_SESSION_INDEX - count) + encode(session_id)
    if len(fields) >= _SHORT_BYTES:
        return None
    return _SHORT_PROPERTIES + bytes((len(fields) + 1, _SESSION_INDEX + 1)) + fields


def _joined(sections: Sections, *head: bytes) -> bytes:
    """Join a message: the sections before the body, then the body and the footer unchanged."""
    body = [sections.payload[start:end] for _, start, _, end in sections.body]
    return b"".join([*head, *body, sections.raw(FOOTER)])


def _fields_section(section: bytes, before: Header | Properties, fields: Header | Properties) -> bytes:
    """Encode a section of fields: the original bytes if they are unchanged, nothing if all fields are defaults."""
    if fields == before:
        return section
    return b"" if fields in (NO_HEADER, NO_PROPERTIES) else encode(fields)


# Maps are split and joined as bytes: entries that are not read keep their encoding and type.


def _pairs(sections: Sections, code: int) -> list[_Pair]:
    span = sections.spans.get(code)
    if span is None:
        return []
    payload = sections.payload
    count, position, end = *_map_start(payload, span[1]), span[2]
    pairs: list[_Pair] = []
    while position < end:
        key, value = decode_at(payload, position)
        behind = skip(payload, value)
        pairs.append(_Pair(key, payload[value:behind], payload[position:behind]))
        position = behind
    if position != end or count != 2 * len(pairs):
        raise DecodeError("a map does not end where its size says")
    return pairs


def _left(sections: Sections, code: int, names: frozenset[bytes]) -> list[bytes]:
    """Return the pairs of a map without some names, each in its original encoding."""
    span = sections.spans.get(code)
    if span is None:
        return []
    payload = sections.payload
    count, position, end = *_map_start(payload, span[1]), span[2]
    left: list[bytes] = []
    while position < end:
        name, value = _name(payload, position)
        behind = skip(payload, value)
        if name not in names:
            left.append(payload[position:behind])
        position = behind
        count -= 2
    if position != end or count:
        raise DecodeError("a map does not end where its size says")
    return left


def _name(payload: bytes, position: int) -> tuple[bytes, int]:
    """Return the text of a key, or ``None`` if it is not text, and the position of its value."""
    if payload[position] in _SHORT_TEXTS and position + 1 < len(payload):
        value = position + 2 + payload[position + 1]
        return payload[position + 2 : value], value
    key, value = decode_at(payload, position)
    return (key.encode() if isinstance(key, str) else b""), value


def _map_start(payload: bytes, position: int) -> tuple[int, int]:
    """Return the number of keys and values of the map at ``position``, and the position of the first of them."""
    if payload[position] == 0xC1:
        return int.from_bytes(payload[position + 2 : position + 3]), position + 3
    if payload[position] == 0xD1:
        return int.from_bytes(payload[position + 5 : position + 9]), position + 9
    raise DecodeError(f"0x{payload[position]:02x} where a map is expected")


def _without(pairs: Iterable[_Pair], names: frozenset[str]) -> list[bytes]:
    return [pair.raw for pair in pairs if not (isinstance(pair.key, str) and pair.key in names)]


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    """Encode a section that is a map, in its shortest form; empty for an empty map."""
    if not pairs:
        return b""
    body, count = b"".join(pairs), 2 * len(pairs)
    if len(body) < 255:  # so few bytes hold no more items than a count of eight bits allows
        return bytes((0x00, 0x53, code, 0xC1, len(body) + 1, count)) + body
    return bytes((0x00, 0x53, code, 0xD1)) + _MAP32.pack(len(body) + 4, count) + body
