"""Diagnostic bundles: what a server was doing when a component failed, or when an administrator asks.

A bundle is one JSON document. It holds no keys, no tokens and nothing of messages: stacks are places in the code,
without values, and of an error it has the type, whose text may quote what a client has sent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import platform
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from queue import SimpleQueue
from types import FrameType
from typing import Final

from pairbus.build import build
from pairbus.heartbeat import Heartbeat
from pairbus.server.supervision.supervisor import MAX_RESTARTS, WINDOW_S, Problem
from pairbus.store.bundles import MAX_BUNDLE_BYTES, BundleDirectory, BundleInfo

_log = logging.getLogger(__name__)

_PACKAGES: Final = ("pairbus", "lmdb", "uvloop", "uvicorn", "starlette", "prometheus-client", "pyarrow", "pyspark")
_MAX_FRAMES: Final = 40
_MAX_TASKS: Final = 300
_MAX_PENDING: Final = 4
"""Bundles that wait for a disk that does not answer; more are dropped."""

_MAX_REPORTS: Final = MAX_RESTARTS + 1
"""Bundles of the same kind within ``WINDOW_S``: as many as a component that fails until it is stopped."""

_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleSection:
    """A part of a bundle."""

    collect: Callable[[], object]
    """Returns values that can be written as JSON."""

    needs_loop: bool = True
    """True if it can only be collected on the event loop, and not while that is blocked."""


class Diagnostics:
    """Collects bundles, and keeps them in the data directory. A thread waits for the disk."""

    def __init__(
        self, directory: BundleDirectory, loop: asyncio.AbstractEventLoop, sections: Mapping[str, BundleSection]
    ) -> None:
        self._directory = directory
        self._loop = loop
        self._sections = sections
        self._work: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._is_closing = False
        self.heartbeat = Heartbeat()
        self._versions = versions()
        self._reported_s: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_MAX_REPORTS))
        self.kept: Sequence[BundleInfo] = ()
        """All kept bundles, the newest first."""

    def start(self) -> None:
        """Start the thread that writes bundles; if it has ended, start another one."""
        if self._writer is None or not self._writer.is_alive():
            self._writer = threading.Thread(target=self._run, name="pairbus-diagnostics", daemon=True)
            self._writer.start()

    @property
    def has_lost_thread(self) -> bool:
        """Return whether the thread has ended without being closed."""
        return self._writer is not None and not self._writer.is_alive() and not self._is_closing

    def report(self, component: str, problem: Problem) -> str | None:
        """Write a bundle about a component, in the background; return its name, or ``None`` if there were many."""
        now_s, reported_s = self._loop.time(), self._reported_s[component]
        if len(reported_s) == _MAX_REPORTS and now_s - reported_s[0] < WINDOW_S:
            return None
        reported_s.append(now_s)
        return self._keep(component, self._collect(component, problem.reason, problem.error))

    def report_blocked_loop(self, thread: int) -> str | None:
        """Write a bundle while the loop is blocked, from another thread; the stack of the loop's thread comes first."""
        content = self._collect("loop", "the event loop is blocked", None, blocked_thread=thread)
        return self._keep("loop", content)

    def collect(self) -> tuple[str, bytes]:
        """Return the name and the content of a bundle on demand; it is kept as well."""
        content = self._collect("request", "an administrator has asked for it", None)
        name = _name("request")
        self._write(name, content)
        return name, content

    async def read(self, name: str) -> bytes | None:
        """Return the content of a kept bundle; ``None`` if there is none of that name."""
        return await asyncio.to_thread(self._directory.read, name)

    async def close(self) -> None:
        """Wait for the bundles that are being written, but not for a disk that does not answer."""
        self._is_closing = True
        self._work.put(None)
        writer = self._writer
        ends_s = self._loop.time() + _CLOSE_S
        while writer is not None and writer.is_alive() and self._loop.time() < ends_s:  # noqa: ASYNC110 (a thread has no event)
            await asyncio.sleep(0.005)

    # Collecting

    def _collect(
        self, component: str, reason: str, error: BaseException | None, blocked_thread: int | None = None
    ) -> bytes:
        bundle: dict[str, object] = {
            "component": component,
            "reason": reason,
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "versions": self._versions,
        }
        if error is not None:
            bundle["error"] = {
                "type": type(error).__name__,
                "stack": _places(traceback.walk_tb(error.__traceback__)),
            }
        if blocked_thread is not None:
            bundle["blocked"] = _guarded(lambda: _stack_of(blocked_thread))
        for name, section in self._sections.items():
            if blocked_thread is None or not section.needs_loop:
                bundle[name] = _guarded(section.collect)
        bundle["threads"] = _guarded(_threads)
        bundle["tasks"] = _guarded(lambda: _tasks(self._loop))
        content = _encoded(bundle)
        if len(content) > MAX_BUNDLE_BYTES:
            bundle["tasks"] = "left out: the bundle would be too large"
            content = _encoded(bundle)
        return content

    # Keeping

    def _keep(self, component: str, content: bytes) -> str | None:
        name = _name(component)
        return name if self._write(name, content) else None

    def _write(self, name: str, content: bytes) -> bool:
        if self._work.qsize() >= _MAX_PENDING:
            _log.warning("diagnostic bundle dropped bundle=%s", name)
            return False
        self._work.put((name, content))
        return True

    def _run(self) -> None:
        self.heartbeat.beat()
        self.kept = self._directory.list()
        while (work := self._next_work()) is not None:
            name, content = work
            try:
                self._directory.write(name, content)
            except (OSError, ValueError) as error:
                _log.warning('diagnostic bundle not written bundle=%s error="%s"', name, error)
            self.kept = self._directory.list()

    def _next_work(self) -> tuple[str, bytes] | None:
        self.heartbeat.rest()
        work = self._work.get()
        self.heartbeat.beat()
        return work


def versions() -> dict[str, str]:
    """Return the build, and the versions of pairbus, of Python, of the system, and of the packages that are used."""
    found = {"python": sys.version.split()[0], "system": platform.platform(), "build": build()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _name(component: str) -> str:
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1_000:03d}Z-{component}"


def _encoded(bundle: Mapping[str, object]) -> bytes:
    return json.dumps(bundle, indent=1, ensure_ascii=False, default=str).encode("utf-8", "replace")


def _guarded(collect: Callable[[], object]) -> object:
    """Return a section, or the type of the error: a failing server must still describe the rest."""
    try:
        return collect()
    except Exception as error:  # noqa: BLE001
        return {"failed": type(error).__name__}


def _threads() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'unknown')} ({ident})": _frames_of(frame)
        for ident, frame in sys._current_frames().items()  # noqa: SLF001 (documented for this purpose)
    }


def _stack_of(thread: int) -> list[str]:
    frame = sys._current_frames().get(thread)  # noqa: SLF001
    return [] if frame is None else _frames_of(frame)


def _tasks(loop: asyncio.AbstractEventLoop) -> list[dict[str, object]]:
    return [
        {
            "name": task.get_name(),
            "coroutine": getattr(task.get_coro(), "__qualname__", "unknown"),
            "stack": [_place(frame, frame.f_lineno) for frame in task.get_stack(limit=_MAX_FRAMES)],
        }
        for task in [*asyncio.all_tasks(loop)][:_MAX_TASKS]
    ]


def _frames_of(frame: FrameType) -> list[str]:
    """Return the places of a stack, the newest call last."""
    return _places(list(traceback.walk_stack(frame))[:_MAX_FRAMES][::-1])


def _places(frames: Iterable[tuple[FrameType, int]]) -> list[str]:
    return [_place(frame, line) for frame, line in [*frames][-_MAX_FRAMES:]]


def _place(frame: FrameType, line: int) -> str:
    return f"{frame.f_code.co_filename}:{line} {frame.f_code.co_qualname}"
