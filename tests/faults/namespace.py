"""A namespace in memory, served on a loop whose time is virtual: it can be stopped, killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final, cast
from uuid import UUID
from zlib import crc32

import uvicorn
from uvicorn.server import ServerState

from pairbus.broker import (
    STANDARD,
    Address,
    AuthorizationRule,
    EntityInfo,
    EntityStatus,
    Namespace,
    QueueDescription,
    Records,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.management import Operation
from pairbus.dialect.paths import split_entity_path
from pairbus.server import NamespaceServer, Settings
from pairbus.server.access import Authorizer
from pairbus.server.amqp.connection import ServerConnection
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.http.protocol import HttpProtocol
from pairbus.server.messages import MessageView, address_of
from pairbus.server.websocket import ServerWebSocket
from pairbus.store import GroupCommitter, MemoryStore
from tests.faults.network import Listening, Stream
from tests.faults.trouble import Trouble, TroubledReception, TroubledTransport
from tests.faults.virtual_loop import VirtualLoop

START_MS: Final = 1_700_000_000_000
PORT: Final = 5672
KEY: Final = AuthorizationRule(
    name="root", rights=(Right.MANAGE, Right.SEND, Right.LISTEN), primary_key="first", secondary_key="second"
)
_IDLE_MS: Final = 240_000
_DRAIN_S: Final = 10.0
_LAST_KEY: Final = b"\xff" * 400
_SENDING: Final = frozenset({"send", Operation.SCHEDULE_MESSAGE})
_BUSY: Final = "the test wants this namespace to be busy"


class VirtualNamespace:
    """A namespace in virtual time. Confirmed messages survive ``kill`` and ``start``; a commit takes no time.

    AMQP and the management API are on one port, without TLS.
    """

    def __init__(self, loop: VirtualLoop, name: str = "contoso", port: int = PORT, skew_s: float = 0.0) -> None:
        self.name = name
        self.port = port
        self.skew_s = skew_s
        """The time by which its clock is ahead of the loop's. It may grow: then the clock jumps."""
        self.busy_until_s = 0.0
        """Until when all requests are denied."""
        self.troubles: dict[Address, Trouble] = {}
        """The faults of sent messages; they survive a restart."""
        self.started_s = 0.0
        self.denied: list[tuple[float, str]] = []
        """The denied requests, with their times."""
        self.polls = 0
        """Number of times that a receiver has granted credit."""
        self._loop = loop
        self._records: dict[bytes, bytes] = {}
        first = (crc32(name.encode()) << 64) + 1  # nobody shall take a token of one namespace for one of another
        self._ids, self._tokens = count(first), count(first)
        self._created_ms = self.now_ms()
        self._store: MemoryStore | None = None
        self._listening: Listening | None = None
        self._host: NamespaceHost | None = None
        self._services: AmqpServices | None = None
        self._http = ServerState()
        self.start()
        self.call(lambda namespace, now_ms: namespace.set_authorization_rules([KEY], now_ms))

    @property
    def host(self) -> NamespaceHost:
        assert self._host is not None
        return self._host

    @property
    def services(self) -> AmqpServices:
        assert self._services is not None
        return self._services

    def now_ms(self) -> int:
        return START_MS + round((self._loop.time() + self.skew_s) * 1_000)

    @property
    def tasks(self) -> set[asyncio.Task[None]]:
        """The tasks of HTTP requests."""
        return self._http.tasks

    # What an operator does, without a request.

    def create_queue(self, path: str, description: QueueDescription | None = None) -> None:
        self.call(lambda namespace, now_ms: namespace.create_queue(path, description or QueueDescription(), now_ms))

    def create_topic(
        self, path: str, subscriptions: Iterable[str] = (), description: TopicDescription | None = None
    ) -> None:
        """A topic, with subscriptions that get all messages."""
        self.call(lambda namespace, now_ms: namespace.create_topic(path, description or TopicDescription(), now_ms))
        for name in subscriptions:
            self.create_subscription(path, name)

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        rule: RuleDescription | None = None,
    ) -> None:
        given = description or SubscriptionDescription()
        self.call(lambda namespace, now_ms: namespace.create_subscription(topic, name, given, now_ms, rule))

    def disable(self, path: str, status: EntityStatus = EntityStatus.DISABLED) -> None:
        """Of a queue, a topic, or a subscription at ``topic/Subscriptions/name``."""
        address = _address(path)
        description = replace(self.info(path).description, status=status)
        self.call(lambda namespace, now_ms: namespace.update(address, description, now_ms))

    def enable(self, path: str) -> None:
        self.disable(path, EntityStatus.ACTIVE)

    def delete(self, path: str) -> None:
        """With all its messages."""
        self.call(lambda namespace, now_ms: namespace.delete(_address(path), now_ms))

    def info(self, path: str) -> EntityInfo:
        """Return the description of an entity, and its counts."""
        return self.host.use_namespace().entity(_address(path), self.now_ms())

    def call(self, work: Callable[[Namespace, int], object]) -> None:
        """Do something, and have it committed before anything else can happen."""
        now_ms = self.now_ms()
        work(self.host.use_namespace(), now_ms)
        self.host.committer.commit(now_ms)

    # What goes wrong with sends to one entity.

    def trouble_sends(self, path: str, trouble: Trouble) -> None:
        """From now on, until ``take_sends``. What was never answered is not answered then either."""
        self.troubles[_address(path)] = trouble

    def take_sends(self, path: str) -> None:
        self.troubles.pop(_address(path), None)

    # Stopping and starting.

    def start(self) -> None:
        self.started_s = self._loop.time()
        self._store = MemoryStore()
        if self._records:
            self._store.prepare(dict(self._records)).run()
        keeper = GroupCommitter(self._store, self._make, self.now_ms())  # without a thread
        keeper.created_ms = self._created_ms
        self._host = NamespaceHost(self.name, STANDARD, keeper, self.now_ms, self._loop)
        self._host.deny = self._deny
        services = AmqpServices(
            self._host, Authorizer(self._host), Dispatcher(self._host, self._loop.time), Counters(), _IDLE_MS
        )
        services.stopwatch = self._loop.time  # or how a run goes would depend on the machine
        self._services = services
        http = self._http_of(services)
        self._http.default_headers = http.encoded_headers
        self._listening = self._loop.network.listen(
            self.name,
            self.port,
            lambda: TroubledReception(
                services, lambda: HttpProtocol(http, self._http, {}, services), self.troubles, self._note_poll
            ),
        )

    async def stop(self) -> None:
        """As an operator stops it: what has come is confirmed, and everyone is told."""
        self._hang_up()
        services = self.services
        services.is_draining = True
        await self.host.durable()
        for connection in self._connections():
            connection.shut_down()
        deadline_s = self._loop.time() + _DRAIN_S
        await self._until(lambda: not services.connections, deadline_s)
        for protocol in self._http_protocols():
            protocol.shutdown()
        await self._until(lambda: not self._http.connections, deadline_s)
        self._drop()
        self._end()

    def kill(self) -> None:
        """End like a power failure: uncommitted changes are lost, and peers get a reset."""
        self._hang_up()
        self._remember()
        self._drop()
        self._cancel()
        self.host.committer.abandon()
        self.host.close()

    def close(self) -> None:
        """For good."""
        if self._listening is not None:
            self._hang_up()
            self._drop()
            self._end()

    def drop_connections(self) -> None:
        """Reset all of them."""
        self._drop()

    def _hang_up(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def _drop(self) -> None:
        for connection in self._connections():
            connection.abort()
        for stream in self._streams():
            stream.abort()

    def _cancel(self) -> None:
        """Or they would wait for ever for a commit that does not come."""
        for task in [*self._http.tasks]:
            task.cancel()

    def _streams(self) -> list[Stream]:
        """In the order in which they came, which a set does not keep: a seed has to play the same each time."""
        here = self.name, self.port
        return [stream for stream in self._loop.network.streams if stream.get_extra_info("sockname") == here]

    def _connections(self) -> list[ServerConnection]:
        connections = cast("set[ServerConnection]", self.services.connections)
        found = {_carrier(connection): connection for connection in connections}
        return [found[stream] for stream in self._streams() if stream in found]

    def _http_protocols(self) -> list[HttpProtocol]:
        found = {protocol.transport: cast("HttpProtocol", protocol) for protocol in self._http.connections}
        return [found[stream] for stream in self._streams() if stream in found]

    async def _until(self, condition: Callable[[], bool], deadline_s: float) -> None:
        while not condition() and self._loop.time() < deadline_s:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(0.01)

    def _end(self) -> None:
        self.host.committer.commit(self.now_ms())
        self._remember()
        self._cancel()
        self.host.close()

    def _remember(self) -> None:
        assert self._store is not None
        self._records = dict(self._store.scan(b"", _LAST_KEY))

    def _deny(self, operation: str, address: Address | None) -> str | None:
        is_busy = self._loop.time() < self.busy_until_s
        if not is_busy and (operation not in _SENDING or self._trouble_of(address) is not Trouble.BUSY):
            return None
        self.denied.append((self._loop.time(), operation))
        return _BUSY

    def _note_poll(self) -> None:
        self.polls += 1

    def _trouble_of(self, address: Address | None) -> Trouble | None:
        return None if address is None else self.troubles.get(address)

    def _http_of(self, services: AmqpServices) -> uvicorn.Config:
        """As the server makes it, from settings of which it needs none that are about files."""
        server = NamespaceServer(Settings(data=Path(self.name), name=self.name))
        return server._http(services, services.authorizer, [])

    def _make(self, records: Records) -> Namespace:
        return Namespace(
            records,
            limits=STANDARD,
            view=MessageView,
            fresh_id=lambda: UUID(int=next(self._ids)),
            fresh_token=lambda: next(self._tokens).to_bytes(16, "big"),
        )


def _carrier(connection: ServerConnection) -> object:
    """The stream below a connection, be it on a WebSocket or not."""
    transport = connection._transport
    if isinstance(transport, ServerWebSocket):
        return transport._stream.transport
    return transport.stream if isinstance(transport, TroubledTransport) else transport


def _address(path: str) -> Address:
    entity = split_entity_path(path)
    assert entity is not None, path
    return address_of(entity)
