"""The checksum in front of every stored value."""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

_CHECKSUM: Final = struct.Struct(">I")
CHECKSUM_BYTES: Final = _CHECKSUM.size


def seal(key: bytes, value: bytes) -> bytes:
    """Return a value with its checksum in front."""
    return _CHECKSUM.pack(_checksum(key, value)) + value


def unseal(key: bytes, raw: bytes) -> bytes | None:
    """Return a value without its checksum; ``None`` if this is not what was stored under this key."""
    value = raw[CHECKSUM_BYTES:]
    return value if raw[:CHECKSUM_BYTES] == _CHECKSUM.pack(_checksum(key, value)) else None


def _checksum(key: bytes, value: bytes) -> int:
    # Starts with the key's length, so that a byte cannot move from the key to the value unnoticed.
    return crc32(value, crc32(key, len(key)))
