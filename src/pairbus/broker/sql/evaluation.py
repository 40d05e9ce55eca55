"""The functions that evaluate expressions, each made of those that evaluate its parts.

A function takes the message and gives a value; ``None`` is both null and unknown. A condition gives ``True``, ``False``
or ``None``. Where a condition is wanted, only ``True`` is true and only ``False`` is false: any other value is unknown.
Operands are evaluated from left to right, and those that cannot change the result any more are not evaluated: what
follows a false operand of ``AND``, a true one of ``OR``, an unknown left side of ``IN`` or an item that is equal to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias
from uuid import UUID

from pairbus.broker.sql.errors import EvaluationError
from pairbus.broker.sql.like import PatternError, check_escape, compile_pattern
from pairbus.broker.sql.operators import COMPARE, COMPARISONS, KINDS, Operator, Verdict, comparable, signed
from pairbus.broker.sql.subject import MISSING, Subject
from pairbus.broker.values import Value

Evaluate: TypeAlias = Callable[[Subject], Value]
Judge: TypeAlias = Callable[[Subject], Verdict]
Fail: TypeAlias = Callable[[str], EvaluationError]
"""Makes the error that says why an operator has no result, and where the operator stands."""
Link: TypeAlias = tuple[Operator, Evaluate, Fail]

_EQUAL: Final = COMPARISONS["="]


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
        return value

    return evaluate


# Conditions.


def comparison(left: Evaluate, symbol: str, right: Evaluate) -> Judge:
    compare = COMPARISONS[symbol]
    return lambda subject: compare(left(subject), right(subject))


def comparison_with(left: Evaluate, symbol: str, right: Value) -> Judge:
    """Compare with a constant: a value of its very class needs no further look at either of them."""
    cls, quick, compare = type(right), COMPARE[symbol], COMPARISONS[symbol]
    if not comparable(symbol, KINDS[cls]):
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
            equal = _EQUAL(value, item(subject))
            if equal:
                return True
            if equal is None:
                verdict = None
        return verdict

    return judge


def membership_of_texts(left: Evaluate, texts: frozenset[str]) -> Judge:
    """The same where all items are constant texts."""

    def judge(subject: Subject) -> Verdict:
        value = left(subject)
        return value in texts if isinstance(value, str) else None

    return judge


def like(left: Evaluate, pattern: re.Pattern[str]) -> Judge:
    match = pattern.fullmatch

    def judge(subject: Subject) -> Verdict:
        text = left(subject)
        return match(text) is not None if isinstance(text, str) else None

    return judge


def like_computed(left: Evaluate, pattern: Evaluate, escape: Evaluate | None, fail: Fail) -> Judge:
    def judge(subject: Subject) -> Verdict:
        text, form = left(subject), pattern(subject)
        mark = escape(subject) if escape else ""
        if not isinstance(text, str) or not isinstance(form, str) or mark is None:
            return None
        try:
            return compile_pattern(form, check_escape(mark) if escape else None).fullmatch(text) is not None
        except PatternError as error:
            raise fail(str(error)) from error

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
