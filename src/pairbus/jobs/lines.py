"""The output of a job while it runs, one line for each event."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Protocol, TextIO, TypeAlias

from pairbus.renamed import renamed
from pairbus.spark.errors import reason_of as reason_of  # noqa: PLC0414 (the syphons import it from here)

DONE: Final = 0
"""The job is complete, or was stopped by a signal."""
FAILED: Final = 1
USAGE: Final = 2
WAITING: Final = 3
"""Work is left: messages are still waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The exit code of a command, and the reason if it is not 0."""

    code: int
    reason: str | None = None


Fact: TypeAlias = str | int | float | None

_PLAIN: Final = re.compile(r"[^\s\"=]+")

_LEVELS: Final = {
    "pairbus": logging.WARNING,
    "pairbus.pairing": logging.INFO,
    "py4j": logging.CRITICAL,  # its errors are also raised as exceptions
}
"""Minimum log levels of the loggers that are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportLine:
    """An event, as text for people and as facts for programs."""

    event: str
    text: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    is_warning: bool = False

    def as_pairs(self, at: datetime) -> str:
        """Return the event as ``key=value`` pairs, with quotes where needed."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in self._record(at).items())

    def as_json(self, at: datetime) -> str:
        return json.dumps(self._record(at), ensure_ascii=False)

    def _record(self, at: datetime) -> dict[str, Fact]:
        return {"time": at.isoformat(timespec="milliseconds"), "event": self.event, **self.facts}


def _quoted(value: Fact) -> str:
    text = "" if value is None else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a syphon."""

    delivered: int
    dead_lettered: int
    depth: int | None
    """Number of messages in the backlog; ``None`` if the key may not read it."""


class ProgressReporter(Protocol):
    """The destination of a job's output."""

    def report(self, line: ReportLine) -> None: ...

    def show(self, progress: Progress) -> None:
        """Show the progress, on a terminal that is updated in place."""

    def rest(self) -> None:
        """Stop updating the progress, and restore the terminal. Lines may still follow."""


class LineReporter:
    """Writes lines for programs and log files."""

    def __init__(self, *, as_json: bool, file: TextIO | None = None) -> None:
        self._as_json = as_json
        self._file = file

    def report(self, line: ReportLine) -> None:
        now = datetime.now(UTC)
        text = line.as_json(now) if self._as_json else line.as_pairs(now)
        print(text, file=self._file or sys.stdout, flush=True)

    def show(self, progress: Progress) -> None:
        """Do nothing: the lines contain the same information."""

    def rest(self) -> None:
        """Do nothing: no progress is displayed."""


class _LogHandler(logging.Handler):
    """Converts log records to lines."""

    def __init__(self, reporter: ProgressReporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        facts = {"level": record.levelname.lower(), "logger": record.name, "message": text}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            facts["error"] = f"{type(error).__name__}: {error}"
        line = ReportLine(event="log", text=text, facts=facts, is_warning=record.levelno >= logging.WARNING)
        self._reporter.report(line)


@contextmanager
def reported_logs(reporter: ProgressReporter) -> Iterator[None]:
    """Report log records about the state of the job as lines."""
    handler = _LogHandler(reporter)
    root = logging.getLogger("pairbus")
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


if not TYPE_CHECKING:  # type checkers only see the new names
    __getattr__ = renamed(__name__, {"LineTeller": "LineReporter"})
