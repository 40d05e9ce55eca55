"""Messages of sessions, sent and received while things go wrong."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from random import Random
from typing import Final

from pairbus.client.errors import MessagingError, MessagingTimeoutError, SessionLockLostError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.session import MessageSession
from tests.faults.world import OPERATION_S, VISITS, World, check_error

_SENDS: Final = 10
_WAIT_S: Final = 10.0
_CALM_S: Final = 900.0
"""By then the namespace has noticed of every dead connection that it is dead, and its session is free."""


class Visits:
    """The messages sent and confirmed in each session, and their outcomes."""

    def __init__(self, world: World, random: Random) -> None:
        self.confirmed: set[str] = set()
        self.received: set[str] = set()
        self.completed: dict[int, int] = {}
        """The completed numbers, with their delivery counts."""
        self.accepted = 0
        self.is_over = False
        self._world = world
        self._random = random

    async def send(self, factory: MessagingFactory, name: str) -> None:
        sender = await factory.create_message_sender(VISITS)
        for number in range(_SENDS):
            message = BrokeredMessage(message_id=f"{name}-{number}", session_id=self._random.choice(("alice", "bob")))
            try:
                await self._world.timed("send", sender.send(message), OPERATION_S)
            except MessagingError as error:
                self._note(error, MessagingTimeoutError)
            else:
                self.confirmed.add(str(message.message_id))
            await asyncio.sleep(self._random.choice((0.0, 0.5, 10.0)))

    async def receive(self, factory: MessagingFactory) -> None:
        """Take whatever session is free, until there is none that has something."""
        while True:
            was_over = self.is_over
            work = factory.accept_message_session(VISITS, server_wait_time=timedelta(seconds=_WAIT_S))
            try:
                session: MessageSession = await self._world.timed("accept", work, _WAIT_S + OPERATION_S)
            except MessagingError as error:
                self._note(error, MessagingTimeoutError)
                if was_over and error.condition is not None:
                    return
                continue
            self.accepted += 1
            try:
                await self._empty(session)
            except MessagingError as error:
                self._note(error, MessagingTimeoutError, SessionLockLostError)
            await self._world.timed("close", session.close(), OPERATION_S)

    async def _empty(self, session: MessageSession) -> None:
        last = 0
        wait = timedelta(seconds=_WAIT_S)
        while messages := await self._world.timed("receive", session.receive(3, wait), _WAIT_S + OPERATION_S):
            for message in messages:
                assert message.session_id == session.session_id
                assert message.sequence_number > last, "it came out of its order"
                completed = self.completed.get(message.sequence_number)
                # What was on its way for long may have been given to somebody else, and completed, meanwhile.
                assert completed is None or message.delivery_count < completed, "it came back after it was completed"
                last = message.sequence_number
                self.received.add(str(message.message_id))
                await self._world.timed("complete", session.complete(message), OPERATION_S)
                self.completed[message.sequence_number] = message.delivery_count

    def _note(self, error: MessagingError, *kinds: type[MessagingError]) -> None:
        check_error(error, VISITS)
        assert isinstance(error, kinds), repr(error)


async def visit(world: World, random: Random) -> Visits:
    """Two who send, two who receive, until everything is well again and all has been received."""
    visits = Visits(world, random)
    first, second = world.factory(), world.factory()
    sending = [asyncio.create_task(visits.send(first, "a")), asyncio.create_task(visits.send(second, "b"))]
    receiving = [asyncio.create_task(visits.receive(factory)) for factory in (first, second)]
    try:
        await asyncio.gather(*sending)
        world.proxy.heal()
        await asyncio.sleep(_CALM_S)
        visits.is_over = True
        await asyncio.gather(*receiving)
    finally:
        for task in [*sending, *receiving]:
            task.cancel()
        await asyncio.gather(*sending, *receiving, return_exceptions=True)
    assert visits.confirmed <= visits.received, sorted(visits.confirmed - visits.received)
    assert visits.accepted
    return visits
