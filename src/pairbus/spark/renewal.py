"""Keeps what a stream has received locked for it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from pairbus.client.errors import MessageLockLostError, MessagingError
from pairbus.client.receiver import MessageReceiver
from pairbus.spark.claim import Claim, in_requests
from pairbus.spark.lock_time import LockTime
from pairbus.spark.lookout import still_there
from pairbus.spark.offset import Portion
from pairbus.spark.sequence_ranges import SequenceRanges

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.5
"""How much of a lock's time may pass before it is renewed."""

_TICK_S: Final = 1.0


class Holder(Protocol):
    """Whoever has messages locked."""

    path: str
    lock_time: LockTime

    def locked(self) -> list[Claim]: ...

    def lose(self, lost: list[Claim]) -> None:
        """These are not locked any more."""

    def may_be_settled(self, claim: Claim) -> bool:
        """Whether somebody else may have settled a message, so that its lock has gone for a good reason."""


class Renewal:
    """Renews locks in time, and says which are lost."""

    def __init__(self, holder: Holder, receiver: MessageReceiver) -> None:
        self._holder = holder
        self._receiver = receiver

    async def run(self) -> None:
        while True:
            lock_s = self._holder.lock_time.careful_s
            await asyncio.sleep(min(_TICK_S, lock_s * _RENEW_AT / 4))
            now_s = asyncio.get_running_loop().time()
            claims = self._holder.locked()
            self._holder.lose([claim for claim in claims if claim.locked_s + lock_s <= now_s])
            due = [claim for claim in claims if now_s - lock_s < claim.locked_s <= now_s - lock_s * _RENEW_AT]
            try:
                for group in in_requests(due):
                    await self._renew_group(group)
            except MessagingError as error:
                _log.info("locks of '%s' could not be renewed: %s", self._holder.path, error)

    async def _renew_group(self, claims: list[Claim]) -> None:
        if not await self._is_renewed(claims) and (unsettled := await self._unsettled(claims)):
            await self._renew_all(unsettled)

    async def _renew_all(self, claims: list[Claim]) -> None:
        """Renew locks. One that is lost keeps the namespace from renewing the others of its group; it is looked for,
        without asking for each of them: what a sink has settled, or a namespace forgotten, are many in a row.
        """
        now_s = asyncio.get_running_loop().time()
        if await self._is_renewed(claims):
            return
        if len(claims) == 1 or not (await self._is_renewed(claims[-1:]) or await self._is_renewed(claims[:1])):
            if not all(map(self._holder.may_be_settled, claims)):
                self._holder.lock_time.was_lost(now_s - claims[0].locked_s, now_s)
            self._holder.lose(claims)
        else:
            half = len(claims) // 2
            await self._renew_all(claims[:half])
            await self._renew_all(claims[half:])

    async def _is_renewed(self, claims: list[Claim]) -> bool:
        now_s = asyncio.get_running_loop().time()
        try:
            await self._receiver.renew_locks(claim.message() for claim in claims)
        except MessageLockLostError:
            return False
        for claim in claims:
            claim.locked_s = now_s
        return True

    async def _unsettled(self, claims: list[Claim]) -> list[Claim]:
        """Those that nobody has settled yet: what is settled is not there any more."""
        if not any(map(self._holder.may_be_settled, claims)):
            return claims
        until_ms = max(claim.enqueued_ms for claim in claims)
        portion = Portion(numbers=SequenceRanges.of(claim.number for claim in claims), until_ms=until_ms)
        there = await still_there(self._receiver, portion)
        self._holder.lose([claim for claim in claims if claim.number not in there])
        return [claim for claim in claims if claim.number in there]
