"""Fixtures of tests of a pair in virtual time: a paired primary, a log of sends, and the content of the backlog."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from pairbus.broker import AuthorizationRule, Limits, Namespace, NewMessage, Right
from pairbus.client.endpoint import Endpoint
from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.sender import MessageSender
from pairbus.client.token_provider import SharedAccessKeyTokenProvider
from pairbus.dialect.transfer import read_transfer, restore
from pairbus.pairing import EntityChanged, EntityState, NamespacePair, PairedEntityStatus, PairEvent
from pairbus.pairing.options import SendAvailabilityPairedNamespaceOptions
from tests.faults import namespace as namespaces
from tests.faults.fault import Way
from tests.faults.namespace import KEY, VirtualNamespace
from tests.simulation.pair_world import NetworkPath, PairWorld
from tests.waiting import eventually_async

ORDERS: Final = "orders"
OTHERS: Final = "others"
VISITS: Final = "visits"
APP: Final = "app"
"""The name of a key beside the root key."""

ATTEMPT_S: Final = 5.0
OUTAGES: Final = ("refuse", "hide", "kill", "stop", "stall", "stall up", "stall down", "drop")
"""The kinds of outages of a namespace."""


def backlog_path(index: int) -> str:
    return f"contoso/x-servicebus-transfer/{index}"


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


# Sends to a namespace.


class LoggedSend(NamedTuple):
    """A message that was sent to a namespace, accepted or rejected."""

    at_s: float
    path: str
    payload: bytes
    is_ping: bool

    @property
    def message(self) -> ReceivedMessage:
        return ReceivedMessage(self.payload)


class SendLog:
    """Records every message that is sent to a namespace."""

    def __init__(self, namespace: VirtualNamespace, loop: asyncio.AbstractEventLoop) -> None:
        self.seen: list[LoggedSend] = []
        self.on_seen: Callable[[], object] = lambda: None
        """Called after each send that was accepted."""
        self._namespace = namespace
        self._loop = loop
        self._watched: Namespace | None = None
        self.watch()

    def watch(self) -> None:
        """Record from now on. Call this again after each start of the namespace."""
        broker = self._namespace.host.use_namespace()
        if broker is self._watched:
            return
        self._watched = broker
        send = broker.send

        def watched(address: Any, messages: Sequence[NewMessage], now_ms: int) -> Any:
            for one in messages:
                self.seen.append(LoggedSend(self._loop.time(), str(address), one.body, one.ping))
            outcome = send(address, messages, now_ms)
            self.on_seen()
            return outcome

        broker.send = watched  # type: ignore[method-assign]

    @property
    def pings(self) -> list[LoggedSend]:
        return [one for one in self.seen if one.is_ping]

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all messages except pings, in order."""
        return [bytes(one.message.body) for one in self.seen if not one.is_ping]


# The scene.


class Scene:
    """A paired primary factory, with access to the content of both namespaces."""

    def __init__(self, world: PairWorld, factory: MessagingFactory, pair: NamespacePair) -> None:
        self.world = world
        self.factory = factory
        self.pair = pair
        self.primary = SendLog(world.primary, world.loop)
        self.secondary = SendLog(world.secondary, world.loop)
        self.events: list[PairEvent] = []
        self.changes: list[tuple[float, str, EntityState]] = []
        """The changes of states of entities, with their times."""
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

    # Outages.

    async def spoil(self, what: str) -> None:
        await spoil(self.world.primary, self.world.primary_network, what)

    async def heal(self) -> None:
        await heal(self.world.primary, self.world.primary_network)
        self.primary.watch()

    # Content of the namespaces.

    async def backlog(self) -> list[ReceivedMessage]:
        """Return all messages of the backlog, queue by queue."""
        return [
            message for index in range(len(self.pair.status().backlog_queues)) for message in await self.queue(index)
        ]

    async def queue(self, index: int) -> list[ReceivedMessage]:
        return await self.peek(self._inside(self.world.secondary), backlog_path(index))

    async def bodies(self) -> list[bytes]:
        return [bytes(message.body) for message in await self.backlog()]

    async def delivered(self, path: str = ORDERS) -> list[bytes]:
        """Return the bodies of the messages in a queue of the primary."""
        return [bytes(message.body) for message in await self.messages(path)]

    async def messages(self, path: str = ORDERS) -> list[ReceivedMessage]:
        """Return the messages in a queue of the primary, also during an outage."""
        return await self.peek(self._inside(self.world.primary), path)

    async def peek(self, factory: MessagingFactory, path: str) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        async with await factory.create_message_receiver(path) as receiver:
            while page := await receiver.peek(200, from_sequence_number=found[-1].sequence_number + 1 if found else 0):
                found += page
        return found

    def _inside(self, namespace: VirtualNamespace) -> MessagingFactory:
        """Return an unpaired client that connects directly, so that outages of the network do not affect it."""
        if namespace.name not in self._insiders:
            endpoint = Endpoint(namespace.name, namespace.port, tls=False)
            self._insiders[namespace.name] = self.world.factory_at(endpoint)
        return self._insiders[namespace.name]

    # Manual delivery, in place of a syphon.

    async def deliver(self, index: int, count: int = 1_000) -> int:
        """Deliver up to ``count`` messages of a backlog queue, in order; return their number."""
        links: dict[str, EntityLink] = {}
        unpaired = self._inside(self.world.primary)
        moved = 0
        async with await self._inside(self.world.secondary).create_message_receiver(backlog_path(index)) as receiver:
            while moved < count and (messages := await receiver.receive(count - moved, seconds(0))):
                for message in messages:
                    await _deliver(unpaired, links, receiver, message)
                moved += len(messages)
        for link in links.values():
            await link.close()
        return moved

    async def deliver_marked(self, name: str) -> None:
        """Deliver the messages that have a property of that name, and leave the others in the backlog."""
        unpaired = self._inside(self.world.primary)
        for index in range(len(self.pair.status().backlog_queues)):
            if not any(name in message.application_properties for message in await self.queue(index)):
                continue
            async with await self._inside(self.world.secondary).create_message_receiver(
                backlog_path(index)
            ) as receiver:
                for message in await receiver.receive(1_000, seconds(0)):
                    if name in message.application_properties:
                        await _deliver(unpaired, {}, receiver, message)
                    else:
                        await receiver.abandon(message)

    async def deliver_all(self) -> int:
        count = len(self.pair.status().backlog_queues)
        return sum([await self.deliver(index) for index in range(count)])


async def _deliver(
    unpaired: MessagingFactory, links: dict[str, EntityLink], receiver: MessageReceiver, message: ReceivedMessage
) -> None:
    payload = message._sections().payload
    transfer = read_transfer(payload)
    link = links.setdefault(transfer.path, EntityLink(unpaired, transfer.path))
    await link.send(SendBatch([restore(payload, transfer)]))
    await receiver.complete(message)


async def paired(
    world: PairWorld,
    *,
    count: int = 3,
    interval_s: float = 0.0,
    ping_s: float = 60.0,
    factory: MessagingFactory | None = None,
    secondary: MessagingFactory | None = None,
    manager: NamespaceManager | None = None,
    **options: Any,
) -> Scene:
    """Pair the two namespaces. By default the first failure diverts."""
    for path in (ORDERS, OTHERS):
        if not _exists(world.primary, path):
            world.primary.create_queue(path)
    primary = factory or world.primary_factory()
    pair = await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(
            manager or world.secondary_manager(),
            secondary or world.secondary_factory(),
            count,
            seconds(interval_s),
            ping_interval=seconds(ping_s),
            **options,
        )
    )
    pair._backlog.rotation._random = Random(7)  # noqa: S311 (tests have to be repeatable)
    return Scene(world, primary, pair)


def _exists(namespace: VirtualNamespace, path: str) -> bool:
    try:
        namespace.info(path)
    except Exception:  # noqa: BLE001 (any error means that it does not exist)
        return False
    return True


async def spoil(namespace: VirtualNamespace, network: NetworkPath, what: str) -> None:
    """Start an outage of a namespace, one of ``OUTAGES``."""
    match what:
        case "refuse":
            network.refuse()
        case "hide":
            network.cut()
            network.hide()
        case "kill":
            namespace.kill()
        case "stop":
            await namespace.stop()
        case "stall":
            network.stall()
        case "stall up":
            network.stall(Way.UP)
        case "stall down":
            network.stall(Way.DOWN)
        case "drop":
            network.cut()
            network.stall()
        case _:
            raise ValueError(what)


async def heal(namespace: VirtualNamespace, network: NetworkPath) -> None:
    """End the outage; what was held back in the network is lost."""
    network.cut()
    network.heal()
    if namespace._listening is None:
        namespace.start()
    await asyncio.sleep(0.01)


def allow(namespace: VirtualNamespace, *rights: Right, name: str = APP) -> None:
    """Set the claims of a key."""
    rule = AuthorizationRule(name=name, rights=rights, primary_key="first", secondary_key="second")
    rules = [rule] if name == KEY.name else [KEY, rule]
    namespace.call(lambda broker, now_ms: broker.set_authorization_rules(rules, now_ms))


def app_key(world: PairWorld) -> SharedAccessKeyTokenProvider:
    """Return the key whose claims ``allow`` sets."""
    return SharedAccessKeyTokenProvider(APP, "first", clock=world.wall_s)


def app_manager(world: PairWorld) -> NamespaceManager:
    """Return a manager of the secondary with that key."""
    manager = NamespaceManager.create(world.secondary_network.endpoint, app_key(world))
    world.managers.append(manager)
    return manager


def set_limits(namespace: VirtualNamespace, limits: Limits) -> None:
    """Restart a namespace with other limits."""
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
    """Wait until a condition is true."""
    await eventually_async(lambda: bool(condition()), within_s, every_s=min(0.1, within_s / 10))


async def took(work: Coroutine[Any, Any, Any]) -> float:
    """Await a coroutine; return how many seconds it took."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await work
    return loop.time() - began_s


class SentBytes:
    """Records the bytes that clients send over the open connections from now on."""

    def __init__(self, network: NetworkPath) -> None:
        self.data: list[bytes] = []
        for relay in network.open_relays:
            self._tap(relay.up)

    def _tap(self, link: Any) -> None:
        feed = link.feed

        def recorded(data: bytes) -> None:
            self.data.append(bytes(data))
            feed(data)

        link.feed = recorded

    @property
    def all(self) -> bytes:
        return b"".join(self.data)
