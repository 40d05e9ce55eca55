"""The diverted form of a message: what lies in a backlog queue until it can go to its destination."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple

from pairbus.dialect.annotations import LOCK_TOKEN
from pairbus.dialect.annotations import SCHEDULED_ENQUEUE_TIME as SCHEDULED_ANNOTATION
from pairbus.dialect.delivered import STAMPED, is_lock_alone, is_stamp_alone
from pairbus.dialect.sent import check_body
from pairbus.wire import (
    APPLICATION_PROPERTIES,
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
from pairbus.wire.sections import NO_HEADER, NO_PROPERTIES

PATH: Final = "x-ms-path"
SESSION_ID: Final = "x-ms-sessionid"
TIME_TO_LIVE: Final = "x-ms-timetolive"
SCHEDULED_ENQUEUE_TIME: Final = "x-ms-scheduledenqueuetimeutc"
RESERVED: Final = frozenset({PATH, SESSION_ID, TIME_TO_LIVE, SCHEDULED_ENQUEUE_TIME})
"""The application properties that only the transfer sets."""

_SCHEDULED: Final = frozenset({SCHEDULED_ANNOTATION})
_LOCK_NAMES: Final = frozenset({LOCK_TOKEN.encode()})
_STAMPED_NAMES: Final = frozenset(name.encode() for name in STAMPED | _SCHEDULED)
_RESERVED_NAMES: Final = frozenset(name.encode() for name in RESERVED)
_SHORT_TEXTS: Final = frozenset({0xA1, 0xA3})
_LONGEST_TTL_MS: Final = 0xFFFFFFFF
_LONGEST_MS: Final = (1 << 63) - 1
_LATEST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, where the times of Service Bus end."""

_MAP32: Final = Struct(">II")
_MOST_BYTES: Final = sum(len(encode(name)) for name in RESERVED) + 12 + 9 + 9 + 1
"""How much is added at most beside the path: the names, a section, a long, a timestamp, a null where a text was."""


class TransferError(ValueError):
    """Why a message can never be delivered."""

    def __init__(self, reason: str, path: str | None = None) -> None:
        super().__init__(reason)
        self.path = path
        """Its destination, if that is known."""


class Transfer(NamedTuple):
    """What a syphon needs to know of a diverted message."""

    path: str
    session_id: str | None = None
    time_to_live_ms: int | None = None
    scheduled_ms: int | None = None


class _Pair(NamedTuple):
    """A key of a map and its value, and both as they are written."""

    key: object
    value: bytes
    raw: bytes


def divert(payload: bytes, path: str) -> bytes:
    """The message for a backlog queue; raises ``TransferError`` for one that has a property of the transfer's."""
    with _reading(path):
        sections = Sections(payload)
        header, properties = sections.header(), sections.properties()
        noted = _pairs(sections, MESSAGE_ANNOTATIONS)
        named = _pairs(sections, APPLICATION_PROPERTIES)
        scheduled_ms = _scheduled_ms(noted)
    _refuse_reserved(named, path)
    transfer = Transfer(path, properties.group_id, _length_ms(header, properties), scheduled_ms)
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


def growth_bytes(path: str) -> int:
    """How much larger a message gets at most when it is diverted, whatever message it is."""
    return _MOST_BYTES + len(encode(path))


def header_bytes(payload: bytes) -> int:
    """How much of a message is not body; raises ``TransferError``."""
    with _reading(None):
        return len(payload) - sum([end - start for _, start, _, end in Sections(payload).body])


def read_transfer(payload: bytes) -> Transfer:
    """Read where a diverted message goes, and all of it that a service would look at; raises ``TransferError``."""
    try:
        sections = Sections(payload)
        named = sections.application_properties()
    except ProtocolError as error:
        raise _unreadable(error, None) from error
    path = named.get(PATH)
    if path is None:
        raise TransferError(f"the message names no destination: it has no {PATH}")
    if type(path) is not str or not path:
        raise TransferError(f"{PATH} is {path!r:.100}, which is no path")
    try:
        _check_rest(sections)
    except ProtocolError as error:
        raise _unreadable(error, path) from error
    return Transfer(path, _session_id(named, path), _time_to_live_ms(named, path), _enqueue_time_ms(named, path))


def restore(payload: bytes, transfer: Transfer, *, time_to_live_ms: int | None = None) -> bytes:
    """The message as the application sent it, without what the service adds; raises ``TransferError``.

    ``payload`` is what the transfer was read from. ``time_to_live_ms`` stands for the time to live that was kept, where
    it is given.
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


# What is set.


def _refuse_reserved(named: Iterable[_Pair], path: str) -> None:
    for pair in named:
        if isinstance(pair.key, str) and pair.key in RESERVED:
            raise TransferError(f"the application property {pair.key} is set by the transfer alone", path)


def _length_ms(header: Header, properties: Properties) -> int | None:
    """A time to live: one that is longer than the header can say is told by when the message was made and ends."""
    created_ms, expires_ms = properties.creation_time, properties.absolute_expiry_time
    if header.ttl != _LONGEST_TTL_MS or created_ms is None or expires_ms is None:
        return header.ttl
    return min(max(header.ttl, expires_ms - created_ms), _LONGEST_MS)


def _scheduled_ms(noted: Iterable[_Pair]) -> int | None:
    """When a message is to be enqueued; what is no time is left to the service to refuse."""
    for pair in noted:
        if isinstance(pair.key, str) and pair.key in _SCHEDULED:
            value = decode(pair.value)
            if isinstance(value, int) and not isinstance(value, bool):
                return min(int(value), _LONGEST_MS)
    return None


def _check_rest(sections: Sections) -> None:
    """Read what a service would stumble over, but for the application properties; raises ``ProtocolError``."""
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
    """A header: most messages have one of a few."""
    return Sections(section).header()


def _session_id(named: dict[str, Any], path: str) -> str | None:
    value = named.get(SESSION_ID)
    if value is None or type(value) is str:
        return value
    raise TransferError(f"{SESSION_ID} is {value!r:.100}, which is no text", path)


def _time_to_live_ms(named: dict[str, Any], path: str) -> int | None:
    value = named.get(TIME_TO_LIVE)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool | Timestamp) and value > 0:
        return int(value)
    raise TransferError(f"{TIME_TO_LIVE} is {value!r:.100}, which is no time to live in milliseconds", path)


def _enqueue_time_ms(named: dict[str, Any], path: str) -> int | None:
    value = named.get(SCHEDULED_ENQUEUE_TIME)
    if value is None:
        return None
    if type(value) is Timestamp:
        return int(value)
    raise TransferError(f"{SCHEDULED_ENQUEUE_TIME} is {value!r:.100}, which is no timestamp", path)


# What is written.


def _kept(transfer: Transfer) -> list[bytes]:
    """The application properties that keep what is cleared, each as its key and value."""
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
    """A time in the message itself is the one that it was enqueued in the backlog at, so it goes as well."""
    pairs: list[bytes] = []
    if not is_stamp_alone(sections.raw(MESSAGE_ANNOTATIONS)):
        pairs = _left(sections, MESSAGE_ANNOTATIONS, _STAMPED_NAMES)
    if scheduled_ms is not None:
        pairs.append(encode(Symbol(SCHEDULED_ANNOTATION)) + encode(Timestamp(scheduled_ms)))
    return _map_section(MESSAGE_ANNOTATIONS, pairs)


def _restored_properties(sections: Sections, session_id: str | None, length_ms: int | None) -> bytes:
    """A time to live says when the message ends, if it is known when it was made, as in one that was sent directly."""
    section = sections.raw(PROPERTIES)
    if session_id is None and length_ms is None:
        return section
    before = sections.properties()
    after = before
    if session_id is not None:
        after = after._replace(group_id=session_id)
    if length_ms is not None and before.creation_time is not None:
        expires_ms = min(before.creation_time + length_ms, _LATEST_MS)
        after = after._replace(absolute_expiry_time=Timestamp(expires_ms))
    return _fields_section(section, before, after)


def _joined(sections: Sections, *head: bytes) -> bytes:
    """A message: the sections before the body, then the body and the footer as they are."""
    body = [sections.payload[start:end] for _, start, _, end in sections.body]
    return b"".join([*head, *body, sections.raw(FOOTER)])


def _fields_section(section: bytes, before: Header | Properties, fields: Header | Properties) -> bytes:
    """A section that is a list of fields: as it is, if they are; none where all are what they are without it."""
    if fields == before:
        return section
    return b"" if fields in (NO_HEADER, NO_PROPERTIES) else encode(fields)


# Maps are taken apart and put together as bytes: what is not looked at stays as it is written, with its type.


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
    """The pairs of a map without those of some names, each as it is written."""
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
    """The text of a key, and where its value stands; no text for a key that is none."""
    if payload[position] in _SHORT_TEXTS and position + 1 < len(payload):
        value = position + 2 + payload[position + 1]
        return payload[position + 2 : value], value
    key, value = decode_at(payload, position)
    return (key.encode() if isinstance(key, str) else b""), value


def _map_start(payload: bytes, position: int) -> tuple[int, int]:
    """How many keys and values the map at ``position`` has, and where the first of them stands."""
    if payload[position] == 0xC1:
        return int.from_bytes(payload[position + 2 : position + 3]), position + 3
    if payload[position] == 0xD1:
        return int.from_bytes(payload[position + 5 : position + 9]), position + 9
    raise DecodeError(f"0x{payload[position]:02x} where a map should stand")


def _without(pairs: Iterable[_Pair], names: frozenset[str]) -> list[bytes]:
    return [pair.raw for pair in pairs if not (isinstance(pair.key, str) and pair.key in names)]


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    """A section that is a map, in its shortest encoding; none for a map of nothing."""
    if not pairs:
        return b""
    body, count = b"".join(pairs), 2 * len(pairs)
    if len(body) < 255:  # so many bytes hold no more keys and values than a count of eight bits can say
        return bytes((0x00, 0x53, code, 0xC1, len(body) + 1, count)) + body
    return bytes((0x00, 0x53, code, 0xD1)) + _MAP32.pack(len(body) + 4, count) + body
