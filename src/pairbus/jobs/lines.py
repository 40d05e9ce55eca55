"""What a job says while it runs, one line for each thing that happens."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol, TextIO, TypeAlias

Fact: TypeAlias = str | int | float | None

_PLAIN: Final = re.compile(r"[^\s\"=]+")

_LEVELS: Final = {
    "pairbus": logging.WARNING,
    "pairbus.pairing": logging.INFO,
    "py4j": logging.CRITICAL,  # what it has to say comes as an error, too
}
"""What is worth a line, of what is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Something that has happened: for a person, and for a program."""

    event: str
    text: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    is_warning: bool = False

    def as_pairs(self, at: datetime) -> str:
        """As ``key=value``, with quotes where they are needed."""
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
    """How far it has come."""

    brought_home: int
    dead_lettered: int
    depth: int | None
    """How many messages lie in the backlog; ``None`` if nobody may know."""


class Teller(Protocol):
    """Takes what there is to say."""

    def tell(self, line: Line) -> None: ...

    def show(self, progress: Progress) -> None:
        """For those who look at it all the time."""

    def rest(self) -> None:
        """Show nothing any more, and leave the terminal as it was. There may be lines to tell all the same."""


class LineTeller:
    """Writes lines for programs, and for people who read logs."""

    def __init__(self, *, as_json: bool, file: TextIO | None = None) -> None:
        self._as_json = as_json
        self._file = file

    def tell(self, line: Line) -> None:
        now = datetime.now(UTC)
        text = line.as_json(now) if self._as_json else line.as_pairs(now)
        print(text, file=self._file or sys.stdout, flush=True)

    def show(self, progress: Progress) -> None:
        """Its lines say it."""

    def rest(self) -> None:
        """It shows nothing anyway."""


class _LogHandler(logging.Handler):
    """Makes lines of what is logged."""

    def __init__(self, teller: Teller) -> None:
        super().__init__()
        self._teller = teller

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        facts = {"level": record.levelname.lower(), "logger": record.name, "message": text}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            facts["error"] = f"{type(error).__name__}: {error}"
        self._teller.tell(Line(event="log", text=text, facts=facts, is_warning=record.levelno >= logging.WARNING))


@contextmanager
def told_logs(teller: Teller) -> Iterator[None]:
    """Have what is logged told, as far as it says how the job is doing."""
    handler = _LogHandler(teller)
    ours = logging.getLogger("pairbus")
    before = {name: logging.getLogger(name).level for name in _LEVELS}
    for name, level in _LEVELS.items():
        logging.getLogger(name).setLevel(level)
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
