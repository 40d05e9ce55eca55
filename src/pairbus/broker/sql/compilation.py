"""Compilation of a syntax tree to a function: a rule is compiled once and evaluated for every message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql import evaluation
from pairbus.broker.sql.evaluation import Evaluate, EvaluateCondition, Fail
from pairbus.broker.sql.operators import ARITHMETIC, Pattern, PatternError, check_escape, compile_pattern
from pairbus.broker.sql.syntax import (
    Chain,
    Comparison,
    ComputedName,
    Conjunction,
    Constant,
    Disjunction,
    EvaluationError,
    Exists,
    Expression,
    IsNull,
    Like,
    Membership,
    NewId,
    Not,
    Predicate,
    PropertyName,
    Signed,
    Step,
    SystemName,
    UserName,
    system_property,
)


class Compiler:
    """Compiles the trees of one expression."""

    __slots__ = ("_expression", "_fresh_id")

    def __init__(self, expression: str, fresh_id: Callable[[], UUID]) -> None:
        self._expression = expression
        self._fresh_id = fresh_id

    def compile(self, node: Predicate) -> Evaluate:
        match node:
            case Constant():
                return evaluation.constant(node.value)
            case UserName() | SystemName():
                return self._property(node)
            case ComputedName():
                return evaluation.computed_property(self.compile(node.name))
            case NewId():
                return evaluation.new_id(self._fresh_id)
            case Signed():
                return evaluation.sign(node.sign, self.compile(node.operand), self._fail(node.position))
            case Chain():
                return self._chain(node)
            case Comparison():
                return self._comparison(node)
            case IsNull():
                return evaluation.is_null(self._property(node.name))
            case Exists():
                return self._exists(node.name)
            case Membership():
                return self._membership(node)
            case Like():
                return self._like(node)
            case Not():
                return evaluation.negation(self.compile(node.operand))
            case Conjunction():
                return evaluation.conjunction(tuple(map(self.compile, node.operands)))
            case Disjunction():
                return evaluation.disjunction(tuple(map(self.compile, node.operands)))

    def _property(self, node: PropertyName) -> Evaluate:
        if isinstance(node, UserName):
            return evaluation.user_property(node.name)
        known = system_property(node.name)
        if known is None:
            return evaluation.failure(f"there is no system property sys.{node.name}", self._fail(node.position))
        return evaluation.system_property(known.name)

    def _exists(self, node: PropertyName) -> EvaluateCondition:
        if isinstance(node, UserName):
            return evaluation.user_exists(node.name)
        return evaluation.system_exists(self._property(node))

    def _chain(self, node: Chain) -> Evaluate:
        return evaluation.chain(self.compile(node.first), tuple(map(self._step, node.steps)))

    def _step(self, node: Step) -> evaluation.ChainLink:
        return ARITHMETIC[node.symbol], self.compile(node.operand), self._fail(node.position)

    def _comparison(self, node: Comparison) -> EvaluateCondition:
        left = self.compile(node.left)
        if isinstance(node.right, Constant):
            return evaluation.comparison_with(left, node.symbol, node.right.value)
        return evaluation.comparison(left, node.symbol, self.compile(node.right))

    def _membership(self, node: Membership) -> EvaluateCondition:
        left = self.compile(node.left)
        texts = _texts(node.items)
        if texts is None:
            return evaluation.membership(left, tuple(map(self.compile, node.items)))
        return evaluation.membership_of_texts(left, texts)

    def _like(self, node: Like) -> EvaluateCondition:
        left = self.compile(node.left)
        pattern = self._constant_pattern(node)
        if pattern is not None:
            return evaluation.like(left, pattern)
        escape = self.compile(node.escape) if node.escape else None
        return evaluation.like_computed(left, self.compile(node.pattern), escape, self._fail(node.position))

    def _constant_pattern(self, node: Like) -> Pattern | None:
        """Return the compiled pattern if it is a literal: a mistake in it is then an error of the rule, not of a
        message.
        """
        escape = self._constant_escape(node.escape)
        if not isinstance(node.pattern, Constant) or not isinstance(node.pattern.value, str):
            return None
        if node.escape is not None and escape is None:
            return None
        try:
            return compile_pattern(node.pattern.value, escape)
        except PatternError as error:
            raise InvalidExpressionError(str(error), self._expression, node.pattern.position) from error

    def _constant_escape(self, node: Expression | None) -> str | None:
        if not isinstance(node, Constant) or node.value is None:
            return None
        try:
            return check_escape(node.value)
        except PatternError as error:
            raise InvalidExpressionError(str(error), self._expression, node.position) from error

    def _fail(self, position: int) -> Fail:
        return partial(EvaluationError, expression=self._expression, position=position)


def _texts(items: tuple[Expression, ...]) -> frozenset[str] | None:
    """Return the items if all of them are literal texts, else ``None``."""
    texts = [item.value for item in items if isinstance(item, Constant) and isinstance(item.value, str)]
    return frozenset(texts) if len(texts) == len(items) else None
