"""The configuration and the errors of a capture. It imports no Spark, which the command line needs only later."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from pairbus.spark.connections import ConnectionReference
from pairbus.spark.options import duration


class CaptureError(RuntimeError):
    """A capture cannot continue."""


class CaptureInUseError(CaptureError):
    """Another capture writes into the same directory."""


class OtherSourceError(CaptureError):
    """The directory belongs to the capture of another namespace."""

    def __init__(self, root: Path, owner: str, source: str) -> None:
        super().__init__(
            f"{root} has messages captured from {owner}, which uses the same sequence numbers as {source}:"
            " they could not be distinguished. Use a separate directory for each namespace"
        )


class UncapturableError(CaptureError):
    """The messages of an entity cannot be captured, or not in this mode."""


class CaptureDamagedError(CaptureError):
    """The state of a capture in its directory is unreadable or incomplete."""


class QueryFailedError(CaptureError):
    """The query failed, and would probably fail again."""


LONGEST: Final = timedelta(hours=1)
LEAST_BYTES: Final = 1_000_000
MOST_BYTES: Final = 1_000_000_000_000

FORMS: Final = "a time from 1s to 1h, such as 30s or 5m, or a size from 1MB to 1000GB, such as 64MB"

_LENGTH: Final = duration(timedelta(seconds=1), LONGEST, FORMS)
_SIZE: Final = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?) *([kmg])b", re.IGNORECASE)
_UNITS: Final = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """The maximum age of a window, and the maximum size of its file."""

    length: timedelta = timedelta(minutes=5)
    size_bytes: int | None = None
    """``None`` if unlimited."""

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """Parse ``5m``, ``64MB``, or one of each. Raise ``ValueError``.

        A size alone gets the maximum age: received messages must not wait for a file indefinitely.
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
            raise ValueError("the same kind of limit is given twice; give one time, one size, or one of each")
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
        raise ValueError(f"a window must be {FORMS}, got {text!r:.50}")
    return size_bytes


def _length(text: str) -> timedelta:
    try:
        found: timedelta = _LENGTH.read(text)
    except ValueError:
        raise ValueError(f"a window must be {FORMS}, got {text!r:.50}") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConfig:
    """The configuration of a capture."""

    source: ConnectionReference
    """The connection string, as found by the driver and all executors."""

    entities: tuple[str, ...]
    """Queues and subscriptions, by name or pattern."""

    to: Path = Path()
    """A directory that the driver and all executors share."""

    url: str | None = None
    """The URL of a directory in a file system of Spark, to write to it instead."""

    limits: WindowLimits = field(default_factory=WindowLimits)
    checkpoint: str | None = None
    """The checkpoint directory of Spark; ``None`` for one inside the capture's directory."""

    master: str = "local[*]"
    max_messages: int = 40_000
    """Maximum number of messages in a batch."""

    once: bool = False
    """True to end once the existing messages are captured."""

    keep: bool = False
    """True to peek messages, which stay in their entities."""
