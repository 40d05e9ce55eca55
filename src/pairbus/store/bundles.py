"""Diagnostic bundles: files for operators, beside the data of a namespace. A bundle that a power failure takes is no
loss, so they are not synced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pairbus.durable import OURS_ALONE

BUNDLES: Final = "diagnostics"
"""Name of the directory of bundles in a data directory."""

MAX_BUNDLES: Final = 20
MAX_BUNDLE_BYTES: Final = 4 * 1024 * 1024
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z-[a-z0-9-]{1,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleInfo:
    """A kept bundle. Its name begins with its time, and ends with what it is about."""

    name: str
    size_bytes: int


class BundleDirectory:
    """The kept bundles of a namespace: the newest of them, up to a count and a size each."""

    def __init__(self, data: Path, max_count: int = MAX_BUNDLES, max_bytes: int = MAX_BUNDLE_BYTES) -> None:
        """``data`` is the data directory; the directory of bundles is created with the first one."""
        self.path = data / BUNDLES
        self._max_count = max_count
        self._max_bytes = max_bytes

    def write(self, name: str, content: bytes) -> None:
        """Keep a bundle, and delete the oldest ones beyond the limit. Raise ``ValueError`` or ``OSError``."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"a bundle is named by its time and component, got {name!r}")
        if len(content) > self._max_bytes:
            raise ValueError(f"a bundle must have at most {self._max_bytes} bytes, got {len(content)}")
        self.path.mkdir(mode=OURS_ALONE, exist_ok=True)
        temporary = self.path / f"{name}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(self._file(name))
        self._prune()

    def list(self) -> Sequence[BundleInfo]:
        """Return all kept bundles, the newest first."""
        found = []
        with suppress(OSError):
            for file in self.path.iterdir():
                if file.suffix == _SUFFIX and _NAME.fullmatch(file.stem):
                    with suppress(OSError):  # it was deleted meanwhile
                        found.append(BundleInfo(name=file.stem, size_bytes=file.stat().st_size))
        return sorted(found, key=lambda info: info.name, reverse=True)

    def read(self, name: str) -> bytes | None:
        """Return the content of a bundle; ``None`` if there is none of that name."""
        if not _NAME.fullmatch(name):
            return None
        try:
            return self._file(name).read_bytes()
        except OSError:
            return None

    def _file(self, name: str) -> Path:
        return self.path / f"{name}{_SUFFIX}"

    def _prune(self) -> None:
        for info in self.list()[self._max_count :]:
            with suppress(OSError):
                self._file(info.name).unlink()
        for left in self.path.glob("*.new"):  # of a process that was killed
            with suppress(OSError):
                left.unlink()
