"""The patterns of ``LIKE``: ``%`` is any run of characters, ``_`` any one, and an escape makes them ordinary."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Final, TypeAlias

from pairbus.broker.values import Value

MAX_PATTERN: Final = 1_024
"""So many characters a pattern may have, as many as the text of a filter: a pattern may come out of a message."""

_RUN: Final = "%"
_ONE: Final = "_"
_ANY: Final = "."
"""The regular expression for any one character; that of a dot is escaped."""

# Measured: a unit takes about a nanosecond.
_SEARCH_UNITS: Final = 2
_COMPILE_UNITS: Final = 10_000
_COMPILE_CHARACTER_UNITS: Final = 400
_COMPILE_ANY_UNITS: Final = 6_000

Spend: TypeAlias = Callable[[int], object]
"""Counts units of work, and raises an error once there are too many; one is about a character that is looked at."""

Segment: TypeAlias = list[str]
"""What stands between two runs: one regular expression for each character."""


class PatternError(ValueError):
    """A pattern or its escape cannot be read."""


class _Search:
    """The search for a segment that has a run on either side.

    The ``re`` module finds a plain text in linear time, whatever the text; ``str.find`` does not, if the text has less
    than 30,000 characters. With ``_`` between other characters it takes at worst the characters of the text times those
    of the segment. That much is counted, unless the text does not even have the longest piece without ``_``.
    """

    __slots__ = ("_after", "_anchor", "_before", "_find", "_find_anchor", "_length")

    def __init__(self, segment: Segment) -> None:
        core = list(segment)
        self._before = self._after = 0
        while core and core[0] == _ANY:
            del core[0]
            self._before += 1
        while core and core[-1] == _ANY:
            del core[-1]
            self._after += 1
        self._length = len(core)
        self._find = _compiled(core).search
        self._anchor = 0
        self._find_anchor: Callable[[str, int, int], re.Match[str] | None] | None = None
        if _ANY in core:
            self._anchor, piece = _longest_piece(core)
            self._find_anchor = _compiled(piece).search

    def end(self, text: str, start: int, end: int, spend: Spend) -> int:
        """Return where the first such segment between two positions ends, or -1."""
        start, end = start + self._before, end - self._after
        if self._find_anchor is not None:
            anchor = self._find_anchor(text, start + self._anchor, end)
            if anchor is None:
                return -1
            start = anchor.start() - self._anchor
            spend((end - start) * self._length)
        found = self._find(text, start, end)
        return -1 if found is None else found.end() + self._after


class Pattern:
    """A pattern, compiled. Each segment is searched for once, from the end of the one before it."""

    __slots__ = ("_head", "_head_length", "_middle", "_shortest", "_tail", "_tail_length")

    def __init__(self, segments: list[Segment]) -> None:
        head, *middle = segments
        tail = middle.pop() if middle else None
        self._head, self._head_length = _compiled(head).match, len(head)
        self._tail = None if tail is None else _compiled(tail).match
        self._tail_length = 0 if tail is None else len(tail)
        self._middle = tuple(_Search(segment) for segment in middle if segment)
        self._shortest = sum(map(len, segments))

    def matches(self, text: str, spend: Spend) -> bool:
        """Return whether the pattern matches the whole text."""
        length = len(text)
        if length < self._shortest or self._head(text) is None:
            return False
        if self._tail is None:
            return length == self._shortest
        end = length - self._tail_length
        if self._tail(text, end) is None:
            return False
        if self._middle:
            spend(length * _SEARCH_UNITS)
        position = self._head_length
        for search in self._middle:
            position = search.end(text, position, end, spend)
            if position < 0:
                return False
        return True


def compile_pattern(pattern: str, escape: str | None) -> Pattern:
    """Compile a pattern, or raise ``PatternError``."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"the pattern of LIKE has more than {MAX_PATTERN} characters")
    segments: list[Segment] = [[]]
    for element in _elements(pattern, escape):
        if element is None:
            segments.append([])
        else:
            segments[-1].append(element)
    return Pattern(segments)


def compile_units(pattern: str) -> int:
    """Return the most that compiling a pattern costs, for those that are compiled for each message."""
    runs, ones = pattern.count(_RUN), pattern.count(_ONE)
    return (1 + runs) * _COMPILE_UNITS + ones * _COMPILE_ANY_UNITS + len(pattern) * _COMPILE_CHARACTER_UNITS


def check_escape(escape: Value) -> str:
    """Refuse an escape that is not one character."""
    if not isinstance(escape, str) or len(escape) != 1:
        raise PatternError(f"expected a string of one character after ESCAPE, found {escape!r}")
    return escape


def _elements(pattern: str, escape: str | None) -> Iterator[str | None]:
    """Split a pattern: ``None`` for a run, a regular expression for anything that is one character."""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            yield re.escape(_escaped(next(characters, None), escape))
        elif character == _RUN:
            yield None
        else:
            yield _ANY if character == _ONE else re.escape(character)


def _escaped(character: str | None, escape: str) -> str:
    if character is None:
        raise PatternError(f"the pattern of LIKE ends with its escape {escape!r}")
    if character not in {_RUN, _ONE, escape}:
        raise PatternError(f"the escape {escape!r} stands before {character!r}; expected %, _ or the escape itself")
    return character


def _compiled(segment: Segment) -> re.Pattern[str]:
    return re.compile("".join(segment), re.DOTALL)


def _longest_piece(segment: Segment) -> tuple[int, Segment]:
    """Return the longest part without ``_``, and its offset."""
    pieces = [list(piece) for is_any, piece in groupby(enumerate(segment), lambda one: one[1] == _ANY) if not is_any]
    longest = max(pieces, key=len)
    return longest[0][0], [character for _, character in longest]
