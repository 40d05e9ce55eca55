"""What connections may take of the server before they have shown a key or a token that holds (E5)."""

from __future__ import annotations

from typing import Final, Protocol

from pairbus.wire import Bounds

BOUNDS: Final = Bounds(sessions=8, links=16, incomplete_bytes=64 * 1024, values=512)
"""What one connection may have: the links to ``$cbs``, and one token at a time."""

TOKEN_BYTES: Final = 32 * 1024
"""The largest request that ``$cbs`` takes: tokens of an identity provider with many claims have some 12 KB."""

TOTAL_BYTES: Final = 32 * 1024 * 1024
"""What all such connections together may hold of frames and messages that have not arrived whole."""


class Abortable(Protocol):
    """A connection that can be ended."""

    def abort(self) -> None: ...


class Unproven:
    """The connections of which nothing is known yet, the oldest first, with what each holds."""

    def __init__(self, total_bytes: int = TOTAL_BYTES) -> None:
        self._total_bytes = total_bytes
        self._held: dict[Abortable, int] = {}
        self.held_bytes = 0
        self.returned_bytes = 0
        """What connections have held that were proven or lost since."""
        self.evicted_count = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, connection: Abortable) -> None:
        self._held[connection] = 0

    def hold(self, connection: Abortable, size_bytes: int) -> bool:
        """Note what a connection holds now; return whether there is room for it."""
        before = self._held.get(connection)
        if before is None:
            return True
        self._held[connection] = size_bytes
        self.held_bytes += size_bytes - before
        return self.held_bytes <= self._total_bytes

    def discard(self, connection: Abortable) -> None:
        """Forget a connection: it is proven, or gone."""
        held = self._held.pop(connection, 0)
        self.held_bytes -= held
        self.returned_bytes += held

    def evict(self) -> bool:
        """End the oldest connection, to make room for another; return whether there was one."""
        for connection in self._held:
            self.discard(connection)
            self.evicted_count += 1
            connection.abort()
            return True
        return False
