"""What a task has to send, gathered by entity until it is worth a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from pairbus.spark.connection_reference import ConnectionReference
from pairbus.spark.connections import on_loop, reached
from pairbus.spark.dispatch import Dispatch
from pairbus.spark.lanes import lanes_of

_BATCH_BYTES: Final = 256 << 10
"""The most that a batch holds in a Standard namespace."""

_MOST_BYTES: Final = 2 << 20
"""How much waits at most, however many entities it is for."""


@dataclass(slots=True)
class _Pile:
    """Messages for one entity."""

    path: str
    payloads: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


class Outbox:
    """Takes messages one by one, in the thread of the task, while others are being sent on the loop."""

    def __init__(self, connection: ConnectionReference, connect_timeout: timedelta, batch_size: int) -> None:
        self._connection = connection
        self._connect_timeout = connect_timeout
        self._batch_size = batch_size
        self._piles: dict[str, _Pile] = {}
        self._size_bytes = 0
        self._dispatch: Dispatch | None = None

    def add(self, path: str, payload: bytes) -> None:
        """Send a message, now or with more. Raises ``MessageWriteError`` when one of those before was not sent."""
        key = path.lower()  # entities are the same however their names are capitalised
        pile = self._piles.get(key)
        if pile is None:
            pile = self._piles[key] = _Pile(path)
        pile.payloads.append(payload)
        pile.size_bytes += len(payload)
        self._size_bytes += len(payload)
        if len(pile.payloads) >= self._batch_size or pile.size_bytes >= _BATCH_BYTES:
            self._put(self._piles.pop(key))
        elif self._size_bytes >= _MOST_BYTES:
            self._put_all()

    def finish(self) -> dict[str, int]:
        """Send what is left, and wait until everything is confirmed: how many messages each entity got."""
        self._put_all()
        return {} if self._dispatch is None else on_loop(self._dispatch.finish)

    def close(self) -> None:
        if self._dispatch is not None:
            on_loop(self._dispatch.close)

    def _put_all(self) -> None:
        while self._piles:
            self._put(self._piles.pop(next(iter(self._piles))))

    def _put(self, pile: _Pile) -> None:
        self._size_bytes -= pile.size_bytes
        if self._dispatch is None:  # a task without rows needs no connection
            self._dispatch = Dispatch(lanes_of(reached(self._connection, self._connect_timeout, once=True)))
        on_loop(self._dispatch.put, pile.path, pile.payloads)
