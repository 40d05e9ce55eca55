"""A client, a namespace and the proxy between them, in one process and in virtual time."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import get_ident
from typing import Any, Final, Self, TypeVar

from pairbus.broker import QueueDescription
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    InternalServerError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import MessagingFactorySettings
from pairbus.client.token_provider import SharedAccessKeyTokenProvider
from tests.faults.fault import SOUND, Schedule
from tests.faults.namespace import KEY, START_MS, VirtualNamespace
from tests.faults.proxy import Proxy
from tests.faults.virtual_loop import VirtualLoop

ORDERS: Final = "orders"
UNIQUE: Final = "unique"
VISITS: Final = "visits"
OPERATION_S: Final = 60.0
TRANSIENT: Final = (MessagingCommunicationError, MessagingTimeoutError, ServerBusyError, InternalServerError)
_MOMENT_S: Final = 0.01
"""The delay within which a timeout is noticed."""
_LONGEST_S: Final = 7 * 86_400.0


class Stage:
    """One loop, and on it namespaces with a proxy before each; sees how long things take, and that nothing is left."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.network = loop.network
        self.namespaces: list[VirtualNamespace] = []
        self.proxies: list[Proxy] = []
        self.factories: list[MessagingFactory] = []
        self.managers: list[NamespaceManager] = []
        self.durations: list[tuple[str, float]] = []

    async def __aenter__(self) -> Self:
        for proxy in self.proxies:
            await proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for factory in self.factories:
            await self.timed("close", factory.close(), OPERATION_S)
        for manager in self.managers:
            await manager.close()
        ours = {asyncio.current_task(), *(task for proxy in self.proxies for task in proxy.tasks)}
        theirs = {task for namespace in self.namespaces for task in namespace.tasks}
        left = [task for task in asyncio.all_tasks() if task not in ours | theirs]
        assert not left, f"the client has left tasks behind: {left}"
        for proxy in self.proxies:
            await proxy.close()
        for namespace in self.namespaces:
            namespace.close()

    def add(self, namespace: VirtualNamespace, proxy: Proxy) -> None:
        self.namespaces.append(namespace)
        self.proxies.append(proxy)

    def factory_at(self, endpoint: Endpoint, **settings: Any) -> MessagingFactory:
        """A client of its own, with a connection of its own."""
        factory = MessagingFactory.create(endpoint, self.key(), _settings(settings))
        self.factories.append(factory)
        return factory

    def manager_at(self, endpoint: Endpoint, **settings: Any) -> NamespaceManager:
        manager = NamespaceManager.create(endpoint, self.key(), _settings(settings))
        self.managers.append(manager)
        return manager

    def key(self) -> SharedAccessKeyTokenProvider:
        return SharedAccessKeyTokenProvider(KEY.name, KEY.primary_key, clock=self.wall_s)

    def wall_s(self) -> float:
        return START_MS / 1_000 + self.loop.time()

    async def timed(self, name: str, work: Coroutine[Any, Any, Any], limit_s: float) -> Any:
        """Do it, and see that it does not take longer than it may."""
        start_s = self.loop.time()
        try:
            return await work
        finally:
            took_s = self.loop.time() - start_s
            self.durations.append((name, took_s))
            assert took_s <= limit_s + _MOMENT_S, f"{name} took {took_s} s, begun at {start_s} s"


class World(Stage):
    """Everything that there is.

    ``ORDERS`` is a plain queue, ``UNIQUE`` one with duplicate detection, ``VISITS`` one with sessions.
    """

    def __init__(self, loop: VirtualLoop, schedule: Schedule) -> None:
        super().__init__(loop)
        self.namespace = VirtualNamespace(loop)
        self.namespace.create_queue(ORDERS, QueueDescription(max_delivery_count=1_000))
        unique = QueueDescription(requires_duplicate_detection=True, max_delivery_count=1_000)
        self.namespace.create_queue(UNIQUE, unique)
        self.namespace.create_queue(VISITS, QueueDescription(requires_session=True))
        self.proxy = Proxy(self.namespace.name, self.namespace.port, schedule)
        self.add(self.namespace, self.proxy)

    def factory(self, **settings: Any) -> MessagingFactory:
        """A client of its own, with a connection of its own."""
        return self.factory_at(Endpoint("127.0.0.1", self.proxy.port, tls=False), **settings)


S = TypeVar("S", bound=Stage)


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], schedule: Schedule = SOUND, seed: int = 0) -> float:
    """Run to the end, and check that nothing is left: no task, no connection, no unhandled error."""
    loop = VirtualLoop()
    return run_on(loop, lambda: World(loop, schedule), scenario, seed)


def run_on(
    loop: VirtualLoop, make: Callable[[], S], scenario: Callable[[S], Coroutine[Any, Any, None]], seed: int
) -> float:
    """Run it on a loop that nothing has run on, and close that; answers how long it took."""
    asyncio.set_event_loop(None)

    async def play() -> None:
        async with asyncio.timeout(_LONGEST_S), make() as stage:
            await scenario(stage)

    gc.freeze()  # what was there before need not be looked at afterwards
    try:
        with _wall_clock(loop), _seeded(seed):
            try:
                loop.run_until_complete(play())
                loop.run_until_complete(asyncio.sleep(10))
                left = asyncio.all_tasks(loop)
            finally:
                _end(loop)
        gc.collect()
        assert not left, f"tasks are left: {left}"
        assert not loop.complaints, loop.complaints
        assert not loop.network.streams, "connections are left open"
        return loop.time()
    finally:
        gc.unfreeze()
        loop.close()


def _settings(given: dict[str, Any]) -> MessagingFactorySettings:
    return MessagingFactorySettings(**{"operation_timeout": timedelta(seconds=OPERATION_S), **given})


def _end(loop: VirtualLoop) -> None:
    """After a failure: let nothing of it disturb the next test."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


@contextmanager
def _wall_clock(loop: VirtualLoop) -> Iterator[None]:
    """The time of day goes with the loop's."""
    real = time.time
    time.time = lambda: START_MS / 1_000 + loop.time()
    try:
        yield
    finally:
        time.time = real


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Make random numbers deterministic: pauses, and the ids of messages, links and requests.

    Those of this thread only: what another thread of the process draws meanwhile must not change the run.
    """
    for lot in _lots():
        lot.seed(seed)
    real, seeded, thread = os.urandom, random.Random(seed).randbytes, get_ident()  # noqa: S311

    def draw(size: int) -> bytes:
        return seeded(size) if get_ident() == thread else real(size)

    # Both names of it: the second one is what ``SystemRandom`` draws from.
    os.urandom = random._urandom = draw  # type: ignore[attr-defined]
    try:
        yield
    finally:
        os.urandom = random._urandom = real  # type: ignore[attr-defined]


def _lots() -> list[random.Random]:
    """Return the random generators of the modules."""
    ours = [module for name, module in sorted(sys.modules.items()) if name.startswith("pairbus.")]
    found = [getattr(module, "_RANDOM", None) for module in ours]
    return [lot for lot in found if isinstance(lot, random.Random) and not isinstance(lot, random.SystemRandom)]


def check_error(error: BaseException, entity: str) -> None:
    """Check that an error has a class, says whether it is transient, and names the entity."""
    assert isinstance(error, MessagingError), f"{error!r} is no MessagingError"
    assert error.entity == entity, f"{error!r} names {error.entity!r}"
    assert error.is_transient == isinstance(error, TRANSIENT), f"{error!r}: is_transient is {error.is_transient}"
    if isinstance(error, MessagingTimeoutError) and error.condition is None:  # else the namespace has said so
        assert isinstance(error.__cause__, MessagingError), f"{error!r} has the cause {error.__cause__!r}"
