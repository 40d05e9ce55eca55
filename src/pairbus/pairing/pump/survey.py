"""Looking at a backlog queue: what lies there that we do not have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from pairbus.client.errors import InvalidMessageError, MessagingError
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.dialect.transfer import TransferError, read_transfer
from pairbus.pairing.homecoming.bound import Line, line_of
from pairbus.pairing.pump.ahead import Ahead

_log = logging.getLogger(__name__)

_PAGE: Final = 100
_QUIET_S: Final = 1.0
"""How long nothing has to come before all that was there has been received."""

_FIRST_PAUSE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 30.0
_PARTITIONED: Final = 1 << 48
"""The upper bits of a sequence number are the partition of the queue that gave it."""


class Survey:
    """Peeks, which is not receiving: at numbers that nothing is known of, and at what others had.

    ``adopt`` is told of messages that lie parked, and ``free`` of lines in which somebody else has one message less.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        ahead: Ahead,
        is_ours: Callable[[int], bool],
        adopt: Callable[[ReceivedMessage], None],
        free: Callable[[Line], None],
    ) -> None:
        self.arrivals = 0
        """How often messages have been received."""

        self._receiver = receiver
        self._ahead = ahead
        self._is_ours = is_ours
        self._adopt = adopt
        self._free = free
        self._turn = asyncio.Lock()

    async def look(self, below: int | None = None) -> None:
        """Look at what is not known yet: at what lies below a number, or at everything.

        Where so much lies that it comes by itself, it is better to receive it.
        """
        async with self._turn:
            arrivals = self.arrivals
            while True:
                first = self._ahead.first_unknown() if below is None else self._ahead.first_unknown(below)
                if first is None:
                    return
                frontier = self._ahead.frontier  # numbers that are given later are not seen
                page = await self._receiver.peek(_PAGE, first)
                for message in page:
                    self._saw(message)
                self._ahead.looked(page[-1].sequence_number if page else frontier)
                if not page or (below is None and self.arrivals > arrivals):
                    return

    def _saw(self, message: ReceivedMessage) -> None:
        sequence = message.sequence_number
        if self._is_ours(sequence) or not self._ahead.is_unknown(sequence):
            return
        if message.state is MessageState.DEFERRED:
            self._adopt(message)
        elif message.state is MessageState.ACTIVE:
            self._ahead.saw(sequence, _line(message))

    async def look_again(self) -> bool:
        """Look at what others had; whether some of that is not there any more."""
        async with self._turn:
            waiting = sorted(self._ahead.others)
            has_gone = False
            while waiting:
                page = await self._receiver.peek(_PAGE, waiting[0])
                found = {message.sequence_number: message for message in page}
                last = page[-1].sequence_number if page else waiting[-1]
                seen = [sequence for sequence in waiting if sequence <= last]
                waiting = waiting[len(seen) :]
                for sequence in seen:
                    has_gone |= sequence not in found
                    self._look_again_at(sequence, found.get(sequence))
            return has_gone

    def _look_again_at(self, sequence: int, message: ReceivedMessage | None) -> None:
        if message is None or message.state is MessageState.DEFERRED:
            self.gone(sequence)
        if message is not None and message.state is MessageState.DEFERRED and not self._is_ours(sequence):
            self._adopt(message)

    def gone(self, sequence: int) -> None:
        """Others have a message no more."""
        line = self._ahead.gone(sequence)
        if line is not None:
            self._free(line)

    async def look_when_quiet(self) -> None:
        """When everything has been received, see what others have left behind."""
        while True:
            await asyncio.sleep(_QUIET_S)
            try:
                await self.look_again()
                if self._ahead.frontier >= _PARTITIONED:  # what is new may have a lower number than what is old
                    self._ahead.start_over()
                await self.look()
            except MessagingError as error:
                _log.debug("'%s' could not be looked at: %s", self._receiver.path, error)
            else:
                return

    async def watch(self, is_awaited: Callable[[], bool]) -> None:
        """While something waits for what somebody else has, look what has become of that."""
        pause_s = _FIRST_PAUSE_S
        while is_awaited():
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                if await self.look_again():
                    pause_s = _FIRST_PAUSE_S
            except MessagingError as error:
                _log.debug("'%s' could not be looked at: %s", self._receiver.path, error)


def _line(message: ReceivedMessage) -> Line | None:
    try:
        return line_of(read_transfer(message.payload))
    except (TransferError, InvalidMessageError):
        return None
