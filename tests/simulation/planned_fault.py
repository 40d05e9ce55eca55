"""The faults of a run, as values that print as readable lines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """The kind of fault."""

    REFUSE = "refuses connections"
    HANG = "hangs"
    DEAF = "hears nothing"
    MUTE = "is not heard"
    HIDE = "has no address"
    RESET = "resets connections"
    SLOW = "is slow"
    FLAKY = "loses connections in the middle of something"
    BUSY = "is busy"
    KILL = "is killed"
    STOP = "is stopped"
    LEAP = "has its clock put forward"
    DISABLE = "is disabled"
    MUFFLE = "takes no messages"
    LOCK_UP = "gives no messages"
    DELETE = "is deleted"
    DENY = "is busy with sends"
    LOSE = "does not answer sends"
    UNCONFIRM = "takes sends and does not answer"
    DIE = "dies"
    LEAVE = "is closed"
    ENGAGE = "is switched to the backlog by hand"


ON_NETWORK: Final = (Kind.REFUSE, Kind.HANG, Kind.DEAF, Kind.MUTE, Kind.HIDE, Kind.RESET, Kind.SLOW, Kind.FLAKY)
"""Faults of the network to a namespace."""

TO_NAMESPACES: Final = (Kind.BUSY, Kind.KILL, Kind.KILL, Kind.STOP, Kind.LEAP)
SWITCHES: Final = (Kind.DISABLE, Kind.MUFFLE, Kind.LOCK_UP)
TO_ENTITIES: Final = (*SWITCHES, Kind.DENY, Kind.LOSE, Kind.UNCONFIRM)
ENDLESS: Final = (Kind.DELETE, Kind.LEAP)
"""Faults that are not repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    """A fault of a plan, with its start and duration."""

    kind: Kind
    at_s: float
    lasts_s: float
    namespace: str = ""
    """The namespace concerned, or whose network is."""
    process: str = ""
    """The process concerned, or the only one whose network is."""
    path: str = ""
    """The entity concerned."""
    size: float = 0.0
    """The delay or clock jump in seconds; or the seed of the places where connections are lost."""
    is_lossy: bool = False
    """True if data in flight is lost; otherwise it arrives late."""

    @property
    def end_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.namespace, self._quoted, self._for)))
        lost = ", and what is on the way is lost" if self.is_lossy else ""
        until = "the end" if self.kind in ENDLESS else f"{self.end_s:.3f} s"
        size = f" by {self.size:g} s" if self.kind in {Kind.SLOW, Kind.LEAP} else ""
        return f"{self.at_s:9.3f} s to {until:>9}: {what} {self.kind.value}{size}{lost}"

    @property
    def _quoted(self) -> str:
        return f"'{self.path}'" if self.path else ""

    @property
    def _for(self) -> str:
        if not self.process or self.kind not in ON_NETWORK:
            return self.process
        return f"(for {self.process} only)"
