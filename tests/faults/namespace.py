"""A namespace in memory, served on a loop whose time is virtual: it can be stopped, killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final, cast
from uuid import UUID

from pairbus.broker import STANDARD, Address, AuthorizationRule, Namespace, QueueDescription, Records, Right
from pairbus.server.access import Gatekeeper
from pairbus.server.amqp.connection import AmqpConnection
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.messages import MessageView
from pairbus.server.reception import Reception
from pairbus.store import Keeper, MemoryStore
from tests.faults.network import Listening
from tests.faults.virtual_loop import VirtualLoop

START_MS: Final = 1_700_000_000_000
PORT: Final = 5672
KEY: Final = AuthorizationRule(
    name="root", rights=(Right.MANAGE, Right.SEND, Right.LISTEN), primary_key="first", secondary_key="second"
)
_IDLE_MS: Final = 240_000
_DRAIN_S: Final = 10.0
_LAST_KEY: Final = b"\xff" * 400


class VirtualNamespace:
    """What was confirmed is still there after ``kill`` and ``start``; a commit takes no time."""

    def __init__(self, loop: VirtualLoop, name: str = "contoso", port: int = PORT) -> None:
        self.name = name
        self.port = port
        self.busy_until_s = 0.0
        """Until when all requests are denied."""
        self.started_s = 0.0
        self.denied: list[tuple[float, str]] = []
        """When requests were denied, and what they were."""
        self._loop = loop
        self._records: dict[bytes, bytes] = {}
        self._ids, self._tokens = count(1), count(1)
        self._store: MemoryStore | None = None
        self._listening: Listening | None = None
        self._host: NamespaceHost | None = None
        self._services: AmqpServices | None = None
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
        return START_MS + round(self._loop.time() * 1_000)

    def create_queue(self, path: str, description: QueueDescription | None = None) -> None:
        self.call(lambda namespace, now_ms: namespace.create_queue(path, description or QueueDescription(), now_ms))

    def call(self, work: Callable[[Namespace, int], object]) -> None:
        work(self.host.namespace, self.now_ms())

    # Stopping and starting.

    def start(self) -> None:
        self.started_s = self._loop.time()
        self._store = MemoryStore()
        if self._records:
            self._store.prepare(dict(self._records)).run()
        keeper = Keeper(self._store, self._make, self.now_ms())  # without a thread
        self._host = NamespaceHost(self.name, STANDARD, keeper, self.now_ms, self._loop)
        self._host.deny = self._deny
        services = AmqpServices(self._host, Gatekeeper(self._host), Dispatcher(self._host), Counters(), _IDLE_MS)
        self._services = services
        self._listening = self._loop.network.listen(
            self.name, self.port, lambda: Reception(services, asyncio.Protocol, secure=False)
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
        while services.connections and self._loop.time() < deadline_s:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)
        self._drop()
        self._end()

    def kill(self) -> None:
        """As a power cut ends it: what is not committed has not happened, and nobody is told more than a reset."""
        self._hang_up()
        self._remember()
        self._drop()
        self.host._keeper.abandon()
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
        for stream in [*self._loop.network.streams]:
            if stream in self.services.receptions:
                stream.abort()

    def _connections(self) -> list[AmqpConnection]:
        """In the order in which they came, which a set does not keep: a seed has to play the same each time."""
        connections = cast("set[AmqpConnection]", self.services.connections)
        found = {connection._transport: connection for connection in connections}
        return [found[stream] for stream in self._loop.network.streams if stream in found]

    def _end(self) -> None:
        self.host._keeper.commit(self.now_ms())
        self._remember()
        self.host.close()

    def _remember(self) -> None:
        assert self._store is not None
        self._records = dict(self._store.scan(b"", _LAST_KEY))

    def _deny(self, operation: str, _address: Address | None) -> str | None:
        if self._loop.time() >= self.busy_until_s:
            return None
        self.denied.append((self._loop.time(), operation))
        return "the test wants this namespace to be busy"

    def _make(self, records: Records) -> Namespace:
        return Namespace(
            records,
            limits=STANDARD,
            view=MessageView,
            fresh_id=lambda: UUID(int=next(self._ids)),
            fresh_token=lambda: next(self._tokens).to_bytes(16, "big"),
        )
