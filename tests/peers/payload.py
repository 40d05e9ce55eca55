"""Payloads that show when bytes of them are missing, doubled or swapped."""

from __future__ import annotations

import itertools

from pairbus.wire import Message, encode_message


def pattern(size: int) -> bytes:
    """Make bytes that repeat only after a prime number of them."""
    return bytes(itertools.islice(itertools.cycle(range(251)), size))


def message(size: int = 10) -> bytes:
    """Encode a message with so many bytes in its body."""
    return encode_message(Message(body=(pattern(size),)))
