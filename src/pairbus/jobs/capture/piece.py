"""Messages of a batch that wait in a file of their own until their window is closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A file that no reader sees."""

    name: str
    messages: int
    size_bytes: int
    first: int
    """The sequence number of its first message."""

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
