"""Renewal of the locks of messages and sessions."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeVar

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.errors import InvalidMessageError, MessageLockLostError, MessagingError

_log = logging.getLogger(__name__)

_RENEW_AT: Final = 0.5
"""The fraction of a lock's remaining time after which the lock is renewed."""

_SHORTEST_S: Final = 0.5
_FEW: Final = 100
_TOGETHER_S: Final = 0.25
"""Locks that are due within this time of each other are renewed with one request."""

_MOMENT_S: Final = 0.001
"""A shorter time is not worth a timer, which may go off early by the resolution of the clock."""

_MAX_REQUEST: Final = 1_000
"""Maximum number of locks in one request."""

_SHORTER: Final = 0.9
"""Planned renewals are moved forward when the lock duration turns out to be shorter than this fraction of it."""


class Lockable(Protocol):
    """A locked message or session."""

    @property
    def locked_until(self) -> datetime | None: ...

    @property
    def is_settled(self) -> bool:
        """True when the lock is no longer needed."""


L = TypeVar("L", bound=Lockable)


@dataclass(slots=True, eq=False)
class _Watched(Generic[L]):
    """A lock that is renewed."""

    locked: L
    locked_s: float
    """The time at which the lock was acquired or last renewed, on the clock of the event loop."""

    stop_s: float
    """The time at which renewal stops."""


@dataclass(slots=True, order=True)
class _Due(Generic[L]):
    """The next renewal of a lock."""

    due_s: float
    count: int
    watched: _Watched[L] = field(compare=False)


class LockRenewer(Generic[L]):
    """Renews the locks of messages or sessions until they are settled or ``longest`` has passed.

    Without ``lock_s`` the end of a lock is its ``locked_until``. The clock of this machine may be off, so a lock that
    seems to have expired is renewed all the same. With ``lock_s``, which returns the lock duration of the entity, time
    is measured on the clock of the event loop, and an expired lock counts as lost.
    """

    def __init__(
        self,
        renew: Callable[[list[L]], Awaitable[object]],
        longest: timedelta = timedelta.max,
        *,
        tasks: BackgroundTasks | None = None,
        lock_s: Callable[[], float] | None = None,
        on_lost: Callable[[list[L], MessagingError | None], None] | None = None,
        find_settled: Callable[[list[L]], Awaitable[None]] | None = None,
        lost_are_adjacent: bool = False,
    ) -> None:
        """``renew`` renews locks with one request, and raises ``MessagingError`` if one of them is lost.

        The renewer runs in ``tasks``, if the owner has such a set, and ends when that is closed.

        ``on_lost`` is called with lost locks and the error of the renewal, or ``None`` for expired locks; by default a
        warning is logged. ``find_settled`` is called with the locks of a request that failed, and marks those as
        settled that another process has settled. With ``lost_are_adjacent`` the locks between two lost ones are
        assumed to be lost too, which saves requests when a namespace has forgotten many locks.
        """
        self._renew = renew
        self._longest_s = longest.total_seconds()
        self._lock_s = lock_s
        self._on_lost = on_lost or _log_lost
        self._find_settled = find_settled
        self._lost_are_adjacent = lost_are_adjacent
        self._due: list[_Due[L]] = []
        self._planned_lock_s = 0.0
        """The lock duration that the planned renewals assume."""

        self._is_closed = False
        self._crowded = _FEW
        self._count = 0
        self._tasks = tasks or BackgroundTasks("lock renewal", expected=MessagingError)
        self._owns_tasks = tasks is None
        self._is_running = False
        self._more = asyncio.Event()

    def watch(self, locked: L) -> None:
        """Renew this lock, which was just acquired, from now on; does nothing once the renewer is closed."""
        if self._is_closed:
            return
        now_s = asyncio.get_running_loop().time()
        self._plan_again_if_shorter()
        self._plan(_Watched(locked, now_s, now_s + self._longest_s))
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._run())

    async def close(self) -> None:
        self._is_closed = True
        if self._owns_tasks:
            await self._tasks.close()
        self._due.clear()

    # Planning.

    def _plan(self, watched: _Watched[L]) -> None:
        left_s = self._left_s(watched)
        if left_s is None:
            return
        due_s = asyncio.get_running_loop().time() + max(_SHORTEST_S, left_s * _RENEW_AT)
        if due_s < watched.stop_s:
            self._push(due_s, watched)

    def _push(self, due_s: float, watched: _Watched[L]) -> None:
        self._count += 1
        heapq.heappush(self._due, _Due(due_s, self._count, watched))
        self._more.set()
        if len(self._due) > self._crowded:
            self._tidy()

    def _left_s(self, watched: _Watched[L]) -> float | None:
        """Return how long a lock lasts from now on; ``None`` if it cannot be renewed."""
        if self._lock_s is not None:
            return watched.locked_s + self._lock_s() - asyncio.get_running_loop().time()
        try:
            locked_until = watched.locked.locked_until
        except InvalidMessageError:  # the application has to settle a message that cannot be read
            return None
        return None if locked_until is None else locked_until.timestamp() - time.time()

    def _plan_again_if_shorter(self) -> None:
        """Move renewals forward if locks are shorter than was assumed when they were planned."""
        if self._lock_s is None:
            return
        lock_s = self._lock_s()
        if lock_s < _SHORTER * self._planned_lock_s:
            planned, self._due = self._due, []
            for due in planned:
                self._push(due.watched.locked_s + lock_s * _RENEW_AT, due.watched)
        self._planned_lock_s = lock_s

    def _tidy(self) -> None:
        """Drop settled entries; runs only after the list has doubled, so that the amortized cost stays low."""
        self._due = [due for due in self._due if not due.watched.locked.is_settled]
        heapq.heapify(self._due)
        self._crowded = 2 * len(self._due) + _FEW

    # Renewal.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait()
            due: list[_Watched[L]] = []
            while self._due and self._due[0].due_s <= loop.time() + _TOGETHER_S:
                watched = heapq.heappop(self._due).watched
                if not watched.locked.is_settled:
                    due.append(watched)
            if due:
                self._tasks.start(self._renew_due(due))  # a slow renewal must not delay the next ones

    async def _wait(self) -> None:
        """Wait until a renewal is due; a more urgent one may be added meanwhile."""
        while True:
            self._more.clear()
            delay_s = self._due[0].due_s - asyncio.get_running_loop().time() if self._due else None
            if delay_s is not None and delay_s <= _MOMENT_S:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._more.wait()

    async def _renew_due(self, due: list[_Watched[L]]) -> None:
        self._lose([watched for watched in due if self._is_expired(watched)], None)
        rest = [watched for watched in due if not self._is_expired(watched)]
        lost: set[int] = set()
        try:
            for start in range(0, len(rest), _MAX_REQUEST):
                lost |= await self._renew_group(rest[start : start + _MAX_REQUEST])
        except MessagingError as error:  # it may pass; until then it is useless to ask for the other locks
            _log.debug('lock renewal failed, retrying entity=%s error="%s"', error.entity, error)
        for watched in rest:
            if id(watched) not in lost and not watched.locked.is_settled:
                self._plan(watched)

    def _is_expired(self, watched: _Watched[L]) -> bool:
        left_s = None if self._lock_s is None else self._left_s(watched)
        return left_s is not None and left_s <= 0

    async def _renew_group(self, group: Sequence[_Watched[L]]) -> set[int]:
        """Renew locks; return the ids of those that are lost. Raise ``MessagingError`` if a retry may succeed."""
        error = await self._try(group)
        if error is None:
            return set()
        if self._find_settled is not None:
            await self._find_settled([watched.locked for watched in group])
            unsettled = [watched for watched in group if not watched.locked.is_settled]
            if len(unsettled) < len(group):
                group, error = unsettled, await self._try(unsettled)
        return set() if error is None else await self._bisect(group, error)

    async def _bisect(self, group: Sequence[_Watched[L]], error: MessagingError) -> set[int]:
        """Find the lost locks: one of them makes the renewal of its whole group fail."""
        if len(group) == 1 or (self._lost_are_adjacent and await self._are_ends_lost(group)):
            self._lose(group, error)
            return {id(watched) for watched in group}
        half = len(group) // 2
        lost: set[int] = set()
        for part in (group[:half], group[half:]):
            failure = await self._try(part)
            if failure is not None:
                lost |= await self._bisect(part, failure)
        return lost

    async def _are_ends_lost(self, group: Sequence[_Watched[L]]) -> bool:
        return await self._try(group[-1:]) is not None and await self._try(group[:1]) is not None

    async def _try(self, group: Sequence[_Watched[L]]) -> MessagingError | None:
        """Renew locks with one request; return the error if one of them is lost, and raise other errors."""
        unsettled = [watched.locked for watched in group if not watched.locked.is_settled]
        if not unsettled:
            return None
        started_s = asyncio.get_running_loop().time()
        try:
            await self._renew(unsettled)
        except MessagingError as error:
            # Without a known lock duration nothing else would end the attempts after an error that does not pass.
            if error.is_transient or (self._lock_s is not None and not isinstance(error, MessageLockLostError)):
                raise
            return error
        for watched in group:
            watched.locked_s = started_s
        return None

    def _lose(self, lost: Sequence[_Watched[L]], error: MessagingError | None) -> None:
        unsettled = [watched.locked for watched in lost if not watched.locked.is_settled]
        if unsettled:
            self._on_lost(unsettled, error)
            self._plan_again_if_shorter()


def _log_lost(lost: list[Any], error: MessagingError | None) -> None:
    # The application gets the error when it settles; until then there is nothing that it could do.
    entity = None if error is None else error.entity
    _log.warning('locks lost entity=%s count=%d error="%s"', entity, len(lost), error or "expired")
