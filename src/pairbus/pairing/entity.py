"""An entity of the primary namespace, as all senders of the factory see it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final
from uuid import uuid4

from pairbus.background_tasks import BackgroundTasks
from pairbus.client.entity_link import EntityLink
from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.sending_link_factory import SendingLinkFactory
from pairbus.dialect.annotations import PING_CONTENT_TYPE
from pairbus.pairing.events import EntityChanged, Listeners, PingSent
from pairbus.pairing.policy import EntityState, FailoverPolicy, FailureRules, Signal, counts
from pairbus.pairing.status import PairedEntityStatus

_LIFETIME: Final = timedelta(seconds=1)
_EPSILON: Final = 1e-9


def ping_message() -> BrokeredMessage:
    """Return a message that the namespace confirms like any other, and never delivers.

    It has a session id because some entities accept no message without one; others ignore it.
    """
    return BrokeredMessage(content_type=PING_CONTENT_TYPE, time_to_live=_LIFETIME, session_id=uuid4().hex)


async def ping(entity_link: EntityLink, limit_s: float, on_late_answer: Callable[[], None]) -> MessagingError | None:
    """Ping an entity once; return the error if there was no response within ``limit_s``.

    A ping that was sent stays pending then, until its link times out, and ``on_late_answer`` is called if the response
    arrives before that. So an entity that responds slower than it is pinged is found healthy, too.
    """
    payload = encode_brokered(ping_message())
    answer: asyncio.Future[None] | None = None
    try:
        async with asyncio.timeout(limit_s) as limit:
            answer = (await entity_link.link()).send(payload)
            answer.add_done_callback(_is_answer)  # retrieve the result also if it is not awaited any more
            await asyncio.shield(answer)
    except MessagingError as error:
        return error.at(entity_link.path)
    except TimeoutError:
        if not limit.expired():
            raise
        if answer is not None:
            answer.add_done_callback(partial(_call_if_answered, on_late_answer))
        return MessagingTimeoutError(f"no response to a ping within {limit_s:g} s", entity=entity_link.path)
    return None


def _call_if_answered(on_answer: Callable[[], None], answer: asyncio.Future[None]) -> None:
    if _is_answer(answer):
        on_answer()


def _is_answer(answer: asyncio.Future[None]) -> bool:
    return not answer.cancelled() and answer.exception() is None


async def next_tick(last_s: float, interval_s: float) -> float:
    """Wait until the next multiple of the interval after ``last_s``, and return that time."""
    loop = asyncio.get_running_loop()
    intervals = max(1, math.ceil((loop.time() - last_s) / interval_s - _EPSILON))  # missed ones are skipped
    due_s = last_s + intervals * interval_s
    await asyncio.sleep(due_s - loop.time())
    return due_s


_log = logging.getLogger(__name__)


class PairedEntity:
    """Applies the policy to one entity: runs its timer, pings it, and notifies waiting senders and listeners."""

    def __init__(
        self,
        path: str,
        primary: SendingLinkFactory,
        *,
        failover_interval_s: float,
        ping_interval_s: float,
        rules: FailureRules,
        listeners: Listeners,
    ) -> None:
        self.path = path
        self.is_direct = True
        """True if the entity is healthy and no session has messages in the backlog: sends take the fast path."""

        self.backlogged_sessions = 0
        """Number of sessions whose new messages have to follow others into the backlog."""

        self.diverted = 0
        self.cause: MessagingError | None = None
        """The last error."""

        self._primary = primary
        self._ping_interval_s = ping_interval_s
        self._rules = rules
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()
        self._policy = FailoverPolicy(failover_interval_s, self._loop.time())
        self._since = datetime.now(UTC)
        self._timer: asyncio.TimerHandle | None = None
        self._engaged: asyncio.Future[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks(f"pings of {path}")
        self._pings = 0
        self._failures = 0
        self._is_closed = False

    @property
    def state(self) -> EntityState:
        return self._policy.state

    @property
    def is_diverting(self) -> bool:
        return self._policy.is_diverting

    @property
    def status(self) -> PairedEntityStatus:
        return PairedEntityStatus(
            path=self.path,
            state=self.state,
            since=self._since,
            cause=self.cause,
            failures=self._failures,
            diverted=self.diverted,
            pings=self._pings,
        )

    def engaged(self) -> asyncio.Future[None]:
        """Return a future that is done when messages go to the backlog."""
        if self._engaged is None or (self._engaged.done() and not self.is_diverting):
            self._engaged = self._loop.create_future()
            if self.is_diverting:
                self._engaged.set_result(None)
        return self._engaged

    # Signals.

    def sent(self) -> None:
        """Note that the primary has confirmed a message."""
        if not self.is_direct:
            self.signal(Signal.SENT)

    def counts(self, error: MessagingError, *, is_last: bool = False) -> bool:
        """Return whether an error counts against the primary."""
        return counts(error, self._rules, is_last=is_last)

    def gave_up(self, error: MessagingError) -> None:
        """Note that a send has timed out; its error may not have counted while it was retried."""
        if not self.counts(error) and self.counts(error, is_last=True):
            self._note(error)

    def failed(self, error: MessagingError) -> bool:
        """Note a failed attempt; return whether it counts."""
        if not self.counts(error):
            return False
        self._note(error)
        return True

    def _note(self, error: MessagingError) -> None:
        self._failures += 1
        if not self.is_diverting:
            self.cause = error
        self.signal(Signal.FAILED)

    def add_backlogged_sessions(self, more: int) -> None:
        """Add to the number of sessions that have messages in the backlog."""
        self.backlogged_sessions += more
        self._set_direct()

    def _set_direct(self) -> None:
        self.is_direct = self.state is EntityState.HEALTHY and not self.backlogged_sessions

    def signal(self, signal: Signal) -> None:
        before = self.state
        if not self._is_closed and self._policy.on(signal, self._loop.time()):
            self._changed(before)

    def _tick(self) -> None:
        before, deadline_s = self.state, self._policy.deadline_s
        if deadline_s is not None and self._policy.tick(max(deadline_s, self._loop.time())):  # a timer may fire early
            self._changed(before)

    def _changed(self, before: EntityState) -> None:
        state = self.state
        self._since = datetime.now(UTC)
        self._set_direct()
        if state is EntityState.HEALTHY:
            self.cause = None
        cause = self.cause
        self._set_timer()
        self._set_pinging()
        if self.is_diverting and self._engaged is not None and not self._engaged.done():
            self._engaged.set_result(None)
        if cause is None:
            _log.log(_LEVELS[state], 'entity state changed entity=%s state="%s"', self.path, state.value)
        else:
            _log.log(
                _LEVELS[state],
                'entity state changed entity=%s state="%s" error="%s"',
                self.path,
                state.value,
                cause,
            )
        self._listeners.publish(EntityChanged(at=self._since, path=self.path, before=before, state=state, cause=cause))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._policy.deadline_s is not None:
            self._timer = self._loop.call_at(self._policy.deadline_s, self._tick)

    # Pings.

    def _set_pinging(self) -> None:
        if self._pinging is not None and self._pinging is not asyncio.current_task(self._loop):
            self._pinging.cancel()
        self._pinging = None
        if self.state is EntityState.FAILED_OVER:
            self._pinging = self._tasks.keep_running(self._ping)

    async def _ping(self) -> None:
        task = asyncio.current_task()
        due_s = self._policy.since_s
        entity_link = EntityLink(self._primary, self.path)

        def answered_late() -> None:
            if self._pinging is task:  # else a later ping has succeeded, or the entity was switched manually
                self._listeners.publish(PingSent(at=datetime.now(UTC), path=self.path, cause=None))
                self.signal(Signal.ANSWERED)

        try:
            while self._pinging is task and self.state is EntityState.FAILED_OVER:
                due_s = await next_tick(due_s, self._ping_interval_s)
                self._pings += 1
                # A ping always ends before the next one is due.
                cause = await ping(entity_link, min(self._ping_interval_s, self._primary.send_attempt_s), answered_late)
                self._listeners.publish(PingSent(at=datetime.now(UTC), path=self.path, cause=cause))
                if cause is None:
                    self.signal(Signal.ANSWERED)
                else:
                    self.cause = cause
        finally:
            await entity_link.close()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()


_LEVELS = {
    EntityState.HEALTHY: logging.INFO,
    EntityState.FAILING: logging.WARNING,
    EntityState.FAILED_OVER: logging.WARNING,
    EntityState.HELD_OVER: logging.INFO,
}
