"""Base classes of the blocking wrappers: each call runs on the event loop of the process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import Any, NoReturn, ParamSpec, Self, TypeVar, cast

from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.client.message import BrokeredMessage
from pairbus.client.validation import check_type

P = ParamSpec("P")
T = TypeVar("T")


class Wrapper:
    """Calls the wrapped object from any thread. Bound to a loop by its first call, or by its creator."""

    _inner: Any
    _needs: tuple[Wrapper, ...] = ()
    """The wrappers passed to the constructor, which are used together with this one."""

    def __init__(self, inner: Any, loop: LoopThread | None = None) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def _wrapping(cls, inner: Any) -> Self:
        """Create an instance without calling the public constructor."""
        wrapper = cls.__new__(cls)
        Wrapper.__init__(wrapper, inner)
        return wrapper

    def __repr__(self) -> str:
        return repr(self._inner)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} holds connections and cannot be pickled; create it where it is used")

    def _lend(self) -> Any:
        """Return the wrapped object for another call on the loop; raises if it belongs to another process."""
        for needed in self._needs:
            needed._lend()  # noqa: SLF001 (a wrapper like this one)
        self._bound().check()
        return self._inner

    def _bound(self) -> LoopThread:
        loop = self._loop
        if loop is None:
            loop = self._loop = loop_of_this_process()
        return loop

    def _call(self, function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._bound().call(function, *args, **kwargs)

    def _call_function(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function that has to run on the loop."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self._call(called)

    def _iterate(self, function: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Iterate over an asynchronous iterator. The loop closes one that is not exhausted, as asyncio does."""
        return self._following(self._call_function(function))

    def _following(self, found: AsyncIterator[T]) -> Iterator[T]:
        async def following() -> T:
            return await anext(found)

        while True:
            try:
                one = self._call(following)
            except StopAsyncIteration:
                return
            yield one


class ClosingWrapper(Wrapper, ABC):
    """Wraps an object that can be closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close it, unless it belongs to another process or its loop has stopped."""
        if self._loop is None or not self._loop.is_gone:
            self._call(close)


def unwrapped(name: str, value: Any, kind: type[Wrapper]) -> Any:
    """Check an argument and return the wrapped object, without binding it to a loop."""
    check_type(name, value, (kind,))
    return value._inner  # noqa: SLF001 (what a wrapper is for)


def lent(name: str, value: Any, kind: type[Wrapper]) -> Any:
    """Check an argument and return the wrapped object for immediate use."""
    check_type(name, value, (kind,))
    return value._lend()  # noqa: SLF001 (what a wrapper is for)


def gathered(values: T) -> T:
    """Return the argument, iterables as a list: iteration may run the caller's code, so it happens now."""
    if isinstance(values, BrokeredMessage | int | list | tuple) or not isinstance(values, Iterable):
        return values
    return cast(T, [*values])
