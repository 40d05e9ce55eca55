"""Senders and receivers that are at it while things go wrong, and the books that are kept of it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from datetime import timedelta
from random import Random
from typing import Final

from pairbus.client.errors import MessageLockLostError, MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from tests.faults.world import OPERATION_S, UNIQUE, World, check_error

_SENDS: Final = 8
_WAIT_S: Final = 5.0
_LOCK_S: Final = 60.0
_ATTEMPT_S: Final = 15.0
_CALM_S: Final = 400.0
"""Longer than any lock lasts, and than anything takes that was begun before."""


class Traffic:
    """The messages sent, confirmed, received and completed at one queue."""

    def __init__(self, world: World, path: str, random: Random) -> None:
        self.confirmed: set[str] = set()
        self.sent: set[str] = set()
        self.received: dict[str, set[int]] = defaultdict(set)
        """Under which numbers each message has come."""
        self.completed: dict[int, float] = {}
        """The completed numbers, with the times of confirmation."""
        self.errors: list[BaseException] = []
        self.is_over = False
        self._world = world
        self._path = path
        self._random = random

    async def send(self, factory: MessagingFactory, name: str) -> None:
        """Send some messages one by one, and some together."""
        sender = await factory.create_message_sender(self._path)
        for number in range(_SENDS):
            size = self._random.choice((1, 1, 1, 3, 30))
            ids = [f"{name}-{number}-{part}" for part in range(size)]
            body = bytes(self._random.choice((10, 100, 5_000)))
            messages = [BrokeredMessage(body, message_id=one) for one in ids]
            self.sent.update(ids)
            try:
                await self._world.timed("send", sender.send(messages[0] if size == 1 else messages), OPERATION_S)
            except MessagingError as error:
                self._note(error, MessagingTimeoutError)
            else:
                self.confirmed.update(ids)
            await asyncio.sleep(self._random.choice((0.0, 0.0, 0.5, 10.0)))

    async def receive(self, factory: MessagingFactory, prefetch: int) -> None:
        """Receive and complete until it is over, and nothing comes any more."""
        async with await factory.create_message_receiver(self._path, prefetch_count=prefetch) as receiver:
            while True:
                was_over = self.is_over
                messages = await self._receive_some(receiver)
                if not messages and was_over:
                    return
                for message in messages:
                    self._book(message)
                if self._random.random() < 0.3:
                    await asyncio.sleep(self._random.choice((0.1, 1.0, 5.0, 20.0, 70.0)))
                await self._complete(receiver, messages)

    async def _receive_some(self, receiver: MessageReceiver) -> list[ReceivedMessage]:
        count = self._random.choice((1, 5, 50))
        work = receiver.receive(count, timedelta(seconds=_WAIT_S))
        try:
            received: list[ReceivedMessage] = await self._world.timed("receive", work, _WAIT_S + OPERATION_S)
        except MessagingError as error:
            self._note(error, MessagingTimeoutError)
            return []
        return received

    def _book(self, message: ReceivedMessage) -> None:
        number = message.sequence_number
        locked_s = self._locked_s(message)
        completed_s = self.completed.get(number)
        if completed_s is not None:  # it may have lain in the receiver's buffer since before
            assert locked_s <= completed_s, f"{message!r}, completed at {completed_s}, came back at {locked_s}"
        self.received[str(message.message_id)].add(number)

    async def _complete(self, receiver: MessageReceiver, messages: list[ReceivedMessage]) -> None:
        groups = [messages] if self._random.random() < 0.5 else [[message] for message in messages]
        for group in groups:
            if not group:
                continue
            try:
                await self._world.timed("complete", receiver.complete(group), OPERATION_S)
            except MessagingError as error:
                self._note(error, MessagingTimeoutError, MessageLockLostError)
                if isinstance(error, MessageLockLostError):
                    self._explain(error, group)
            else:
                for message in group:
                    self.completed[message.sequence_number] = self._world.loop.time()

    def _note(self, error: MessagingError, *kinds: type[MessagingError]) -> None:
        """Whatever it is, it has to be the right one."""
        check_error(error, self._path)
        assert isinstance(error, kinds), repr(error)
        self.errors.append(error)

    def _explain(self, error: MessageLockLostError, messages: list[ReceivedMessage]) -> None:
        """A lock is lost because its time is up, with a connection or the namespace, or to a try without an answer."""
        if self._world.durations[-1][1] >= _ATTEMPT_S:
            return
        changed_s = max(self._world.namespace.started_s, self._world.proxy.relays[-1].began_s)
        now_s = self._world.loop.time()
        locked = [self._locked_s(message) for message in messages]
        assert any(locked_s <= max(changed_s, now_s - _LOCK_S) for locked_s in locked), f"{error!r} for no reason"

    def _locked_s(self, message: ReceivedMessage) -> float:
        """Return the time at which it was locked, by the loop's clock."""
        assert message.locked_until is not None
        return message.locked_until.timestamp() - _LOCK_S - self._world.wall_s() + self._world.loop.time()

    def check(self) -> None:
        """Check that no confirmed message is lost, and no message was received that was not sent."""
        assert self.confirmed <= self.received.keys(), sorted(self.confirmed - self.received.keys())
        assert self.received.keys() <= self.sent
        if self._path == UNIQUE:
            assert all(len(numbers) == 1 for numbers in self.received.values())


async def exchange(world: World, path: str, random: Random) -> Traffic:
    """Two clients and four ends, until everything is well again and all has been received."""
    traffic = Traffic(world, path, random)
    first, second = world.factory(), world.factory()
    sending = [
        asyncio.create_task(traffic.send(first, "a")),
        asyncio.create_task(traffic.send(first, "b")),
        asyncio.create_task(traffic.send(second, "c")),
    ]
    receiving = [
        asyncio.create_task(traffic.receive(first, 0)),
        asyncio.create_task(traffic.receive(second, random.choice((1, 10, 100)))),
    ]
    restarting = asyncio.create_task(_restart(world, random))
    try:
        await asyncio.gather(*sending, restarting)
        world.proxy.heal()
        await asyncio.sleep(_CALM_S)
        traffic.is_over = True
        await asyncio.gather(*receiving)
    finally:
        await _cancel([*sending, *receiving, restarting])
    traffic.check()
    return traffic


async def _restart(world: World, random: Random) -> None:
    """Sometimes the namespace is away for a while."""
    for _ in range(random.choice((0, 0, 0, 1, 2))):
        await asyncio.sleep(random.uniform(0, 60))
        if random.random() < 0.5:
            world.namespace.kill()
        else:
            await world.namespace.stop()
        await asyncio.sleep(random.choice((0.0, 1.0, 30.0)))
        world.namespace.start()


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
