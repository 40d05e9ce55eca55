"""The messages of one send, as a side buffer stores them."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pairbus.broker import NewMessage
from pairbus.store import CommitId

_VERSION: Final = b"pairbus\x01"
_LENGTH: Final = struct.Struct("<I")


class BatchFormatError(ValueError):
    """The bytes are not a stored batch."""


class BufferedBatch(NamedTuple):
    """Messages that are accepted together or not at all."""

    entity: str
    accepted_ms: int
    messages: Sequence[NewMessage]
    position: int | None = None
    """The first position of a batch that was moved. It keeps its place in its entity, and both copies count as one."""

    commit: CommitId | None = None
    """The commit that has the messages, too, if it succeeds: then the batch does not count."""


def mark_of(identity: bytes) -> bytes:
    """Return the prefix of every stored batch of a buffer, by which the first batch after damage is found.

    Senders do not know the identity, so they cannot forge a batch in the body of a message.
    """
    return _VERSION + identity


def pack_batch(batch: BufferedBatch, mark: bytes) -> bytes:
    """Serialize a batch: the properties of its messages, then their bodies."""
    rows = [(len(message.body), *message[1:]) for message in batch.messages]
    optional = [batch.position, batch.commit]
    while optional and optional[-1] is None:
        optional.pop()
    head = json.dumps([batch.entity, batch.accepted_ms, rows, *optional], separators=(",", ":")).encode()
    return b"".join((mark, _LENGTH.pack(len(head)), head, *(message.body for message in batch.messages)))


def unpack_batch(content: bytes, mark: bytes) -> BufferedBatch:
    """Deserialize a batch. Raise ``BatchFormatError``."""
    if not content.startswith(mark):
        raise BatchFormatError("not a batch of this side buffer")
    try:
        (length,) = _LENGTH.unpack_from(content, len(mark))
        begin = len(mark) + _LENGTH.size
        head: list[Any] = json.loads(content[begin : begin + length])
        entity, accepted_ms, rows, position, commit = head + [None] * (5 - len(head))
        messages = _messages(rows, content, begin + length)
        return BufferedBatch(entity, accepted_ms, messages, position, None if commit is None else CommitId(*commit))
    except (struct.error, ValueError, TypeError, RecursionError) as error:
        raise BatchFormatError(f"unreadable batch: {error}") from error


def _messages(rows: list[list[Any]], content: bytes, begin: int) -> list[NewMessage]:
    messages = []
    for size, *rest in rows:
        messages.append(NewMessage(content[begin : begin + size], *rest))
        begin += size
    if begin != len(content):
        raise BatchFormatError(f"expected {begin} bytes, got {len(content)}")
    return messages
