"""What happens to a pair, for whoever watches it."""

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
"""How many events wait for somebody who is slow; then the oldest are dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairEvent:
    """Something that has happened."""

    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityChanged(PairEvent):
    """An entity is in another state."""

    path: str
    before: EntityState
    state: EntityState
    cause: MessagingError | None
    """What it failed with at last, if it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingSent(PairEvent):
    """An entity was pinged."""

    path: str
    cause: MessagingError | None
    """Why there was no answer; ``None`` if there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogQueueChanged(PairEvent):
    """A backlog queue was taken out of the rotation, or has come back."""

    path: str
    is_used: bool
    cause: MessagingError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationChanged(PairEvent):
    """The syphon leaves the messages for a destination for later, or delivers them again."""

    path: str
    is_reached: bool
    cause: MessagingError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeadLettered(PairEvent):
    """The syphon has found a message that can never be delivered; it lies in the backlog's dead-letter queue."""

    backlog_queue: str
    message_id: str
    path: str | None
    """Its destination, if that could be told."""

    reason: str
    description: str


Listener = Callable[[PairEvent], None]


class Listeners:
    """Everybody who wants to know. What they do about it is their affair: an error of theirs is logged."""

    def __init__(self) -> None:
        self._listeners: dict[object, Listener] = {}
        self._untold: deque[PairEvent] = deque()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Gives what removes it again."""
        if not callable(listener):
            raise TypeError(f"a listener is called with each event; {listener!r:.100} cannot be")
        if iscoroutinefunction(listener):
            raise TypeError("a listener is a function that is called at once; to await something, iterate events()")
        key = object()
        self._listeners[key] = listener
        return lambda: self._listeners.pop(key, None) and None

    def tell(self, event: PairEvent) -> None:
        """Tell everybody; what a listener brings about is told after what it was told of."""
        self._untold.append(event)
        if len(self._untold) > 1:
            return
        while self._untold:
            try:
                self._tell(self._untold[0])
            finally:
                self._untold.popleft()

    def _tell(self, event: PairEvent) -> None:
        for listener in [*self._listeners.values()]:
            try:
                listener(event)
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 (whatever it is, it is not the pair's)
                _log.exception("a listener has failed with %r", event)


class EventStream(AsyncIterator[PairEvent]):
    """The events since it was made, one after the other, until a pair ends."""

    def __init__(self, listeners: Listeners, ended: asyncio.Future[None]) -> None:
        waiting: deque[PairEvent] = deque(maxlen=_MOST_EVENTS)
        came = asyncio.Event()

        def take(event: PairEvent) -> None:
            waiting.append(event)
            came.set()

        self._waiting = waiting
        self._came = came
        self._ended = ended
        self._unsubscribe = listeners.add(take)  # which must not know the stream, or that would never be forgotten
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
        with suppress(RuntimeError):  # of a loop that is gone
            self._ended.cancel()
