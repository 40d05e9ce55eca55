"""Which number a message was given when it was enqueued, and when that was: read without reading the rest of it."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from pairbus.dialect.annotations import ENQUEUED_TIME, MESSAGE_STATE, SEQUENCE_NUMBER
from pairbus.wire import MESSAGE_ANNOTATIONS, ProtocolError, Sections, Symbol, encode
from pairbus.wire.decoder import decode_at, skip

_TIME: Final = encode(Symbol(ENQUEUED_TIME))
_NUMBER: Final = encode(Symbol(SEQUENCE_NUMBER))
_STATE: Final = encode(Symbol(MESSAGE_STATE))
_DEFERRED: Final = 1
_SCHEDULED: Final = 2
_NEAR: Final = 4_096
"""Where the annotations of the service are, in front of everything that an application writes."""

_LONG: Final = struct.Struct(">q")
_LONGS: Final = frozenset({0x81, 0x83})
"""A long and a timestamp, each with eight bytes."""

_MAP_HEAD_BYTES: Final = {0xC1: 3, 0xD1: 9}


class Enqueued(NamedTuple):
    """What tells a message from all others of its entity; ``None`` where it does not say, or that cannot be read."""

    sequence_number: int | None = None
    time_ms: int | None = None


def is_deferred(payload: bytes) -> bool:
    """Return whether a peeked message is deferred; false if its state cannot be read."""
    return _state(payload) == _DEFERRED


def is_scheduled(payload: bytes) -> bool:
    """Return whether a peeked message waits for its scheduled time; false if its state cannot be read."""
    return _state(payload) == _SCHEDULED


def _state(payload: bytes) -> object:
    start = payload.find(_STATE, 0, _NEAR)
    if start < 0:
        return None
    try:
        return decode_at(payload, start + len(_STATE))[0]
    except (ProtocolError, LookupError, struct.error):
        return None


def read_enqueued(payload: bytes) -> Enqueued:
    """Read both. What stands behind them is not looked at: they are known of messages too that nobody can read."""
    found: dict[str, int | None] = {}
    try:
        position, end = _annotations(payload)
        while position < end and len(found) < 2:
            name, value = _key(payload, position)
            if name is not None:
                found[name] = _whole(payload, value)
            position = skip(payload, value)
    except (ProtocolError, LookupError, struct.error):
        pass  # what was found before is right all the same
    return Enqueued(found.get(SEQUENCE_NUMBER), found.get(ENQUEUED_TIME))


def _annotations(payload: bytes) -> tuple[int, int]:
    """Where the first of the message annotations is, and where they end; raises ``LookupError`` if there are none."""
    start = _section(payload)
    return start + _MAP_HEAD_BYTES[payload[start]], skip(payload, start)


def _section(payload: bytes) -> int:
    position = 0
    while payload[position] == 0x00 and payload[position + 1] == 0x53:
        if payload[position + 2] == MESSAGE_ANNOTATIONS:
            return position + 3
        position = skip(payload, position + 3)
    return Sections(payload).spans[MESSAGE_ANNOTATIONS][1]  # a descriptor is written at length


def _key(payload: bytes, position: int) -> tuple[str | None, int]:
    """Which of the two names stands at ``position``, if one does, and where its value stands.

    Names are compared as services write them; only a key that is written in another way has to be decoded.
    """
    if payload.startswith(_NUMBER, position):
        return SEQUENCE_NUMBER, position + len(_NUMBER)
    if payload.startswith(_TIME, position):
        return ENQUEUED_TIME, position + len(_TIME)
    key, value = decode_at(payload, position)
    if key == SEQUENCE_NUMBER:
        return SEQUENCE_NUMBER, value
    return (ENQUEUED_TIME if key == ENQUEUED_TIME else None), value


def _whole(payload: bytes, position: int) -> int | None:
    if payload[position] in _LONGS:
        number: int = _LONG.unpack_from(payload, position + 1)[0]
        return number
    value, _ = decode_at(payload, position)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
