"""What one send has brought, as it lies in a side buffer."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pairbus.broker import Message

_VERSION: Final = b"pairbus\x01"
_LENGTH: Final = struct.Struct("<I")


class ParcelFormatError(ValueError):
    """Bytes that are no parcel."""


class Parcel(NamedTuple):
    """Messages that are taken in together or not at all."""

    entity: str
    accepted_ms: int
    messages: Sequence[Message]
    position: int | None = None
    """Where it lay first, if it was moved: it keeps its place among those of its entity, and both are known as one."""


def mark_of(identity: bytes) -> bytes:
    """What each parcel of a buffer begins with: behind something damaged, it tells where the next one begins.

    No sender knows the identity, so no body can pass for a parcel.
    """
    return _VERSION + identity


def pack_parcel(parcel: Parcel, mark: bytes) -> bytes:
    """What is known of the messages, and behind it their bodies."""
    rows = [(len(message.body), *message[1:]) for message in parcel.messages]
    moved = () if parcel.position is None else (parcel.position,)
    head = json.dumps([parcel.entity, parcel.accepted_ms, rows, *moved], separators=(",", ":")).encode()
    return b"".join((mark, _LENGTH.pack(len(head)), head, *(message.body for message in parcel.messages)))


def unpack_parcel(content: bytes, mark: bytes) -> Parcel:
    """Raises ``ParcelFormatError``."""
    if not content.startswith(mark):
        raise ParcelFormatError("it does not begin as a parcel does")
    try:
        (length,) = _LENGTH.unpack_from(content, len(mark))
        begin = len(mark) + _LENGTH.size
        entity, accepted_ms, rows, *moved = json.loads(content[begin : begin + length])
        return Parcel(entity, accepted_ms, _messages(rows, content, begin + length), *moved)
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise ParcelFormatError(f"it cannot be read: {error}") from error


def _messages(rows: list[list[Any]], content: bytes, begin: int) -> list[Message]:
    messages = []
    for size, *rest in rows:
        messages.append(Message(content[begin : begin + size], *rest))
        begin += size
    if begin != len(content):
        raise ParcelFormatError(f"it has {len(content)} bytes instead of {begin}")
    return messages
