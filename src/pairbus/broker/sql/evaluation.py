"""The functions that evaluate expressions, each made of those that evaluate its parts.

A function takes the message and gives a value; ``None`` is both null and unknown. A condition gives ``True``, ``False``
or ``None``. Where a condition is wanted, only ``True`` is true and only ``False`` is false: any other value is unknown.
Operands are evaluated from left to right, and those that cannot change the result any more are not evaluated: what
follows a false operand of ``AND``, a true one of ``OR``, an unknown left side of ``IN`` or an item that is equal to it.

What a message makes expensive is counted with ``Subject.spend``. Anything else is bounded by the length of the
expression, and is no concern of this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

from pairbus.broker.sql.errors import EvaluationError
from pairbus.broker.sql.like import Pattern, PatternError, check_escape, compile_pattern, compile_units
from pairbus.broker.sql.operators import COMPARE, COMPARISONS, KINDS, Operator, Verdict, comparable, signed
from pairbus.broker.sql.subject import MISSING, Subject
from pairbus.broker.values import Value

Evaluate: TypeAlias = Callable[[Subject], Value]
Judge: TypeAlias = Callable[[Subject], Verdict]
Fail: TypeAlias = Callable[[str], EvaluationError]
"""Makes the error that says why an operator has no result, and where the operator stands."""
Link: TypeAlias = tuple[Operator, Evaluate, Fail]

_EQUAL: Final = COMPARISONS["="]

LONG_TEXT: Final = 1_024
"""What is done to a shorter text takes no longer than what is done to a number, unless each character is looked at."""

_COPIED_AT_ONCE: Final = 16
"""So many characters are compared, or copied, in the time that it takes to look at one."""


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


def chain(first: Evaluate, steps: tuple[Link, ...]) -> Evaluate:
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


def comparison(left: Evaluate, symbol: str, right: Evaluate) -> Judge:
    compare = COMPARISONS[symbol]

    def judge(subject: Subject) -> Verdict:
        value, other = left(subject), right(subject)
        _spend_on(value, subject)
        return compare(value, other)

    return judge


def comparison_with(left: Evaluate, symbol: str, right: Value) -> Judge:
    """Compare with a constant: a value of its very class needs no further look at either of them."""
    cls, quick, compare = type(right), COMPARE[symbol], COMPARISONS[symbol]
    if not comparable(symbol, KINDS[cls]) or _is_long(right):
        return comparison(left, symbol, constant(right))

    def judge(subject: Subject) -> Verdict:
        value = left(subject)
        return quick(value, right) if type(value) is cls else compare(value, right)

    return judge


def is_null(read: Evaluate) -> Judge:
    return lambda subject: read(subject) is None


def user_exists(name: str) -> Judge:
    return lambda subject: subject.user(name) is not MISSING


def system_exists(read: Evaluate) -> Judge:
    """A system property is always there, if there is one of that name; reading it shows that."""

    def judge(subject: Subject) -> Verdict:
        read(subject)
        return True

    return judge


def membership(left: Evaluate, items: tuple[Evaluate, ...]) -> Judge:
    def judge(subject: Subject) -> Verdict:
        value = left(subject)
        if value is None:
            return None
        verdict: Verdict = False
        for item in items:
            _spend_on(value, subject)
            equal = _EQUAL(value, item(subject))
            if equal:
                return True
            if equal is None:
                verdict = None
        return verdict

    return judge


def membership_of_texts(left: Evaluate, texts: frozenset[str]) -> Judge:
    """The same where all items are constant texts."""
    longest = max(map(len, texts))

    def judge(subject: Subject) -> Verdict:
        value = left(subject)
        if not isinstance(value, str):
            return None
        return len(value) <= longest and value in texts  # a longer text need not be hashed

    return judge


def like(left: Evaluate, pattern: Pattern) -> Judge:
    matches = pattern.matches

    def judge(subject: Subject) -> Verdict:
        text = left(subject)
        return matches(text, subject.spend) if isinstance(text, str) else None

    return judge


def like_computed(left: Evaluate, pattern: Evaluate, escape: Evaluate | None, fail: Fail) -> Judge:
    def judge(subject: Subject) -> Verdict:
        text, form = left(subject), pattern(subject)
        mark = escape(subject) if escape else ""
        if not isinstance(text, str) or not isinstance(form, str) or mark is None:
            return None
        subject.spend(compile_units(form))
        try:
            compiled = compile_pattern(form, check_escape(mark) if escape else None)
        except PatternError as error:
            raise fail(str(error)) from error
        return compiled.matches(text, subject.spend)

    return judge


def negation(operand: Evaluate) -> Judge:
    def judge(subject: Subject) -> Verdict:
        value = operand(subject)
        return not value if value is True or value is False else None

    return judge


def conjunction(operands: tuple[Evaluate, ...]) -> Judge:
    def judge(subject: Subject) -> Verdict:
        verdict: Verdict = True
        for operand in operands:
            value = operand(subject)
            if value is False:
                return False
            if value is not True:
                verdict = None
        return verdict

    return judge


def disjunction(operands: tuple[Evaluate, ...]) -> Judge:
    def judge(subject: Subject) -> Verdict:
        verdict: Verdict = False
        for operand in operands:
            value = operand(subject)
            if value is True:
                return True
            if value is not False:
                verdict = None
        return verdict

    return judge


# Work.


def _is_long(value: Value) -> bool:
    return isinstance(value, str | bytes) and len(value) > LONG_TEXT


def _spend_on(value: Value, subject: Subject) -> None:
    """Count a comparison with a value, or a copy of it."""
    if isinstance(value, str | bytes) and len(value) > LONG_TEXT:
        subject.spend(len(value) // _COPIED_AT_ONCE)
