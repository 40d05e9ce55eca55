"""What a capture has to remember, and how it changes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from pairbus.jobs.capture.catch import Catch
from pairbus.jobs.capture.errors import CaptureDamagedError
from pairbus.jobs.capture.limits import WindowLimits
from pairbus.jobs.capture.piece import Piece
from pairbus.jobs.capture.window import Window
from pairbus.spark.offset import Portion
from pairbus.spark.sequence_ranges import SequenceRanges

_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The windows whose files are not there yet, and which messages the last batch held.

    A batch is entered as a whole, with its pieces and its numbers at once. A batch that comes again, because Spark did
    not get to know that it was done, is known by its numbers. So each message is in one window, whatever Spark thinks.
    """

    source: str = ""
    """The namespace that the messages are of: others give their messages the same numbers. Empty for any."""

    taken: Mapping[str, Portion] = field(default_factory=dict)
    """What the last batch held, by entity in lower case."""

    windows: tuple[Window, ...] = ()
    """Those that are closed wait for their files."""

    @property
    def closed(self) -> tuple[Window, ...]:
        return tuple(window for window in self.windows if not window.is_open)

    @property
    def pieces(self) -> frozenset[str]:
        """The names of those that are needed."""
        return frozenset(piece.name for window in self.windows for piece in window.pieces)

    def entered(self, catches: Iterable[Catch], now_ms: int, limits: WindowLimits) -> Self:
        """With a batch; windows that become too large are closed."""
        ordered = sorted(catches, key=lambda catch: (catch.entity, catch.portion.numbers.ranges[0]))
        if not ordered:
            return self
        windows = [*self.windows]
        for catch in ordered:
            if catch.piece is not None:
                _add(windows, catch.entity, catch.piece, now_ms, limits)
        return replace(self, taken=_taken(ordered), windows=tuple(windows))

    def closed_when_due(self, now_ms: int, limits: WindowLimits) -> Self:
        return self._closed(now_ms, now_ms - limits.length_ms)

    def closed_all(self, now_ms: int) -> Self:
        return self._closed(now_ms, now_ms)

    def _closed(self, now_ms: int, opened_until_ms: int) -> Self:
        """Without those that were opened until some time; a clock that was set back leaves none open for longer."""
        windows = tuple(
            window.closed(now_ms)
            if window.is_open and (window.opened_ms <= opened_until_ms or window.opened_ms > now_ms)
            else window
            for window in self.windows
        )
        return replace(self, windows=windows)

    def without(self, done: Window) -> Self:
        """A window has its file."""
        return replace(self, windows=tuple(window for window in self.windows if window != done))

    def to_text(self) -> str:
        taken = {
            entity: {"numbers": str(portion.numbers), "until": portion.until_ms}
            for entity, portion in self.taken.items()
        }
        return json.dumps(
            {
                "version": _VERSION,
                "source": self.source,
                "taken": taken,
                "windows": [window.to_json() for window in self.windows],
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Raises ``CaptureDamagedError``."""
        try:
            value = json.loads(text)
            if value["version"] != _VERSION:
                raise CaptureDamagedError(f"it was written by another version of pairbus: {value['version']!r:.20}")
            return cls(
                source=str(value.get("source", "")),
                taken={str(entity): _portion(entry) for entity, entry in value["taken"].items()},
                windows=tuple(map(Window.from_json, value["windows"])),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CaptureDamagedError(f"it cannot be read: {type(error).__name__}: {error}") from error


def _add(windows: list[Window], entity: str, piece: Piece, now_ms: int, limits: WindowLimits) -> None:
    found = next((index for index, one in enumerate(windows) if one.is_open and one.holds(entity)), None)
    most = limits.size_bytes
    if found is not None and most is not None and windows[found].size_bytes + piece.size_bytes > most:
        windows[found] = windows[found].closed(now_ms)
        found = None
    if found is None:
        windows.append(Window(entity=entity, opened_ms=now_ms, pieces=(piece,)))
    else:
        windows[found] += piece


def _taken(catches: Iterable[Catch]) -> dict[str, Portion]:
    taken: dict[str, Portion] = {}
    for catch in catches:
        entity, portion = catch.entity.lower(), catch.portion
        before = taken.get(entity)
        if before is not None:
            until_ms = max(before.until_ms, portion.until_ms)
            portion = Portion(numbers=before.numbers | portion.numbers, until_ms=until_ms)
        taken[entity] = portion
    return taken


def _portion(entry: Mapping[str, Any]) -> Portion:
    return Portion(numbers=SequenceRanges.parse(entry["numbers"]), until_ms=int(entry["until"]))
