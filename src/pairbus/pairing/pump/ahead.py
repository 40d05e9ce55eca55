"""What may lie in a backlog queue ahead of a message, and is not ours: the messages of a session go in order."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import Final

from pairbus.pairing.homecoming.bound import Line

_ENDLESS: Final = 1 << 63


@dataclass(slots=True)
class Gap:
    """Sequence numbers that nothing is known of."""

    first: int
    last: int


_MOST_GAPS: Final = 1_000


class Ahead:
    """Knows which sequence numbers were never looked at, and which messages others have.

    A number that is not in the queue never comes back, so what was looked at once need not be looked at again, unless
    there was a message.
    """

    def __init__(self) -> None:
        self.frontier = 0
        """The highest number that anything is known of."""

        self.gaps: list[Gap] = []
        """What nothing is known of below that, in order."""

        self.others: dict[int, Line | None] = {}
        """Messages that were seen in the queue, and that are not ours."""

        self._lines: dict[Line, list[int]] = {}

    def start_over(self) -> None:
        """Know nothing of where there may be messages."""
        self.frontier = 0
        self.gaps.clear()

    def forget(self) -> list[Line]:
        """Know nothing at all: the queue is another one, and counts from one again. Gives what others stood in."""
        lines = [*self._lines]
        self.start_over()
        self.others.clear()
        self._lines.clear()
        return lines

    def received(self, sequence: int) -> None:
        """A message has come; as long as it is among those of others, what stands behind it waits."""
        if sequence == self.frontier + 1:
            self.frontier = sequence
        elif sequence > self.frontier:
            self.gaps.append(Gap(self.frontier + 1, sequence - 1))
            self.frontier = sequence
            if len(self.gaps) > _MOST_GAPS:  # what is known between them is looked at once more, which does no harm
                self.gaps = [Gap(self.gaps[0].first, self.gaps[-1].last)]

    def saw(self, sequence: int, line: Line | None) -> None:
        """A message lies in the queue, and somebody else has it, or may have it next."""
        if sequence in self.others:
            return
        self.others[sequence] = line
        if line is not None:
            insort(self._lines.setdefault(line, []), sequence)

    def gone(self, sequence: int) -> Line | None:
        """It is not there any more, or it is ours; tells the line that it stood in."""
        line = self.others.pop(sequence, None)
        if line is not None:
            numbers = self._lines[line]
            numbers.remove(sequence)
            if not numbers:
                del self._lines[line]
        return line

    def is_clear(self, sequence: int, line: Line | None) -> bool:
        """Whether nothing of the same line is known to lie ahead with somebody else."""
        if line is None or not self._lines:
            return True
        numbers = self._lines.get(line)
        return numbers is None or numbers[0] >= sequence

    def is_unknown(self, sequence: int) -> bool:
        """Whether nobody has looked at this number yet."""
        return sequence > self.frontier or any(gap.first <= sequence <= gap.last for gap in self.gaps)

    def first_unknown(self, below: int = _ENDLESS) -> int | None:
        """The first number that nobody has looked at, if there is one below."""
        first = self.gaps[0].first if self.gaps else self.frontier + 1
        return first if first < below else None

    def looked(self, last: int) -> None:
        """Everything has been looked at up to a number."""
        kept: list[Gap] = []
        for gap in self.gaps:
            if gap.last > last:
                gap.first = max(gap.first, last + 1)
                kept.append(gap)
        self.gaps = kept
        self.frontier = max(self.frontier, last)
