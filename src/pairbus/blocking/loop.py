"""The event loop of synchronous code, in a separate thread.

There is one per process, for all factories. One thread serves all connections as well as many would, because threads
would take turns at the interpreter anyway; a factory that is never closed leaves no thread behind; and a fork has one
thing to abandon. The loop starts at the first call, never on import.

After a fork the child has the loop's memory but not its thread. Objects that were used in the parent are bound to that
loop and raise in the child, because their connections belong to the parent. Objects that have not been used yet, such
as a factory that a server creates before it forks its workers, are bound to the child's own loop at their first use.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 (see below)
import encodings.idna  # noqa: F401 (see below)
import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event, Lock, Thread, current_thread, get_ident
from typing import Any, Final, ParamSpec, TypeVar

from pairbus.client.errors import ClosedError

P = ParamSpec("P")
T = TypeVar("T")

# asyncio imports two modules when it first resolves a name. A fork at that moment would leave the child with their
# import locks held forever, so they are imported here, before there is a thread.

_EXIT_TIMEOUT_S: Final = 1.0
"""The time that the exit of the process waits for the loop, on which a blocking call may be running."""

_WAIT_S: Final = 0.1 if sys.platform == "win32" else 1.0
"""The interval of a wait. A signal that arrives just before a wait does not interrupt it, and on Windows none does:
Ctrl-C is handled at its end then."""

_FORKED: Final = (
    "the object was used before this process was forked and belongs to the parent; create a factory in this process"
)
_ENDED: Final = "the process is ending"


class _Call:
    """A call on the loop, and its result."""

    __slots__ = ("answer", "args", "done", "error", "function", "kwargs", "task")

    def __init__(self, function: Callable[..., Coroutine[Any, Any, Any]], args: Any, kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.answer: Any = None
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.done = Lock()
        self.done.acquire()

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    async def _run(self) -> None:
        # The caller is woken from here, not by a callback of the task, which would take another turn of the loop.
        try:
            self.answer = await self.function(*self.args, **self.kwargs)
        except asyncio.CancelledError:
            self.error = ClosedError("the operation was cancelled")  # not by its caller, which no longer waits
        except BaseException as error:  # noqa: BLE001 (every error is raised in the caller)
            self.error = error
        finally:
            self.done.release()


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._refusal: str | None = None
        self._stopped = Event()
        self._left: set[asyncio.Task[Any]] = set()
        self._thread = Thread(target=self._run, name="pairbus-blocking", daemon=True)
        self._thread.start()

    @property
    def is_gone(self) -> bool:
        """True if it accepts no more calls in this process."""
        return self._refusal is not None

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function on the loop, wait, and return its result or raise its error.

        An interruption of the wait, such as Ctrl-C, cancels the call.
        """
        self.check()
        if get_ident() == self._thread.ident:
            raise RuntimeError(
                "a blocking call was made on the event loop that it would wait for, perhaps by a token provider, a"
                " credential or a listener; code that runs there has to use the asyncio client: pairbus instead of"
                " pairbus.blocking"
            )
        call = _Call(function, args, kwargs)
        try:
            self._loop.call_soon_threadsafe(call.start)
            while not call.done.acquire(timeout=_WAIT_S):
                pass
        except BaseException:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call.cancel)
            raise
        error, call.error = call.error, None
        if error is None:
            answer: T = call.answer
            return answer
        try:
            raise error
        finally:
            del error  # break the reference cycle of the error and this frame, which is in its traceback

    def check(self) -> None:
        """Raise ``ClosedError`` if it accepts no more calls in this process."""
        if self._refusal is None:
            return
        if self._refusal is _ENDED and current_thread().daemon:
            Event().wait()  # daemon threads are about to be stopped anywhere; an error would only be noise
        raise ClosedError(self._refusal)

    def abandon(self) -> None:
        """Refuse all calls from now on, because this process is a child of the one that runs the loop."""
        self._refusal = _FORKED

    def stop(self) -> None:
        """Refuse all calls from now on; wait briefly for the current callback, which may block."""
        self._refusal = _ENDED
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._stopped.wait(_EXIT_TIMEOUT_S)

    def _run(self) -> None:
        while self._refusal is None:
            # A task that raises SystemExit stops the loop; the other tasks must continue.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        # The process is exiting. The tasks are kept alive until then, so that their destruction is reported neither to
        # waiting threads nor to the log.
        self._left = asyncio.all_tasks(self._loop)
        self._stopped.set()
        Event().wait()


class _Process:
    """The loops of this process: at most one is in use."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._current: LoopThread | None = None
        self._inherited: list[LoopThread] = []
        """Loops of the parent processes; destroying them would close connections of the parents."""

    def loop(self) -> LoopThread:
        with self._lock:
            if self._current is None:
                self._current = LoopThread()
            return self._current

    def forked(self) -> None:
        self._lock = Lock()  # a thread that does not exist in the child may have held it
        if self._current is not None:
            self._current.abandon()
            self._inherited.append(self._current)
            self._current = None

    def ends(self) -> None:
        if self._current is not None:
            self._current.stop()


_PROCESS: Final = _Process()

atexit.register(_PROCESS.ends)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_PROCESS.forked)


def loop_of_this_process() -> LoopThread:
    """Return the loop of this process; start it if needed."""
    return _PROCESS.loop()
