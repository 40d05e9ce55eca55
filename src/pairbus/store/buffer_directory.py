"""The directory of a side buffer: locked by one process, and owned by one namespace."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from pairbus.durable import put_in_place
from pairbus.store.datafile import DirectoryLock
from pairbus.store.errors import BufferOwnerError, NewerFormatError

FORMAT_FILE: Final = "side-buffer"
LOCK_FILE: Final = "side-buffer.lock"
FORMAT_VERSION: Final = 1
_IDENTITY_BYTES: Final = 8


class BufferDirectory:
    """A directory that is locked until it is closed.

    Its random identity is stored in the namespace's store, too, next to how far the buffer was merged.
    """

    def __init__(self, path: Path, identity: bytes, lock: DirectoryLock) -> None:
        self.path = path
        self.identity = identity
        self._lock = lock

    @classmethod
    def open(cls, path: Path, namespace: str) -> Self:
        """Lock a directory, and create it if needed.

        Raise ``BufferOwnerError`` if it belongs to another namespace, and ``NewerFormatError``, ``StoreInUseError`` or
        ``StoreFailedError``.
        """
        with DirectoryLock.taken(path, LOCK_FILE) as lock:
            return cls(path, _identity(path, namespace), lock)

    def close(self) -> None:
        """Unlock the directory. Idempotent."""
        self._lock.close()


def _identity(path: Path, namespace: str) -> bytes:
    file = path / FORMAT_FILE
    if not file.exists():
        temporary = path / (FORMAT_FILE + ".new")
        content = {"format": FORMAT_VERSION, "identity": os.urandom(_IDENTITY_BYTES).hex(), "namespace": namespace}
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        put_in_place(temporary, file)
    return _read_identity(path, file, namespace)


def _read_identity(path: Path, file: Path, namespace: str) -> bytes:
    try:
        found: Mapping[str, Any] = json.loads(file.read_bytes())
        version, identity, owner = int(found["format"]), bytes.fromhex(found["identity"]), found["namespace"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise BufferOwnerError(path, f"{file} does not name its owner ({error!r})") from error
    if version > FORMAT_VERSION:
        raise NewerFormatError(path, version, FORMAT_VERSION)
    if owner != namespace:
        raise BufferOwnerError(path, f"{path} belongs to the namespace '{owner}', not to '{namespace}'")
    return identity
