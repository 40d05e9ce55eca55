"""Simulated kills of a process at one of its file operations, as far as the disk is concerned."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_OPERATIONS: Final = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})


class Killed(BaseException):
    """Not caught anywhere, so that nothing is cleaned up."""


class _Killer:
    def __init__(self) -> None:
        self.root: str | None = None
        self.left = 0
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.root is None or event not in _OPERATIONS or not str(arguments[0]).startswith(self.root):
            return
        self.left -= 1
        if self.left < 0:
            self.root = None
            raise Killed


_killer: _Killer | None = None


@contextmanager
def killed_before(operation: int, root: Path) -> Iterator[None]:
    """Abort before the given file operation below a directory."""
    global _killer  # noqa: PLW0603 (hooks are there for as long as the process)
    _killer = _killer or _Killer()
    _killer.root, _killer.left = str(root), operation
    try:
        yield
    finally:
        _killer.root = None
