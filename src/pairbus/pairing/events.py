"""Events of a pair, and their listeners."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Final, Self

from pairbus.client.errors import MessagingError
from pairbus.pairing.policy import EntityState

_log = logging.getLogger(__name__)

_MOST_EVENTS: Final = 10_000
"""Maximum number of events that wait for a slow reader; beyond that the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvent:
    """An event of a pair."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityChanged(PairEvent):
    """The state of an entity has changed."""

    path: str
    before: EntityState
    state: EntityState
    cause: MessagingError | None
    """The last error, if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSent(PairEvent):
    """An entity was pinged."""

    path: str
    cause: MessagingError | None
    """The reason why there was no response; ``None`` if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueChanged(PairEvent):
    """A backlog queue was taken out of the rotation, or put back."""

    path: str
    is_used: bool
    cause: MessagingError | None
    is_recreated: bool = False
    """True if this pair has created the queue again, after it was deleted with its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationChanged(PairEvent):
    """The syphon has paused or resumed the delivery to a destination."""

    path: str
    is_reached: bool
    cause: MessagingError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(PairEvent):
    """The syphon has moved a message that can never be delivered to the dead-letter queue of its backlog queue."""

    backlog_queue: str
    message_id: str
    path: str | None
    """The destination, if it could be read."""

    reason: str
    description: str


Listener = Callable[[PairEvent], None]


class Listeners:
    """The listeners of a pair. An error of a listener is logged, and does not affect the pair."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}
        self._pending: deque[PairEvent] = deque()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener; return the function that removes it."""
        if not callable(listener):
            raise TypeError(f"a listener must be callable, got {listener!r:.100}")
        if iscoroutinefunction(listener):
            raise TypeError("a listener must not be a coroutine function; to await something, iterate events()")
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def publish(self, event: PairEvent) -> None:
        """Call all listeners; events that a listener causes follow after the current one."""
        self._pending.append(event)
        if len(self._pending) > 1:
            return
        while self._pending:
            try:
                self._call_all(self._pending[0])
            finally:
                self._pending.popleft()

    def _call_all(self, event: PairEvent) -> None:
        for listener in [*self._listeners.values()]:
            try:
                listener(event)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 (any error is the listener's own)
                _log.exception("listener failed event=%r", event)


class EventStream(AsyncIterator[PairEvent]):
    """Iterates over the events since its creation, until the pair is closed."""

    def __init__(self, listeners: Listeners, ended: asyncio.Future[None]) -> None:
        waiting: deque[PairEvent] = deque(maxlen=_MOST_EVENTS)
        came = asyncio.Event()

        def take(event: PairEvent) -> None:
            waiting.append(event)
            came.set()

        self._waiting = waiting
        self._came = came
        self._ended = ended
        self._unsubscribe = listeners.add(take)  # it must not refer to the stream, which would never be collected
        self._on_end = lambda _: came.set()
        ended.add_done_callback(self._on_end)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> PairEvent:
        while not self._waiting:
            if self._ended.done():
                self._unsubscribe()
                raise StopAsyncIteration
            self._came.clear()
            await self._came.wait()
        return self._waiting.popleft()

    def __del__(self) -> None:
        self._unsubscribe()
        self._ended.remove_done_callback(self._on_end)
        with suppress(RuntimeError):  # the loop may be closed
            self._ended.cancel()
