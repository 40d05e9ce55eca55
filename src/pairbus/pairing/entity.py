"""An entity of the primary namespace, as all senders of the factory see it."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

from pairbus.client.errors import MessagingError
from pairbus.client.lane import Lane, Opener
from pairbus.pairing.events import EntityChanged, Listeners, PingSent
from pairbus.pairing.failure_rules import FailureRules, counts
from pairbus.pairing.ping import next_tick, ping
from pairbus.pairing.policy import EntityState, FailoverPolicy, Signal
from pairbus.pairing.status import PairedEntityStatus

_log = logging.getLogger(__name__)


class PairedEntity:
    """Carries out what the policy says: keeps its timer, pings, and tells everyone who waits."""

    def __init__(
        self,
        path: str,
        primary: Opener,
        *,
        failover_interval_s: float,
        ping_interval_s: float,
        rules: FailureRules,
        listeners: Listeners,
    ) -> None:
        self.path = path
        self.is_direct = True
        """Whether it is healthy and has no stragglers, so that nothing has to be thought about."""

        self.stragglers = 0
        """Sessions whose new messages have to follow others into the backlog."""

        self.diverted = 0
        self.cause: MessagingError | None = None
        """What it failed with at last."""

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
        self._tasks: set[asyncio.Task[None]] = set()
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
        """Done when messages go to the backlog."""
        if self._engaged is None or (self._engaged.done() and not self.is_diverting):
            self._engaged = self._loop.create_future()
            if self.is_diverting:
                self._engaged.set_result(None)
        return self._engaged

    # What happens to it.

    def sent(self) -> None:
        """The primary has confirmed a message."""
        if not self.is_direct:
            self.signal(Signal.SENT)

    def counts(self, error: MessagingError, *, is_last: bool = False) -> bool:
        """Whether this speaks against the primary."""
        return counts(error, self._rules, is_last=is_last)

    def gave_up(self, error: MessagingError) -> None:
        """A send has used up its time; what it came to may not have counted while it was tried again."""
        if not self.counts(error) and self.counts(error, is_last=True):
            self._note(error)

    def failed(self, error: MessagingError) -> bool:
        """An attempt has failed; tells whether that counts."""
        if not self.counts(error):
            return False
        self._note(error)
        return True

    def _note(self, error: MessagingError) -> None:
        self._failures += 1
        if not self.is_diverting:
            self.cause = error
        self.signal(Signal.FAILED)

    def straggle(self, more: int) -> None:
        """So many sessions more have messages in the backlog."""
        self.stragglers += more
        self._set_direct()

    def _set_direct(self) -> None:
        self.is_direct = self.state is EntityState.HEALTHY and not self.stragglers

    def signal(self, signal: Signal) -> None:
        before = self.state
        if not self._is_closed and self._policy.on(signal, self._loop.time()):
            self._changed(before)

    def _tick(self) -> None:
        before, deadline_s = self.state, self._policy.deadline_s
        if deadline_s is not None and self._policy.tick(max(deadline_s, self._loop.time())):  # a timer may be early
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
        _log.log(_LEVELS[state], "'%s' is %s%s", self.path, state.value, "" if cause is None else f": {cause}")
        self._listeners.tell(EntityChanged(at=self._since, path=self.path, before=before, state=state, cause=cause))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._policy.deadline_s is not None:
            self._timer = self._loop.call_at(self._policy.deadline_s, self._tick)

    # Its pings.

    def _set_pinging(self) -> None:
        if self._pinging is not None and self._pinging is not asyncio.current_task(self._loop):
            self._pinging.cancel()
        self._pinging = None
        if self.state is EntityState.FAILED_OVER:
            self._pinging = self._loop.create_task(self._ping())
            self._tasks.add(self._pinging)
            self._pinging.add_done_callback(self._tasks.discard)

    async def _ping(self) -> None:
        task = asyncio.current_task()
        due_s = self._policy.since_s
        lane = Lane(self._primary, self.path)

        def answered_late() -> None:
            if self._pinging is task:  # else it was answered, or switched by hand, meanwhile
                self._listeners.tell(PingSent(at=datetime.now(UTC), path=self.path, cause=None))
                self.signal(Signal.ANSWERED)

        try:
            while self.state is EntityState.FAILED_OVER:
                due_s = await next_tick(due_s, self._ping_interval_s)
                self._pings += 1
                # It ends before the next one is due, whatever happens to it.
                cause = await ping(lane, min(self._ping_interval_s, self._primary.send_attempt_s), answered_late)
                self._listeners.tell(PingSent(at=datetime.now(UTC), path=self.path, cause=cause))
                if cause is None:
                    self.signal(Signal.ANSWERED)
                else:
                    self.cause = cause
        finally:
            await lane.close()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


_LEVELS = {
    EntityState.HEALTHY: logging.INFO,
    EntityState.FAILING: logging.WARNING,
    EntityState.FAILED_OVER: logging.WARNING,
    EntityState.HELD_OVER: logging.INFO,
}
