"""Scenes that tests of a pair begin with: a paired primary, what was sent to whom, and what lies in the backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from pairbus.broker import Limits, Message, Namespace
from pairbus.client.endpoint import Endpoint
from pairbus.client.factory import MessagingFactory
from pairbus.client.lane import Lane
from pairbus.client.message import BrokeredMessage
from pairbus.client.parcel import Parcel
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.dialect.transfer import read_transfer, restore
from pairbus.pairing import EntityChanged, EntityState, NamespacePair, PairedEntityStatus, PairEvent
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from tests.faults import namespace as namespaces
from tests.faults.fault import Way
from tests.faults.namespace import VirtualNamespace
from tests.simulation.pair_world import PairWorld, Road

ORDERS: Final = "orders"
OTHERS: Final = "others"
VISITS: Final = "visits"
ATTEMPT_S: Final = 5.0
OUTAGES: Final = ("refuse", "hide", "kill", "stop", "stall", "stall up", "stall down", "drop")
"""The ways in which a namespace can be out of reach."""


def backlog_path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# What a namespace was asked to take.


class Seen(NamedTuple):
    """A message that came to a namespace, be it taken or refused."""

    at_s: float
    path: str
    payload: bytes
    is_ping: bool

    @property
    def message(self) -> ReceivedMessage:
        return ReceivedMessage(self.payload)


class Gate:
    """Writes down every message that comes to a namespace."""

    def __init__(self, namespace: VirtualNamespace, loop: asyncio.AbstractEventLoop) -> None:
        self.seen: list[Seen] = []
        self.on_seen: Callable[[], object] = lambda: None
        """Called after each time that something came and was taken."""
        self._namespace = namespace
        self._loop = loop
        self._watched: Namespace | None = None
        self.watch()

    def watch(self) -> None:
        """To be told again after each start of the namespace."""
        broker = self._namespace.host.namespace
        if broker is self._watched:
            return
        self._watched = broker
        send = broker.send

        def watched(address: Any, messages: Sequence[Message], now_ms: int) -> Any:
            for one in messages:
                self.seen.append(Seen(self._loop.time(), str(address), one.body, one.ping))
            outcome = send(address, messages, now_ms)
            self.on_seen()
            return outcome

        broker.send = watched  # type: ignore[method-assign]

    @property
    def pings(self) -> list[Seen]:
        return [one for one in self.seen if one.is_ping]

    @property
    def bodies(self) -> list[bytes]:
        """Of all that came and was no ping, in order."""
        return [bytes(one.message.body) for one in self.seen if not one.is_ping]


# The scene itself.


class Scene:
    """A primary factory that is paired, with everything that can be looked at."""

    def __init__(self, world: PairWorld, factory: MessagingFactory, pair: NamespacePair) -> None:
        self.world = world
        self.factory = factory
        self.pair = pair
        self.primary = Gate(world.primary, world.loop)
        self.secondary = Gate(world.secondary, world.loop)
        self.events: list[PairEvent] = []
        self.changes: list[tuple[float, str, EntityState]] = []
        """When each entity became what it is."""
        pair.subscribe(self._note)
        self._insiders: dict[str, MessagingFactory] = {}

    def _note(self, event: PairEvent) -> None:
        self.events.append(event)
        if isinstance(event, EntityChanged):
            self.changes.append((self.world.loop.time(), event.path, event.state))

    @property
    def now_s(self) -> float:
        return self.world.loop.time()

    def entity(self, path: str = ORDERS) -> PairedEntityStatus:
        return next(one for one in self.pair.status().entities if one.path == path)

    def state(self, path: str = ORDERS) -> EntityState:
        return self.entity(path).state

    async def sender(self, path: str = ORDERS) -> MessageSender:
        return await self.factory.create_message_sender(path)

    # What an outage is.

    async def spoil(self, what: str) -> None:
        await spoil(self.world.primary, self.world.primary_road, what)

    async def heal(self) -> None:
        await heal(self.world.primary, self.world.primary_road)
        self.primary.watch()

    # What lies where.

    async def backlog(self) -> list[ReceivedMessage]:
        """All that lies in the backlog, queue by queue."""
        return [
            message for index in range(len(self.pair.status().backlog_queues)) for message in await self.queue(index)
        ]

    async def queue(self, index: int) -> list[ReceivedMessage]:
        return await self.peek(self._inside(self.world.secondary), backlog_path(index))

    async def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in await self.backlog()]

    async def home(self, path: str = ORDERS) -> list[bytes]:
        """What lies in a queue of the primary."""
        return [bytes(message.body) for message in await self.messages(path)]

    async def messages(self, path: str = ORDERS) -> list[ReceivedMessage]:
        """The same with all that they have, whatever the roads are like."""
        return await self.peek(self._inside(self.world.primary), path)

    async def peek(self, factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with await factory.create_message_receiver(path) as receiver:
            while page := await receiver.peek(200, from_sequence_number=found[-1].sequence_number + 1 if found else 0):
                found += page
        return found

    def _inside(self, namespace: VirtualNamespace) -> MessagingFactory:
        """A client that is not paired and needs no road."""
        if namespace.name not in self._insiders:
            endpoint = Endpoint(namespace.name, namespace.port, tls=False)
            self._insiders[namespace.name] = self.world.factory_at(endpoint)
        return self._insiders[namespace.name]

    # What a syphon does, by hand.

    async def bring_home(self, index: int, count: int = 1_000) -> int:
        """Move up to so many messages of a backlog queue to where they belong, in order; tells how many there were."""
        lanes: dict[str, Lane] = {}
        straight = self._inside(self.world.primary)
        moved = 0
        async with await self._inside(self.world.secondary).create_message_receiver(backlog_path(index)) as receiver:
            while moved < count and (messages := await receiver.receive(count - moved, seconds(0))):
                for message in messages:
                    await _bring(straight, lanes, receiver, message)
                moved += len(messages)
        for lane in lanes.values():
            await lane.close()
        return moved

    async def bring_marked_home(self, name: str) -> None:
        """Move the messages that have a property of that name, and leave the others where they are."""
        straight = self._inside(self.world.primary)
        for index in range(len(self.pair.status().backlog_queues)):
            if not any(name in message.application_properties for message in await self.queue(index)):
                continue
            async with await self._inside(self.world.secondary).create_message_receiver(
                backlog_path(index)
            ) as receiver:
                for message in await receiver.receive(1_000, seconds(0)):
                    if name in message.application_properties:
                        await _bring(straight, {}, receiver, message)
                    else:
                        await receiver.abandon(message)

    async def bring_all_home(self) -> int:
        count = len(self.pair.status().backlog_queues)
        return sum([await self.bring_home(index) for index in range(count)])


async def _bring(
    straight: MessagingFactory, lanes: dict[str, Lane], receiver: MessageReceiver, message: ReceivedMessage
) -> None:
    payload = message._sections().payload
    transfer = read_transfer(payload)
    lane = lanes.setdefault(transfer.path, Lane(straight, transfer.path))
    await lane.send(Parcel([restore(payload, transfer)]))
    await receiver.complete(message)


async def paired(
    world: PairWorld,
    *,
    count: int = 3,
    interval_s: float = 0.0,
    ping_s: float = 60.0,
    factory: MessagingFactory | None = None,
    secondary: MessagingFactory | None = None,
    **options: Any,
) -> Scene:
    """Pair the two namespaces; without an interval the first failure diverts."""
    for path in (ORDERS, OTHERS):
        if not _exists(world.primary, path):
            world.primary.create_queue(path)
    primary = factory or world.primary_factory()
    pair = await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            world.secondary_manager(),
            secondary or world.secondary_factory(),
            count,
            seconds(interval_s),
            ping_interval=seconds(ping_s),
            **options,
        )
    )
    pair._backlog.rotation._random = Random(7)  # noqa: S311 (what was chosen once is chosen each time)
    return Scene(world, primary, pair)


def _exists(namespace: VirtualNamespace, path: str) -> bool:
    try:
        namespace.info(path)
    except Exception:  # noqa: BLE001 (whatever the broker calls it)
        return False
    return True


async def spoil(namespace: VirtualNamespace, road: Road, what: str) -> None:
    """Let a namespace be out of reach, in one of the ways that there are."""
    match what:
        case "refuse":
            road.refuse()
        case "hide":
            road.cut()
            road.hide()
        case "kill":
            namespace.kill()
        case "stop":
            await namespace.stop()
        case "stall":
            road.stall()
        case "stall up":
            road.stall(Way.UP)
        case "stall down":
            road.stall(Way.DOWN)
        case "drop":
            road.cut()
            road.stall()
        case _:
            raise ValueError(what)


async def heal(namespace: VirtualNamespace, road: Road) -> None:
    """All is well again, and what was held back on the road is lost."""
    road.cut()
    road.heal()
    if namespace._listening is None:
        namespace.start()
    await asyncio.sleep(0.01)


def set_limits(namespace: VirtualNamespace, limits: Limits) -> None:
    """Start it anew, as one of another tier."""
    namespace.kill()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespaces, "STANDARD", limits)
        namespace.start()


# Messages, and waiting.


def letter(text: str = "x", **rest: Any) -> BrokeredMessage:
    return BrokeredMessage(text.encode(), message_id=text, **rest)


def letters(count: int, **rest: Any) -> list[BrokeredMessage]:
    return [letter(str(number), **rest) for number in range(count)]


def texts(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def until(condition: Callable[[], object], within_s: float = 300.0) -> None:
    """Wait until something is so."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while not condition():
        assert loop.time() < deadline_s, "it is still not so"
        await asyncio.sleep(min(0.1, within_s / 10))


async def took(work: Coroutine[Any, Any, Any]) -> float:
    """Do it; tells how many seconds that took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await work
    return loop.time() - began_s


class Tape:
    """The bytes that go up a road from now on, connection by connection."""

    def __init__(self, road: Road) -> None:
        self.data: list[bytes] = []
        for relay in road.open_relays:
            self._tap(relay.up)

    def _tap(self, lane: Any) -> None:
        feed = lane.feed

        def taped(data: bytes) -> None:
            self.data.append(bytes(data))
            feed(data)

        lane.feed = taped

    @property
    def all(self) -> bytes:
        return b"".join(self.data)
