"""The functions that evaluate expressions, each composed of those that evaluate its operands.

A function takes the message and returns a value; ``None`` is both null and unknown. A condition returns ``True``,
``False`` or ``None``. Where a condition is expected, only ``True`` is true and only ``False`` is false: any other value
is unknown. Operands are evaluated from left to right, and evaluation stops once the result is certain: after a false
operand of ``AND``, a true one of ``OR``, an unknown left side of ``IN`` or an item that equals it.

Work whose cost depends on the message is counted with ``Subject.spend``. All other work is bounded by the length of the
expression, and is not counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from pairbus.broker.descriptions import Value
from pairbus.broker.sql.operators import (
    COMPARE,
    COMPARISONS,
    KINDS,
    Operator,
    Pattern,
    PatternError,
    Ternary,
    check_escape,
    comparable,
    compile_pattern,
    compile_units,
    signed,
)
from pairbus.broker.sql.syntax import EvaluationError


class Missing(Enum):
    """The type of ``MISSING``."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing.MISSING
"""Returned if a message has no such user property; a property that is present without a value holds ``None``."""


class Subject(Protocol):
    """A message as seen by a filter or an action."""

    def user(self, name: str) -> Value | Missing:
        """Return the user property of that name, as the expression spells it; names compare without regard to case."""

    def system(self, name: str) -> Value:
        """Return the system property of that canonical name, such as ``MessageId``; ``None`` if it is not set."""

    def spend(self, units: int) -> object:
        """Count work whose cost depends on the message; raises an error once it is too much.

        A unit is about a nanosecond in plain Python: as long as it takes to look at one character of a text.
        """


def fold_name(name: str) -> str:
    """Return the form that spellings of a user property's name share if they differ only in case."""
    return name.lower()


Evaluate: TypeAlias = Callable[[Subject], Value]
EvaluateCondition: TypeAlias = Callable[[Subject], Ternary]
Fail: TypeAlias = Callable[[str], EvaluationError]
"""Creates the error that says why an operator has no result, and where the operator is."""
ChainLink: TypeAlias = tuple[Operator, Evaluate, Fail]

_EQUAL: Final = COMPARISONS["="]

LONG_TEXT: Final = 1_024
"""Operations on shorter texts cost no more than those on numbers, unless they look at each character."""

_COPIED_AT_ONCE: Final = 16
"""Number of characters compared, or copied, in the time that it takes to look at one."""


# Values.


def constant(value: Value) -> Evaluate:
    return lambda _: value


def user_property(name: str) -> Evaluate:
    def evaluate(subject: Subject) -> Value:
        value = subject.user(name)
        return None if value is MISSING else value

    return evaluate


def system_property(name: str) -> Evaluate:
    return lambda subject: subject.system(name)


def computed_property(name: Evaluate) -> Evaluate:
    def evaluate(subject: Subject) -> Value:
        text = name(subject)
        if not isinstance(text, str):
            return None
        subject.spend(len(text))
        value = subject.user(text)
        return None if value is MISSING else value

    return evaluate


def new_id(fresh_id: Callable[[], UUID]) -> Evaluate:
    return lambda _: fresh_id()


def failure(reason: str, fail: Fail) -> Evaluate:
    def evaluate(_: Subject) -> Value:
        raise fail(reason)

    return evaluate


def sign(symbol: str, operand: Evaluate, fail: Fail) -> Evaluate:
    def evaluate(subject: Subject) -> Value:
        value = operand(subject)
        try:
            return signed(symbol, value)
        except ArithmeticError as error:
            raise fail(str(error)) from error

    return evaluate


def chain(first: Evaluate, steps: tuple[ChainLink, ...]) -> Evaluate:
    def evaluate(subject: Subject) -> Value:
        value = first(subject)
        for operate, operand, fail in steps:
            other = operand(subject)
            try:
                value = operate(value, other)
            except ArithmeticError as error:
                raise fail(str(error)) from error
            if isinstance(value, str):
                _spend_on(value, subject)
        return value

    return evaluate


# Conditions.


def comparison(left: Evaluate, symbol: str, right: Evaluate) -> EvaluateCondition:
    compare = COMPARISONS[symbol]

    def evaluate(subject: Subject) -> Ternary:
        value, other = left(subject), right(subject)
        _spend_on(value, subject)
        return compare(value, other)

    return evaluate


def comparison_with(left: Evaluate, symbol: str, right: Value) -> EvaluateCondition:
    """Compare with a constant: a value of exactly its type is compared directly."""
    cls, quick, compare = type(right), COMPARE[symbol], COMPARISONS[symbol]
    if not comparable(symbol, KINDS[cls]) or _is_long(right):
        return comparison(left, symbol, constant(right))

    def evaluate(subject: Subject) -> Ternary:
        value = left(subject)
        return quick(value, right) if type(value) is cls else compare(value, right)

    return evaluate


def property_comparison(name: str, symbol: str, right: Value) -> EvaluateCondition:
    """Compare a user property with a constant: most filters consist of nothing else."""
    cls, quick, compare = type(right), COMPARE[symbol], COMPARISONS[symbol]
    if not comparable(symbol, KINDS[cls]) or _is_long(right):
        return comparison(user_property(name), symbol, constant(right))

    def evaluate(subject: Subject) -> Ternary:
        value = subject.user(name)
        if type(value) is cls:
            return quick(value, right)
        return None if value is MISSING else compare(value, right)

    return evaluate


def is_null(read: Evaluate) -> EvaluateCondition:
    return lambda subject: read(subject) is None


def user_exists(name: str) -> EvaluateCondition:
    return lambda subject: subject.user(name) is not MISSING


def system_exists(read: Evaluate) -> EvaluateCondition:
    """Return true if a system property of that name exists: reading it raises an error otherwise."""

    def evaluate(subject: Subject) -> Ternary:
        read(subject)
        return True

    return evaluate


def membership(left: Evaluate, items: tuple[Evaluate, ...]) -> EvaluateCondition:
    def evaluate(subject: Subject) -> Ternary:
        value = left(subject)
        if value is None:
            return None
        result: Ternary = False
        for item in items:
            _spend_on(value, subject)
            equal = _EQUAL(value, item(subject))
            if equal:
                return True
            if equal is None:
                result = None
        return result

    return evaluate


def membership_of_texts(left: Evaluate, texts: frozenset[str]) -> EvaluateCondition:
    """Test for membership where all items are literal texts."""
    longest = max(map(len, texts))

    def evaluate(subject: Subject) -> Ternary:
        value = left(subject)
        if not isinstance(value, str):
            return None
        return len(value) <= longest and value in texts  # a longer text need not be hashed

    return evaluate


def like(left: Evaluate, pattern: Pattern) -> EvaluateCondition:
    matches = pattern.matches

    def evaluate(subject: Subject) -> Ternary:
        text = left(subject)
        return matches(text, subject.spend) if isinstance(text, str) else None

    return evaluate


def like_computed(left: Evaluate, pattern: Evaluate, escape: Evaluate | None, fail: Fail) -> EvaluateCondition:
    def evaluate(subject: Subject) -> Ternary:
        text, pattern_text = left(subject), pattern(subject)
        escape_text = escape(subject) if escape else ""
        if not isinstance(text, str) or not isinstance(pattern_text, str) or escape_text is None:
            return None
        subject.spend(compile_units(pattern_text))
        try:
            compiled = compile_pattern(pattern_text, check_escape(escape_text) if escape else None)
        except PatternError as error:
            raise fail(str(error)) from error
        return compiled.matches(text, subject.spend)

    return evaluate


def negation(operand: Evaluate) -> EvaluateCondition:
    def evaluate(subject: Subject) -> Ternary:
        value = operand(subject)
        return not value if value is True or value is False else None

    return evaluate


def conjunction(operands: tuple[Evaluate, ...]) -> EvaluateCondition:
    def evaluate(subject: Subject) -> Ternary:
        result: Ternary = True
        for operand in operands:
            value = operand(subject)
            if value is False:
                return False
            if value is not True:
                result = None
        return result

    return evaluate


def disjunction(operands: tuple[Evaluate, ...]) -> EvaluateCondition:
    def evaluate(subject: Subject) -> Ternary:
        result: Ternary = False
        for operand in operands:
            value = operand(subject)
            if value is True:
                return True
            if value is not False:
                result = None
        return result

    return evaluate


# Work.


def _is_long(value: Value) -> bool:
    return isinstance(value, str | bytes) and len(value) > LONG_TEXT


def _spend_on(value: Value, subject: Subject) -> None:
    """Count a comparison with a value, or a copy of it."""
    if isinstance(value, str | bytes) and len(value) > LONG_TEXT:
        subject.spend(len(value) // _COPIED_AT_ONCE)
