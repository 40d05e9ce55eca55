"""Operators, conversions and LIKE patterns of SQL filters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import groupby
from typing import Any, Final, TypeAlias
from uuid import UUID

from pairbus.broker.descriptions import Instant, Span, Value

# Operators on values.
#
# Null and unknown are both ``None`` here: no operator distinguishes a missing property from one that holds null.
# Operands of incompatible types give ``None``, too. An operation without a result raises an ``ArithmeticError``.

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

MAX_TEXT: Final = 65_536
"""Most characters of a concatenated text; all properties of a message together have at most as many bytes."""

Operator: TypeAlias = Callable[[Any, Any], Value]
Ternary: TypeAlias = bool | None


class ValueKind(IntEnum):
    """A class of values that operators treat alike."""

    NULL = 0
    BOOLEAN = 1
    INTEGER = 2
    REAL = 3
    TEXT = 4
    INSTANT = 5
    SPAN = 6
    ID = 7
    BINARY = 8
    OTHER = 9


# The first row that fits counts: instants, spans and booleans are integers in Python.
_CLASSES: Final[tuple[tuple[type, ValueKind], ...]] = (
    (type(None), ValueKind.NULL),
    (bool, ValueKind.BOOLEAN),
    (Instant, ValueKind.INSTANT),
    (Span, ValueKind.SPAN),
    (int, ValueKind.INTEGER),
    (float, ValueKind.REAL),
    (str, ValueKind.TEXT),
    (UUID, ValueKind.ID),
    (bytes, ValueKind.BINARY),
)


class _Kinds(dict[type, ValueKind]):
    """The value kind of each Python class; a class not seen before is looked up and cached."""

    def __missing__(self, cls: type) -> ValueKind:
        self[cls] = next((kind for parent, kind in _CLASSES if issubclass(cls, parent)), ValueKind.OTHER)
        return self[cls]


KINDS: Final = _Kinds()


# Arithmetic, with the promotions of C#.


def fits(number: int) -> bool:
    """Return whether an integer fits into 64 bits."""
    return _LOWEST <= number <= _HIGHEST


def _bounded(number: int) -> int:
    if not fits(number):
        raise OverflowError("the result does not fit into 64 bits")
    return number


def _quotient(left: int, right: int) -> int:
    """Divide towards zero."""
    if right == 0:
        raise ZeroDivisionError("integer division by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    """Return the remainder of division towards zero; it has the sign of the dividend."""
    if right == 0:
        raise ZeroDivisionError("integer division by zero")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_real(left: float, right: float) -> float:
    """Divide according to IEEE 754."""
    if right:
        return left / right
    if math.isnan(left) or left == 0:
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _remainder_real(left: float, right: float) -> float:
    if right == 0 or math.isinf(left):
        return math.nan
    return math.fmod(left, right)


def _concatenate(left: str, right: str) -> str:
    if len(left) + len(right) > MAX_TEXT:
        raise OverflowError(f"the text has more than {MAX_TEXT} characters")
    return left + right


def _integers(operate: Callable[[int, int], int]) -> dict[tuple[ValueKind, ValueKind], Operator]:
    return {(ValueKind.INTEGER, ValueKind.INTEGER): lambda left, right: _bounded(operate(int(left), int(right)))}


def _reals(operate: Callable[[float, float], float]) -> dict[tuple[ValueKind, ValueKind], Operator]:
    """Return the operators for a real number with another number: both operands are treated as real numbers."""

    def promoted(left: Any, right: Any) -> float:
        return operate(float(left), float(right))

    return dict.fromkeys(
        [(ValueKind.REAL, ValueKind.REAL), (ValueKind.INTEGER, ValueKind.REAL), (ValueKind.REAL, ValueKind.INTEGER)],
        promoted,
    )


def _times(operate: Callable[[int, int], int], result: type[Instant | Span]) -> Operator:
    return lambda left, right: result(_bounded(operate(int(left), int(right))))


_RESULTS: Final[dict[str, dict[tuple[ValueKind, ValueKind], Operator]]] = {
    "+": {
        **_integers(operator.add),
        **_reals(operator.add),
        (ValueKind.TEXT, ValueKind.TEXT): _concatenate,
        (ValueKind.INSTANT, ValueKind.SPAN): _times(operator.add, Instant),
        (ValueKind.SPAN, ValueKind.SPAN): _times(operator.add, Span),
    },
    "-": {
        **_integers(operator.sub),
        **_reals(operator.sub),
        (ValueKind.INSTANT, ValueKind.INSTANT): _times(operator.sub, Span),
        (ValueKind.INSTANT, ValueKind.SPAN): _times(operator.sub, Instant),
        (ValueKind.SPAN, ValueKind.SPAN): _times(operator.sub, Span),
    },
    "*": {**_integers(operator.mul), **_reals(operator.mul)},
    "/": {**_integers(_quotient), **_reals(_divide_real)},
    "%": {**_integers(_remainder), **_reals(_remainder_real)},
}


def _arithmetic(results: dict[tuple[ValueKind, ValueKind], Operator]) -> Operator:
    def operate(left: Value, right: Value) -> Value:
        rule = results.get((KINDS[type(left)], KINDS[type(right)]))
        return None if rule is None else rule(left, right)

    return operate


ARITHMETIC: Final = {symbol: _arithmetic(results) for symbol, results in _RESULTS.items()}

_SIGNED: Final[dict[tuple[str, ValueKind], Callable[[Any], Value]]] = {
    ("+", ValueKind.INTEGER): int,
    ("+", ValueKind.REAL): float,
    ("+", ValueKind.SPAN): Span,
    ("-", ValueKind.INTEGER): lambda value: _bounded(-int(value)),
    ("-", ValueKind.REAL): lambda value: -float(value),
    ("-", ValueKind.SPAN): lambda value: Span(_bounded(-int(value))),
}


def signed(sign: str, value: Value) -> Value:
    """Return the value with a sign applied."""
    rule = _SIGNED.get((sign, KINDS[type(value)]))
    return None if rule is None else rule(value)


# Comparison.

_NUMBERS: Final = frozenset((ValueKind.INTEGER, ValueKind.REAL))
_ORDERED: Final = frozenset((ValueKind.INTEGER, ValueKind.REAL, ValueKind.TEXT, ValueKind.INSTANT, ValueKind.SPAN))
_EQUATED: Final = _ORDERED | {ValueKind.BOOLEAN, ValueKind.ID, ValueKind.BINARY}

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""Comparisons of values of one kind."""


def comparable(symbol: str, kind: ValueKind) -> bool:
    """Return whether values of one kind can be compared with that operator."""
    return kind in (_EQUATED if COMPARE[symbol] in {operator.eq, operator.ne} else _ORDERED)


def _comparison(symbol: str) -> Callable[[Value, Value], Ternary]:
    compare = COMPARE[symbol]
    kinds = frozenset(kind for kind in ValueKind if comparable(symbol, kind))

    def compare_values(left: Any, right: Any) -> Ternary:
        kind, other = KINDS[type(left)], KINDS[type(right)]
        if kind is other:
            return compare(left, right) if kind in kinds else None
        if kind in _NUMBERS and other in _NUMBERS:
            return compare(float(left), float(right))
        return None

    return compare_values


COMPARISONS: Final = {symbol: _comparison(symbol) for symbol in COMPARE}
"""Comparisons of any two values."""


# Conversions to the types that properties of a message already have.
#
# They are lossless: a text becomes a number only if the number, written out, is that text again.

_TRUTHS: Final = {"true": True, "false": False}


def convert(value: Value, kind: ValueKind) -> Value:
    """Return the value converted to that kind, or ``None`` if it has no counterpart there."""
    if KINDS[type(value)] is kind:
        return value
    rule = _RULES.get((KINDS[type(value)], kind))
    return None if rule is None else rule(value)


def _real_to_integer(value: float) -> int | None:
    return int(value) if value.is_integer() and fits(int(value)) else None


def _integer_to_real(value: int) -> float | None:
    return float(value) if int(float(value)) == value else None


def _text_to_integer(text: str) -> int | None:
    number = _read(int, text)
    return number if number is not None and str(number) == text and fits(number) else None


def _text_to_real(text: str) -> float | None:
    number = _read(float, text)
    if number is None or not math.isfinite(number):
        return None
    return number if text in {repr(number), repr(number).removesuffix(".0")} else None


def _real_to_text(value: float) -> str | None:
    return repr(float(value)) if math.isfinite(value) else None


def _text_to_id(text: str) -> UUID | None:
    identifier = _read(UUID, text)
    return identifier if identifier is not None and str(identifier) == text.lower() else None


def _read(make: Callable[[str], Any], text: str) -> Any:
    """Return the text parsed by the class, or ``None``."""
    try:
        return make(text)
    except ValueError:
        return None


_RULES: Final[dict[tuple[ValueKind, ValueKind], Callable[[Any], Value]]] = {
    (ValueKind.REAL, ValueKind.INTEGER): _real_to_integer,
    (ValueKind.TEXT, ValueKind.INTEGER): _text_to_integer,
    (ValueKind.INTEGER, ValueKind.REAL): _integer_to_real,
    (ValueKind.TEXT, ValueKind.REAL): _text_to_real,
    (ValueKind.INTEGER, ValueKind.TEXT): lambda value: str(int(value)),
    (ValueKind.REAL, ValueKind.TEXT): _real_to_text,
    (ValueKind.BOOLEAN, ValueKind.TEXT): lambda value: str(value).lower(),
    (ValueKind.ID, ValueKind.TEXT): str,
    (ValueKind.TEXT, ValueKind.BOOLEAN): lambda text: _TRUTHS.get(text.lower()),
    (ValueKind.TEXT, ValueKind.ID): _text_to_id,
}


MAX_PATTERN: Final = 1_024
"""Most characters of a pattern, as many as of a filter's text: a pattern may come from a message."""

_RUN: Final = "%"
_ONE: Final = "_"
_ANY: Final = "."
"""The regular expression for any one character; a literal dot is escaped."""

# Measured: a unit takes about a nanosecond.
_SEARCH_UNITS: Final = 2
_COMPILE_UNITS: Final = 10_000
_COMPILE_CHARACTER_UNITS: Final = 400
_COMPILE_ANY_UNITS: Final = 6_000

Spend: TypeAlias = Callable[[int], object]
"""Counts units of work, and raises an error once there are too many; one unit is about one character examined."""

LikeSegment: TypeAlias = list[str]
"""The part between two runs: one regular expression for each character."""


class PatternError(ValueError):
    """A pattern or its escape is invalid."""


class _Search:
    """The search for a segment that has a run on either side.

    The ``re`` module finds a plain text in linear time for every text; ``str.find`` does not, if the text has less than
    30,000 characters. With ``_`` between other characters the worst case is the length of the text times that of the
    segment. That much is counted, unless the text does not even contain the longest piece without ``_``.
    """

    __slots__ = ("_after", "_anchor", "_before", "_find", "_find_anchor", "_length")

    def __init__(self, segment: LikeSegment) -> None:
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
        """Return the end of the first such segment between two positions, or -1."""
        start, end = start + self._before, end - self._after
        if start > end:  # ``re`` clamps a start beyond the text, and would match an empty segment there
            return -1
        if self._find_anchor is not None:
            anchor = self._find_anchor(text, start + self._anchor, end)
            if anchor is None:
                return -1
            start = anchor.start() - self._anchor
            spend((end - start) * self._length)
        found = self._find(text, start, end)
        return -1 if found is None else found.end() + self._after


class Pattern:
    """A compiled pattern. Each segment is searched for once, from the end of the one before it."""

    __slots__ = ("_head", "_head_length", "_middle", "_shortest", "_tail", "_tail_length")

    def __init__(self, segments: list[LikeSegment]) -> None:
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
    """Compile a pattern; raises ``PatternError``."""
    if len(pattern) > MAX_PATTERN:
        raise PatternError(f"the pattern of LIKE has more than {MAX_PATTERN} characters")
    segments: list[LikeSegment] = [[]]
    for element in _elements(pattern, escape):
        if element is None:
            segments.append([])
        else:
            segments[-1].append(element)
    return Pattern(segments)


def compile_units(pattern: str) -> int:
    """Return the most units that compiling a pattern costs, for patterns that are compiled for each message."""
    runs, ones = pattern.count(_RUN), pattern.count(_ONE)
    return (1 + runs) * _COMPILE_UNITS + ones * _COMPILE_ANY_UNITS + len(pattern) * _COMPILE_CHARACTER_UNITS


def check_escape(escape: Value) -> str:
    """Return the escape; raise ``PatternError`` if it is not one character."""
    if not isinstance(escape, str) or len(escape) != 1:
        raise PatternError(f"expected a string of one character after ESCAPE, found {escape!r}")
    return escape


def _elements(pattern: str, escape: str | None) -> Iterator[str | None]:
    """Split a pattern: ``None`` for a run, a regular expression for each single character."""
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
        raise PatternError(f"the escape {escape!r} is before {character!r}; expected %, _ or the escape itself")
    return character


def _compiled(segment: LikeSegment) -> re.Pattern[str]:
    return re.compile("".join(segment), re.DOTALL)


def _longest_piece(segment: LikeSegment) -> tuple[int, LikeSegment]:
    """Return the longest part without ``_``, and its offset."""
    pieces = [list(piece) for is_any, piece in groupby(enumerate(segment), lambda one: one[1] == _ANY) if not is_any]
    longest = max(pieces, key=len)
    return longest[0][0], [character for _, character in longest]
