"""Windows: the messages of one entity that end up in one file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final, Self
from urllib.parse import quote

import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pairbus.jobs.capture.config import CaptureDamagedError, WindowLimits
from pairbus.spark.offset import Portion
from pairbus.spark.schema import arrow_schema
from pairbus.spark.sequences import SequenceRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a window, in a file that readers do not see."""

    name: str
    messages: int
    size_bytes: int
    first: int
    """Sequence number of the first message."""

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "messages": self.messages, "bytes": self.size_bytes, "first": self.first}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            name=str(value["name"]),
            messages=int(value["messages"]),
            size_bytes=int(value["bytes"]),
            first=int(value["first"]),
        )


CATCHES: Final = StructType(
    [
        StructField("entity", StringType()),
        StructField("numbers", StringType()),
        StructField("until_ms", LongType()),
        StructField("name", StringType()),
        StructField("messages", LongType()),
        StructField("size_bytes", LongType()),
        StructField("first", LongType()),
    ]
)

_ARROW: Final = arrow_schema(CATCHES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Catch:
    """Messages of one entity: written to a new piece, or in files already."""

    entity: str
    portion: Portion
    piece: Piece | None
    """``None`` if an earlier run has captured the messages, or Spark writes them itself."""

    def to_batch(self) -> pa.RecordBatch:
        piece = self.piece
        row: dict[str, Any] = {
            "entity": self.entity,
            "numbers": str(self.portion.numbers),
            "until_ms": self.portion.until_ms,
            "name": piece and piece.name,
            "messages": piece and piece.messages,
            "size_bytes": piece and piece.size_bytes,
            "first": piece and piece.first,
        }
        return pa.RecordBatch.from_pylist([row], schema=_ARROW)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        piece = None
        if row["name"] is not None:
            piece = Piece(name=row["name"], messages=row["messages"], size_bytes=row["size_bytes"], first=row["first"])
        portion = Portion(numbers=SequenceRanges.parse(row["numbers"]), until_ms=row["until_ms"])
        return cls(entity=row["entity"], portion=portion, piece=piece)


_MAX_NAME: Final = 200
"""File names are limited to 255 bytes, and entity names may be longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Opened by the first message, and closed when it is old or large enough."""

    entity: str
    opened_ms: int
    closed_ms: int | None = None
    """``None`` while it is open."""

    pieces: tuple[Piece, ...] = ()

    @property
    def messages(self) -> int:
        return sum(piece.messages for piece in self.pieces)

    @property
    def size_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def is_open(self) -> bool:
        return self.closed_ms is None

    def holds(self, entity: str) -> bool:
        return self.entity.lower() == entity.lower()

    def __add__(self, piece: Piece) -> Self:
        return replace(self, pieces=(*self.pieces, piece))

    def closed(self, now_ms: int) -> Self:
        return replace(self, closed_ms=now_ms)

    @property
    def path(self) -> PurePosixPath:
        """The path of the file. It is unique: the message with that number is captured once."""
        opened = datetime.fromtimestamp(self.opened_ms / 1_000, UTC)
        return (
            PurePosixPath(f"source={_quoted(self.entity)}")
            / f"day={opened:%Y-%m-%d}"
            / f"hour={opened:%H}"
            / f"{opened:%Y%m%dT%H%M%S}.{self.opened_ms % 1_000:03}Z-{self.pieces[0].first}.parquet"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "entity": self.entity,
            "opened": self.opened_ms,
            "closed": self.closed_ms,
            "pieces": [piece.to_json() for piece in self.pieces],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(
            entity=str(value["entity"]),
            opened_ms=int(value["opened"]),
            closed_ms=None if value["closed"] is None else int(value["closed"]),
            pieces=tuple(map(Piece.from_json, value["pieces"])),
        )


def _quoted(entity: str) -> str:
    """Return the directory name of an entity; a long one is cut, and made unique by a hash."""
    if len(quote(entity, safe="")) <= _MAX_NAME:
        return quote(entity, safe="")
    prefixes = (quote(entity[:length], safe="") for length in range(_MAX_NAME, 0, -1))
    prefix = next(prefix for prefix in prefixes if len(prefix) <= _MAX_NAME)
    return f"{prefix}~{hashlib.sha256(entity.lower().encode()).hexdigest()[:16]}"


_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenWindows:
    """The windows whose files are not written yet, and the messages of the last batch.

    A batch is added as a whole, with its pieces and its numbers. A batch that Spark repeats, since it did not record
    its end, is recognised by its numbers. So each message is in exactly one window.
    """

    source: str = ""
    """The namespace of the messages: others use the same sequence numbers. Empty for any."""

    taken: Mapping[str, Portion] = field(default_factory=dict)
    """The messages of the last batch, by entity in lower case."""

    windows: tuple[Window, ...] = ()
    """Closed windows wait for their files."""

    @property
    def closed(self) -> tuple[Window, ...]:
        return tuple(window for window in self.windows if not window.is_open)

    @property
    def pieces(self) -> frozenset[str]:
        """The names of the pieces that are needed."""
        return frozenset(piece.name for window in self.windows for piece in window.pieces)

    def entered(self, catches: Iterable[Catch], now_ms: int, limits: WindowLimits) -> Self:
        """Add a batch; close windows that become too large."""
        ordered = sorted(catches, key=lambda catch: (catch.entity, catch.portion.numbers.ranges[0]))
        if not ordered:
            return self
        windows = [*self.windows]
        for catch in ordered:
            if catch.piece is not None:
                _add(windows, catch.entity, catch.piece, now_ms, limits)
        return replace(self, taken=_taken(ordered), windows=tuple(windows))

    def closed_when_due(self, now_ms: int, limits: WindowLimits) -> Self:
        return self._closed(now_ms, now_ms - limits.length_ms)

    def closed_all(self, now_ms: int) -> Self:
        return self._closed(now_ms, now_ms)

    def _closed(self, now_ms: int, opened_until_ms: int) -> Self:
        """Close windows opened until some time, and those opened in the future: the clock may have been set back."""
        windows = tuple(
            window.closed(now_ms)
            if window.is_open and (window.opened_ms <= opened_until_ms or window.opened_ms > now_ms)
            else window
            for window in self.windows
        )
        return replace(self, windows=windows)

    def without(self, done: Window) -> Self:
        """Remove a window whose file is written."""
        return replace(self, windows=tuple(window for window in self.windows if window != done))

    def to_text(self) -> str:
        taken = {
            entity: {"numbers": str(portion.numbers), "until": portion.until_ms}
            for entity, portion in self.taken.items()
        }
        return json.dumps(
            {
                "version": _VERSION,
                "source": self.source,
                "taken": taken,
                "windows": [window.to_json() for window in self.windows],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of ``to_text``. Raise ``CaptureDamagedError``."""
        try:
            value = json.loads(text)
            if value["version"] != _VERSION:
                raise CaptureDamagedError(f"it was written by another version of pairbus: {value['version']!r:.20}")
            return cls(
                source=str(value.get("source", "")),
                taken={str(entity): _portion(entry) for entity, entry in value["taken"].items()},
                windows=tuple(map(Window.from_json, value["windows"])),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CaptureDamagedError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _add(windows: list[Window], entity: str, piece: Piece, now_ms: int, limits: WindowLimits) -> None:
    found = next((index for index, one in enumerate(windows) if one.is_open and one.holds(entity)), None)
    limit = limits.size_bytes
    if found is not None and limit is not None and windows[found].size_bytes + piece.size_bytes > limit:
        windows[found] = windows[found].closed(now_ms)
        found = None
    if found is None:
        windows.append(Window(entity=entity, opened_ms=now_ms, pieces=(piece,)))
    else:
        windows[found] += piece


def _taken(catches: Iterable[Catch]) -> dict[str, Portion]:
    taken: dict[str, Portion] = {}
    for catch in catches:
        entity, portion = catch.entity.lower(), catch.portion
        before = taken.get(entity)
        if before is not None:
            until_ms = max(before.until_ms, portion.until_ms)
            portion = Portion(numbers=before.numbers | portion.numbers, until_ms=until_ms)
        taken[entity] = portion
    return taken


def _portion(entry: Mapping[str, Any]) -> Portion:
    return Portion(numbers=SequenceRanges.parse(entry["numbers"]), until_ms=int(entry["until"]))
