"""The way of one sender's messages where sessions are to stay in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from pairbus.client.errors import EntityNotFoundError, InvalidRequestError, MessagingError
from pairbus.client.lane import Lane
from pairbus.client.parcel import Parcel
from pairbus.client.settings import MessagingFactorySettings
from pairbus.pairing.backlog import Backlog
from pairbus.pairing.diversion import Choice
from pairbus.pairing.entity import PairedEntity
from pairbus.pairing.route import PairedRoute
from pairbus.pairing.session_order import SessionOrder, Straggler
from pairbus.wire import Sections


def session_of(payload: bytes) -> str | None:
    """The session of a message that we have encoded."""
    return Sections(payload).properties().group_id


class OrderedRoute(PairedRoute):
    """Sends new messages of a session to the backlog while others of it lie there, and always to the same queue."""

    def __init__(
        self,
        lane: Lane,
        entity: PairedEntity,
        backlog: Backlog,
        settings: MessagingFactorySettings,
        order: SessionOrder,
    ) -> None:
        super().__init__(lane, entity, backlog, settings)
        self._order = order
        self._timeout_s = settings.operation_timeout.total_seconds()

    async def _send(self, parcel: Parcel, failure: MessagingError | None, started_s: float) -> None:
        if not self._entity.is_diverting:
            parcel = await self._without_followers(parcel, started_s)
            parcel.in_turn = any(session_of(payload) is not None for payload in parcel.unconfirmed)
        if parcel.unconfirmed:
            await super()._send(parcel, failure, started_s)

    async def _without_followers(self, parcel: Parcel, started_s: float) -> Parcel:
        """Send to the backlog what has to follow others of its session; gives the rest."""
        order, payloads = self._order, parcel.unconfirmed
        sessions = [session_of(payload) for payload in payloads]
        await order.admitted(self._path, [one for one in sessions if one is not None])
        follows = [one is not None and order.follows(self._path, one) for one in sessions]
        if not any(follows):
            return parcel
        pairs = [*zip(payloads, follows, strict=True)]
        follow = [payload for payload, does_follow in pairs if does_follow or parcel.whole]
        await self._divert(Parcel(follow, whole=parcel.whole), started_s)
        return Parcel([payload for payload, does_follow in pairs if not (does_follow or parcel.whole)])

    async def _divert(self, parcel: Parcel, started_s: float) -> None:
        if not all(self._order.is_located(self._path, session_of(payload)) for payload in parcel.unconfirmed):
            await self._order.located(self._path, max(started_s + self._timeout_s, asyncio.get_running_loop().time()))
        groups = [*self._groups(parcel)]
        stragglers = [straggler for _, found in groups for straggler in found]
        for straggler in stragglers:  # all at once: those whose turn comes later must not be let go meanwhile
            straggler.in_flight += 1
            straggler.version += 1
        try:
            for group, found in groups:
                await self._divert_group(group, found, started_s)
        finally:
            for straggler in stragglers:
                straggler.in_flight -= 1

    def _groups(self, parcel: Parcel) -> Iterator[tuple[Parcel, list[Straggler]]]:
        """What can go to one backlog queue together, with the sessions that are among it."""
        diverted = self._diverted(parcel)
        pairs = [*zip(diverted.unconfirmed, map(session_of, parcel.unconfirmed), strict=True)]
        found = {one: self._order.straggler(self._path, one) for _, one in pairs if one is not None}
        if len({straggler.queue for straggler in found.values() if straggler.is_pinned}) < 2:
            yield diverted, [*found.values()]
            return
        if parcel.whole:
            raise InvalidRequestError(
                "the sessions of these messages have others in several backlog queues, so they cannot stay in order "
                "and be one batch; send them one by one",
                entity=self._path,
            )
        for queue in sorted({straggler.queue for straggler in found.values()}):
            ours = {one: straggler for one, straggler in found.items() if straggler.queue == queue}
            yield Parcel([payload for payload, one in pairs if one in ours]), [*ours.values()]
        yield Parcel([payload for payload, one in pairs if one is None]), []

    async def _divert_group(self, diverted: Parcel, stragglers: list[Straggler], started_s: float) -> None:
        if not stragglers:
            await self._diversion.send(diverted, started_s)
            return
        diverted.in_turn = True
        before = len(diverted.unconfirmed)

        def choose(now_s: float, _is_first: bool) -> Choice:
            self._pin(stragglers, diverted, before)
            return self._choose_for(stragglers, now_s)

        try:
            await self._diversion.send(diverted, started_s, choose)
        finally:
            self._pin(stragglers, diverted, before)

    def _pin(self, stragglers: list[Straggler], diverted: Parcel, before: int) -> None:
        """Where a part of it is, the rest has to go as well."""
        if len(diverted.unconfirmed) < before:
            for straggler in stragglers:
                straggler.is_pinned = True

    def _unpin(self, stragglers: list[Straggler]) -> None:
        """What was in a queue that is gone has gone with it."""
        causes = self._backlog.rotation.causes
        for straggler in stragglers:
            if straggler.is_pinned and isinstance(causes.get(straggler.queue), EntityNotFoundError):
                straggler.is_pinned = False

    def _choose_for(self, stragglers: list[Straggler], now_s: float) -> Choice:
        """The backlog queue that others of these sessions are in; else the one that all senders would choose."""
        rotation = self._backlog.rotation
        self._unpin(stragglers)
        pinned = next((one.queue for one in stragglers if one.is_pinned), None)
        if pinned is None:
            queue = rotation.next_to(stragglers[0].queue)
            choice = Choice(rotation.due(now_s), was_due=True) if queue is None else Choice(queue)
        elif pinned in rotation:
            choice = Choice(pinned)
        else:
            choice = Choice(pinned if rotation.claim(pinned, now_s) else None, was_due=True, only=pinned)
        if choice.queue is not None:
            for straggler in stragglers:
                straggler.queue = choice.queue
        return choice
