"""What the operators make of values.

Null and unknown are one thing here, ``None``: no operator tells a property that is missing from one that holds null.
Operands that do not go together give ``None``, too. What has no result raises an ``ArithmeticError``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeAlias
from uuid import UUID

from pairbus.broker.values import Instant, Span, Value

_LOWEST: Final = -(2**63)
_HIGHEST: Final = 2**63 - 1

MAX_TEXT: Final = 65_536
"""So many characters a text may have that was put together; all properties of a message have as many bytes at most."""

Operator: TypeAlias = Callable[[Any, Any], Value]
Verdict: TypeAlias = bool | None


class Kind(IntEnum):
    """Which values an operator treats alike."""

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


# The first row that fits counts: instants, spans and booleans are integers for Python.
_CLASSES: Final[tuple[tuple[type, Kind], ...]] = (
    (type(None), Kind.NULL),
    (bool, Kind.BOOLEAN),
    (Instant, Kind.INSTANT),
    (Span, Kind.SPAN),
    (int, Kind.INTEGER),
    (float, Kind.REAL),
    (str, Kind.TEXT),
    (UUID, Kind.ID),
    (bytes, Kind.BINARY),
)


class _Kinds(dict[type, Kind]):
    """The kind of the values of each class; that of a class not seen before is found out."""

    def __missing__(self, cls: type) -> Kind:
        self[cls] = next((kind for parent, kind in _CLASSES if issubclass(cls, parent)), Kind.OTHER)
        return self[cls]


KINDS: Final = _Kinds()


# Arithmetic, with the promotions of C#.


def fits(number: int) -> bool:
    """Whether an integer is one of 64 bits."""
    return _LOWEST <= number <= _HIGHEST


def _bounded(number: int) -> int:
    if not fits(number):
        raise OverflowError("the result does not fit into 64 bits")
    return number


def _quotient(left: int, right: int) -> int:
    """Divide towards zero."""
    if right == 0:
        raise ZeroDivisionError("an integer is divided by zero")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: int, right: int) -> int:
    """What the division towards zero leaves; it has the sign of the dividend."""
    if right == 0:
        raise ZeroDivisionError("an integer is divided by zero")
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


def _divide_real(left: float, right: float) -> float:
    """Divide as IEEE 754 has it."""
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


def _integers(operate: Callable[[int, int], int]) -> dict[tuple[Kind, Kind], Operator]:
    return {(Kind.INTEGER, Kind.INTEGER): lambda left, right: _bounded(operate(int(left), int(right)))}


def _reals(operate: Callable[[float, float], float]) -> dict[tuple[Kind, Kind], Operator]:
    """One operand is a real number, so both are taken for real numbers."""

    def promoted(left: Any, right: Any) -> float:
        return operate(float(left), float(right))

    return dict.fromkeys([(Kind.REAL, Kind.REAL), (Kind.INTEGER, Kind.REAL), (Kind.REAL, Kind.INTEGER)], promoted)


def _times(operate: Callable[[int, int], int], result: type[Instant | Span]) -> Operator:
    return lambda left, right: result(_bounded(operate(int(left), int(right))))


_RESULTS: Final[dict[str, dict[tuple[Kind, Kind], Operator]]] = {
    "+": {
        **_integers(operator.add),
        **_reals(operator.add),
        (Kind.TEXT, Kind.TEXT): _concatenate,
        (Kind.INSTANT, Kind.SPAN): _times(operator.add, Instant),
        (Kind.SPAN, Kind.SPAN): _times(operator.add, Span),
    },
    "-": {
        **_integers(operator.sub),
        **_reals(operator.sub),
        (Kind.INSTANT, Kind.INSTANT): _times(operator.sub, Span),
        (Kind.INSTANT, Kind.SPAN): _times(operator.sub, Instant),
        (Kind.SPAN, Kind.SPAN): _times(operator.sub, Span),
    },
    "*": {**_integers(operator.mul), **_reals(operator.mul)},
    "/": {**_integers(_quotient), **_reals(_divide_real)},
    "%": {**_integers(_remainder), **_reals(_remainder_real)},
}


def _arithmetic(results: dict[tuple[Kind, Kind], Operator]) -> Operator:
    def operate(left: Value, right: Value) -> Value:
        rule = results.get((KINDS[type(left)], KINDS[type(right)]))
        return None if rule is None else rule(left, right)

    return operate


ARITHMETIC: Final = {symbol: _arithmetic(results) for symbol, results in _RESULTS.items()}

_SIGNED: Final[dict[tuple[str, Kind], Callable[[Any], Value]]] = {
    ("+", Kind.INTEGER): int,
    ("+", Kind.REAL): float,
    ("+", Kind.SPAN): Span,
    ("-", Kind.INTEGER): lambda value: _bounded(-int(value)),
    ("-", Kind.REAL): lambda value: -float(value),
    ("-", Kind.SPAN): lambda value: Span(_bounded(-int(value))),
}


def signed(sign: str, value: Value) -> Value:
    """The value with a sign before it."""
    rule = _SIGNED.get((sign, KINDS[type(value)]))
    return None if rule is None else rule(value)


# Comparison.

_NUMBERS: Final = frozenset((Kind.INTEGER, Kind.REAL))
_ORDERED: Final = frozenset((Kind.INTEGER, Kind.REAL, Kind.TEXT, Kind.INSTANT, Kind.SPAN))
_EQUATED: Final = _ORDERED | {Kind.BOOLEAN, Kind.ID, Kind.BINARY}

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
"""How values of one kind compare."""


def comparable(symbol: str, kind: Kind) -> bool:
    """Whether values of one kind can be compared so."""
    return kind in (_EQUATED if COMPARE[symbol] in {operator.eq, operator.ne} else _ORDERED)


def _comparison(symbol: str) -> Callable[[Value, Value], Verdict]:
    compare = COMPARE[symbol]
    kinds = frozenset(kind for kind in Kind if comparable(symbol, kind))

    def verdict(left: Any, right: Any) -> Verdict:
        kind, other = KINDS[type(left)], KINDS[type(right)]
        if kind is other:
            return compare(left, right) if kind in kinds else None
        if kind in _NUMBERS and other in _NUMBERS:
            return compare(float(left), float(right))
        return None

    return verdict


COMPARISONS: Final = {symbol: _comparison(symbol) for symbol in COMPARE}
"""How any two values compare."""
