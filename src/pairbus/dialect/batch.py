"""Several messages in one transfer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pairbus.wire import DATA, DecodeError, Message, Sections, encode_message

BATCH_FORMAT: Final = 0x80013700
"""The message format whose data sections are messages themselves."""


def split_batch(payload: bytes) -> list[bytes]:
    """The messages of a batch. What else its envelope says repeats the first message, and does not count."""
    sections = Sections(payload)
    if not sections.body or sections.body[0][0] != DATA:
        raise DecodeError("a batch is made of data sections, at least one")
    return sections.decode_body()


def join_batch(messages: Iterable[bytes]) -> bytes:
    return encode_message(Message(body=tuple(messages)))
