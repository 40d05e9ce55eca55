"""The event loop that synchronous code has its work done on, in a thread of its own.

There is one for the whole process, however many factories there are. One thread carries all their connections as well
as many would, since they would take turns at the interpreter anyway; a factory that is never closed leaves no thread
behind; and whoever forks has one thing to leave behind. It starts when something is first asked of it, never on import.

After a fork the child has the loop's memory and not its thread. What has been used in the parent is bound to that
loop, and refuses to work in the child: its connections are the parent's. What has not been used yet, such as a factory
that a server makes before it forks its workers, is bound to the child's own loop when it is first used there.
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

# asyncio imports two modules when it first resolves a name. A fork at that moment would leave the child with the locks
# of their imports held for ever; so they are imported here, before there is a thread.

_FAREWELL_S: Final = 1.0
"""How long the end of the process may wait for the loop; something that blocks may be running on it."""

_WAIT_S: Final = 0.1 if sys.platform == "win32" else 1.0
"""How long to wait at a time. A signal that comes just before a wait does not interrupt it, and on Windows none does:
then Ctrl-C is heard at its end."""

_FORKED: Final = (
    "it was used before this process was forked, and belongs to the parent; make another factory in this process"
)
_ENDED: Final = "the process is ending"


class _Call:
    """Something to do on the loop, and what came of it."""

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
        # The caller is woken from here and not by a callback of the task, which would take another turn of the loop.
        try:
            self.answer = await self.function(*self.args, **self.kwargs)
        except asyncio.CancelledError:
            self.error = ClosedError("the operation was cancelled")  # not by its caller, who waits no more
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the caller's)
            self.error = error
        finally:
            self.done.release()


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._refusal: str | None = None
        self._stands_still = Event()
        self._left: set[asyncio.Task[Any]] = set()
        self._thread = Thread(target=self._run, name="pairbus-blocking", daemon=True)
        self._thread.start()

    @property
    def is_gone(self) -> bool:
        """Whether it does nothing any more, in this process."""
        return self._refusal is not None

    def call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a coroutine function on the loop, wait, and give its answer or raise its error.

        Whatever interrupts the wait, as Ctrl-C does, cancels the call.
        """
        self.check()
        if get_ident() == self._thread.ident:
            raise RuntimeError(
                "a blocking call was made on the event loop that it would wait for, by a token provider, a credential"
                " or a listener perhaps; what runs there uses the asyncio client, pairbus instead of pairbus.blocking"
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
            del error  # or it and this frame, which its traceback leads to, would keep each other alive

    def check(self) -> None:
        """Raise ``ClosedError`` if it does nothing any more, in this process."""
        if self._refusal is None:
            return
        if self._refusal is _ENDED and current_thread().daemon:
            Event().wait()  # daemon threads are about to be stopped wherever they are; an error would only be noise
        raise ClosedError(self._refusal)

    def abandon(self) -> None:
        """Never use it again: this process is a child of the one that it runs in."""
        self._refusal = _FORKED

    def stop(self) -> None:
        """Do nothing any more; waits a little for what is just being done, which may block."""
        self._refusal = _ENDED
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._stands_still.wait(_FAREWELL_S)

    def _run(self) -> None:
        while self._refusal is None:
            # A task that raises SystemExit takes the loop down; the others have not asked for that.
            with suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()
        # The process ends. What is left is held on to until it has: nobody is to hear what became of it piece by piece,
        # neither threads that still wait nor the log.
        self._left = asyncio.all_tasks(self._loop)
        self._stands_still.set()
        Event().wait()


class _Process:
    """What this process has: one loop at most."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._current: LoopThread | None = None
        self._inherited: list[LoopThread] = []
        """Loops of the processes that this one was forked from: freed, they would close what is not theirs."""

    def loop(self) -> LoopThread:
        with self._lock:
            if self._current is None:
                self._current = LoopThread()
            return self._current

    def forked(self) -> None:
        self._lock = Lock()  # somebody may have held it who is not here
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
    """The loop, started if it does not run yet."""
    return _PROCESS.loop()
