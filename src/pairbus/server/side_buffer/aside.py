"""What can no longer be merged, in a file of its own: for an operator to look at."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from pairbus.durable import sync_content, sync_directory
from pairbus.server.side_buffer.parcel import Parcel

FILE: Final = "set-aside.jsonl"


Name: TypeAlias = tuple[int, bool]
"""A position, and whether it is that of bytes: a parcel that was moved may have the one of a place that is damaged."""


class Leftover(NamedTuple):
    """Something that was set aside, and why."""

    position: int
    reason: str
    content: Parcel | bytes

    @property
    def name(self) -> Name:
        return self.position, isinstance(self.content, bytes)

    @property
    def number(self) -> int:
        """How many messages it is; a damaged place counts as one."""
        return 1 if isinstance(self.content, bytes) else len(self.content.messages)


class Aside:
    """Lines of JSON, one for each parcel or damaged place. Each is there once."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._known = _names(self.path)
        self._is_ragged = False
        """Whether the last line may not be whole."""

    @property
    def end(self) -> int:
        """A position behind all that are in it."""
        return max((position for position, _ in self._known), default=-1) + 1

    def add(self, leftovers: Iterable[Leftover]) -> int:
        """Keep these on disk, unless they are; how many messages, or damaged places, were new. Raises ``OSError``."""
        new = [leftover for leftover in leftovers if leftover.name not in self._known]
        if new:
            self._append("".join(json.dumps(_line(leftover)) + "\n" for leftover in new).encode())
            self._known.update(leftover.name for leftover in new)
        return sum(leftover.number for leftover in new)

    def _append(self, lines: bytes) -> None:
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size, was_ragged = os.fstat(descriptor).st_size, self._is_ragged
        self._is_ragged = True
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                view = memoryview(b"\n" + lines if was_ragged else lines)
                while view:
                    view = view[file.write(view) :]
            sync_content(descriptor)
        except OSError:
            with suppress(OSError):  # what counts is why it could not be written
                os.ftruncate(descriptor, size)
                self._is_ragged = was_ragged
            raise
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self.path.parent)
        self._is_ragged = False


def _names(path: Path) -> set[Name]:
    """What is there. A line that a kill has cut off is ended, and the parcel set aside anew."""
    if not path.exists():
        return set()
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("ab") as file:
            file.write(b"\n")
    found = set()
    for line in data.splitlines():
        try:
            content = json.loads(line)
            found.add((int(content["position"]), "damaged" in content))
        except (ValueError, LookupError, TypeError):
            continue
    return found


def _line(leftover: Leftover) -> dict[str, Any]:
    line: dict[str, Any] = {"position": leftover.position, "reason": leftover.reason}
    content = leftover.content
    if isinstance(content, bytes):
        return line | {"damaged": b64encode(content).decode()}
    messages = [
        {
            "message_id": message.message_id,
            "session_id": message.session_id,
            "body": b64encode(message.body).decode(),
        }
        for message in content.messages
    ]
    return line | {"entity": content.entity, "accepted_ms": content.accepted_ms, "messages": messages}
