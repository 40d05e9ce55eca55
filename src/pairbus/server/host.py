"""A namespace that is being served: the group committer, the clock, and background work."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, Final, NamedTuple

from pairbus.broker import (
    AccessChanged,
    Address,
    IndexFault,
    IndexReloaded,
    Limits,
    Namespace,
    NewMessage,
    Notice,
    Quarantined,
    QueueDescription,
    TopicDescription,
)
from pairbus.callbacks import Callbacks
from pairbus.fault_kinds import CrashComponent
from pairbus.server.audit import Actor, AuditAction, AuditLog
from pairbus.server.clock import Clock
from pairbus.server.errors import ServerBusyError
from pairbus.server.faults import ComponentCrashError, Faults
from pairbus.server.log_context import Facts, LogValue
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.supervision.operation_log import OperationLog
from pairbus.server.supervision.supervisor import Problem
from pairbus.server.throttle.shares import EntityBudgets
from pairbus.server.throttle.throttle import Throttle
from pairbus.server.unanswered import UnansweredSends
from pairbus.store import CommitId, GroupCommitter, NamespaceLoadingError, Recovery, StoreError, StoreFullError
from pairbus.store.keys import describe, only_entity
from pairbus.store.page_nodes import LostPage

_log = logging.getLogger(__name__)


_LONGEST_PAUSE_S: Final = 60.0
"""Longest sleep, even if nothing is due: clocks are set, and links have to be counted as use."""

_LEAP_MS: Final = 90_000

COMMIT_OVERDUE_S: Final = 2.0
"""Default time that a commit may take before the storage counts as stalled."""

_LOOK_AGAIN_S: Final = 1.0
"""Interval of checks whether a failed storage works again."""

_OVERDUE_S: Final = 3.0
"""Time by which background work may be late before it counts as dead."""

_UNREADABLE: Final = "the store cannot be read"
_LOADING: Final = "the namespace is being loaded again after a failed write"

_PROBE: Final = b"\0" * 8
"""Identity under which a probe is written: not one of a side buffer."""

IN_DOUBT: Final = (
    "the storage of the namespace does not answer, and it is not known yet whether the message was stored; send it"
    " again with the same message id, in 10 seconds or later"
)
STALLED: Final = "the storage of the namespace does not answer; try again in 10 seconds or later"

Deny = Callable[[str, Address | None], str | None]
"""Called before each request that the throttle lets pass; a returned reason denies it with *server busy*."""

Durable = Callable[[StoreError | None], object]

Overdue = Callable[[CommitId], object]
"""Called with the commit that a send waits for, when the storage stalls."""


class Trouble(NamedTuple):
    """The reason for which the storage does not accept sends."""

    problem: str
    error: StoreError | None = None
    takes_sends: bool = False
    """True if sends are still confirmed, because the side buffer stores them."""


class _WaitingSends:
    """The sends that wait for a commit, in order."""

    def __init__(self) -> None:
        self._sends: dict[int, tuple[CommitId, Overdue]] = {}
        self._numbers = count()

    def add(self, commit: CommitId, overdue: Overdue, done: Durable) -> Durable:
        """Add a send until the returned function is called, which calls ``done``."""
        number = next(self._numbers)
        self._sends[number] = commit, overdue

        def finish(error: StoreError | None) -> None:
            self._sends.pop(number, None)
            done(error)

        return finish

    def take(self) -> list[tuple[CommitId, Overdue]]:
        """Remove and return all sends."""
        sends, self._sends = self._sends, {}
        return [*sends.values()]


class HostEvents:
    """The events of a served namespace, to which its other parts subscribe."""

    def __init__(self) -> None:
        self.on_woken: Callbacks[[Address]] = Callbacks()
        """Called when something has become receivable at an address."""
        self.on_woken_session: Callbacks[[bytes]] = Callbacks()
        self.on_notice: Callbacks[[Notice]] = Callbacks()
        self.on_access_changed: Callbacks[[]] = Callbacks()
        """Called when keys were changed or removed."""
        self.on_commit: Callbacks[[]] = Callbacks()
        """Called when a commit begins, with everything written so far."""
        self.on_rebuilt: Callbacks[[]] = Callbacks()
        """Called when a commit has failed: locks and held sessions are gone."""
        self.on_resumed: Callbacks[[]] = Callbacks()
        """Called when requests and receivers that had to wait may continue."""
        self.on_timers_restarted: Callbacks[[]] = Callbacks()
        self.on_index_fault: Callbacks[[IndexFault]] = Callbacks()
        """Called when the broker has found that the index of an entity is inconsistent."""
        self.on_storage_incident: Callbacks[[str, Problem]] = Callbacks()
        """Called with a name and the problem when the storage stalls, and when the data file was rebuilt."""


class NamespaceHost(HostEvents):
    """The served namespace that connections and routes use. All of it runs on one event loop, and nothing in it blocks.

    Operations go through ``use_namespace``, which schedules their commit and the wake-up of waiting receivers.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        committer: GroupCommitter,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        wall_clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.limits = limits
        self.wall_ms = wall_clock or clock
        """The wall clock, which may be set back: only for times set by others."""
        self._clock = clock
        self._seen_ms = clock()
        self.throttle = Throttle()
        self.audit = AuditLog()
        """Records who changed what; it records nothing unless the server opens one."""
        self.side_buffer: SideBuffer | None = None
        """Stores sends that the store cannot accept, if it is configured."""
        self.faults: Faults | None = None
        """The injected faults, if they are allowed."""
        self.deny: Deny = lambda _operation, _address: None
        self.operations = OperationLog()
        self._in_use: list[Callable[[], Iterable[Address]]] = []
        self.loop = loop
        self.committer = committer
        self._is_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = loop.time()
        """Time at which the background work runs next, at the latest."""
        self._timer_failure: Exception | None = None
        self._are_timers_stopped = False
        self._minute_ms = self._seen_ms
        self._is_closed = False
        self.quarantined_count = 0
        """Damaged records found since the start."""

        self._logged_pages = self._logged_restored = self._logged_rebuilds = self._logged_failed_rebuilds = 0
        self.commit_overdue_s = COMMIT_OVERDUE_S
        self._trouble: str | None = None
        """The storage problem that was logged last."""
        self._second_look: asyncio.TimerHandle | None = None
        self.is_stalled = False
        """True if a commit is overdue, or the load after one that failed."""
        self.unanswered = UnansweredSends(committer.is_committed, loop.time)
        self._new_entities: frozenset[str] = frozenset()
        """The entities that are removed if the commit fails that is overdue."""
        self._waiting_sends = _WaitingSends()
        self._ready = asyncio.Event()
        self._watchdog: asyncio.TimerHandle | None = None
        committer.rebuilt.add(self._rebuilt)
        committer.before_commit.add(self.on_commit)
        committer.after_commit.add(self._commit_ended)
        committer.after_load.add(self._loaded)
        committer.on_unconfined.add(self._rebuild_soon)
        self._report_recovery(committer.recovery)
        self._schedule()

    def use_namespace(self) -> Namespace:
        """Return the broker for an operation, and schedule what follows it: the commit, notices and timers.

        A failed commit replaces the broker, so do not keep it. Raises ``StoreError`` if it cannot be read.
        """
        self._schedule()
        return self.committer.use_namespace()

    def now_ms(self) -> int:
        """Return the time. If it jumped, as on a machine that was asleep, entities with links do not become idle."""
        now_ms = self._clock()
        if now_ms - self._seen_ms > _LEAP_MS:
            _log.warning("clock jumped forward seconds=%d", (now_ms - self._seen_ms) // 1_000)
            self._keep_in_use(now_ms)
        self._seen_ms = now_ms
        return now_ms

    def seen_ms(self) -> int:
        """Return the time of the last call of ``now_ms``."""
        return self._seen_ms

    @property
    def stalled_s(self) -> float | None:
        """Return for how long an overdue commit or load has been running; ``None`` while the storage answers."""
        return self.committer.commit_age_s() if self.is_stalled else None

    @property
    def is_paused(self) -> bool:
        """Return whether receivers get no messages: the storage does not answer, or the namespace is being loaded."""
        return self.is_stalled or self.committer.is_loading

    @property
    def has_withdrawn(self) -> bool:
        """Return whether everything that is written now is undone: the storage stalls, and there is no side buffer."""
        return self.is_stalled and self.side_buffer is None

    def trouble(self) -> Trouble | None:
        """Return the problem of the storage, except a stall; ``None`` while it works."""
        committer = self.committer
        try:
            committer.use_namespace()
        except NamespaceLoadingError:
            return Trouble(_LOADING)
        except StoreError as error:
            return Trouble(_UNREADABLE, error)
        failure = committer.failure
        if failure is not None and not isinstance(failure, StoreFullError):
            if self.side_buffer is not None and self.side_buffer.writer.takes_sends():
                return Trouble("the storage fails: sends go to the side buffer", failure, takes_sends=True)
            return Trouble("the storage fails: nothing can be written", failure)
        if failure is None and not committer.lacks_room():
            return None
        if self.side_buffer is None:
            return Trouble("the storage is full: sends are refused", failure)
        if self.side_buffer.writer.takes_sends():
            return Trouble("the storage is full: sends go to the side buffer", failure, takes_sends=True)
        return Trouble("the storage is full, and the side buffer takes no more: sends are refused", failure)

    def report_damage(self, **facts: object) -> None:
        """Count a damaged record, and log it."""
        self.quarantined_count += 1
        _log.error("record quarantined%s", Facts(namespace=self.name, **facts))

    @property
    def damaged_page_count(self) -> int:
        """Return how many damaged pages of the store were found since the start, restored ones included."""
        return len(self.committer.damaged_pages) + len(self.committer.restored_pages)

    @property
    def has_damaged_pages(self) -> bool:
        """Return whether the data file has damaged pages: those that were found before it was rebuilt are gone."""
        return len(self.committer.damaged_pages) > self.committer.replaced_pages

    def _report_pages(self, namespace: Namespace) -> None:
        """Log the damaged pages of the store that were found since the last call."""
        pages = self.committer.damaged_pages
        for page in pages[self._logged_pages :]:
            _log.error("page damaged%s", Facts(namespace=self.name, **_damaged_page(page, namespace.entity_path)))
        self._logged_pages = len(pages)
        for what in self.committer.restored_pages[self._logged_restored :]:
            _log.error('page damaged, restored namespace=%s what="%s" action="check the disk"', self.name, what)
        self._logged_restored = len(self.committer.restored_pages)

    def _rebuild_soon(self) -> None:
        """Let the committer rebuild the data file. Called on any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._schedule)

    def _report_rebuilds(self) -> None:
        """Log the attempts to rebuild the data file since the last call."""
        done, failed = self.committer.rebuilds, self.committer.failed_rebuilds
        for each in done[self._logged_rebuilds :]:
            _log.error(
                'store rebuilt namespace=%s reason="%s" records=%d lost=%d kept=%s action="check the disk"',
                self.name,
                each.reason,
                each.records,
                each.lost,
                each.kept,
            )
            problem = Problem(reason=f"the damaged data file was rebuilt: {each.reason}")
            self.loop.call_soon(self.on_storage_incident, "store-rebuild", problem)
        for error in failed[self._logged_failed_rebuilds :]:
            _log.error('store not rebuilt namespace=%s error="%s"', self.name, error)
        self._logged_rebuilds, self._logged_failed_rebuilds = len(done), len(failed)

    def check_busy(self, operation: str, address: Address | None = None) -> None:
        """Raise ``ServerBusyError`` if the request has to wait, or the error of a fault that denies it."""
        self.operations.add(operation, address)
        reason = self.throttle.deny(operation) if self.throttle.is_busy else None
        if reason is None:
            reason = self.deny(operation, address)
        if reason is not None:
            raise ServerBusyError(reason, None if address is None else str(address))
        if self.faults:
            self.faults.check(operation, address, self.now_ms())

    def delay_s(self, address: Address | None) -> float:
        """Return by how much an injected fault delays the responses at an address."""
        return self.faults.delay_s(address, self.now_ms()) if self.faults else 0.0

    def budgets(self, address: Address) -> EntityBudgets:
        """Return the budgets from which messages are sent to an entity."""
        description = self.use_namespace().entity(address, self.now_ms()).description
        is_partitioned = isinstance(description, QueueDescription | TopicDescription) and description.partitioned
        return EntityBudgets(str(address), self.limits.partitions if is_partitioned else 1)

    def check_share(self, budgets: EntityBudgets, address: Address, messages: Sequence[NewMessage]) -> None:
        """Raise ``ServerBusyError`` if the entity sends more than its share while the node is short of time."""
        reason = self.throttle.deny_send(budgets, messages, self.loop.time())
        if reason is not None:
            raise ServerBusyError(reason, str(address))

    def check_stalled(self, address: Address | None = None) -> None:
        """Raise ``ServerBusyError`` if the storage does not answer, for a request that cannot be buffered."""
        if self.is_stalled:
            raise ServerBusyError(STALLED, None if address is None else str(address))

    def may_vanish(self, address: Address) -> bool:
        """Return whether an entity was created in the commit that is overdue, or after it began."""
        return self.is_stalled and address.entity in self._new_entities

    def when_durable(self, done: Durable, overdue: Overdue | None = None) -> None:
        """Call ``done`` once everything written so far is on disk, or with the error.

        If the storage stalls before that, call ``overdue`` as well, in the order in which the calls came.
        """
        if overdue is not None and not self.committer.is_idle:
            done = self._waiting_sends.add(self.committer.next_commit, overdue, done)
        self.committer.when_durable(done)
        self._schedule()

    def is_committed(self, commit: CommitId) -> bool | None:
        """Return whether a commit has succeeded; ``None`` while that is unknown."""
        return self.committer.is_committed(commit)

    def audit_when_durable(self, action: AuditAction | str, actor: Actor, **facts: Any) -> None:
        """Record a change in the audit log once everything written so far is on disk, or with the error."""
        self.when_durable(lambda error: self.audit.record(action, actor, error=error, **facts))

    def put_in_outbox(self, number: int, content: bytes) -> bool:
        """Store an outbox entry with the next commit; return whether it was accepted."""
        return self.committer.put_in_outbox(number, content)

    def remove_from_outbox(self, numbers: Iterable[int]) -> None:
        if not self._is_closed:
            self.committer.remove_from_outbox(numbers)
            self._schedule()

    def outbox(self) -> Sequence[tuple[int, bytes]]:
        """Return the outbox entries as of the start."""
        return self.committer.outbox()

    def merged(self, identity: bytes) -> Mapping[str, int]:
        """Return the merge positions of a side buffer by entity; without an identity, of all side buffers."""
        known = len(self.committer.damaged)
        merged = self.committer.merged(identity)
        for key in self.committer.damaged[known:]:
            self.report_damage(**describe(key))
        return merged

    def put_merged(self, identity: bytes, entity: str, position: int) -> None:
        self.committer.put_merged(identity, entity, position)
        self._schedule()

    def probe(self, identity: bytes, done: Durable) -> None:
        """Call ``done`` with the outcome of a test write; if it fails, nothing is reverted."""
        self.committer.probe(identity, done)
        self._schedule()

    async def ready(self) -> None:
        """Wait while the namespace is being loaded, but not for longer than a commit may take."""
        while self.committer.is_loading and not self.is_stalled:
            self._ready.clear()
            await self._ready.wait()

    async def resumed(self) -> None:
        """Wait while the storage does not answer, and while the namespace is being loaded."""
        while self.is_paused:
            self._ready.clear()
            await self._ready.wait()

    async def durable(self) -> None:
        """Wait until everything written so far is on disk; raises the ``StoreError`` if that fails."""
        future: asyncio.Future[None] = self.loop.create_future()

        def done(error: StoreError | None) -> None:
            if future.done():  # the waiter was cancelled
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.when_durable(done)
        await future

    def close(self) -> None:
        """Commit the rest, call all callbacks, and close the store. Blocks on the disk."""
        self._end_timers()
        self.committer.close()

    async def close_within(self, within_s: float) -> None:
        """Close without blocking the loop. Raises the ``StoreError`` of the last commit.

        Raises ``TimeoutError`` if the storage does not answer in time. The running commit is then abandoned: the store
        is closed when that commit has ended.
        """
        self._end_timers()
        try:
            async with asyncio.timeout(within_s):
                while not self.committer.is_idle:
                    self.loop.call_soon(self.committer.commit, self.now_ms())
                    await self.durable()
        except BaseException:
            self.committer.give_up()
            raise
        self.committer.close()

    def _end_timers(self) -> None:
        self._is_closed = True
        for timer in (self._timer, self._watchdog, self._second_look):
            if timer is not None:
                timer.cancel()

    # Background work.

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._due_s = self.loop.time()
            self.loop.call_soon(self._run)

    def _run(self) -> None:
        """Run the background work once. The commit starts first: it runs in parallel to the rest."""
        self._is_scheduled = False
        if self._is_closed:
            return
        now_ms = self.now_ms()
        try:
            self.committer.commit(now_ms)
            if self.committer.commit_age_s() is not None:
                self._watch_soon()
        finally:  # callers that wait for the disk get their own error
            self._attend(now_ms)

    def _attend(self, now_ms: int) -> None:
        """Pass on events, and schedule the next run."""
        try:
            self._go_on(self.committer.use_namespace(), now_ms)
        except NamespaceLoadingError:
            return  # it is scheduled again when the namespace is loaded
        except StoreError as error:
            self._log_trouble(Trouble(_UNREADABLE, error))
            self._set_timer(_LOOK_AGAIN_S)
        except Exception as error:  # noqa: BLE001 (the supervisor starts the timers again)
            self._timer_failure = error
        else:
            self._log_trouble(self.trouble())

    def _go_on(self, namespace: Namespace, now_ms: int) -> None:
        if self.damaged_page_count:
            self._report_pages(namespace)
        if self._are_timers_stopped:
            return
        if namespace.tidy(now_ms):
            self._schedule()
        for notice in namespace.take_notices():
            if isinstance(notice, Quarantined):
                self.report_damage(**_quarantined(notice))
            elif isinstance(notice, IndexFault):
                self.loop.call_soon(self.on_index_fault, notice)
            elif isinstance(notice, IndexReloaded):
                _log.warning(
                    "entity reloaded namespace=%s entity=%s messages=%d", self.name, notice.address, notice.messages
                )
            elif isinstance(notice, AccessChanged):
                self.loop.call_soon(self.on_access_changed)
            else:
                self.loop.call_soon(self.on_notice, notice)
        for address in namespace.take_woken():
            self.loop.call_soon(self.on_woken, address)
        for token in namespace.take_woken_sessions():
            self.loop.call_soon(self.on_woken_session, token)
        due_ms = namespace.next_due_ms()
        self._set_timer(_LONGEST_PAUSE_S if due_ms is None else (due_ms - now_ms) / 1_000)

    def _set_timer(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        pause_s = min(max(pause_s, 0.001), _LONGEST_PAUSE_S)
        self._due_s = self.loop.time() + pause_s
        self._timer = self.loop.call_later(pause_s, self._wake_up)

    def timer_problem(self) -> Problem | None:
        """Return why the background work has failed: a defect, or a timer that did not run."""
        if self._timer_failure is not None:
            failure = self._timer_failure
            return Problem(reason=f"background work failed with {type(failure).__name__}", error=failure)
        is_waiting = self._is_closed or self.committer.is_loading  # it continues when the namespace is loaded
        late_s = 0.0 if is_waiting else self.loop.time() - self._due_s
        return Problem(reason=f"background work is {late_s:.0f} s late") if late_s > _OVERDUE_S else None

    def restart_timers(self) -> None:
        """Start the background work again. Receivers may have missed a wake-up, so all of them are served."""
        self._timer_failure = None
        self._is_scheduled = False
        self._schedule()
        self.on_timers_restarted()

    def stop_timers(self) -> None:
        """Do no more background work: no timer, no wake-up of receivers. Commits go on."""
        self._are_timers_stopped = True

    def _wake_up(self) -> None:
        try:
            if self.faults:
                self.faults.crash(CrashComponent.TIMERS)
        except ComponentCrashError as error:
            self._timer_failure = error
            return
        now_ms = self.now_ms()
        self._schedule()
        if now_ms - self._minute_ms >= _LONGEST_PAUSE_S * 1_000:
            self._minute_ms = now_ms
            self._keep_in_use(now_ms)

    def _log_trouble(self, trouble: Trouble | None) -> None:
        """Log a problem of the storage once, and its end once."""
        problem = None if trouble is None else trouble.problem
        if trouble is not None and problem != self._trouble:
            _log.error("storage failed%s", Facts(namespace=self.name, reason=problem, error=trouble.error))
        elif trouble is None and self._trouble is not None:
            _log.warning("storage recovered namespace=%s", self.name)
            if self.side_buffer is not None:
                self.side_buffer.replayer.hurry()
        self._trouble = problem
        if problem is not None and self._second_look is None:
            self._second_look = self.loop.call_later(_LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Probe the storage even without sends: a monitor of /health may keep senders away."""
        self._second_look = None
        if self.committer.failure is not None and self.committer.is_idle:
            self.committer.probe(_PROBE, lambda _error: None)
        self._schedule()

    def _watch_soon(self) -> None:
        if self._watchdog is None and not self.is_stalled and not self._is_closed:
            self._watchdog = self.loop.call_later(self.commit_overdue_s, self._watch_commit)

    def _watch_commit(self) -> None:
        """Begin a stall once a commit, or the load after a failed one, is overdue. One timer serves all of them."""
        self._watchdog = None
        if not self.committer.is_loading:
            self._log_trouble(self.trouble())
        age_s = self.committer.commit_age_s()
        if age_s is None or self.is_stalled:
            return
        left_s = self.commit_overdue_s - age_s
        if left_s <= 0 and self.committer.has_outcome:  # the event loop was blocked, not the disk
            left_s = self.commit_overdue_s
        if left_s <= 0:
            self._begin_stall(age_s)
        else:
            self._watchdog = self.loop.call_later(left_s, self._watch_commit)

    def _begin_stall(self, age_s: float) -> None:
        """Answer the sends that wait: from the side buffer, or with *server busy*.

        Without a side buffer, everything queued behind the overdue commit is withdrawn first, so that only the sends
        inside that commit are in doubt. While the namespace is being loaded, nothing can be checked: requests that wait
        for it, and later ones, get *server busy*.
        """
        self.is_stalled = True
        self.unanswered.begin_episode()
        self._new_entities = frozenset(Address.of(path).entity for path in self.committer.new_entities())
        is_loading = self.committer.is_loading
        what = "sends are refused" if self.side_buffer is None or is_loading else "sends go to the side buffer"
        task = "load" if is_loading else "commit"
        facts = Facts(namespace=self.name, **{f"{task}_seconds": round(age_s, 1)}, consequence=what)
        _log.error("storage stalled%s", facts)
        if self.side_buffer is None:
            self.committer.withdraw()
        for commit, overdue in self._waiting_sends.take():
            overdue(commit)
        if self.side_buffer is not None:
            self.side_buffer.writer.stop_waiting()
        if is_loading:
            self._ready.set()
            self.loop.call_soon(self.on_resumed)
        problem = Problem(reason=f"the storage does not answer: the {task} has been running for {age_s:.1f} s")
        self.loop.call_soon(self.on_storage_incident, "storage-stall", problem)  # the waiting sends come first

    def _commit_ended(self) -> None:
        """Continue after a commit. If it has failed, or was withdrawn, the namespace is loaded now."""
        if self.is_stalled or self.committer.failure is not None:
            self._end_stall()
            self._watch_soon()

    def _end_stall(self) -> None:
        """Continue: the overdue commit, or load, has ended."""
        if not self.is_stalled:
            return
        self.is_stalled = False
        self.unanswered.end_episode()
        _log.warning("storage recovered namespace=%s", self.name)
        self._ready.set()
        self._schedule()
        self.loop.call_soon(self.on_resumed)
        if self.side_buffer is not None:
            self.side_buffer.replayer.hurry()

    def _loaded(self) -> None:
        """Let requests continue that waited for the namespace, or fail if it could not be loaded."""
        if self.committer.load_error is not None:
            self._log_trouble(Trouble(_UNREADABLE, self.committer.load_error))
            self._due_s = self.loop.time() + _LOOK_AGAIN_S
        self._report_rebuilds()
        self._end_stall()
        self._ready.set()
        self.on_resumed()

    def _report_recovery(self, recovery: Recovery) -> None:
        """Report damaged records other than messages: for those the broker reports stubs."""
        for key in recovery.damaged:
            if key not in recovery.stubs:
                self.report_damage(**describe(key))

    def add_in_use(self, entities: Callable[[], Iterable[Address]]) -> None:
        """Add a function that returns entities with open links: they are not idle."""
        self._in_use.append(entities)

    def in_use(self) -> list[Address]:
        """Return the entities with open links."""
        return [address for entities in self._in_use for address in entities()]

    def _keep_in_use(self, now_ms: int) -> None:
        with suppress(StoreError):  # then there is no entity that could be idle
            self.committer.use_namespace().keep_in_use(self.in_use(), now_ms)

    def _rebuilt(self, recovery: Recovery) -> None:
        was_replaced = len(self.committer.rebuilds) > self._logged_rebuilds
        self._report_rebuilds()
        reason = "commit failed" if self.committer.failure is not None else "writes withdrawn"
        _log.log(
            logging.WARNING if self._trouble is None else logging.DEBUG,
            "%s, namespace reloaded namespace=%s entities=%d messages=%d damaged=%d",
            "store rebuilt" if was_replaced else reason,
            self.name,
            recovery.entities,
            recovery.messages,
            len(recovery.damaged),
        )
        self._report_recovery(recovery)
        self.on_rebuilt()
        self.on_access_changed()
        self._schedule()


def _damaged_page(lost: LostPage, path_of: Callable[[int], str | None]) -> dict[str, object]:
    """Return the facts of a damaged page, with the entity of its records, if all of them are of one entity."""
    entity_id = only_entity(lost.low, lost.high)
    return {
        "page": lost.page if lost.value_page is None else lost.value_page,
        "referred_from": None if lost.value_page is None else lost.page,
        "entity": None if entity_id is None else path_of(entity_id),
        "reason": lost.reason,
        "first_key": lost.low.hex(),
        "end_key": None if lost.high is None else lost.high.hex(),
        "action": "stop the server and run pairbus repair",
    }


def _quarantined(notice: Quarantined) -> dict[str, object]:
    return {
        "entity": notice.address,
        "sequence": notice.sequence,
        "message_id": LogValue(notice.message_id) if notice.message_id else None,
        "damaged": notice.damaged,
        **dict(notice.location),
    }
