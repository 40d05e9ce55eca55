"""The connections of this process: those of a Spark worker outlive its tasks, most of which are over sooner.

This is the one thing that this room keeps for the whole process. A task is handed a pickled reader or writer and ends
with it; the process that runs it is used for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, ParamSpec, TypeVar

from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.client.factory import MessagingFactory
from pairbus.spark.connection_reference import ConnectionReference

P = ParamSpec("P")
T = TypeVar("T")


class Connections:
    """One factory for each connection string that is in use."""

    def __init__(self) -> None:
        self._loop: LoopThread | None = None
        self._factories: dict[ConnectionReference, tuple[str, MessagingFactory]] = {}

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


_CONNECTIONS: Final = Connections()


def on_loop(function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a coroutine function where the connections live, and wait for its answer."""
    return loop_of_this_process().call(function, *args, **kwargs)


def factory_of(connection: ConnectionReference) -> MessagingFactory:
    """The factory of this process for a connection; for use on the loop."""
    return on_loop(_CONNECTIONS.factory, connection)
