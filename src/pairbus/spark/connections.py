"""The connections of this process: those of a Spark worker outlive its tasks, most of which are over sooner.

This is the one thing that this room keeps for the whole process. A task is handed a pickled reader or writer and ends
with it; the process that runs it is used for the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakSet

from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.spark.connection_reference import ConnectionReference

_ANYWHERE: Final = "x-pairbus-spark"
"""A path without an entity: any answer shows that the namespace is there."""

_PAUSE_S: Final = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class Connections:
    """One factory for each connection string that is in use."""

    def __init__(self) -> None:
        self._loop: LoopThread | None = None
        self._factories: dict[ConnectionReference, tuple[str, MessagingFactory]] = {}
        self._reached: WeakSet[MessagingFactory] = WeakSet()

    async def factory(self, connection: ConnectionReference) -> MessagingFactory:
        """The factory for a reference; another one when what it refers to has changed: keys are rotated."""
        loop = loop_of_this_process()
        if self._loop is not loop:  # a fork has left the parent's connections here
            self._factories, self._loop = {}, loop
        resolved = connection.resolve()
        known = self._factories.get(connection)
        if known is not None and known[0] == resolved and not known[1].is_closed:
            return known[1]
        factory = MessagingFactory.from_connection_string(resolved)
        self._factories[connection] = (resolved, factory)
        if known is not None:
            await known[1].close()
        return factory

    async def reached(self, connection: ConnectionReference, within: timedelta, *, once: bool) -> MessagingFactory:
        """Connect, or with ``once`` only if that has not succeeded yet; raises ``MessagingTimeoutError``."""
        factory = await self.factory(connection)
        if not once or factory not in self._reached:
            await reach(factory, within)
            self._reached.add(factory)
        return factory


_CONNECTIONS: Final = Connections()


def on_loop(function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function where the connections live, and wait for its answer."""
    return loop_of_this_process().call(function, *args, **kwargs)


def factory_of(connection: ConnectionReference) -> MessagingFactory:
    """The factory of this process for a connection; for use on the loop."""
    return on_loop(_CONNECTIONS.factory, connection)


def reached(connection: ConnectionReference, within: timedelta, *, once: bool = False) -> MessagingFactory:
    """Connect to the namespace, and return its factory; raises ``MessagingTimeoutError`` if it is not reached.

    With ``once`` a namespace that this process has reached before is not connected to: later outages are sat out.
    """
    return on_loop(_CONNECTIONS.reached, connection, within, once=once)


async def reach(factory: MessagingFactory, within: timedelta) -> None:
    """Try to connect until the namespace answers, or raise ``MessagingTimeoutError``.

    An answer that refuses something is an answer: the operation that needs it reports it.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within.total_seconds()
    cause: MessagingError | None = None
    while True:
        try:
            async with asyncio.timeout_at(ends_s):
                await factory.greet(_ANYWHERE)
                return
        except MessagingError as error:
            if not error.is_transient:
                return
            cause = error
        except TimeoutError:
            break
        if loop.time() + _PAUSE_S >= ends_s:
            break
        await asyncio.sleep(_PAUSE_S)
    within_s = f"{within.total_seconds():g} s"
    raise MessagingTimeoutError(
        f"{factory.endpoint} did not answer within {within_s}"
        if cause is None
        else f"{cause.message}; tried for {within_s}",
        hint="check that the namespace is running and that 'connection' has its Endpoint, or raise 'connectTimeout'",
    ) from None
