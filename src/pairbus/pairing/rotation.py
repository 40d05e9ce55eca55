"""Which backlog queues are used: all of them, except those that have failed lately."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from pairbus.client.errors import MessagingError, ServerBusyError

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_BUSY_PAUSE_S: Final = 10.0
_A_HAIR_S: Final = 1e-6
"""How much before its time a timer may go off."""


@dataclass(slots=True)
class _Outage:
    """A queue that has been taken out."""

    cause: MessagingError
    pause_s: float
    trial_s: float
    """When it may be tried again."""


class Rotation:
    """Shared by all senders of a factory, so what one of them finds out all of them know."""

    def __init__(self, count: int, random: Random) -> None:
        self.count: Final = count
        self._random = random
        self._outages: dict[int, _Outage] = {}

    @property
    def causes(self) -> Mapping[int, MessagingError]:
        """Why queues were taken out, by their index."""
        return {index: outage.cause for index, outage in self._outages.items()}

    def __contains__(self, index: object) -> bool:
        return index not in self._outages

    def pick(self) -> int | None:
        """One of those in the rotation, at random; ``None`` if there are none."""
        left = [index for index in range(self.count) if index not in self._outages]
        return self._random.choice(left) if left else None

    def due(self, now_s: float) -> int | None:
        """One that was taken out and should be tried now. Whoever gets it tries it; nobody else does at that time."""
        return next((index for index in [*self._outages] if self.claim(index, now_s)), None)

    def claim(self, index: int, now_s: float) -> bool:
        """Whether that one, which was taken out, should be tried now; nobody else does at that time."""
        outage = self._outages.get(index)
        if outage is None or now_s + _A_HAIR_S < outage.trial_s:
            return False
        outage.trial_s = now_s + outage.pause_s
        return True

    def trial_s(self, index: int | None) -> float | None:
        """When that one may be tried again; or the first of all, if none is named."""
        if index is not None:
            return None if index not in self._outages else self._outages[index].trial_s
        return min((outage.trial_s for outage in self._outages.values()), default=None)

    def next_to(self, index: int) -> int | None:
        """That one, or the next one after it that is in the rotation."""
        ring = ((index + step) % self.count for step in range(self.count))
        return next((one for one in ring if one not in self._outages), None)

    def failed(self, index: int, cause: MessagingError, now_s: float, *, was_due: bool = False) -> bool:
        """Take it out; tells whether it was in. One that was due and failed again is left alone for longer."""
        before = self._outages.get(index)
        if before is not None and not was_due:  # of many that were on their way to it at the same time
            before.cause = cause
            if isinstance(cause, ServerBusyError):
                before.trial_s = max(before.trial_s, now_s + _BUSY_PAUSE_S)
            return False
        pause_s = _FIRST_PAUSE_S if before is None else min(2 * before.pause_s, _LONGEST_PAUSE_S)
        if isinstance(cause, ServerBusyError):
            pause_s = max(pause_s, _BUSY_PAUSE_S)
        self._outages[index] = _Outage(cause, pause_s, now_s + pause_s)
        return before is None

    def worked(self, index: int) -> bool:
        """It works: it is in, and whether it was not is told."""
        return self._outages.pop(index, None) is not None
