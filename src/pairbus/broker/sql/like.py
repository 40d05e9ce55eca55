"""The patterns of ``LIKE``: ``%`` is any run of characters, ``_`` any one, and an escape makes them ordinary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pairbus.broker.values import Value

MAX_PATTERN: Final = 1_024
"""So many characters a pattern may have, as many as the text of a filter: a pattern may come out of a message."""

_RUN: Final = "%"
_ONE: Final = "_"


class PatternError(ValueError):
    """A pattern or its escape cannot be read."""


def compile_pattern(pattern: str, escape: str | None) -> re.Pattern[str]:
    """Make the regular expression that matches a whole text exactly if the text is like the pattern."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"the pattern of LIKE has more than {MAX_PATTERN} characters")
    head, *rest = _segments(pattern, escape)
    if not rest:
        return re.compile(head, re.DOTALL)
    *middle, tail = rest
    # A segment that has found its first place never has to look for another one, so it is atomic; without that, a
    # text that does not match would be tried in all ways of cutting it into pieces.
    return re.compile(head + "".join(f"(?>.*?{segment})" for segment in middle if segment) + f".*{tail}", re.DOTALL)


def check_escape(escape: Value) -> str:
    """Refuse an escape that is not one character."""
    if not isinstance(escape, str) or len(escape) != 1:
        raise PatternError(f"expected a string of one character after ESCAPE, found {escape!r}")
    return escape


def _segments(pattern: str, escape: str | None) -> list[str]:
    """What stands between the runs, as regular expressions that match a fixed number of characters."""
    segments = [""]
    for element in _elements(pattern, escape):
        if element is None:
            segments.append("")
        else:
            segments[-1] += element
    return segments


def _elements(pattern: str, escape: str | None) -> Iterator[str | None]:
    """The pattern piece by piece: nothing for a run, a regular expression for anything that is one character."""
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            yield re.escape(_escaped(next(characters, None), escape))
        elif character == _RUN:
            yield None
        else:
            yield "." if character == _ONE else re.escape(character)


def _escaped(character: str | None, escape: str) -> str:
    if character is None:
        raise PatternError(f"the pattern of LIKE ends with its escape {escape!r}")
    if character not in {_RUN, _ONE, escape}:
        raise PatternError(f"the escape {escape!r} stands before {character!r}; expected %, _ or the escape itself")
    return character
