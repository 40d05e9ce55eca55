"""The queues in the secondary namespace that messages wait in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Final, TypeVar

from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
    MessagingError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.lane import Lane
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.backlog_path import TRANSFER, backlog_path
from pairbus.pairing.events import BacklogQueueChanged, Listeners
from pairbus.pairing.rotation import Rotation
from pairbus.pairing.status import BacklogQueueStatus

_log = logging.getLogger(__name__)
T = TypeVar("T")

_EVERY_DELIVERY: Final = 2**31 - 1
MOST_DELIVERIES: Final = 2_000
"""The delivery count that a service allows which refuses the other one."""

_AT_A_TIME: Final = 10


def backlog_description(path: str) -> QueueDescription:
    """What a backlog queue is made as; everything else is the service's default."""
    return QueueDescription(
        path,
        max_size_in_megabytes=5120,
        max_delivery_count=_EVERY_DELIVERY,
        default_message_time_to_live=timedelta.max,
        auto_delete_on_idle=timedelta.max,
        lock_duration=timedelta(minutes=1),
        enable_dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )


async def ensure_backlog_queues(manager: NamespaceManager, namespace: str, count: int) -> list[QueueDescription]:
    """See that there are the backlog queues of a namespace, and make those that are missing."""
    paths = [backlog_path(namespace, index) for index in range(count)]
    first = await _ensure(manager, paths[0])  # what is wrong with one is mostly wrong with all
    return [first, *await in_groups(partial(_ensure, manager), paths[1:])]


async def backlog_queues_by_name(manager: NamespaceManager) -> dict[str, list[tuple[int, str]]]:
    """The backlog queues of a namespace: their numbers and paths by the name, in lower case, of whose they are.

    It needs the claim *Manage*; raises ``MessagingError``.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for queue in await manager.get_queues():
        name, _, rest = queue.path.rpartition(f"/{TRANSFER}/")
        if name and rest.isdecimal():
            found.setdefault(name.lower(), []).append((int(rest), queue.path))
    return found


async def backlog_queues_of(manager: NamespaceManager, names: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of all backlog queues of these names; raises ``MessagingError``."""
    if not names:
        return ()
    found = await backlog_queues_by_name(manager)
    return tuple(path for name in names for _, path in sorted(found.get(name.lower(), ())))


async def in_groups(ask: Callable[[str], Awaitable[T]], paths: Sequence[str]) -> list[T]:
    """Ask about queues, some at a time, because each takes a connection; raises the first that failed."""
    found: list[T] = []
    for begin in range(0, len(paths), _AT_A_TIME):
        group = paths[begin : begin + _AT_A_TIME]
        for outcome in await asyncio.gather(*map(ask, group), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
    return found


async def _ensure(manager: NamespaceManager, path: str) -> QueueDescription:
    """One that exists is used as it is, whatever it is like."""
    try:
        return await manager.get_queue(path)
    except EntityNotFoundError:
        pass
    try:
        return await _create(manager, backlog_description(path))
    except EntityAlreadyExistsError as error:
        try:
            return await manager.get_queue(path)  # somebody else was faster
        except EntityNotFoundError:
            raise error from None  # there is something of that name which is no queue


async def _create(manager: NamespaceManager, description: QueueDescription) -> QueueDescription:
    try:
        return await manager.create_queue(description)
    except InvalidRequestError:
        return await manager.create_queue(replace(description, max_delivery_count=MOST_DELIVERIES))


class Backlog:
    """The ways to the backlog queues, and which of them are used."""

    def __init__(self, factory: MessagingFactory, paths: Sequence[str], random: Random, listeners: Listeners) -> None:
        self.paths: Final = tuple(paths)
        self.rotation = Rotation(len(paths), random)
        self.factory = factory
        self.lanes: Final = tuple(Lane(factory, path) for path in paths)
        self.diverted = [0] * len(paths)
        self.max_message_bytes = 0
        """The largest message that all of them take; 0 if no limit is known."""

        self.max_batch_bytes = 0
        self._listeners = listeners
        self._returned: asyncio.Future[None] | None = None
        self._is_closed = False

    async def connect(self) -> None:
        """Attach to all of them, so that it goes fast when they are needed; raises if not even one can be sent to.

        What is wrong with the key is wrong for all of them, and raised.
        """
        outcomes = await asyncio.gather(*(lane.link() for lane in self.lanes), return_exceptions=True)
        now_s = asyncio.get_running_loop().time()
        failures: list[MessagingError] = []
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, MessagingError):
                failures.append(outcome)
                self.rotation.failed(index, outcome, now_s)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._learn(outcome.max_message_bytes, outcome.max_batch_bytes)
        refused = next((failure for failure in failures if isinstance(failure, UnauthorizedError)), None)
        if refused is not None or len(failures) == len(self.lanes):
            raise refused or failures[0]

    def _learn(self, message_bytes: int, batch_bytes: int) -> None:
        if message_bytes:
            self.max_message_bytes = min(message_bytes, self.max_message_bytes or message_bytes)
        self.max_batch_bytes = min(batch_bytes, self.max_batch_bytes or batch_bytes)

    def failed(self, index: int, cause: MessagingError, *, was_due: bool) -> None:
        """A send to one of them has failed: nobody uses it for a while."""
        if self.rotation.failed(index, cause, asyncio.get_running_loop().time(), was_due=was_due):
            _log.warning("the backlog queue '%s' is left out for a while: %s", self.paths[index], cause)
            self._tell(index, cause)

    def worked(self, index: int) -> None:
        """One of them has taken a message."""
        if self.rotation.worked(index):
            _log.info("the backlog queue '%s' works again", self.paths[index])
            self._tell(index, None)
            if self._returned is not None and not self._returned.done():
                self._returned.set_result(None)

    def _tell(self, index: int, cause: MessagingError | None) -> None:
        self._listeners.tell(
            BacklogQueueChanged(at=datetime.now(UTC), path=self.paths[index], is_used=cause is None, cause=cause)
        )

    async def wait_for_a_queue(self, index: int | None, deadline_s: float) -> bool:
        """Wait until that one, or any, may be tried or works again; tells whether that is before the deadline."""
        loop = asyncio.get_running_loop()
        trial_s = self.rotation.trial_s(index)
        if self._is_closed:
            raise ClosedError("the pair has been closed")
        if self.factory.is_closed or (trial_s is not None and trial_s >= deadline_s):
            return False
        if self._returned is None or self._returned.done():
            self._returned = loop.create_future()
        await asyncio.wait((self._returned,), timeout=None if trial_s is None else max(0.001, trial_s - loop.time()))
        return True

    @property
    def status(self) -> tuple[BacklogQueueStatus, ...]:
        causes = self.rotation.causes
        return tuple(
            BacklogQueueStatus(
                path=path, is_used=index in self.rotation, cause=causes.get(index), diverted=self.diverted[index]
            )
            for index, path in enumerate(self.paths)
        )

    async def close(self) -> None:
        self._is_closed = True
        if self._returned is not None and not self._returned.done():
            self._returned.set_result(None)  # who waits for a queue is told that there are none any more
        await asyncio.gather(*(lane.close() for lane in self.lanes))
