"""Sending to the backlog: to one queue, to another if that fails, and to none if all of them have failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    InvalidMessageError,
    MessagingError,
)
from pairbus.client.parcel import Parcel
from pairbus.client.settings import MessagingFactorySettings
from pairbus.pairing.backlog import Backlog
from pairbus.pairing.entity import PairedEntity


class Choice(NamedTuple):
    """A backlog queue to send to; or none, because none works or may be tried yet."""

    queue: int | None
    was_due: bool = False
    """Whether it was taken out before and is to be tried again."""

    only: int | None = None
    """The one that it has to be, if it has to be one."""


Choose = Callable[[float, bool], Choice]
"""Chooses a queue at a time, for the first try of a message or for another one."""


class Diversion:
    """What one sender diverts. It chooses a backlog queue at random, and stays with it while that works."""

    def __init__(self, path: str, entity: PairedEntity, backlog: Backlog, settings: MessagingFactorySettings) -> None:
        self._path = path
        self._entity = entity
        self._backlog = backlog
        self._timeout_s = settings.operation_timeout.total_seconds()
        self._queue: int | None = None

    async def send(self, diverted: Parcel, started_s: float, choose: Choose | None = None) -> None:
        """Send what has its diverted form; raises ``BacklogUnavailableError`` with every cause."""
        if not diverted.unconfirmed:
            return
        backlog, loop = self._backlog, asyncio.get_running_loop()
        # Whoever was kept waiting by the primary has a try or two all the same.
        deadline_s = max(started_s + self._timeout_s, loop.time() + 2 * backlog.factory.send_attempt_s)
        is_first = True
        while True:
            choice = (choose or self._choose)(loop.time(), is_first)
            is_first = False
            if choice.queue is not None:
                if await self._sent_to(choice.queue, diverted, was_due=choice.was_due):
                    return
            elif not await backlog.wait_for_a_queue(choice.only, deadline_s):
                raise self._unavailable(choice.only)
            if loop.time() >= deadline_s:
                raise self._unavailable(choice.only)

    def _choose(self, now_s: float, is_first: bool) -> Choice:
        """One that should be tried again; else the one that we stay with. After a failure, what works goes first."""
        rotation = self._backlog.rotation
        due = rotation.due(now_s) if is_first else None
        if due is None and (self._queue is None or self._queue not in rotation):
            self._queue = rotation.pick()
            if self._queue is None:
                due = rotation.due(now_s)
        return Choice(self._queue) if due is None else Choice(due, was_due=True)

    async def _sent_to(self, queue: int, diverted: Parcel, *, was_due: bool) -> bool:
        backlog = self._backlog
        before = len(diverted.unconfirmed)
        try:
            await backlog.lanes[queue].attempt(diverted)
        except InvalidMessageError:
            raise  # the queue is not to blame
        except ClosedError as error:
            if not backlog.factory.is_closed:
                raise  # the pair has been closed
            backlog.failed(queue, error, was_due=was_due)
            return False
        except MessagingError as error:
            backlog.failed(queue, error, was_due=was_due)
            return False
        finally:
            taken = before - len(diverted.unconfirmed)
            backlog.diverted[queue] += taken
            self._entity.diverted += taken
        backlog.worked(queue)
        return True

    def _unavailable(self, only: int | None) -> BacklogUnavailableError:
        backlog = self._backlog
        causes = {
            backlog.paths[queue]: cause
            for queue, cause in sorted(backlog.rotation.causes.items())
            if only is None or queue == only
        }
        told = "; ".join(f"{path}: {cause}" for path, cause in causes.items())
        error = BacklogUnavailableError(
            f"'{self._path}' is {self._entity.state.value}, and none of its backlog queues in "
            f"{backlog.factory.endpoint} takes the message: {told}",
            entity=self._path,
            causes=causes,
        )
        error.__cause__ = self._entity.cause
        return error
