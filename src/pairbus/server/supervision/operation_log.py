"""The last operations of a server, for diagnostic bundles."""

from __future__ import annotations

import time
from collections import deque
from datetime import UTC, datetime
from typing import Final

from pairbus.broker import Address

_KEPT: Final = 512


class LoggedOperation:
    """An operation on an entity, or several of the same kind in a row."""

    __slots__ = ("address", "count", "operation", "started_s")

    def __init__(self, operation: str, address: Address | None, count: int) -> None:
        self.operation = operation
        self.address = address
        self.count = count
        self.started_s = time.time()


class OperationLog:
    """A ring of operations: their kind, entity, number and time, and nothing of their content."""

    def __init__(self) -> None:
        self._kept: deque[LoggedOperation] = deque(maxlen=_KEPT)
        self._last = LoggedOperation("start", None, 0)
        self._kept.append(self._last)

    def add(self, operation: str, address: Address | None = None, count: int = 1) -> None:
        """Record operations. This runs for every message, so it does as little as possible."""
        last = self._last
        if last.operation is operation and (last.address is address or last.address == address):
            last.count += count
        else:
            self._last = last = LoggedOperation(operation, address, count)
            self._kept.append(last)

    def rows(self) -> list[dict[str, object]]:
        """Return the operations for a bundle, the oldest first."""
        return [
            {
                "at": datetime.fromtimestamp(each.started_s, UTC).isoformat(timespec="milliseconds"),
                "operation": each.operation,
                "entity": None if each.address is None else str(each.address),
                "count": each.count,
            }
            for each in self._kept.copy()
        ]
