"""A log of events of the pair: switches that senders report, and what the namespace infers from messages and pings."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from pairbus.dialect.paths import is_drill_path
from pairbus.pairing.policy import EntityState

_MAX_ENTRIES: Final = 200
_QUIET_MS: Final = 15_000
"""Minimum pause after which an activity is logged again; events within this time may be the same one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """A reported change of where an application sends the messages for an entity."""

    application: str
    processes: frozenset[str]
    """The processes of the application that reported it at about the same time."""

    primary: str
    path: str
    state: EntityState
    reason: str = ""
    is_local: bool = False
    """True if the entity belongs to this namespace, which is then the primary."""

    @property
    def text(self) -> str:
        count = len(self.processes)
        who = f"{count} processes" if count > 1 else next(iter(self.processes))
        return f"{self.path} of {self.primary}: {self.application} ({who}) {self._action}"

    @property
    def _action(self) -> str:
        match self.state:
            case EntityState.HELD_OVER if is_drill_path(self.path):
                return "started a drill."
            case EntityState.HEALTHY if is_drill_path(self.path):
                return "diverted the message of the drill."
            case EntityState.FAILED_OVER:
                return f"failed over to the backlog: {self.reason or 'no reason was given'}"
            case EntityState.HELD_OVER:
                return "was switched to the backlog manually."
            case _:
                return "returned to the primary."

    @property
    def inference(self) -> str:
        """The key of the inference that this report makes redundant."""
        if is_drill_path(self.path):
            return ""
        if self.state is EntityState.HEALTHY:
            return _ping_key(self.path) if self.is_local else ""
        return _diversion_key(self.primary)

    def is_joined_by(self, other: Switch) -> bool:
        """Return whether another process of the application reports the same switch."""
        key = (self.application, self.primary.lower(), self.path.lower(), self.state)
        is_same = key == (other.application, other.primary.lower(), other.path.lower(), other.state)
        return is_same and self.processes.isdisjoint(other.processes)


@dataclass(frozen=True, slots=True)
class PairEventEntry:
    """An event as a sentence, and its time."""

    at_ms: int
    text: str
    inference: str = ""
    """The key of what the namespace inferred, or of the inference that a report makes redundant."""

    switch: Switch | None = None
    """The reported switch; ``None`` for other events."""


@dataclass(slots=True)
class _Backlog:
    """The last known state of the backlog of a primary namespace."""

    depth: int = 0
    diverted_ms: int | None = None
    syphoned_ms: int | None = None


class PairEventLog:
    """The last events of the pair. A switch that a sender reports replaces what the namespace inferred from it."""

    def __init__(self, started_ms: int) -> None:
        self._entries = [PairEventEntry(started_ms, "The server started.")]
        self._backlogs: dict[str, _Backlog] = {}
        self._pinged_ms: dict[str, int] = {}
        self.version = 0
        """Incremented with each change."""

    def __iter__(self) -> Iterator[PairEventEntry]:
        """Iterate over the entries, the newest first."""
        return reversed(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinged(self) -> Mapping[str, int]:
        """The time of the last ping of each entity."""
        return self._pinged_ms

    def add_backlog(
        self,
        primary: str,
        depth: int,
        diverted: int,
        syphoned: int,
        now_ms: int,
        *,
        is_reported: bool = False,
        drills: int = 0,
    ) -> None:
        """Add the depth of a backlog, and the numbers of messages that arrived and left since the last call.

        ``is_reported`` says that senders report the diversion themselves. ``drills`` is the number of messages of
        drills, which ``diverted`` does not include.
        """
        seen = self._backlogs.setdefault(primary, _Backlog())
        if drills:
            messages = "A drill diverted a message" if drills == 1 else f"Drills diverted {drills} messages"
            self._add(PairEventEntry(now_ms, f"{messages} for {primary} to the backlog. No sender has failed over."))
        if diverted and _is_news(seen.diverted_ms, now_ms) and not is_reported:
            text = f"Messages for {primary} are diverted to the backlog: senders have failed over."
            self._infer(now_ms, text, _diversion_key(primary))
        if syphoned and _is_news(seen.syphoned_ms, now_ms):
            self._add(PairEventEntry(now_ms, f"A syphon is restoring messages to {primary}."))
        if seen.depth and not depth:
            self._add(PairEventEntry(now_ms, f"The backlog of {primary} is empty: all messages have been restored."))
        seen.depth = depth
        seen.diverted_ms = now_ms if diverted else seen.diverted_ms
        seen.syphoned_ms = now_ms if syphoned else seen.syphoned_ms

    def add_pings(self, path: str, count: int, now_ms: int) -> None:
        """Add pings of an entity. Each was answered, and its sender returns to the entity at once."""
        pings = "a ping" if count == 1 else f"{count} pings"
        text = f"{path} answered {pings}: senders that had failed over return to it."
        self._infer(now_ms, text, _ping_key(path))
        self._pinged_ms[path] = now_ms

    def add_switch(self, switch: Switch, at_ms: int) -> None:
        """Add a reported switch; those of several processes at about the same time are joined."""
        for index, entry in enumerate(self._entries):
            if entry.switch is not None and entry.switch.is_joined_by(switch) and _are_near(entry.at_ms, at_ms):
                joined = replace(entry.switch, processes=entry.switch.processes | switch.processes)
                self._entries[index] = replace(entry, text=joined.text, switch=joined)
                self.version += 1
                return
        self._entries = [
            entry
            for entry in self._entries
            if entry.switch is not None
            or not entry.inference
            or entry.inference != switch.inference
            or not _are_near(entry.at_ms, at_ms)
        ]
        self._add(PairEventEntry(at_ms, switch.text, switch.inference, switch))

    def add_missed(self, sender: str, count: int, now_ms: int) -> None:
        """Add the number of switches that a sender did not report individually, because there were too many."""
        self._add(PairEventEntry(now_ms, f"{sender} switched {count} more times."))

    def _infer(self, now_ms: int, text: str, inference: str) -> None:
        """Add an inference, unless a sender has just reported the same."""
        is_reported = any(
            entry.inference == inference and entry.switch is not None and _are_near(entry.at_ms, now_ms)
            for entry in self._entries
        )
        if not is_reported:
            self._add(PairEventEntry(now_ms, text, inference))

    def _add(self, entry: PairEventEntry) -> None:
        insort(self._entries, entry, key=lambda one: one.at_ms)  # reports arrive later than the events they describe
        del self._entries[:-_MAX_ENTRIES]
        self.version += 1


def _diversion_key(primary: str) -> str:
    return f"diversion {primary.lower()}"


def _ping_key(path: str) -> str:
    return f"pings {path.lower()}"


def _are_near(one_ms: int, other_ms: int) -> bool:
    return abs(one_ms - other_ms) <= _QUIET_MS


def _is_news(last_ms: int | None, now_ms: int) -> bool:
    return last_ms is None or now_ms - last_ms > _QUIET_MS
