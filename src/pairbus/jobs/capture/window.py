"""Messages of one entity that end in one file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, Final, Self
from urllib.parse import quote

from pairbus.jobs.capture.piece import Piece

_LONGEST: Final = 200
"""Names in a file system have 255 bytes at most, and those of entities may be longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """It opens with the first message and is closed when it has lasted long enough, or has become large."""

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
        """Where its file is. Nothing else ever has this name: the message with that number is captured once."""
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
    """The name of an entity as that of a directory; one that is too long is cut, and told apart by a hash."""
    if len(quote(entity, safe="")) <= _LONGEST:
        return quote(entity, safe="")
    heads = (quote(entity[:length], safe="") for length in range(_LONGEST, 0, -1))
    head = next(head for head in heads if len(head) <= _LONGEST)
    return f"{head}~{hashlib.sha256(entity.lower().encode()).hexdigest()[:16]}"
