"""The delivery of a share of a backlog queue: the engine of the in-process syphon, for a limited number of messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from pairbus.client.errors import EntityNotFoundError
from pairbus.client.receiver import MessageReceiver
from pairbus.jobs.syphon.outcome import DeliveryOutcome, OutcomeKind, OutcomeLog
from pairbus.pairing.syphon.destination import DeliveryDestination, NamespaceHealth
from pairbus.pairing.syphon.interface import SyphonContext, destination_key
from pairbus.pairing.syphon.message import BacklogMessage, Line
from pairbus.pairing.syphon.runner import QueueRunner
from pairbus.pairing.syphon.send_limit import SendLimit
from pairbus.pairing.syphon.source import SettlementReport

_log = logging.getLogger(__name__)

_WAIT: Final = timedelta(seconds=1)
"""Timeout of a receive: a share ends when the queue is empty, since its task occupies a slot of Spark."""

_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.01
_UNDER_WAY_S: Final = 1.0
_MAX_ROUNDS: Final = 2
"""Maximum number of times that a share waits for the messages of a receiver that may have been killed."""

_BEHIND: Final = "earlier messages wait for the same destination"


class ShareRunner(QueueRunner):
    """Delivers shares of one backlog queue, one after the other. At the end of a share no message is locked.

    Messages that cannot be delivered are parked, and left to the driver, which knows those of all tasks. What is known
    of the queue is kept from share to share.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        context: SyphonContext,
        health: NamespaceHealth,
        find_destination: Callable[[str], DeliveryDestination],
        limit: SendLimit,
    ) -> None:
        super().__init__(receiver, context, health, find_destination, limit)
        self._outcomes = OutcomeLog(self.path)
        self._busy: set[str] = set()
        """The destinations with messages that the driver delivers; later ones must not overtake them."""

    async def deliver(self, most: int, busy: Iterable[str]) -> list[DeliveryOutcome]:
        """Deliver up to ``most`` messages, and return the outcomes. Raise ``MessagingError``.

        ``busy`` are the keys of the destinations with parked messages.
        """
        self._outcomes, self._busy = OutcomeLog(self.path), {*busy}
        try:
            await self._wait_for_primary()
            if self.source.order.others:
                await self.source.scanner.rescan()
            # One message shows the driver that the primary is still unreachable.
            await self._receive(1 if self._health.is_away else most)
            await self._rest()
            await self._wait_for_others()
        except EntityNotFoundError as error:
            _log.warning('backlog queue deleted, its messages are lost entity=%s error="%s"', self.path, error)
            self.source.forget_order()
        finally:
            await self._end()
        return self._outcomes.outcomes()

    async def _wait_for_primary(self) -> None:
        """Wait a little for an unreachable primary: the driver has reached it, and a message that is given back would
        come again at once.
        """
        if self._health.is_away:
            self._health.hurry()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    await self._health.wait()

    async def _receive(self, most: int) -> None:
        """Receive until the queue is empty; stop early if no more can be delivered."""
        while most > 0:
            room = await self.source.wait_for_room(self._settings.max_messages)
            received = await self.source.receive(min(room, most), _WAIT)
            if not received:
                return
            most -= len(received)
            await self._admit(received)
            if self._health.is_away or self._is_blocked():
                return

    async def _rest(self) -> None:
        """Wait until all messages are delivered, parked or given back."""
        while not all(channel.is_resting for channel in self.channels.values()):  # noqa: ASYNC110 (a channel rests for many reasons)
            await asyncio.sleep(_POLL_S)

    async def _wait_for_others(self) -> None:
        """Let no message of a session overtake those that a killed process has locked: their locks expire.

        A live receiver may hold them as well, so wait no longer than that.
        """
        loop = asyncio.get_running_loop()
        for _ in range(_MAX_ROUNDS):
            if not self._is_blocked():
                return
            _log.info("waiting for locks of other receivers to expire entity=%s", self.path)
            ends_s = loop.time() + self.source.lock_s + _UNDER_WAY_S
            while self._is_blocked() and loop.time() < ends_s:  # noqa: ASYNC110 (the scanner finds out)
                await asyncio.sleep(_UNDER_WAY_S)
            await self._receive_others()
            await self._rest()

    async def _receive_others(self) -> None:
        """Receive the messages that others had, which are the first of the queue."""
        count = len(self.source.order.others)
        while count > 0:
            received = await self.source.receive(count, _WAIT)
            if not received:
                return
            count -= len(received)
            await self._admit(received)

    # What the base class calls.

    def _hold(self, path: str, messages: list[BacklogMessage]) -> None:
        if destination_key(path) in self._busy:
            self.source.tasks.start(self._park(path, messages), is_due=True)
        else:
            super()._hold(path, messages)

    async def _park(self, path: str, messages: list[BacklogMessage]) -> None:
        for message in await self.source.defer(messages):
            self._outcomes.add(OutcomeKind.PARKED, path, message.sequence, message.session_id, _BEHIND)

    def _adopt(self, path: str, sequence: int, line: Line | None) -> None:
        """Report a message that another process has deferred; later ones must not overtake it."""
        self._busy.add(destination_key(path))
        self._outcomes.add(OutcomeKind.FOUND, path, sequence, None if line is None else line[1])

    def _settled(self, settlement: SettlementReport) -> None:
        if settlement.kind is not OutcomeKind.PARKED:  # it may still be delivered: the end of the share shows it
            self._outcomes.settled(settlement)

    # The end.

    async def _end(self) -> None:
        """Give back what is locked, and report what is parked."""
        channels = [*self.channels.values()]
        for channel in channels:
            channel.is_closing = True
        await asyncio.gather(*(channel.finish() for channel in channels))
        await self.source.release()
        for channel in channels:
            destination = channel.destination
            cause = _BEHIND if destination.cause is None else str(destination.cause)
            for sequence, line in channel.parked.items():
                session_id = None if line is None else line[1]
                self._outcomes.add(OutcomeKind.PARKED, destination.path, sequence, session_id, cause)
        self.channels = {}
