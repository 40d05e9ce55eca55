"""File of records that cannot be used any more, kept as JSON lines for an operator to inspect."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from pairbus.durable import sync_content, sync_directory

DAMAGED: Final = "damaged"
"""The key of a line's raw bytes, in lines about unreadable data."""

Name: TypeAlias = tuple[int, bool]
"""A position, and whether the line is about unreadable data there: a record moved from there keeps that position."""


class QuarantinedRecord(NamedTuple):
    """A record, or unreadable data, and the reason why it is in quarantine."""

    position: int
    reason: str
    content: Mapping[str, Any]
    """The rest of its line."""

    messages: int = 1
    """The number of messages that it holds; unreadable data counts as one."""

    @property
    def name(self) -> Name:
        return self.position, DAMAGED in self.content

    def line(self) -> str:
        return json.dumps({"position": self.position, "reason": self.reason, **self.content}) + "\n"


class BufferQuarantine:
    """The file. Each record is stored once, whenever the process was killed."""

    def __init__(self, path: Path) -> None:
        """Open the file; it is created by the first record. Raise ``OSError``."""
        self.path = path
        self._known = _read_names(path)
        self._has_partial_line = False
        """True while the last line may be incomplete."""

    @property
    def end(self) -> int:
        """Return a position greater than all positions in the file."""
        return max((position for position, _ in self._known), default=-1) + 1

    def add(self, records: Iterable[QuarantinedRecord]) -> int:
        """Store records durably, and return how many messages or unreadable places were new. Raise ``OSError``."""
        new = [record for record in records if record.name not in self._known]
        if new:
            self._append("".join(record.line() for record in new).encode())
            self._known.update(record.name for record in new)
        return sum(record.messages for record in new)

    def _append(self, lines: bytes) -> None:
        is_new = not self.path.exists()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        size, had_partial_line = os.fstat(descriptor).st_size, self._has_partial_line
        self._has_partial_line = True
        try:
            with open(descriptor, "wb", buffering=0, closefd=False) as file:
                view = memoryview(b"\n" + lines if had_partial_line else lines)
                while view:
                    view = view[file.write(view) :]
            sync_content(descriptor)
        except OSError:
            with suppress(OSError):  # the error to report is that of the write
                os.ftruncate(descriptor, size)
                self._has_partial_line = had_partial_line
            raise
        finally:
            os.close(descriptor)
        if is_new:
            sync_directory(self.path.parent)
        self._has_partial_line = False


def _read_names(path: Path) -> set[Name]:
    """Return the names of the stored records. A line that was cut off is terminated, and its record stored again."""
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
            found.add((int(content["position"]), DAMAGED in content))
        except (ValueError, LookupError, TypeError):
            continue
    return found
