"""What goes wrong in a run, as values that print as readable lines."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Kind(Enum):
    """What happens."""

    REFUSE = "refuses connections"
    HANG = "hangs"
    DEAF = "hears nothing"
    MUTE = "is not heard"
    HIDE = "has no address"
    RESET = "resets connections"
    BUSY = "is busy"
    KILL = "is killed"
    STOP = "is stopped"
    DISABLE = "is disabled"
    DELETE = "is deleted"
    DENY = "is busy with sends"
    LOSE = "does not answer sends"
    UNCONFIRM = "takes sends and does not answer"
    DIE = "dies"
    ENGAGE = "is switched to the backlog by hand"


ON_ROADS: Final = (Kind.REFUSE, Kind.HANG, Kind.DEAF, Kind.MUTE, Kind.HIDE, Kind.RESET)
"""What happens on the way to a namespace."""

TO_NAMESPACES: Final = (Kind.BUSY, Kind.KILL, Kind.STOP)
TO_ENTITIES: Final = (Kind.DISABLE, Kind.DENY, Kind.LOSE, Kind.UNCONFIRM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap:
    """One thing that goes wrong, from a time on, for a while."""

    kind: Kind
    at_s: float
    lasts_s: float
    namespace: str = ""
    """The namespace that it happens to, or on the way to."""
    process: str = ""
    """The process that it happens to, or for which alone the way is bad."""
    path: str = ""
    """The entity that it happens to."""
    is_lossy: bool = False
    """Whether what was on the way is lost; else it arrives in the end, late as it is."""

    @property
    def end_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        what = " ".join(filter(None, (self.namespace, self._quoted, self._for)))
        lost = ", and what is on the way is lost" if self.is_lossy else ""
        until = "the end" if self.kind is Kind.DELETE else f"{self.end_s:.1f} s"
        return f"{self.at_s:7.1f} s to {until:>9}: {what} {self.kind.value}{lost}"

    @property
    def _quoted(self) -> str:
        return f"'{self.path}'" if self.path else ""

    @property
    def _for(self) -> str:
        if not self.process or self.kind in {Kind.DIE, Kind.ENGAGE}:
            return self.process
        return f"(for {self.process} only)"
