"""A namespace that is being served: the keeper, the clock, and what happens by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from pairbus.broker import AccessChanged, Address, Limits, Namespace, Notice, Quarantined
from pairbus.server.clock import Clock
from pairbus.server.errors import ServerBusyError
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.throttle.throttle import Throttle
from pairbus.store import Keeper, Recovery, StoreError
from pairbus.store.keys import describe

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S: Final = 60.0
"""However far away the next thing is: clocks are set, and links have to be counted as use."""

_LEAP_MS: Final = 90_000

_WATCH_STALLED_S: Final = 0.25

COMMIT_OVERDUE_S: Final = 2.0
"""Default time that a commit may take before the storage counts as stalled."""

Deny = Callable[[str, Address | None], str | None]
"""Is asked before each request that the throttle lets pass; a reason denies it with *server busy*."""

Durable = Callable[[StoreError | None], object]


class NamespaceHost:
    """What connections and routes work on. All of it runs on one event loop, and nothing in it waits.

    Whoever uses ``namespace`` has the changes committed soon, and those told that wait for messages.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        keeper: Keeper,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.limits = limits
        self.wall_ms = wall_clock or clock
        """The time of day as it is set, which may go back: for what others have dated, and nothing else."""
        self._clock = clock
        self._seen_ms = clock()
        self.throttle = Throttle()
        self.side_buffer: SideBuffer | None = None
        """Where sends go that the store cannot take, if there is such a place."""
        self.deny: Deny = lambda _operation, _address: None
        self.on_woken: Callable[[Address], object] = lambda _address: None
        """Something can be received there."""
        self.on_notice: Callable[[Notice], object] = lambda _notice: None
        self.on_access_changed: Callable[[], object] = lambda: None
        """Keys were changed or removed."""
        self.on_commit: Callable[[], object] = lambda: None
        """A commit begins, with all that was written until now."""
        self.on_rebuilt: Callable[[], object] = lambda: None
        """A commit has failed: locks and held sessions are gone."""
        self.on_woken_session: Callable[[bytes], object] = lambda _token: None
        self.in_use: Callable[[], Iterable[Address]] = tuple
        """The entities that someone has a link to: they are not idle."""
        self._keeper = keeper
        self._loop = loop
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._minute_ms = self._seen_ms
        self._is_closed = False
        self.quarantined_count = 0
        """How many damaged records were found since the start."""
        self.commit_overdue_s = COMMIT_OVERDUE_S
        self._trouble: str | None = None
        """What was logged last of a store that fails or is full."""
        self._is_stalled = False
        self._watchdog: asyncio.TimerHandle | None = None
        keeper.rebuilt = self._rebuilt
        keeper.before_commit = self._before_commit
        self._report_recovery(keeper.recovery)
        self._schedule()

    @property
    def namespace(self) -> Namespace:
        """The broker. It is another one after a failed commit, so ask each time; raises ``StoreError`` in trouble."""
        self._schedule()
        return self._keeper.namespace

    def now_ms(self) -> int:
        """The time. When it has leapt, as it does on a machine that was asleep, what has links is not idle for it."""
        now_ms = self._clock()
        if now_ms - self._seen_ms > _LEAP_MS:
            _log.warning("the clock has gone on by %d seconds at once", (now_ms - self._seen_ms) // 1_000)
            self._keep_in_use(now_ms)
        self._seen_ms = now_ms
        return now_ms

    def seen_ms(self) -> int:
        """The time as it was when somebody asked last."""
        return self._seen_ms

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    @property
    def created_ms(self) -> int:
        """Since when there is this namespace."""
        return self._keeper.created_ms

    def used_bytes(self) -> int:
        """What is in use of the store's file."""
        return self._keeper.used_bytes

    def commits(self) -> tuple[int, float]:
        """How often something was written to disk, and how many seconds that took altogether."""
        return self._keeper.commit_count, self._keeper.commit_seconds

    @property
    def recovery(self) -> Recovery:
        return self._keeper.recovery

    @property
    def stalled_s(self) -> float | None:
        """For how long the storage has not answered a commit that is overdue; ``None`` while it is well."""
        return self._keeper.commit_age_s() if self._is_stalled else None

    @property
    def failure(self) -> StoreError | None:
        """Why the last commit failed; ``None`` if it did not."""
        return self._keeper.failure

    def lacks_room(self) -> bool:
        """Return whether sends are refused for lack of space."""
        return self._keeper.lacks_room()

    def report_damage(self, what: str) -> None:
        """Count a damaged record, and log it."""
        self.quarantined_count += 1
        _log.error("record quarantined namespace=%s %s", self.name, what)

    def check_busy(self, operation: str, address: Address | None = None) -> None:
        """Raise ``ServerBusyError`` if the request has to wait."""
        reason = self.throttle.deny(operation) if self.throttle.is_busy else None
        if reason is None:
            reason = self.deny(operation, address)
        if reason is not None:
            raise ServerBusyError(reason, None if address is None else str(address))

    def when_durable(self, done: Durable) -> None:
        """Have someone told when all that was written until now is on disk, or why it is not."""
        self._keeper.when_durable(done)
        self._schedule()

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Keep something in the store with the commit that is to come; tells whether it is taken."""
        return self._keeper.put_in_outbox(number, content)

    def remove_from_outbox(self, numbers: Iterable[int]) -> None:
        if not self._is_closed:
            self._keeper.remove_from_outbox(numbers)
            self._schedule()

    def outbox(self) -> Sequence[tuple[int, bytes]]:
        """What was in the outbox at the start."""
        return self._keeper.outbox()

    def merged(self, identity: bytes) -> Mapping[str, int]:
        """Up to where what lay in a side buffer is in the store, by entity; without an identity, in any."""
        known = len(self._keeper.damaged)
        merged = self._keeper.merged(identity)
        for key in self._keeper.damaged[known:]:
            self.report_damage(describe(key))
        return merged

    def put_merged(self, identity: bytes, entity: str, position: int) -> None:
        self._keeper.put_merged(identity, entity, position)
        self._schedule()

    def probe(self, identity: bytes, done: Durable) -> None:
        """Have someone told whether the store can be written; nothing is taken back if it cannot."""
        self._keeper.probe(identity, done)
        self._schedule()

    async def durable(self) -> None:
        """Wait until all that was written until now is on disk; raises the ``StoreError`` if that fails."""
        future: asyncio.Future[None] = self._loop.create_future()

        def done(error: StoreError | None) -> None:
            if future.done():  # whoever waited has gone
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_durable(done)
        await future

    def close(self) -> None:
        """Commit the rest, tell everyone, and close the store."""
        self._is_closed = True
        for timer in (self._timer, self._watchdog):
            if timer is not None:
                timer.cancel()
        self._keeper.close()

    # What happens by itself.

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        """Start the commit first: it runs beside all that follows."""
        self._is_scheduled = False
        if self._is_closed:
            return
        now_ms = self.now_ms()
        try:
            self._keeper.commit(now_ms)
            if self._watchdog is None and self._keeper.commit_age_s() is not None:
                self._watchdog = self._loop.call_later(self.commit_overdue_s, self._watch_commit)
        finally:  # what waits for the disk has its own way to fail
            self._attend(now_ms)

    def _attend(self, now_ms: int) -> None:
        """Pass on what has happened, and see when something happens next."""
        try:
            self._go_on(self._keeper.namespace, now_ms)
        except StoreError as error:
            _log.error("the store cannot be read: %s", error)
            self._set_timer(1.0)

    def _go_on(self, namespace: Namespace, now_ms: int) -> None:
        self._log_trouble()
        if namespace.tidy(now_ms):
            self._schedule()
        for notice in namespace.take_notices():
            if isinstance(notice, Quarantined):
                self.report_damage(_quarantined(notice))
            elif isinstance(notice, AccessChanged):
                self._loop.call_soon(self.on_access_changed)
            else:
                self._loop.call_soon(self.on_notice, notice)
        for address in namespace.take_woken():
            self._loop.call_soon(self.on_woken, address)
        for token in namespace.take_woken_sessions():
            self._loop.call_soon(self.on_woken_session, token)
        due_ms = namespace.next_due_ms()
        self._set_timer(_LONGEST_PAUSE_S if due_ms is None else (due_ms - now_ms) / 1_000)

    def _set_timer(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(min(max(pause_s, 0.001), _LONGEST_PAUSE_S), self._wake_up)

    def _wake_up(self) -> None:
        now_ms = self.now_ms()
        self._schedule()
        if now_ms - self._minute_ms >= _LONGEST_PAUSE_S * 1_000:
            self._minute_ms = now_ms
            self._keep_in_use(now_ms)

    def _log_trouble(self) -> None:
        """Say once that the store fails or is full, and once that it is well again."""
        failure = self._keeper.failure
        trouble = f"commit failed: {failure}" if failure is not None else "full" if self._keeper.lacks_room() else None
        if trouble is not None and trouble != self._trouble:
            _log.error("storage in trouble namespace=%s reason=%s", self.name, trouble)
        elif trouble is None and self._trouble is not None:
            _log.warning("storage works again namespace=%s", self.name)
        self._trouble = trouble

    def _watch_commit(self) -> None:
        """Say once that the storage does not answer, and once that it does again. One timer serves all commits."""
        self._watchdog = None
        self._log_trouble()
        age_s = self._keeper.commit_age_s()
        if age_s is not None and age_s >= self.commit_overdue_s and not self._is_stalled:
            self._is_stalled = True
            _log.error("storage stalled namespace=%s commit_seconds=%.1f: sends are not confirmed", self.name, age_s)
        elif self._is_stalled and (age_s is None or age_s < self.commit_overdue_s):
            self._is_stalled = False
            _log.warning("storage recovered namespace=%s", self.name)
        if age_s is not None or self._is_stalled:
            pause_s = _WATCH_STALLED_S if self._is_stalled else max(0.0, self.commit_overdue_s - (age_s or 0.0))
            self._watchdog = self._loop.call_later(pause_s, self._watch_commit)

    def _report_recovery(self, recovery: Recovery) -> None:
        """Report what was damaged besides messages: of these the broker tells by itself, with their stubs."""
        for key in recovery.damaged:
            if key not in recovery.stubs:
                self.report_damage(describe(key))

    def _keep_in_use(self, now_ms: int) -> None:
        with suppress(StoreError):  # then there is nothing that could be idle
            self._keeper.namespace.keep_in_use(self.in_use(), now_ms)

    def _before_commit(self) -> None:
        self.on_commit()

    def _rebuilt(self, recovery: Recovery) -> None:
        _log.warning(
            "commit failed, namespace reloaded name=%s entities=%d messages=%d damaged=%d",
            self.name,
            recovery.entities,
            recovery.messages,
            len(recovery.damaged),
        )
        self._report_recovery(recovery)
        self.on_rebuilt()
        self.on_access_changed()
        self._schedule()


def _quarantined(notice: Quarantined) -> str:
    message_id = f" message_id={notice.message_id!r}" if notice.message_id else ""
    return f"entity='{notice.address}' sequence={notice.sequence}{message_id} damaged={notice.damaged}"
