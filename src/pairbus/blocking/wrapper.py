"""An object of the asyncio client as synchronous code sees it: each call runs on the event loop of the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, cast

from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.client.message import BrokeredMessage

P = ParamSpec("P")
T = TypeVar("T")


class Wrapper(ABC):
    """Calls what it wraps, from any thread. Bound to a loop by its first call, or by whoever made it."""

    _inner: Any

    def __init__(self, inner: Any, loop: LoopThread | None = None) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def _wrapping(cls, inner: Any) -> Self:
        """One of this class, past the constructor that it has for applications."""
        wrapper = cls.__new__(cls)
        Wrapper.__init__(wrapper, inner)
        return wrapper

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has connections, and cannot be pickled; make it where it is used")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    def _call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        loop = self._loop
        if loop is None:
            loop = self._loop = loop_of_this_process()
        return loop.call(function, *args, **kwargs)

    def _call_function(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that needs to run on the loop, though it is no coroutine function."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self._call(called)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close it; what belongs to another process, or went down with this one, is left as it is."""
        if self._loop is None or not self._loop.is_gone:
            self._call(close)


def gathered(values: T) -> T:
    """What was given, with a list for whatever has to be iterated: that may run code of the caller's, so not later."""
    if isinstance(values, BrokeredMessage | int | list | tuple) or not isinstance(values, Iterable):
        return values
    return cast(T, [*values])
