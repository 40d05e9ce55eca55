"""A client, a namespace and the proxy between them, in one process and in virtual time."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, Self

from pairbus.broker import QueueDescription
from pairbus.client import retry
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    InternalServerError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.factory import MessagingFactory
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
"""What it may take to notice that the time is up."""
_LONGEST_S: Final = 7 * 86_400.0


class World:
    """Everything that there is.

    ``ORDERS`` is a plain queue, ``UNIQUE`` one with duplicate detection, ``VISITS`` one with sessions.
    """

    def __init__(self, loop: VirtualLoop, schedule: Schedule) -> None:
        self.loop = loop
        self.network = loop.network
        self.namespace = VirtualNamespace(loop)
        self.namespace.create_queue(ORDERS, QueueDescription(max_delivery_count=1_000))
        unique = QueueDescription(requires_duplicate_detection=True, max_delivery_count=1_000)
        self.namespace.create_queue(UNIQUE, unique)
        self.namespace.create_queue(VISITS, QueueDescription(requires_session=True))
        self.proxy = Proxy(self.namespace.name, self.namespace.port, schedule)
        self.factories: list[MessagingFactory] = []
        self.durations: list[tuple[str, float]] = []

    async def __aenter__(self) -> Self:
        await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for factory in self.factories:
            await self.timed("close", factory.close(), OPERATION_S)
        ours = {asyncio.current_task(), *self.proxy.tasks}
        left = [task for task in asyncio.all_tasks() if task not in ours]
        assert not left, f"the client has left tasks behind: {left}"
        await self.proxy.close()
        self.namespace.close()

    def factory(self, **settings: Any) -> MessagingFactory:
        """A client of its own, with a connection of its own."""
        given = {"operation_timeout": timedelta(seconds=OPERATION_S), **settings}
        factory = MessagingFactory.create(
            Endpoint("127.0.0.1", self.proxy.port, tls=False),
            SharedAccessKeyTokenProvider(KEY.name, KEY.primary_key, clock=self.wall_s),
            MessagingFactorySettings(**given),
        )
        self.factories.append(factory)
        return factory

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


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], schedule: Schedule = SOUND, seed: int = 0) -> float:
    """Run it to its end, and see that nothing is left: no task, no connection, no error that nobody has seen."""
    loop = VirtualLoop()
    asyncio.set_event_loop(None)
    retry._RANDOM.seed(seed)

    async def play() -> None:
        async with asyncio.timeout(_LONGEST_S), World(loop, schedule) as world:
            await scenario(world)

    gc.freeze()  # what was there before need not be looked at afterwards
    try:
        with _wall_clock(loop):
            try:
                loop.run_until_complete(play())
                loop.run_until_complete(asyncio.sleep(10))
            finally:
                _end(loop)
        gc.collect()
        assert not loop.complaints, loop.complaints
        assert not loop.network.streams, "connections are left open"
        return loop.time()
    finally:
        gc.unfreeze()
        loop.close()


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


def check_error(error: BaseException, entity: str) -> None:
    """What an application gets has a class, says whether to try again, and names the entity."""
    assert isinstance(error, MessagingError), f"{error!r} is no MessagingError"
    assert error.entity == entity, f"{error!r} names {error.entity!r}"
    assert error.is_transient == isinstance(error, TRANSIENT), f"{error!r}: is_transient is {error.is_transient}"
    if isinstance(error, MessagingTimeoutError) and error.condition is None:  # else the namespace has said so
        assert isinstance(error.__cause__, MessagingError), f"{error!r} has the cause {error.__cause__!r}"
