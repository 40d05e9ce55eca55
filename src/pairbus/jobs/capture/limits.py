"""When a window is closed: by time or by size, whichever comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

from pairbus.spark.option import duration

LONGEST: Final = timedelta(hours=1)
LEAST_BYTES: Final = 1_000_000
MOST_BYTES: Final = 1_000_000_000_000

FORMS: Final = "a time from 1s to 1h, such as 30s or 5m, or a size from 1MB to 1000GB, such as 64MB"

_LENGTH: Final = duration(timedelta(seconds=1), LONGEST, FORMS)
_SIZE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *([kmg])b", re.IGNORECASE)
_UNITS: Final = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """How long a window is open at most, and how large its file becomes."""

    length: timedelta = timedelta(minutes=5)
    size_bytes: int | None = None
    """``None`` for any size."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Read ``5m``, ``64MB``, or one of each. Raises ``ValueError``.

        A size alone has the longest time: messages that have been taken must not lie about for ever.
        """
        lengths: list[timedelta] = []
        sizes: list[int] = []
        for text in map(str.strip, texts):
            size_bytes = _size_bytes(text)
            if size_bytes is None:
                lengths.append(_length(text))
            else:
                sizes.append(size_bytes)
        if len(lengths) > 1 or len(sizes) > 1:
            raise ValueError("it says the same twice; give one time, one size, or one of each")
        if not lengths and not sizes:
            return cls()
        return cls(length=lengths[0] if lengths else LONGEST, size_bytes=sizes[0] if sizes else None)

    @property
    def length_ms(self) -> int:
        return self.length // timedelta(milliseconds=1)


def _size_bytes(text: str) -> int | None:
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    size_bytes = int(float(found[1]) * _UNITS[found[2].lower()])
    if not LEAST_BYTES <= size_bytes <= MOST_BYTES:
        raise ValueError(f"{text!r:.50} is out of range; it is {FORMS}")
    return size_bytes


def _length(text: str) -> timedelta:
    try:
        found: timedelta = _LENGTH.read(text)
    except ValueError:
        raise ValueError(f"{text!r:.50} is neither; it is {FORMS}") from None
    return found
