"""The watchdog of the event loop: a thread, since a blocked loop cannot watch itself."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from pairbus.heartbeat import Heartbeat
from pairbus.server.supervision.supervisor import Supervisor

_log = logging.getLogger(__name__)

BLOCKED_S: Final = 2.0
"""Time without an answer after which the loop counts as blocked."""

_POLL_S: Final = 0.25
_SUPERVISOR_S: Final = 10.0
"""Time without checks of components after which the supervisor is restarted."""


_REPORT_S: Final = 2.0


class LoopWatchdog:
    """Asks the loop for an answer four times a second.

    Missed answers are counted by the thread's own turns, not by the clock: a process that was suspended as a whole has
    missed none.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        supervisor: Supervisor,
        blocked_s: float = BLOCKED_S,
        *,
        on_blocked: Callable[[int], str | None] = lambda _thread: None,
    ) -> None:
        """Watch a loop, and the supervisor that runs on it.

        ``on_blocked`` is called on the thread of the watchdog, with the identifier of the loop's thread; it returns the
        name of a bundle.
        """
        self.blocked_count = 0
        self.blocked_seconds = 0.0
        """Total time of the blocks that have ended."""

        self.heartbeat = Heartbeat()
        self._on_blocked = on_blocked
        self._loop = loop
        self._supervisor = supervisor
        self._max_missed = max(1, round(blocked_s / _POLL_S))
        self._missed = 0
        self._has_answered = True
        self._asked_s = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = 0
        self._bundle: str | None = None
        """The bundle about the block that lasts."""
        self._most_missed = -1
        self._give_up: Callable[[], object] = lambda: None
        self._silent_answers = 0

    def start(self) -> None:
        """Start to watch, or start again if the thread has ended; call it on the thread of the loop."""
        self._loop_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="pairbus-watchdog", daemon=True)
        self._thread.start()

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""
        return self._thread is not None and not self._thread.is_alive() and not self._closing.is_set()

    def give_up_after(self, seconds: float, give_up: Callable[[], object]) -> None:
        """Call ``give_up``, on the thread of the watchdog, when a block has lasted for that time."""
        self._most_missed = max(self._max_missed + 1, round(seconds / _POLL_S))
        self._give_up = give_up

    def close(self) -> None:
        """Stop to watch; the thread ends by itself."""
        self._closing.set()

    @property
    def is_blocked(self) -> bool:
        return self._missed >= self._max_missed

    def _run(self) -> None:
        self.heartbeat.beat()
        while not self._closing.wait(_POLL_S):
            self.heartbeat.beat()
            try:
                self._poll()
            except Exception:  # noqa: BLE001 (it must go on watching)
                if self._loop.is_closed():
                    return
                _log.exception("watchdog failed")

    def _poll(self) -> None:
        if self._has_answered:
            if self.is_blocked:
                seconds = self._blocked_s
                self.blocked_seconds += seconds
                _log.warning("event loop resumed blocked_seconds=%.1f", seconds)
            self._missed = 0
            self._has_answered = False
            self._asked_s = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
            return
        self._missed += 1
        if self._missed == self._max_missed:
            self.blocked_count += 1
            _attempt(self._report)
        elif self._missed == self._most_missed:
            _attempt(self._report_end)
            self._give_up()

    def _report(self) -> None:
        self._bundle = None
        self._bundle = self._on_blocked(self._loop_thread)
        _log.error("event loop blocked seconds=%.1f bundle=%s", self._blocked_s, self._bundle)

    def _report_end(self) -> None:
        _log.critical("event loop still blocked, giving up seconds=%.1f bundle=%s", self._blocked_s, self._bundle)

    @property
    def _blocked_s(self) -> float:
        return time.monotonic() - self._asked_s

    def _answer(self) -> None:
        self._has_answered = True
        silent_s = self._loop.time() - self._supervisor.checked_s
        self._silent_answers = self._silent_answers + 1 if silent_s > _SUPERVISOR_S else 0
        if self._silent_answers > 1 and not self._closing.is_set():  # after a block, the supervisor gets its turn first
            _log.error("supervisor silent, restarting seconds=%.1f", silent_s)
            self._silent_answers = 0
            self._supervisor.start()


def _attempt(report: Callable[[], None]) -> None:
    """Call a function on a thread, and wait for it briefly: what blocks the loop, such as a full pipe, may block it."""
    thread = threading.Thread(target=report, name="pairbus-watchdog-report", daemon=True)
    thread.start()
    thread.join(_REPORT_S)
