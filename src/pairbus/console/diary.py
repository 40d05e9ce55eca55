"""What has happened to the pair, in sentences: as far as a namespace can tell from what comes and goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_KEPT: Final = 200
_QUIET_MS: Final = 15_000
"""How long nothing has to come before the next message is news."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A sentence, and when it came true."""

    at_ms: int
    text: str


@dataclass(slots=True)
class _Backlog:
    """What was last seen of a primary namespace's backlog."""

    depth: int = 0
    diverted_ms: int | None = None
    syphoned_ms: int | None = None


class Diary:
    """Tells what is new from what goes on as before."""

    def __init__(self, started_ms: int) -> None:
        self._entries: deque[Entry] = deque([Entry(started_ms, "The server was started.")], maxlen=_KEPT)
        self._backlogs: dict[str, _Backlog] = {}
        self._pinged_ms: dict[str, int] = {}

    def __iter__(self) -> Iterator[Entry]:
        """The newest first."""
        return reversed(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinged(self) -> Mapping[str, int]:
        """When each entity was last seen to be pinged."""
        return self._pinged_ms

    def note_backlog(self, primary: str, depth: int, diverted: int, syphoned: int, now_ms: int) -> None:
        """How many messages lie in the backlog of a namespace, and how many came and went since the last time."""
        seen = self._backlogs.setdefault(primary, _Backlog())
        if diverted and _is_news(seen.diverted_ms, now_ms):
            self._add(now_ms, f"Messages for {primary} are diverted to the backlog: senders have failed over.")
        if syphoned and _is_news(seen.syphoned_ms, now_ms):
            self._add(now_ms, f"A syphon brings messages home to {primary}.")
        if seen.depth and not depth:
            self._add(now_ms, f"The backlog of {primary} is empty: everything has been brought home.")
        seen.depth = depth
        seen.diverted_ms = now_ms if diverted else seen.diverted_ms
        seen.syphoned_ms = now_ms if syphoned else seen.syphoned_ms

    def note_pings(self, path: str, count: int, now_ms: int) -> None:
        """An entity was pinged. It has answered: whoever asked goes back to it at once."""
        times = "" if count == 1 else f" {count} times"
        self._add(now_ms, f"{path} was pinged{times} and answered: senders that had failed over come back to it.")
        self._pinged_ms[path] = now_ms

    def _add(self, now_ms: int, text: str) -> None:
        self._entries.append(Entry(now_ms, text))


def _is_news(last_ms: int | None, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms > _QUIET_MS
