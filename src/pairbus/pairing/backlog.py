"""The backlog queues: their rotation, their creation and re-creation, and the links to them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from random import Random
from typing import Final, NamedTuple, TypeVar

from pairbus.background_tasks import BackgroundTasks
from pairbus.backoff import Backoff
from pairbus.client.entity_link import EntityLink
from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
    MessagingError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.dialect.paths import TRANSFER, backlog_path
from pairbus.pairing.events import BacklogQueueChanged, Listeners
from pairbus.pairing.status import BacklogQueueStatus

_BACKOFF: Final = Backoff(1.0, 60.0)
_BUSY_PAUSE_S: Final = 10.0
_EPSILON_S: Final = 1e-6
"""The time by which a timer may fire early."""


@dataclass(slots=True)
class _Outage:
    """The outage of a queue that was taken out of the rotation."""

    cause: MessagingError
    pause_s: float
    trial_s: float
    """The time at which the queue may be retried, or created again if it is missing."""

    is_missing: bool = False
    """True if the queue was deleted."""


class Rotation:
    """The backlog queues in use, shared by all senders of a factory."""

    def __init__(self, count: int, random: Random) -> None:
        self.count: Final = count
        self._random = random
        self._outages: dict[int, _Outage] = {}

    @property
    def causes(self) -> Mapping[int, MessagingError]:
        """The errors of the queues that were taken out, by index."""
        return {index: outage.cause for index, outage in self._outages.items()}

    @property
    def is_reduced(self) -> bool:
        """True if a queue was taken out."""
        return bool(self._outages)

    def __contains__(self, index: object) -> bool:
        return index not in self._outages

    def is_missing(self, index: int) -> bool:
        """Return whether a queue was deleted, and has not worked since."""
        outage = self._outages.get(index)
        return outage is not None and outage.is_missing

    def pick(self) -> int | None:
        """Return a random queue of the rotation; ``None`` if there is none."""
        left = [index for index in range(self.count) if index not in self._outages]
        return self._random.choice(left) if left else None

    def due(self, now_s: float) -> int | None:
        """Return a queue that is due for a retry, which only the caller makes; ``None`` if there is none."""
        return next((index for index in [*self._outages] if self.claim(index, now_s)), None)

    def claim(self, index: int, now_s: float) -> bool:
        """Return whether this queue is due for a retry, which only the caller makes.

        A missing queue is created again first, and never retried.
        """
        outage = self._outages.get(index)
        if outage is None or outage.is_missing or now_s + _EPSILON_S < outage.trial_s:
            return False
        outage.trial_s = now_s + outage.pause_s
        return True

    def trial_s(self, index: int | None) -> float | None:
        """Return when this queue, or the first of all, is due for a retry."""
        return self._first_trial_s(index, is_missing=False)

    def recreation_s(self, index: int | None) -> float | None:
        """Return when this missing queue, or the first of all, is created again."""
        return self._first_trial_s(index, is_missing=True)

    def _first_trial_s(self, index: int | None, *, is_missing: bool) -> float | None:
        outages = (outage for one, outage in self._outages.items() if index in (one, None))
        return min((outage.trial_s for outage in outages if outage.is_missing is is_missing), default=None)

    def next_to(self, index: int) -> int | None:
        """Return this queue, or the next one that is in the rotation."""
        ring = ((index + step) % self.count for step in range(self.count))
        return next((one for one in ring if one not in self._outages), None)

    def failed(self, index: int, cause: MessagingError, now_s: float, *, was_due: bool = False) -> bool:
        """Take a queue out; return whether it was in. After a failed retry the next one is made later."""
        before = self._outages.get(index)
        if before is not None and before.is_missing:
            return False  # sends that were under way add nothing
        if before is not None and not was_due:  # one of several sends that failed together
            before.cause = cause
            if isinstance(cause, ServerBusyError):
                before.trial_s = max(before.trial_s, now_s + _BUSY_PAUSE_S)
            return False
        pause_s = _BACKOFF.after(0.0 if before is None else before.pause_s)
        if isinstance(cause, ServerBusyError):
            pause_s = max(pause_s, _BUSY_PAUSE_S)
        self._outages[index] = _Outage(cause, pause_s, now_s + pause_s)
        return before is None

    def deleted(self, index: int, cause: MessagingError, now_s: float) -> bool:
        """Take out a queue that was deleted, to be created again at once; return whether it was in."""
        before = self._outages.get(index)
        if before is None or not before.is_missing:
            self._outages[index] = _Outage(cause, _BACKOFF.first_s, now_s, is_missing=True)
        return before is None

    def not_recreated(self, index: int, cause: MessagingError, now_s: float) -> None:
        """Note why a missing queue could not be created again; the next attempt is made later each time."""
        outage = self._outages[index]
        outage.cause = cause
        outage.trial_s = now_s + outage.pause_s
        outage.pause_s = _BACKOFF.after(outage.pause_s)

    def worked(self, index: int) -> bool:
        """Put a queue that works back into the rotation; return whether it was out."""
        return self._outages.pop(index, None) is not None


_log = logging.getLogger(__name__)

_AT_A_TIME: Final = 10
"""Maximum number of concurrent requests to create queues, because each takes a connection."""

_REST_S: Final = 1.0
"""Shortest time between two re-creations of one queue."""


class Recreation:
    """Creates deleted backlog queues again, in the background, with one attempt at a time for each of them.

    No sender tries a queue that is missing, so attempts are repeated after any error, until the queue can be sent to.
    """

    def __init__(
        self,
        factory: MessagingFactory,
        paths: Sequence[str],
        rotation: Rotation,
        *,
        create: Callable[[str], Awaitable[bool]],
        on_return: Callable[[int, bool], None],
        on_failure: Callable[[], None],
    ) -> None:
        """``create`` creates a queue unless it exists, and returns whether it did.

        ``on_return`` is called with a queue that can be sent to again, and whether it was created here; ``on_failure``
        is called after each attempt that failed.
        """
        self.counts: Final = [0] * len(paths)
        """Number of times that each queue was created here."""

        self._factory = factory
        self._paths = paths
        self._rotation = rotation
        self._create = create
        self._on_return = on_return
        self._on_failure = on_failure
        self._running: set[int] = set()
        self._returned_s: dict[int, float] = {}
        self._turns = asyncio.Semaphore(_AT_A_TIME)
        self._tasks = BackgroundTasks("backlog queues", expected=MessagingError)
        self._is_closed = False

    def start(self, index: int) -> None:
        """Create a missing queue again, unless that is under way."""
        if index not in self._running and not self._is_closed:
            self._running.add(index)
            self._tasks.start(self._run(index))

    async def _run(self, index: int) -> None:
        loop, rotation, before = asyncio.get_running_loop(), self._rotation, self.counts[index]
        is_logged = False
        try:
            await asyncio.sleep(self._returned_s.get(index, -math.inf) + _REST_S - loop.time())
            while rotation.is_missing(index) and not self._factory.is_closed:
                failure = await self._attempt(index)
                if failure is None:
                    self._returned_s[index] = loop.time()
                    self._on_return(index, self.counts[index] > before)
                elif rotation.is_missing(index):  # else a send has succeeded meanwhile
                    level = logging.DEBUG if is_logged else logging.WARNING
                    _log.log(
                        level, 'backlog queue not re-created, retrying entity=%s error="%s"', failure.entity, failure
                    )
                    is_logged = True
                    rotation.not_recreated(index, failure, loop.time())
                    self._on_failure()
                    await asyncio.sleep((rotation.recreation_s(index) or 0.0) - loop.time())
        finally:
            self._running.discard(index)

    async def _attempt(self, index: int) -> EntityNotFoundError | None:
        """Create a queue, and check that it accepts messages; return the error."""
        path = self._paths[index]
        try:
            await self._create_and_reach(index, path)
        except MessagingError as error:
            return _not_recreated(path, error)
        except Exception as error:  # noqa: BLE001 (any error is retried)
            _log.exception("re-creation of a backlog queue failed unexpectedly queue=%s", path)
            return _not_recreated(path, error)
        return None

    async def _create_and_reach(self, index: int, path: str) -> None:
        refusal: MessagingError | None = None
        try:
            async with self._turns:
                is_new = await self._create(path)
        except EntityAlreadyExistsError:
            raise  # an entity of that path that is no queue may accept messages without keeping them
        except MessagingError as error:
            refusal = error  # another process may have created it, which a key without Manage cannot look up
        else:
            if is_new:
                self.counts[index] += 1
                _log.info("backlog queue re-created entity=%s", path)
        try:
            await self._reach(path)
        except MessagingError as error:
            raise refusal or error from None

    async def _reach(self, path: str) -> None:
        """Attach to a queue. An older link does not show whether the queue exists."""
        entity_link = EntityLink(self._factory, path)
        try:
            await entity_link.link()
        finally:
            await entity_link.close()

    async def close(self) -> None:
        self._is_closed = True
        await self._tasks.close()


def _not_recreated(path: str, cause: Exception) -> EntityNotFoundError:
    error = EntityNotFoundError(f"it was deleted, and creating it again failed: {cause}", entity=path)
    error.__cause__ = cause
    return error


T = TypeVar("T")

_EVERY_DELIVERY: Final = 2**31 - 1
MOST_DELIVERIES: Final = 2_000
"""The maximum delivery count of services that reject the other one."""


def backlog_description(path: str) -> QueueDescription:
    """Return the description of a backlog queue; other properties have the service's defaults."""
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
    """Create the missing backlog queues of a namespace; return the descriptions of all of them."""
    paths = [backlog_path(namespace, index) for index in range(count)]
    first = await _ensure(manager, paths[0])  # most errors of one concern all
    ensured = [first, *await in_groups(partial(_ensure, manager), paths[1:])]
    return [one.description for one in ensured]


async def create_backlog_queue(manager: NamespaceManager, path: str) -> bool:
    """Create a backlog queue unless it exists; return whether it was created. Raise ``MessagingError``."""
    return (await _ensure(manager, path)).is_new


async def backlog_queues_by_name(manager: NamespaceManager) -> dict[str, list[tuple[int, str]]]:
    """Return the indexes and paths of all backlog queues, by the name of their primary in lower case.

    Requires the claim *Manage*. Raise ``MessagingError``.
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for queue in await manager.get_queues():
        name, _, rest = queue.path.rpartition(f"/{TRANSFER}/")
        if name and rest.isdecimal():
            found.setdefault(name.lower(), []).append((int(rest), queue.path))
    return found


async def backlog_queues_of(manager: NamespaceManager, names: Sequence[str]) -> tuple[str, ...]:
    """Return the paths of all backlog queues of these names. Raise ``MessagingError``."""
    if not names:
        return ()
    found = await backlog_queues_by_name(manager)
    return tuple(path for name in names for _, path in sorted(found.get(name.lower(), ())))


async def in_groups(ask: Callable[[str], Awaitable[T]], paths: Sequence[str]) -> list[T]:
    """Request something for each queue, some at a time, because each takes a connection; raise the first error."""
    found: list[T] = []
    for begin in range(0, len(paths), _AT_A_TIME):
        group = paths[begin : begin + _AT_A_TIME]
        for outcome in await asyncio.gather(*map(ask, group), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            found.append(outcome)
    return found


class _Ensured(NamedTuple):
    """An existing backlog queue."""

    description: QueueDescription
    is_new: bool


async def _ensure(manager: NamespaceManager, path: str) -> _Ensured:
    """Create a queue unless it exists; an existing one is used as it is."""
    try:
        return _Ensured(await manager.get_queue(path), is_new=False)
    except EntityNotFoundError:
        pass
    try:
        return _Ensured(await _create(manager, backlog_description(path)), is_new=True)
    except EntityAlreadyExistsError as error:
        try:
            return _Ensured(await manager.get_queue(path), is_new=False)  # another process was faster
        except EntityNotFoundError:
            raise error from None  # an entity of that path is no queue


async def _create(manager: NamespaceManager, description: QueueDescription) -> QueueDescription:
    try:
        return await manager.create_queue(description)
    except InvalidRequestError:
        return await manager.create_queue(replace(description, max_delivery_count=MOST_DELIVERIES))


class Backlog:
    """The links to the backlog queues and their rotation; deleted queues are created again."""

    def __init__(
        self,
        factory: MessagingFactory,
        manager: NamespaceManager,
        paths: Sequence[str],
        random: Random,
        listeners: Listeners,
    ) -> None:
        self.paths: Final = tuple(paths)
        self.rotation = Rotation(len(paths), random)
        self.factory = factory
        self.links: Final = tuple(EntityLink(factory, path) for path in paths)
        self.diverted = [0] * len(paths)
        self.max_message_bytes = 0
        """The largest message that all queues accept; 0 if no limit is known."""

        self.max_batch_bytes = 0
        self._listeners = listeners
        self._changed: asyncio.Future[None] | None = None
        """Done when a queue works again, or could not be created."""

        self._recreation = Recreation(
            factory,
            self.paths,
            self.rotation,
            create=partial(create_backlog_queue, manager),
            on_return=self._returned,
            on_failure=self._wake,
        )
        self._is_closed = False

    async def connect(self) -> None:
        """Attach to all queues in advance. Raise ``MessagingError`` if none accepts messages.

        An error of the key concerns all queues, and is raised.
        """
        outcomes = await asyncio.gather(*(entity_link.link() for entity_link in self.links), return_exceptions=True)
        now_s = asyncio.get_running_loop().time()
        failures: list[MessagingError] = []
        for index, outcome in enumerate(outcomes):
            if isinstance(outcome, MessagingError):
                failures.append(outcome)
                if isinstance(outcome, EntityNotFoundError):
                    self.rotation.deleted(index, outcome, now_s)
                else:
                    self.rotation.failed(index, outcome, now_s)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                self._learn(outcome.max_message_bytes, outcome.max_batch_bytes)
        refused = next((failure for failure in failures if isinstance(failure, UnauthorizedError)), None)
        if refused is not None or len(failures) == len(self.links):
            raise refused or failures[0]
        for index in filter(self.rotation.is_missing, range(len(self.paths))):
            self._recreation.start(index)

    def _learn(self, message_bytes: int, batch_bytes: int) -> None:
        if message_bytes:
            self.max_message_bytes = min(message_bytes, self.max_message_bytes or message_bytes)
        self.max_batch_bytes = min(batch_bytes, self.max_batch_bytes or batch_bytes)

    def failed(self, index: int, cause: MessagingError, *, was_due: bool) -> None:
        """Take a queue out of the rotation after a failed send."""
        if isinstance(cause, EntityNotFoundError):
            self._deleted(index, cause)
        elif self.rotation.failed(index, cause, asyncio.get_running_loop().time(), was_due=was_due):
            self._notify_out(index, cause)

    def missing(self, path: str, cause: EntityNotFoundError) -> None:
        """Create a missing queue again; paths of other queues are ignored."""
        if path in self.paths:
            self._deleted(self.paths.index(path), cause)

    def _deleted(self, index: int, cause: EntityNotFoundError) -> None:
        if self.rotation.deleted(index, cause, asyncio.get_running_loop().time()):
            self._notify_out(index, cause)
        self._recreation.start(index)

    def _notify_out(self, index: int, cause: MessagingError) -> None:
        _log.warning('backlog queue out of rotation entity=%s error="%s"', self.paths[index], cause)
        self._notify(index, cause)

    def worked(self, index: int) -> None:
        """Note that a queue has accepted a message."""
        if self.rotation.is_reduced:
            self._returned(index, is_recreated=False)

    def _returned(self, index: int, is_recreated: bool) -> None:
        if self.rotation.worked(index):
            _log.info("backlog queue back in rotation entity=%s", self.paths[index])
            self._notify(index, None, is_recreated=is_recreated)
            self._wake()

    def _wake(self) -> None:
        """Wake the senders that wait for a queue."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _notify(self, index: int, cause: MessagingError | None, *, is_recreated: bool = False) -> None:
        self._listeners.publish(
            BacklogQueueChanged(
                at=datetime.now(UTC),
                path=self.paths[index],
                is_used=cause is None,
                cause=cause,
                is_recreated=is_recreated,
            )
        )

    async def wait_for_a_queue(self, index: int | None, deadline_s: float) -> bool:
        """Wait until this queue, or any, may be retried or works; return False if that is after the deadline.

        Wait for a queue that is being created again until the deadline, or until that fails.
        """
        loop = asyncio.get_running_loop()
        if self._is_closed:
            raise ClosedError("the pair has been closed")
        trial_s, recreation_s = self.rotation.trial_s(index), self.rotation.recreation_s(index)
        chances_s = [at_s for at_s in (trial_s, recreation_s) if at_s is not None]
        if self.factory.is_closed or min(chances_s, default=-math.inf) >= deadline_s:
            return False
        if self._changed is None or self._changed.done():
            self._changed = loop.create_future()
        ends_s = deadline_s if trial_s is None else min(trial_s, deadline_s)
        await asyncio.wait((self._changed,), timeout=max(0.001, ends_s - loop.time()))
        return True

    @property
    def status(self) -> tuple[BacklogQueueStatus, ...]:
        causes = self.rotation.causes
        return tuple(
            BacklogQueueStatus(
                path=path,
                is_used=index in self.rotation,
                cause=causes.get(index),
                diverted=self.diverted[index],
                recreated=self._recreation.counts[index],
            )
            for index, path in enumerate(self.paths)
        )

    async def close(self) -> None:
        self._is_closed = True
        self._wake()  # waiting senders raise ClosedError
        await self._recreation.close()
        await asyncio.gather(*(entity_link.close() for entity_link in self.links))
