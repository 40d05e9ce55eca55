"""The supervisor: a table of components, each checked twice a second and restarted alone if it has failed."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from pairbus.heartbeat import Heartbeat
from pairbus.server.log_context import ContextLog, Facts

_log = logging.getLogger(__name__)

CHECK_EVERY_S: Final = 0.5
MAX_RESTARTS: Final = 3
"""Restarts within ``WINDOW_S``; after so many, a component that fails again is stopped."""

WINDOW_S: Final = 60.0
_RESTART_WITHIN_S: Final = 10.0
_LATE_S: Final = 2.0
"""Time between two rounds of checks after which one is left out: the loop was blocked, so everything is late."""


class ComponentState(StrEnum):
    """The state of a component."""

    RUNNING = "running"
    RESTARTING = "restarting"
    STUCK = "stuck"
    """It does not answer, and cannot be stopped: a thread that waits for a disk. It goes on once the disk answers."""

    STOPPED = "stopped"
    """It has failed again after too many restarts; only a restart of the server starts it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a component."""

    reason: str
    """One sentence, for logs, ``/health`` and bundles: no keys, and nothing of messages."""

    error: BaseException | None = None
    is_stuck: bool = False
    """True if it can only be waited for, and not be restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A part of a server that can fail and be restarted alone."""

    name: str
    check: Callable[[], Problem | None]
    """Returns what is wrong; it is called on the event loop, and must not block."""

    restart: Callable[[], Awaitable[object] | object]
    stop: Callable[[], object] = lambda: None
    """Called when the component is given up after too many restarts."""

    is_essential: bool = False
    """True if the namespace is unavailable without it."""

    kind: str = ""
    """The name in metrics and of bundles, which must not name an entity; the name of the component, if empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """The state of a component, as health, metrics, bundles and the console show it."""

    name: str
    kind: str
    state: ComponentState
    restarts: int
    reason: str
    """The reason of the last restart or stop; empty if there was none."""

    is_essential: bool


Report = Callable[[str, Problem], str | None]
"""Writes a diagnostic bundle about a component; returns its name, or ``None`` if there is none."""


@dataclass(slots=True)
class _Entry:
    component: Component
    state: ComponentState = ComponentState.RUNNING
    restarts: int = 0
    reason: str = ""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_RESTARTS))
    is_restarting: bool = False

    @property
    def kind(self) -> str:
        return self.component.kind or self.component.name


class Supervisor:
    """Checks components, and restarts what has failed. All of it runs on the event loop of the server."""

    def __init__(self, clock: Callable[[], float], namespace: str = "") -> None:
        """``clock`` returns seconds; it must be monotonic. ``namespace`` is for the log."""
        self._log = ContextLog(_log, namespace=namespace)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._task: asyncio.Task[None] | None = None
        self._restarting: set[asyncio.Task[None]] = set()
        self.restarts: Counter[str] = Counter()
        """Restarts since the start of the server, by kind of component."""

        self.report: Report = lambda _component, _problem: None
        self.checked_s = clock()
        """Time of the last round of checks: the watchdog notices if there are none."""

    def add(self, component: Component) -> None:
        """Watch a component; one that is watched already stays as it is."""
        entry = self._entries.setdefault(component.name, _Entry(component))
        self.restarts[entry.kind] += 0

    def remove(self, name: str) -> None:
        """Stop watching a component, because it is being closed."""
        self._entries.pop(name, None)

    def statuses(self) -> Sequence[ComponentStatus]:
        return [
            ComponentStatus(
                name=entry.component.name,
                kind=entry.kind,
                state=entry.state,
                restarts=entry.restarts,
                reason=entry.reason,
                is_essential=entry.component.is_essential,
            )
            for entry in [*self._entries.values()]
        ]

    def start(self) -> None:
        """Check all components twice a second; if that has ended, start it again."""
        if self._task is not None:
            self._task.cancel()
        self.checked_s = self._clock()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="pairbus-supervisor")

    def stop(self) -> None:
        """Check and restart no more: what ends from now on has not failed."""
        for task in self._tasks():
            task.cancel()

    async def close(self) -> None:
        """Stop, and wait for restarts that are in progress to be cancelled."""
        self.stop()
        if tasks := self._tasks():
            await asyncio.wait(tasks)
        self._task = None

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._restarting, *([] if self._task is None else [self._task])]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            if self._clock() - self.checked_s > _LATE_S:
                self.checked_s = self._clock()
            else:
                self.check()

    def check(self) -> None:
        """Check all components once. Each one that has failed is restarted by a task, and not checked meanwhile."""
        self.checked_s = self._clock()
        for entry in [*self._entries.values()]:
            if entry.state is not ComponentState.STOPPED and not entry.is_restarting:
                self._check(entry)

    def _check(self, entry: _Entry) -> None:
        problem = _problem_of(entry.component)
        if problem is None:
            if entry.state is ComponentState.STUCK:
                self._log.warning("component answers again component=%s", entry.component.name)
            entry.state = ComponentState.RUNNING
        elif problem.is_stuck:
            if entry.state is not ComponentState.STUCK:
                self._report(entry, problem, "component stuck")
                entry.state = ComponentState.STUCK
        else:
            self._repair(entry, problem)

    def _repair(self, entry: _Entry, problem: Problem) -> None:
        name, now_s = entry.component.name, self._clock()
        if len(entry.recent) == MAX_RESTARTS and now_s - entry.recent[0] < WINDOW_S:
            self._report(entry, problem, "component stopped after too many restarts")
            entry.state = ComponentState.STOPPED
            self._give_up(entry.component)
            return
        self._report(entry, problem, "component failed, restarting")
        entry.state = ComponentState.RESTARTING
        entry.recent.append(now_s)
        entry.is_restarting = True
        task = asyncio.get_running_loop().create_task(self._restart(entry), name=f"pairbus-restart-{name}")
        self._restarting.add(task)
        task.add_done_callback(self._restarting.discard)

    async def _restart(self, entry: _Entry) -> None:
        name = entry.component.name
        entry.restarts += 1
        self.restarts[entry.kind] += 1
        try:
            async with asyncio.timeout(_RESTART_WITHIN_S):
                restarted = entry.component.restart()
                if inspect.isawaitable(restarted):
                    await restarted
        except Exception:  # noqa: BLE001 (it has failed again: the next check restarts or stops it)
            self._log.exception("component restart failed component=%s", name)
        else:
            entry.state = ComponentState.RUNNING
            self._log.warning("component restarted component=%s restarts=%d", name, entry.restarts)
        finally:
            entry.is_restarting = False

    def _report(self, entry: _Entry, problem: Problem, event: str) -> None:
        name = entry.component.name
        entry.reason = problem.reason
        bundle = self.report(entry.kind, problem)
        facts = Facts(reason=problem.reason, bundle=bundle)
        self._log.error("%s component=%s%s", event, name, facts, exc_info=problem.error)

    def _give_up(self, component: Component) -> None:
        try:
            component.stop()
        except Exception:  # noqa: BLE001 (it is given up in any case)
            self._log.exception("component stop failed component=%s", component.name)


def _problem_of(component: Component) -> Problem | None:
    try:
        return component.check()
    except Exception as error:  # noqa: BLE001 (what cannot be checked has failed)
        return Problem(reason=f"its check failed with {type(error).__name__}", error=error)


class SupervisedTask:
    """A background task that runs until it is closed; one that ends before has failed, and one that hangs too."""

    def __init__(self, name: str, run: Callable[[], Awaitable[None]], heartbeat: Heartbeat | None = None) -> None:
        """``run`` is called at each start; it has to beat at each turn."""
        self.heartbeat = heartbeat or Heartbeat()
        self._name = name
        self._run = run
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.stop()
        self.heartbeat.beat()
        self._task = asyncio.get_running_loop().create_task(self._awaited(), name=self._name)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Cancel the task, and wait for its end."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved: it was reported, or does not matter any more

    def problem(self) -> Problem | None:
        """Return why the task has ended; ``None`` while it runs, or before its start."""
        task = self._task
        if task is None or not task.done():
            return None
        if task.cancelled():
            return Problem(reason="its task was cancelled")
        error = task.exception()
        if error is None:
            return Problem(reason="its task has ended")
        return Problem(reason=f"its task failed with {type(error).__name__}", error=error)

    async def _awaited(self) -> None:
        await self._run()
