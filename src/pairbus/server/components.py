"""The components of a server, and what diagnostic bundles say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Final, Protocol

from pairbus.heartbeat import Heartbeat
from pairbus.ledger import Ledger
from pairbus.server.audit import AuditWriter
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.index_check import INDEX, IndexCheck
from pairbus.server.jwt import SigningKeys
from pairbus.server.listener import Listener
from pairbus.server.metering import OperationMeter
from pairbus.server.scrubbing import Scrubber
from pairbus.server.settings import SETTINGS, Settings
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.supervision.diagnostics import BundleSection, Diagnostics
from pairbus.server.supervision.supervisor import Component, Problem, SupervisedTask, Supervisor
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.server.throttle.throttle import ThrottleTimer

MAX_SILENCE_S: Final[Mapping[str, float]] = {
    "audit-log": 10.0,
    "console": 60.0,
    "diagnostics": 30.0,
    "index": 10.0,
    "ledger": 4.0,  # it beats at each batch and each file: the next takes less than a second on a disk that works
    "scrubber": 60.0,
    "side-buffer": 60.0,
    "side-buffer disk": 10.0,
    "signing-keys": 15.0,  # a read is abandoned after 12 seconds at most
    "watchdog": 10.0,
}
"""Time between two heartbeats of a component after which it counts as hung: generous, for busy machines."""

_MAY_HOLD_SECRETS: Final = frozenset({"jwt_keys"})
"""Settings that are not marked as secret, but may be an address with a secret in it."""


class WatchedThread(Protocol):
    """A part with a thread of its own."""

    heartbeat: Heartbeat

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""


class WatchedTask(Protocol):
    """A part with a task of its own."""

    @property
    def heartbeat(self) -> Heartbeat: ...

    def problem(self) -> Problem | None:
        """Return why the task has ended; ``None`` while it runs."""

    def start(self) -> None:
        """Start the task, or start it again."""

    def stop(self) -> None: ...


def timers(host: NamespaceHost) -> Component:
    """Locks that end, scheduled messages, expiry, housekeeping, and the wake-up of receivers."""
    return Component(
        name="timers",
        check=host.timer_problem,
        restart=host.restart_timers,
        stop=host.stop_timers,
        is_essential=True,
    )


def commit_thread(host: NamespaceHost) -> Component:
    committer = host.committer
    return Component(
        name="commit-thread",
        check=lambda: Problem(reason="its thread has ended") if committer.has_lost_thread else None,
        restart=committer.restart_thread,
        is_essential=True,
    )


def _thread(name: str, part: WatchedThread, restart: Callable[[], object]) -> Component:
    """Return a component that has failed when its thread has ended, and is stuck while its thread hangs."""

    def problem() -> Problem | None:
        if part.has_lost_thread:
            return Problem(reason="its thread has ended")
        return _silence(name, part.heartbeat.silent_s, is_stuck=True)

    return Component(name=name, check=problem, restart=restart)


def _task(name: str, part: WatchedTask, host: NamespaceHost | None = None) -> Component:
    """Return a component that has failed when its task has ended or hangs.

    While the storage of ``host`` does not answer, which is reported, nothing is expected of its tasks.
    """

    def problem() -> Problem | None:
        if host is not None and host.is_paused:
            part.heartbeat.excuse()
        heartbeat = part.heartbeat
        return part.problem() or _silence(name, heartbeat.silent_s, is_stuck=heartbeat.is_in_thread)

    return Component(name=name, check=problem, restart=part.start, stop=part.stop)


def _silence(name: str, silent_s: float, *, is_stuck: bool) -> Problem | None:
    """Return the problem of a component without a heartbeat; a thread cannot be cancelled, so it is stuck."""
    if silent_s <= MAX_SILENCE_S[name]:
        return None
    return Problem(reason=f"it hangs: no heartbeat for {silent_s:.0f} s", is_stuck=is_stuck)


def audit_log(writer: AuditWriter) -> Component:
    return _thread("audit-log", writer, writer.restart_thread)


def diagnostics(part: Diagnostics) -> Component:
    return _thread("diagnostics", part, part.start)


def watchdog(part: LoopWatchdog) -> Component:
    return _thread("watchdog", part, part.start)


def throttle(timer: ThrottleTimer) -> Component:
    return Component(name="throttle", check=timer.problem, restart=timer.restart, stop=timer.close)


def signing_keys(keys: SigningKeys) -> Component:
    return _task("signing-keys", keys)


def index(check: IndexCheck) -> Component:
    return _task(INDEX, check, check.host)


def console(sampling: SupervisedTask, host: NamespaceHost) -> Component:
    return _task("console", sampling, host)


def dispatcher(part: Dispatcher) -> Component:
    return Component(name="dispatcher", check=part.problem, restart=part.restart, stop=part.stop, is_essential=True)


def listener(part: Listener) -> Component:
    return Component(name="listener", check=part.problem, restart=part.restart, stop=part.close, is_essential=True)


def side_buffer(part: SideBuffer, host: NamespaceHost) -> Component:
    task = _task("side-buffer", part, host)

    def problem() -> Problem | None:
        disk = _silence("side-buffer disk", part.disk_silent_s(), is_stuck=True)
        if disk is not None:
            part.heartbeat.excuse()
        return task.check() or disk

    return replace(task, check=problem)


def scrubber(part: Scrubber, host: NamespaceHost) -> Component:
    return _task("scrubber", part, host)


def ledger(part: Ledger, meter: OperationMeter) -> Component:
    def problem() -> Problem | None:
        if part.has_lost_thread:
            return Problem(reason="its thread has ended")
        if meter.failure is not None:
            return Problem(reason=f"the meter failed with {type(meter.failure).__name__}", error=meter.failure)
        return _silence("ledger", part.heartbeat.silent_s, is_stuck=True)

    def restart() -> None:
        meter.failure = None
        part.restart()

    return Component(name="ledger", check=problem, restart=restart)


def sections(
    settings: Settings, host: NamespaceHost, counters: Counters, supervisor: Supervisor, watchdog: LoopWatchdog
) -> Mapping[str, BundleSection]:
    """Return what a bundle of a server holds, besides versions and stacks."""
    return {
        "settings": BundleSection(collect=lambda: _settings(settings), needs_loop=False),
        "components": BundleSection(
            collect=lambda: [asdict(status) for status in supervisor.statuses()], needs_loop=False
        ),
        "loop": BundleSection(
            collect=lambda: {
                "blocked_count": watchdog.blocked_count,
                "blocked_seconds": round(watchdog.blocked_seconds, 3),
            },
            needs_loop=False,
        ),
        "facets": BundleSection(collect=lambda: _facets(host), needs_loop=False),
        "commits": BundleSection(collect=lambda: _commits(host), needs_loop=False),
        "store": BundleSection(collect=lambda: _store(host)),
        "side_buffer": BundleSection(collect=lambda: _side_buffer(host), needs_loop=False),
        "counters": BundleSection(collect=lambda: _counters(counters), needs_loop=False),
        "operations": BundleSection(collect=host.operations.rows, needs_loop=False),
    }


def _settings(settings: Settings) -> dict[str, object]:
    shown: dict[str, object] = {}
    for setting in SETTINGS.values():
        value = getattr(settings, setting.name)
        if setting.is_secret or setting.name in _MAY_HOLD_SECRETS:
            shown[setting.name] = None if value is None else "(set)"
        else:
            shown[setting.name] = [*map(_json_value, value)] if isinstance(value, tuple) else _json_value(value)
    return shown


def _json_value(value: object) -> object:
    return value if isinstance(value, int | float | None) else str(value)


def _facets(host: NamespaceHost) -> list[dict[str, object]]:
    return [
        {
            "name": status.facet.name,
            "reading": status.reading,
            "threshold": status.threshold,
            "is_denying": status.is_denying,
            "denied": host.throttle.denied[status.facet.name],
        }
        for status in host.throttle.statuses
    ]


def _commits(host: NamespaceHost) -> dict[str, object]:
    committer = host.committer
    return {
        "count": committer.commit_count,
        "seconds": round(committer.commit_seconds, 3),
        "running_s": committer.commit_age_s(),
        "is_idle": committer.is_idle,
        "failure": None if committer.failure is None else type(committer.failure).__name__,
        "used_bytes": committer.used_bytes,
        "damaged_records": len(committer.damaged),
        "quarantined_records": host.quarantined_count,
    }


def _store(host: NamespaceHost) -> dict[str, object]:
    if host.is_paused:  # reading from a storage that does not answer would block the event loop
        return {"stalled_s": host.stalled_s}
    trouble, now_ms = host.trouble(), host.now_ms()
    namespace = host.committer.use_namespace()
    queues, topics = namespace.queues(now_ms), namespace.topics(now_ms)
    return {
        "trouble": None if trouble is None else trouble.problem,
        "queues": len(queues),
        "topics": len(topics),
        "messages_in_queues": sum(info.message_count for info in queues),
        "bytes": sum(info.size_bytes for info in (*queues, *topics)),
    }


def _side_buffer(host: NamespaceHost) -> dict[str, object] | None:
    buffer = host.side_buffer
    return None if buffer is None else {**asdict(buffer.counts), "used_bytes": buffer.used_bytes}


def _counters(counters: Counters) -> dict[str, object]:
    return {
        "messages_sent": counters.messages_sent,
        "messages_delivered": counters.messages_delivered,
        "connections": dict(counters.connections),
        "links": dict(counters.links),
        "refused": dict(counters.refused),
        "limits": dict(counters.limits),
        "settled": dict(counters.settled),
    }
