"""The order of a backlog queue: which messages lie before others, and belong to other receivers."""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pairbus.backoff import Backoff
from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.pairing.syphon.message import Line, line_of

_log = logging.getLogger(__name__)

_ENDLESS: Final = 1 << 63


@dataclass(slots=True)
class Gap:
    """A range of unknown sequence numbers."""

    first: int
    last: int


_MOST_GAPS: Final = 1_000


class OrderIndex:
    """Tracks which sequence numbers were never peeked, and which messages belong to other receivers.

    A number that is not in the queue is never used again, so a number that was peeked once need not be peeked again,
    unless it had a message.
    """

    def __init__(self) -> None:
        self.frontier = 0
        """The highest known number."""

        self.gaps: list[Gap] = []
        """The unknown numbers below the frontier, in order."""

        self.others: dict[int, Line | None] = {}
        """Messages in the queue that are not locked by this process, with their lines."""

        self._lines: dict[Line, list[int]] = {}

    def start_over(self) -> None:
        """Make all numbers unknown."""
        self.frontier = 0
        self.gaps.clear()

    def forget(self) -> list[Line]:
        """Forget everything, because the queue was re-created and counts from 1 again; return the lines of others."""
        lines = [*self._lines]
        self.start_over()
        self.others.clear()
        self._lines.clear()
        return lines

    def received(self, sequence: int) -> None:
        """Note a received message. While it is among those of others, the messages behind it wait."""
        if sequence == self.frontier + 1:
            self.frontier = sequence
        elif sequence > self.frontier:
            self.gaps.append(Gap(self.frontier + 1, sequence - 1))
            self.frontier = sequence
            if len(self.gaps) > _MOST_GAPS:  # the known numbers between them are peeked once more, which does no harm
                self.gaps = [Gap(self.gaps[0].first, self.gaps[-1].last)]

    def saw(self, sequence: int, line: Line | None) -> None:
        """Note a message in the queue that another receiver has, or may receive next."""
        if sequence in self.others:
            return
        self.others[sequence] = line
        if line is not None:
            insort(self._lines.setdefault(line, []), sequence)

    def gone(self, sequence: int) -> Line | None:
        """Note that a message is gone from the queue, or locked by this process; return its line."""
        line = self.others.pop(sequence, None)
        if line is not None:
            numbers = self._lines[line]
            numbers.remove(sequence)
            if not numbers:
                del self._lines[line]
        return line

    def is_clear(self, sequence: int, line: Line | None) -> bool:
        """Return whether no earlier message of the same line belongs to another receiver."""
        if line is None or not self._lines:
            return True
        numbers = self._lines.get(line)
        return numbers is None or numbers[0] >= sequence

    def is_unknown(self, sequence: int) -> bool:
        """Return whether this number was never peeked."""
        return sequence > self.frontier or any(gap.first <= sequence <= gap.last for gap in self.gaps)

    def first_unknown(self, below: int = _ENDLESS) -> int | None:
        """Return the first number that was never peeked, if there is one below ``below``."""
        first = self.gaps[0].first if self.gaps else self.frontier + 1
        return first if first < below else None

    def peeked(self, last: int) -> None:
        """Note that all numbers up to ``last`` were peeked."""
        kept: list[Gap] = []
        for gap in self.gaps:
            if gap.last > last:
                gap.first = max(gap.first, last + 1)
                kept.append(gap)
        self.gaps = kept
        self.frontier = max(self.frontier, last)


_PAGE: Final = 100
_QUIET_S: Final = 1.0
"""Time without a message after which everything available has been received."""

_BACKOFF: Final = Backoff(2.0, 30.0)
_PARTITIONED: Final = 1 << 48
"""The upper bits of a sequence number are the number of the partition of the queue."""


class BacklogScanner:
    """Peeks at unknown sequence numbers, and at messages that other receivers had.

    ``adopt`` is called with deferred messages that do not belong to this process, and ``free`` with lines of which
    another receiver has one message less.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        index: OrderIndex,
        is_locked: Callable[[int], bool],
        adopt: Callable[[ReceivedMessage], None],
        free: Callable[[Line], None],
    ) -> None:
        self.arrivals = 0
        """Number of receives that returned messages."""

        self._receiver = receiver
        self._index = index
        self._is_locked = is_locked
        self._adopt = adopt
        self._free = free
        self._turn = asyncio.Lock()

    async def scan(self, below: int | None = None) -> None:
        """Peek at the unknown numbers below a number, or at all of them.

        Stop if messages arrive meanwhile: it is cheaper to receive them. Raise ``MessagingError``.
        """
        async with self._turn:
            arrivals = self.arrivals
            while True:
                first = self._index.first_unknown() if below is None else self._index.first_unknown(below)
                if first is None:
                    return
                frontier = self._index.frontier  # later numbers are not seen
                page = await self._receiver.peek(_PAGE, first)
                for message in page:
                    self._saw(message)
                self._index.peeked(page[-1].sequence_number if page else frontier)
                if not page or (below is None and self.arrivals > arrivals):
                    return

    def _saw(self, message: ReceivedMessage) -> None:
        sequence = message.sequence_number
        if self._is_locked(sequence) or not self._index.is_unknown(sequence):
            return
        if message.state is MessageState.DEFERRED:
            self._adopt(message)
        elif message.state is MessageState.ACTIVE:
            self._index.saw(sequence, _line(message))

    async def rescan(self) -> bool:
        """Peek at the messages that others had; return whether some of them are gone. Raise ``MessagingError``."""
        async with self._turn:
            waiting = sorted(self._index.others)
            has_gone = False
            while waiting:
                page = await self._receiver.peek(_PAGE, waiting[0])
                found = {message.sequence_number: message for message in page}
                last = page[-1].sequence_number if page else waiting[-1]
                seen = [sequence for sequence in waiting if sequence <= last]
                waiting = waiting[len(seen) :]
                for sequence in seen:
                    has_gone |= sequence not in found
                    self._rescan_one(sequence, found.get(sequence))
            return has_gone

    def _rescan_one(self, sequence: int, message: ReceivedMessage | None) -> None:
        if message is None or message.state is MessageState.DEFERRED:
            self.gone(sequence)
        if message is not None and message.state is MessageState.DEFERRED and not self._is_locked(sequence):
            self._adopt(message)

    def gone(self, sequence: int) -> None:
        """Note that another receiver does not have a message any more."""
        line = self._index.gone(sequence)
        if line is not None:
            self._free(line)

    async def scan_when_quiet(self) -> None:
        """Wait until everything available has been received, and find deferred messages of receivers that ended."""
        while True:
            await asyncio.sleep(_QUIET_S)
            try:
                await self.rescan()
                if self._index.frontier >= _PARTITIONED:  # a new message may have a lower number than an old one
                    self._index.start_over()
                await self.scan()
            except MessagingError as error:
                _log.debug('peek failed, retrying entity=%s error="%s"', self._receiver.path, error)
            else:
                return

    async def watch(self, is_awaited: Callable[[], bool]) -> None:
        """Rescan while messages wait for those of other receivers."""
        pause_s = _BACKOFF.first_s
        while is_awaited():
            await asyncio.sleep(pause_s)
            pause_s = _BACKOFF.after(pause_s)
            try:
                if await self.rescan():
                    pause_s = _BACKOFF.first_s
            except MessagingError as error:
                _log.debug('peek failed, retrying entity=%s error="%s"', self._receiver.path, error)


def _line(message: ReceivedMessage) -> Line | None:
    try:
        return line_of(read_transfer(message.payload))
    except (TransferError, InvalidMessageError):
        return None
