"""The components of a server, and what diagnostic bundles say about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final, Protocol

from pairbus.ledger import Ledger
from pairbus.server.audit import AuditWriter
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.jwt import SigningKeys
from pairbus.server.listener import Listener
from pairbus.server.metering import OperationMeter
from pairbus.server.scrubbing import Scrubber
from pairbus.server.settings import SETTINGS, Settings
from pairbus.server.side_buffer.buffer import SideBuffer
from pairbus.server.supervision.diagnostics import BundleSection, Diagnostics
from pairbus.server.supervision.supervisor import Component, Problem, Supervisor
from pairbus.server.supervision.watchdog import LoopWatchdog
from pairbus.server.throttle.throttle import ThrottleTimer

_TURN_S: Final = 30.0
"""Time that the ledger may take to write before it counts as stuck."""

_MAY_HOLD_SECRETS: Final = frozenset({"jwt_keys"})
"""Settings that are not marked as secret, but may be an address with a secret in it."""


class WatchedThread(Protocol):
    """A part with a thread of its own."""

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""


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
    """Return a component that has failed when its thread has ended."""
    return Component(
        name=name,
        check=lambda: Problem(reason="its thread has ended") if part.has_lost_thread else None,
        restart=restart,
    )


def audit_log(writer: AuditWriter) -> Component:
    return _thread("audit-log", writer, writer.restart_thread)


def diagnostics(part: Diagnostics) -> Component:
    return _thread("diagnostics", part, part.start)


def watchdog(part: LoopWatchdog) -> Component:
    return _thread("watchdog", part, part.start)


def throttle(timer: ThrottleTimer) -> Component:
    return Component(name="throttle", check=timer.problem, restart=timer.restart, stop=timer.close)


def signing_keys(keys: SigningKeys) -> Component:
    return Component(name="signing-keys", check=keys.problem, restart=keys.start, stop=keys.close)


def dispatcher(part: Dispatcher) -> Component:
    return Component(name="dispatcher", check=part.problem, restart=part.restart, stop=part.stop, is_essential=True)


def listener(part: Listener) -> Component:
    return Component(name="listener", check=part.problem, restart=part.restart, stop=part.close, is_essential=True)


def side_buffer(part: SideBuffer) -> Component:
    return Component(name="side-buffer", check=part.problem, restart=part.start, stop=part.stop)


def scrubber(part: Scrubber) -> Component:
    return Component(name="scrubber", check=part.problem, restart=part.start, stop=part.stop)


def ledger(part: Ledger, meter: OperationMeter) -> Component:
    def problem() -> Problem | None:
        if part.has_lost_thread:
            return Problem(reason="its thread has ended")
        if meter.failure is not None:
            return Problem(reason=f"the meter failed with {type(meter.failure).__name__}", error=meter.failure)
        if part.turn_s > _TURN_S:
            return Problem(reason=f"it has been writing for {part.turn_s:.0f} s", is_stuck=True)
        return None

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
            shown[setting.name] = value if isinstance(value, int | float | None) else str(value)
    return shown


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
