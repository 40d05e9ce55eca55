"""What has happened to the pair, in sentences: what senders tell, and what a namespace concludes from what comes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pairbus.dialect.backlog_path import is_drill_path
from pairbus.pairing.policy import EntityState

_KEPT: Final = 200
_QUIET_MS: Final = 15_000
"""How long nothing has to come before the next message is news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """What an application has told: where the messages for an entity go."""

    application: str
    processes: frozenset[str]
    """Which of its processes have told it at about the same time."""

    primary: str
    path: str
    state: EntityState
    reason: str = ""
    is_of_ours: bool = False
    """Whether the entity is one of this namespace, which is the primary then."""

    @property
    def text(self) -> str:
        count = len(self.processes)
        who = f"{count} processes" if count > 1 else next(iter(self.processes))
        return f"{self.path} of {self.primary}: {self.application} ({who}) {self._what}"

    @property
    def _what(self) -> str:
        match self.state:
            case EntityState.HELD_OVER if is_drill_path(self.path):
                return "has begun a drill."
            case EntityState.HEALTHY if is_drill_path(self.path):
                return "has diverted the message of the drill."
            case EntityState.FAILED_OVER:
                return f"has failed over to the backlog: {self.reason or 'no reason was given'}"
            case EntityState.HELD_OVER:
                return "was switched to the backlog by hand."
            case _:
                return "has come back to the primary."

    @property
    def conclusion(self) -> str:
        """What this namespace would have concluded from it."""
        if is_drill_path(self.path):
            return ""
        if self.state is EntityState.HEALTHY:
            return _of_pings(self.path) if self.is_of_ours else ""
        return _of_diversion(self.primary)

    def is_joined_by(self, other: Switch) -> bool:
        """Whether another process of the application has told the same."""
        alike = (self.application, self.primary.lower(), self.path.lower(), self.state)
        is_same = alike == (other.application, other.primary.lower(), other.path.lower(), other.state)
        return is_same and self.processes.isdisjoint(other.processes)


@dataclass(frozen=True, slots=True)
class Entry:
    """A sentence, and when it came true."""

    at_ms: int
    text: str
    conclusion: str = ""
    """What the namespace has concluded, or what makes a conclusion needless."""

    switch: Switch | None = None
    """What an application has told, where it did."""


@dataclass(slots=True)
class _Backlog:
    """What was last seen of a primary namespace's backlog."""

    depth: int = 0
    diverted_ms: int | None = None
    syphoned_ms: int | None = None


class Diary:
    """Tells what is new from what goes on as before. What a sender tells takes the place of a conclusion of ours."""

    def __init__(self, started_ms: int) -> None:
        self._entries = [Entry(started_ms, "The server was started.")]
        self._backlogs: dict[str, _Backlog] = {}
        self._pinged_ms: dict[str, int] = {}
        self.edition = 0
        """Another one after each change."""

    def __iter__(self) -> Iterator[Entry]:
        """The newest first."""
        return reversed(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinged(self) -> Mapping[str, int]:
        """When each entity was last seen to be pinged."""
        return self._pinged_ms

    def note_backlog(
        self,
        primary: str,
        depth: int,
        diverted: int,
        syphoned: int,
        now_ms: int,
        *,
        is_told: bool = False,
        drills: int = 0,
    ) -> None:
        """Note how many messages lie in the backlog of a namespace, and how many came and went since the last time.

        ``is_told`` says that senders have told of it themselves. ``drills`` counts messages of drills, which are not
        among the diverted ones.
        """
        seen = self._backlogs.setdefault(primary, _Backlog())
        if drills:
            messages = "A drill diverted a message" if drills == 1 else f"Drills diverted {drills} messages"
            self._add(Entry(now_ms, f"{messages} for {primary} to the backlog. No sender has failed over."))
        if diverted and _is_news(seen.diverted_ms, now_ms) and not is_told:
            text = f"Messages for {primary} are diverted to the backlog: senders have failed over."
            self._conclude(now_ms, text, _of_diversion(primary))
        if syphoned and _is_news(seen.syphoned_ms, now_ms):
            self._add(Entry(now_ms, f"A syphon brings messages home to {primary}."))
        if seen.depth and not depth:
            self._add(Entry(now_ms, f"The backlog of {primary} is empty: everything has been brought home."))
        seen.depth = depth
        seen.diverted_ms = now_ms if diverted else seen.diverted_ms
        seen.syphoned_ms = now_ms if syphoned else seen.syphoned_ms

    def note_pings(self, path: str, count: int, now_ms: int) -> None:
        """An entity was pinged. It has answered: whoever asked goes back to it at once."""
        times = "" if count == 1 else f" {count} times"
        text = f"{path} was pinged{times} and answered: senders that had failed over come back to it."
        self._conclude(now_ms, text, _of_pings(path))
        self._pinged_ms[path] = now_ms

    def note_switch(self, switch: Switch, at_ms: int) -> None:
        """A sender has told where it sends; many processes that do the same at a time make one sentence."""
        for place, entry in enumerate(self._entries):
            if entry.switch is not None and entry.switch.is_joined_by(switch) and _are_near(entry.at_ms, at_ms):
                joined = replace(entry.switch, processes=entry.switch.processes | switch.processes)
                self._entries[place] = replace(entry, text=joined.text, switch=joined)
                self.edition += 1
                return
        self._entries = [
            entry
            for entry in self._entries
            if entry.switch is not None
            or not entry.conclusion
            or entry.conclusion != switch.conclusion
            or not _are_near(entry.at_ms, at_ms)
        ]
        self._add(Entry(at_ms, switch.text, switch.conclusion, switch))

    def note_missed(self, who: str, count: int, now_ms: int) -> None:
        """A sender has switched too often to tell each time."""
        self._add(Entry(now_ms, f"{who} has switched {count} times more."))

    def _conclude(self, now_ms: int, text: str, conclusion: str) -> None:
        """Add what follows from what was seen, unless a sender has just told it."""
        is_told = any(
            entry.conclusion == conclusion and entry.switch is not None and _are_near(entry.at_ms, now_ms)
            for entry in self._entries
        )
        if not is_told:
            self._add(Entry(now_ms, text, conclusion))

    def _add(self, entry: Entry) -> None:
        insort(self._entries, entry, key=lambda one: one.at_ms)  # what is told comes later than what is seen
        del self._entries[:-_KEPT]
        self.edition += 1


def _of_diversion(primary: str) -> str:
    return f"diversion {primary.lower()}"


def _of_pings(path: str) -> str:
    return f"pings {path.lower()}"


def _are_near(one_ms: int, other_ms: int) -> bool:
    return abs(one_ms - other_ms) <= _QUIET_MS


def _is_news(last_ms: int | None, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms > _QUIET_MS
