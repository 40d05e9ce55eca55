"""The directory of a side buffer: whose it is, and that one process has it for itself."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pairbus.durable import put_in_place
from pairbus.server.settings import SettingsError
from pairbus.store import NewerFormatError
from pairbus.store.lock import DirectoryLock

FORMAT_FILE: Final = "side-buffer"
LOCK_FILE: Final = "side-buffer.lock"
FORMAT_VERSION: Final = 1
IDENTITY_BYTES: Final = 8


class BufferDirectory:
    """A directory that is locked until it is closed. Its identity is in the store beside what was merged from it."""

    def __init__(self, path: Path, identity: bytes, lock: DirectoryLock) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(cls, path: Path, namespace: str) -> Self:
        """Take a directory, or make it. Raises ``StoreError``, or ``SettingsError`` if it is another namespace's."""
        with DirectoryLock.taken(path, LOCK_FILE) as lock:
            return cls(path, _identity(path, namespace), lock)

    def close(self) -> None:
        self._lock.close()


def _identity(path: Path, namespace: str) -> bytes:
    file = path / FORMAT_FILE
    if not file.exists():
        temporary = path / (FORMAT_FILE + ".new")
        made = {"format": FORMAT_VERSION, "identity": os.urandom(IDENTITY_BYTES).hex(), "namespace": namespace}
        temporary.write_text(json.dumps(made) + "\n", encoding="utf-8")
        put_in_place(temporary, file)
    return _read(path, file, namespace)


def _read(path: Path, file: Path, namespace: str) -> bytes:
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
        version, identity, owner = int(found["format"]), bytes.fromhex(found["identity"]), found["namespace"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SettingsError(f"side_buffer: {file} does not say whose it is ({error!r})") from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(path, version, FORMAT_VERSION)
    if owner != namespace:
        raise SettingsError(
            f"side_buffer: {path} is that of the namespace '{owner}', and this is '{namespace}'; name another directory"
        )
    return identity
