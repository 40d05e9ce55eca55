"""Connections of this process, which outlive the tasks of a Spark worker: most tasks are shorter than a connection.

They are the only state that this package keeps for the whole process. A task gets a pickled reader or writer and ends
with it; the process that runs it is reused for the next one.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, ParamSpec, Self, TypeVar
from weakref import WeakSet

from pairbus.blocking.loop import LoopThread, loop_of_this_process
from pairbus.client.endpoint import open_connection_string
from pairbus.client.errors import MessagingError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.settings import MessagingFactorySettings, RetryPolicy
from pairbus.spark.errors import ConnectionReferenceError

_OPTION: Final = "the option 'connection'"
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_.-]+")
_QUOTED: Final = re.compile(r"(['\"]).{2,}\1", re.DOTALL)
_MAX_BYTES: Final = 64 * 1024
"""No connection string is that long; a path may lead to a file without end."""


class ReferenceKind(Enum):
    """The place of a connection string, with the prefix of the option."""

    VARIABLE = "env:"
    FILE = "file:"
    OPTION = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionReference:
    """The value of the option ``connection``.

    It is sent from the driver to the executors inside plans and tasks, and resolved where it is used: so no secret of a
    variable or a file gets into a plan, a log or a checkpoint.
    """

    place: ReferenceKind
    text: str
    """The name of the variable, the path of the file, or the connection string."""

    operation_timeout: timedelta | None = None
    max_retries: int | None = None
    """Settings of the operations; ``None`` for those of the client."""

    @classmethod
    def parse(cls, option: str) -> Self:
        """Parse the option. Raise ``ConnectionReferenceError``. Variables and files are not read yet."""
        given = option.strip()
        for place in (ReferenceKind.VARIABLE, ReferenceKind.FILE):
            if given[: len(place.value)].lower() == place.value:
                return cls(place=place, text=_CHECKS[place](given[len(place.value) :].strip()))
        _check(_OPTION, given)
        return cls(place=ReferenceKind.OPTION, text=given)

    def __str__(self) -> str:
        """Return the reference; of a connection string in the option itself, only its endpoint."""
        if self.place is ReferenceKind.OPTION:
            return f"{open_connection_string(self.text)[0]}"
        return f"{self.place.value}{self.text}"

    def __repr__(self) -> str:
        return f"<ConnectionReference {self}>"

    def resolve(self) -> str:
        """Read and return the connection string. Raise ``ConnectionReferenceError``."""
        if self.place is ReferenceKind.OPTION:
            return self.text
        found = _read_variable(self.text) if self.place is ReferenceKind.VARIABLE else _read_file(self.text)
        _check(f"the content of {self}, named by {_OPTION},", found)
        return found

    def settings(self) -> MessagingFactorySettings:
        """Return the settings of a factory for this connection."""
        given: dict[str, Any] = {}
        if self.operation_timeout is not None:
            given["operation_timeout"] = self.operation_timeout
        if self.max_retries is not None:
            given["retry_policy"] = RetryPolicy(maximum_retries=self.max_retries)
        return MessagingFactorySettings(**given)


def _variable_name(text: str) -> str:
    # The error does not quote the text: it may be a connection string, or a key.
    if not _VARIABLE.fullmatch(text):
        raise ConnectionReferenceError(
            f"{_OPTION} starts with 'env:', but the rest is not the name of a variable; use env:NAME"
        )
    return text


def _file_path(text: str) -> str:
    path = text.removeprefix("//") if text.startswith("///") else text
    is_secret = "=" in path and "sharedaccess" in path.lower()
    if not path or path.startswith("//") or is_secret or not path.isprintable():
        raise ConnectionReferenceError(
            f"{_OPTION} starts with 'file:', but the rest is not a local path; use file:/path"
        )
    return path


_CHECKS: Final = {ReferenceKind.VARIABLE: _variable_name, ReferenceKind.FILE: _file_path}


def _read_variable(name: str) -> str:
    # Do not suggest spark.executorEnv: its values are configuration, which Spark shows and writes to its logs.
    found = os.environ.get(name, "").strip()
    if not found:
        raise ConnectionReferenceError(
            f"{_OPTION} is env:{name}, but that variable is not set here; set it in the environment of the driver and"
            " of every executor before the Spark session starts, or use file:/path"
        )
    return found


def _read_file(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            found = file.read(_MAX_BYTES + 1)
        text = found.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        # Without the cause, which holds the bytes.
        raise ConnectionReferenceError(f"{_OPTION} is file:{path}, but that file is not UTF-8 text") from None
    except OSError as error:
        raise ConnectionReferenceError(
            f"{_OPTION} is file:{path}, but that file cannot be read here: {error.strerror};"
            " the driver and every executor must be able to read it"
        ) from error
    if len(found) > _MAX_BYTES:
        raise ConnectionReferenceError(f"{_OPTION} is file:{path}, but that file is too long for a connection string")
    return text


def _check(where: str, text: str) -> None:
    try:
        _, key, _ = open_connection_string(text)
    except ValueError as error:
        # The error may quote a part of the key, if the text has a typo.
        reason = _QUOTED.sub("…", " ".join(str(error).split()))
    else:
        if key is not None:
            return
        reason = "it has neither a key nor a token"
    raise ConnectionReferenceError(
        f"{where} is not a connection string: {reason}; use env:NAME, file:/path,"
        " or Endpoint=sb://…;SharedAccessKeyName=…;SharedAccessKey=…"
    )


CONNECT_TIMEOUT: Final = timedelta(seconds=10)
"""Time within which a namespace must be reached, unless a query or caller says otherwise."""

_PROBE_PATH: Final = "x-pairbus-spark"
"""A path without an entity: any response shows that the namespace is reachable."""

_PAUSE_S: Final = 0.5

P = ParamSpec("P")
T = TypeVar("T")


class Connections:
    """The factories of the connection strings in use."""

    def __init__(self) -> None:
        self._loop: LoopThread | None = None
        self._factories: dict[ConnectionReference, tuple[str, MessagingFactory]] = {}
        self._reached: WeakSet[MessagingFactory] = WeakSet()

    async def factory(self, connection: ConnectionReference) -> MessagingFactory:
        """Return the factory of a reference; a new one if the connection string has changed (keys are rotated)."""
        loop = loop_of_this_process()
        if self._loop is not loop:  # these are the connections of the parent process, after a fork
            self._factories, self._loop = {}, loop
        resolved = connection.resolve()
        known = self._factories.get(connection)
        if known is not None and known[0] == resolved and not known[1].is_closed:
            return known[1]
        factory = MessagingFactory.from_connection_string(resolved, connection.settings())
        self._factories[connection] = (resolved, factory)
        if known is not None:
            await known[1].close()
        return factory

    async def reached(self, connection: ConnectionReference, within: timedelta, *, once: bool) -> MessagingFactory:
        """Connect, or with ``once`` only before the first success. Raise ``MessagingTimeoutError``."""
        factory = await self.factory(connection)
        if not once or factory not in self._reached:
            await reach(factory, within)
            self._reached.add(factory)
        return factory


_CONNECTIONS: Final = Connections()


def on_loop(function: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a coroutine function on the event loop of the connections, and return its result."""
    return loop_of_this_process().call(function, *args, **kwargs)


def factory_of(connection: ConnectionReference) -> MessagingFactory:
    """Return the factory of this process for a connection, for use on the event loop."""
    return on_loop(_CONNECTIONS.factory, connection)


def reached(connection: ConnectionReference, within: timedelta, *, once: bool = False) -> MessagingFactory:
    """Connect to the namespace, and return its factory. Raise ``MessagingTimeoutError`` if it cannot be reached.

    With ``once`` there is no check if this process has reached the namespace before: retries cover later outages.
    """
    return on_loop(_CONNECTIONS.reached, connection, within, once=once)


_HINT: Final = "check that the namespace is running and that 'connection' has its Endpoint, or raise 'connectTimeout'"


async def reach(factory: MessagingFactory, within: timedelta, *, hint: str = _HINT) -> None:
    """Try to connect until the namespace responds, or raise ``MessagingTimeoutError``.

    A response that rejects the request counts: the operation that needs it reports the error.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + within.total_seconds()
    cause: MessagingError | None = None
    while True:
        try:
            async with asyncio.timeout_at(ends_s):
                await factory.greet(_PROBE_PATH)
                return
        except MessagingError as error:
            if not error.is_transient:
                return
            cause = error
        except TimeoutError:
            break
        if loop.time() + _PAUSE_S >= ends_s:
            break
        await asyncio.sleep(_PAUSE_S)
    within_s = f"{within.total_seconds():g} s"
    raise MessagingTimeoutError(
        f"{factory.endpoint} did not answer within {within_s}"
        if cause is None
        else f"{cause.message}; tried for {within_s}",
        hint=hint,
    ) from None
