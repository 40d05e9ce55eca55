"""A value as it is stored: with a checksum in front that covers its key as well."""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

_CHECKSUM: Final = struct.Struct(">I")
CHECKSUM_BYTES: Final = _CHECKSUM.size


def seal(key: bytes, value: bytes) -> bytes:
    """Put the checksum in front of a value."""
    return _CHECKSUM.pack(_checksum(key, value)) + value


def unseal(key: bytes, raw: bytes) -> bytes | None:
    """Take the checksum off again; ``None`` when this is not what was stored under this key."""
    value = raw[CHECKSUM_BYTES:]
    return value if raw[:CHECKSUM_BYTES] == _CHECKSUM.pack(_checksum(key, value)) else None


def _checksum(key: bytes, value: bytes) -> int:
    # Begins with the key's length, so that a byte cannot wander from the key to the value unnoticed.
    return crc32(value, crc32(key, len(key)))
