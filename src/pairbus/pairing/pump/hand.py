"""The messages of a backlog queue that are locked for us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from pairbus.client.chores import Chores
from pairbus.client.errors import MessageLockLostError, MessagingError
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.pairing.pump.cargo import Cargo

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.5
"""How much of a lock's time may pass before it is renewed."""

_RENEWED_AT_ONCE: Final = 10
_MOMENT_S: Final = 0.001
_MOST_UNREMOVED: Final = 10_000

Settle = Callable[[list[ReceivedMessage]], Awaitable[None]]
Mark = tuple[datetime, str]
"""When a message was enqueued in the backlog, and its id."""


class Hand:
    """Keeps their locks until they are settled."""

    def __init__(self, receiver: MessageReceiver, chores: Chores, adopt: Callable[[Cargo], None]) -> None:
        self.fresh = 0
        """How many were received; the others were fetched from where they were parked."""

        self._receiver = receiver
        self._chores = chores
        self._adopt = adopt
        """Takes what lies parked again: nobody receives that unless it is asked for."""

        self._cargoes: dict[int, Cargo] = {}
        self._room = asyncio.Event()
        self._done: list[Cargo] = []
        self._unremoved: dict[int, Mark] = {}
        """What has been delivered, and is still in the queue; a number alone tells no message from another, because a
        queue that is made anew counts from one again."""

        self._is_completing = False
        self._is_renewing = False

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._cargoes

    @property
    def cargoes(self) -> list[Cargo]:
        return [*self._cargoes.values()]

    def take(self, cargo: Cargo, lock: timedelta) -> bool:
        """Have a message in hand that was just locked; whether it is to be delivered."""
        before = self._cargoes.get(cargo.sequence)
        if before is not None:  # its lock has ended, and it came again
            self.drop([before])
        self._cargoes[cargo.sequence] = cargo
        self.fresh += not cargo.is_deferred
        if not self._is_renewing:
            self._is_renewing = True
            self._chores.start(self._renew(lock.total_seconds() * _RENEW_AT))
        if self._unremoved.get(cargo.sequence) != _mark(cargo):
            return True
        self.complete([cargo])
        return False

    def drop(self, cargoes: Iterable[Cargo]) -> None:
        """These are not in hand any more."""
        for cargo in cargoes:
            if self._cargoes.get(cargo.sequence) is cargo:
                del self._cargoes[cargo.sequence]
                self.fresh -= not cargo.is_deferred
        self._room.set()

    async def wait_for_room(self, most: int) -> None:
        """Wait until no more than so many were received and are still here."""
        while self.fresh > most:
            self._room.clear()
            await self._room.wait()

    # Settlement.

    async def settle(self, cargoes: list[Cargo], settle: Settle) -> None:
        """Settle messages, as far as that can be done. The others are delivered again, to somebody."""
        for _ in range(2):  # one whose lock is lost may have kept others
            rest = [cargo.message for cargo in cargoes if not cargo.message.is_settled]
            if not rest:
                break
            try:
                await settle(rest)
            except MessageLockLostError as error:
                _log.info("messages of '%s' are delivered again: %s", self._receiver.path, error)
            except MessagingError as error:
                _log.warning("messages of '%s' are delivered again: %s", self._receiver.path, error)
                break
        self.drop(cargoes)

    async def defer(self, cargoes: list[Cargo]) -> None:
        await self.settle(cargoes, self._receiver.defer)

    async def abandon(self, cargoes: list[Cargo]) -> None:
        await self.settle(cargoes, self._receiver.abandon)

    def complete(self, cargoes: list[Cargo]) -> None:
        """Remove messages that have been delivered, soon, with others."""
        self._done += cargoes
        if not self._is_completing:
            self._is_completing = True
            self._chores.start(self._complete(), is_due=True)

    async def _complete(self) -> None:
        try:
            while self._done:
                done, self._done = self._done, []
                fetched = [cargo for cargo in done if cargo.is_deferred]
                received = [cargo for cargo in done if not cargo.is_deferred]
                for group in (received, fetched):  # they are settled in different ways
                    await self.settle(group, self._receiver.complete)
                self._note_unremoved(done)
                self.adopt_unsettled(done)
        finally:
            self._is_completing = False

    def adopt_unsettled(self, cargoes: list[Cargo]) -> None:
        """What was parked, and could not be settled for good, has to be fetched once more."""
        for cargo in cargoes:
            if cargo.is_deferred and not cargo.message.is_settled:
                self._adopt(cargo)

    def _note_unremoved(self, cargoes: list[Cargo]) -> None:
        """What could not be removed comes again; then it need not be sent again."""
        for cargo in cargoes:
            if cargo.message.is_settled:
                self._unremoved.pop(cargo.sequence, None)
            else:
                self._unremoved[cargo.sequence] = _mark(cargo)
        while len(self._unremoved) > _MOST_UNREMOVED:
            self._unremoved.pop(next(iter(self._unremoved)))

    # Locks.

    async def _renew(self, patience_s: float) -> None:
        """Keep what is in hand for longer than usual."""
        loop = asyncio.get_running_loop()
        try:
            while self._cargoes:
                due_s = min(cargo.locked_s for cargo in self._cargoes.values()) + patience_s
                if due_s > loop.time():
                    await asyncio.sleep(max(_MOMENT_S, due_s - loop.time()))
                else:
                    await self._renew_all(
                        [cargo for cargo in self._cargoes.values() if cargo.locked_s + patience_s <= loop.time()]
                    )
        finally:
            self._is_renewing = False

    async def _renew_all(self, cargoes: list[Cargo]) -> None:
        """Renew locks; if the namespace is away there is no use in asking it for each of them."""
        now_s = asyncio.get_running_loop().time()
        for cargo in cargoes:
            cargo.locked_s = now_s
        is_there = True
        while cargoes and is_there:
            group, cargoes = cargoes[:_RENEWED_AT_ONCE], cargoes[_RENEWED_AT_ONCE:]
            is_there = all(await asyncio.gather(*(self._renew_one(cargo) for cargo in group)))

    async def _renew_one(self, cargo: Cargo) -> bool:
        """Whether the namespace has said something."""
        if cargo.message.is_settled:
            return True
        try:
            await self._receiver.renew_lock(cargo.message)
        except MessagingError as error:  # who settles it hears of it
            _log.info("the lock of a message of '%s' could not be renewed: %s", self._receiver.path, error)
            return not error.is_transient
        return True


def _mark(cargo: Cargo) -> Mark:
    return cargo.message.enqueued_time, str(cargo.message.message_id)
