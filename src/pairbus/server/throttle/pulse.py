"""How an event loop keeps up with its work, told by a timer that it is to call at even times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

_KEPT: Final = 6
"""Beats that are looked at: five seconds of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One call of the timer: when it was due, when it came, and the processor time of the loop's thread until then."""

    due_s: float
    at_s: float
    cpu_s: float


class Pulse:
    """The last beats of a loop.

    Two numbers, because neither says it all. A loop that is busy all the time may be well: it is read from as fast as
    it works, and its senders are held back by their sockets. One that has hardly anything to do may be in trouble,
    when others have the processor. What clients notice is the delay; the share says whose work it is.
    """

    def __init__(self) -> None:
        self._beats: deque[Beat] = deque(maxlen=_KEPT)

    def beat(self, beat: Beat) -> None:
        self._beats.append(beat)

    @property
    def processor(self) -> float:
        """The share of one processor that the loop has used."""
        if len(self._beats) < 2:
            return 0.0
        first, last = self._beats[0], self._beats[-1]
        return max(0.0, last.cpu_s - first.cpu_s) / max(last.at_s - first.at_s, 0.001)

    @property
    def delay_s(self) -> float:
        """How late the loop is: the median, since a machine that was asleep is late once and well again."""
        return max(0.0, median(beat.at_s - beat.due_s for beat in self._beats)) if self._beats else 0.0
