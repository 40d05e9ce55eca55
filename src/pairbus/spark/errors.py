"""Errors in the options, schema or offsets of a query."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

from pairbus.client.errors import MessagingError

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=type)


class SparkOptionError(ValueError):
    """An option is missing, unknown, or has an invalid value."""


class ConnectionReferenceError(SparkOptionError):
    """The option ``connection`` does not lead to a connection string. The message never contains the string."""


class EntityPatternError(SparkOptionError):
    """A name or pattern that matches no entity of the namespace."""


class SchemaError(ValueError):
    """A column that messages do not have, or a column of the wrong type."""


class OffsetError(ValueError):
    """An offset of a checkpoint or query that this data source did not write."""


class MessagesGoneError(RuntimeError):
    """Messages that a query with ``failOnDataLoss`` should read do not exist any more."""

    def __init__(self, entity: str, count: int, first: int) -> None:
        super().__init__(entity, count, first)
        self.entity = entity
        self.count = count
        self.first = first

    def __str__(self) -> str:
        are = (
            f"{self.count:,} messages of '{self.entity}' are" if self.count > 1 else f"a message of '{self.entity}' is"
        )
        return (
            f"{are} gone, the first with the sequence number {self.first}: settled by another receiver, or expired,"
            " before the query read them; set failOnDataLoss to false to read on without them"
        )


def show_reasons_last() -> None:
    """Let Python end its report of an uncaught exception of Spark with the text of the pairbus error in it.

    Spark appends the plan of the query to the error of a stream, and Java's stack trace to others.
    """
    if any(name in os.environ for name in _OF_WORKERS) or getattr(sys.excepthook, _SHOWS_REASONS, False):
        return
    usual = sys.excepthook

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        usual(kind, error, trace)
        if kind.__module__.partition(".")[0] in {"pyspark", "py4j"}:
            reason = our_reason(str(error))
            if reason is not None:
                print(f"pairbus: {reason}", file=sys.stderr)

    setattr(report, _SHOWS_REASONS, True)
    sys.excepthook = report


_SHOWS_REASONS: Final = "_shows_pairbus_reasons"


class MessageSendError(Exception):
    """Base of errors of a task that did not send all its messages."""


_PLAIN: Final = (SparkOptionError, SchemaError, OffsetError, MessagesGoneError, MessageSendError, MessagingError)
"""Errors whose text says what is wrong: where they were raised does not matter."""

_HIDES_TRACEBACKS: Final = "SPARK_HIDE_TRACEBACK"
"""The variable that Spark's workers read when they report an exception."""

_OF_WORKERS: Final = "PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_PATH"
"""Variables of which only Spark's workers have one or both."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Let a worker of Spark report an error of this package as one sentence, without the traceback.

    A worker ends with the exception that it reports, so that the variable affects no other.
    """
    try:
        yield
    except _PLAIN:
        if any(name in os.environ for name in _OF_WORKERS):
            os.environ[_HIDES_TRACEBACKS] = "1"
        raise


def _plainly(function: Callable[P, T]) -> Callable[P, T]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with plain_errors():
            found = function(*args, **kwargs)
        return _iterated_plainly(found) if isinstance(found, Iterator) else found  # type: ignore[return-value]

    return call


def _iterated_plainly(iterator: Iterator[T]) -> Iterator[T]:
    with plain_errors():
        yield from iterator


def reports_plainly(kind: C) -> C:
    """Apply ``plain_errors`` to all public methods of a class, which Spark calls; a class decorator."""
    for name, value in [*vars(kind).items()]:
        if callable(value) and not name.startswith("_"):
            setattr(kind, name, _plainly(value))
    return kind


_OURS: Final = re.compile(r"(?:^|: )[ \t]*pairbus\.[\w.]*Error: (.+)$", re.MULTILINE)
"""The text of a pairbus error in what Spark reports: after a traceback, or after a sentence of Spark."""

_LONGEST: Final = 500


def reason_of(error: BaseException) -> str:
    """Return the text of the last pairbus error in an exception's text, or else its first line."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 (some errors ask Java for their text, which may have exited)
        return type(error).__name__
    return our_reason(text) or " ".join(text.partition("\n")[0].split())[:_LONGEST] or type(error).__name__


def our_reason(text: str) -> str | None:
    """Return the text of the last pairbus error in a text, if there is one."""
    ours = _OURS.findall(text)
    return " ".join(ours[-1].split())[:_LONGEST] if ours else None
