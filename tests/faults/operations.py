"""Everything that an application asks of a namespace over AMQP, one operation at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.client.session import MessageSession
from pairbus.client.settings import ReceiveMode
from tests.faults.world import OPERATION_S, ORDERS, VISITS, World

WAIT: Final = timedelta(seconds=2)


class BusyFactory:
    """Senders and receivers of one factory that have been at work already, with something to do for each operation."""

    sender: MessageSender
    receiver: MessageReceiver
    prefetching: MessageReceiver
    deleting: MessageReceiver
    visitors: MessageSender
    locked: list[ReceivedMessage]
    deferred: int
    scheduled: int

    def __init__(self, world: World, factory: MessagingFactory) -> None:
        self.world = world
        self.factory = factory

    @classmethod
    async def open(cls, world: World, path: str = ORDERS) -> BusyFactory:
        desk = cls(world, world.factory())
        factory = desk.factory
        desk.sender = await factory.create_message_sender(path)
        desk.receiver = await factory.create_message_receiver(path)
        desk.prefetching = await factory.create_message_receiver(path, prefetch_count=5)
        desk.deleting = await factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
        desk.visitors = await factory.create_message_sender(VISITS)
        await desk.visitors.send(BrokeredMessage(b"visit", session_id="alice"))
        await desk.sender.send([BrokeredMessage(f"{number}") for number in range(4)])
        desk.locked = await desk.receiver.receive(4, WAIT)
        later = datetime.fromtimestamp(world.wall_s(), UTC) + timedelta(days=1)
        desk.scheduled = await desk.sender.schedule(BrokeredMessage(b"later"), later)
        await desk.receiver.defer(desk.locked[3])
        desk.deferred = desk.locked.pop().sequence_number
        return desk

    def later(self) -> datetime:
        return datetime.fromtimestamp(self.world.wall_s(), UTC) + timedelta(days=1)

    async def accept(self) -> MessageSession:
        return await self.factory.accept_message_session(VISITS, "alice", server_wait_time=WAIT)


Operation = Callable[[BusyFactory], Awaitable[object]]

OPERATIONS: Final[dict[str, Operation]] = {
    "send": lambda desk: desk.sender.send(BrokeredMessage(b"one")),
    "send many": lambda desk: desk.sender.send([BrokeredMessage(bytes(50_000)) for _ in range(20)]),
    "schedule": lambda desk: desk.sender.schedule(BrokeredMessage(b"one"), desk.later()),
    "cancel scheduled": lambda desk: desk.sender.cancel_scheduled(desk.scheduled),
    "receive": lambda desk: desk.receiver.receive(1, WAIT),
    "receive prefetched": lambda desk: desk.prefetching.receive(1, WAIT),
    "receive and delete": lambda desk: desk.deleting.receive(1, WAIT),
    "complete": lambda desk: desk.receiver.complete(desk.locked[0]),
    "complete many": lambda desk: desk.receiver.complete(desk.locked),
    "abandon": lambda desk: desk.receiver.abandon(desk.locked[0]),
    "defer": lambda desk: desk.receiver.defer(desk.locked[0]),
    "dead letter": lambda desk: desk.receiver.dead_letter(desk.locked[0], "a reason"),
    "renew": lambda desk: desk.receiver.renew_lock(desk.locked[0]),
    "peek": lambda desk: desk.receiver.peek(5),
    "receive deferred": lambda desk: desk.receiver.receive_deferred(desk.deferred),
    "accept session": lambda desk: desk.accept(),
}

RECEIVING: Final = frozenset({"receive", "receive prefetched", "receive and delete"})
"""These may come back with nothing."""


def limit_s(name: str) -> float:
    """Return the maximum time of an operation: those that wait have a timeout of their own."""
    return OPERATION_S + (WAIT.total_seconds() if name in RECEIVING or name == "accept session" else 0.0)


def entity_of(name: str) -> str:
    return VISITS if name == "accept session" else ORDERS
