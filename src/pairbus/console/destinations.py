"""Where the messages in the backlog are bound for, as far as those that came last show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from pairbus.broker import BrokerError
from pairbus.console.census import EntityCount
from pairbus.dialect.backlog_path import is_drill_path
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.server.host import NamespaceHost

_LOOKED_AT: Final = 10
_LOOKED_AT_BYTES: Final = 256 * 1024
_MOST: Final = 1_000
NOW_MS: Final = 60_000
"""An entity counts as diverted while its messages have come within this time."""


class DestinationState(StrEnum):
    """How it is with an entity of a primary, as its secondary sees it."""

    DIVERTED = "diverted"
    """Its messages come here."""

    WAITING = "waiting in the backlog"
    HOME = "brought home"
    DRILL = "drill"
    """Its message tries out the pair."""


@dataclass(slots=True, kw_only=True)
class Destination:
    """An entity of a primary namespace whose messages come to a backlog queue here."""

    primary: str
    path: str
    first_ms: int
    last_ms: int

    def state(self, now_ms: int, *, has_backlog: bool) -> DestinationState:
        if is_drill_path(self.path):
            return DestinationState.DRILL
        if not has_backlog:
            return DestinationState.HOME
        return DestinationState.DIVERTED if now_ms - self.last_ms < NOW_MS else DestinationState.WAITING


class Destinations:
    """Those that were seen since the start."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Destination] = {}

    def __iter__(self) -> Iterator[Destination]:
        return iter(self._seen.values())

    def look(self, host: NamespaceHost, queue: EntityCount, now_ms: int) -> None:
        """Look at the messages that came last to a backlog queue, without a lock."""
        primary = queue.primary
        if primary is None:
            return
        with suppress(BrokerError):  # it was deleted meanwhile
            first = max(0, queue.arrived - _LOOKED_AT + 1)
            found = host.namespace.peek(queue.address, first, _LOOKED_AT, now_ms, max_bytes=_LOOKED_AT_BYTES)
            for delivery in found:
                with suppress(TransferError):
                    self._note(primary, read_transfer(delivery.body).path, now_ms)

    def _note(self, primary: str, path: str, now_ms: int) -> None:
        key = primary.lower(), path.lower()
        seen = self._seen.get(key)
        if seen is not None:
            seen.last_ms = now_ms
        elif len(self._seen) < _MOST:
            self._seen[key] = Destination(primary=primary, path=path, first_ms=now_ms, last_ms=now_ms)
