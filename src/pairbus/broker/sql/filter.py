"""SQL filters and SQL actions: parsed, compiled to functions once, and evaluated for every message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from pairbus.broker.descriptions import Value
from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql import evaluation
from pairbus.broker.sql.evaluation import (
    LONG_TEXT,
    MISSING,
    Evaluate,
    EvaluateCondition,
    Fail,
    Missing,
    Subject,
    fold_name,
)
from pairbus.broker.sql.operators import (
    ARITHMETIC,
    KINDS,
    Pattern,
    PatternError,
    check_escape,
    compile_pattern,
    convert,
)
from pairbus.broker.sql.parser import NO_PARAMETERS, Parameters, parse_predicate, parse_statements
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
    RemoveStatement,
    Signed,
    SqlStatement,
    Step,
    SystemName,
    SystemProperty,
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
        if isinstance(node.left, UserName) and isinstance(node.right, Constant):
            return evaluation.property_comparison(node.left.name, node.symbol, node.right.value)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledSqlFilter:
    """A compiled filter; created by ``parse_filter``."""

    expression: str
    parameters: Mapping[str, Value]
    _evaluate: Evaluate = field(repr=False)

    def matches(self, subject: Subject) -> bool:
        """Return whether the filter is true for a message, neither false nor unknown.

        Raises ``EvaluationError`` if the filter has no result.
        """
        return self._evaluate(subject) is True


def parse_filter(
    expression: str, parameters: Mapping[str, Value] = NO_PARAMETERS, *, fresh_id: Callable[[], UUID]
) -> CompiledSqlFilter:
    """Parse and compile a filter; raises ``InvalidExpressionError``. ``fresh_id`` is called for every ``newid()``."""
    known = Parameters(parameters, expression)
    evaluate = Compiler(expression, fresh_id).compile(parse_predicate(expression, known))
    return CompiledSqlFilter(expression=expression, parameters=known.given, _evaluate=evaluate)


MAX_STATEMENTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChanges:
    """The changes that an action makes to a message's properties; properties that it does not name stay unchanged."""

    user: Mapping[str, Value | Missing]
    """``MISSING`` for a removed property. Names are spelled as in the action, regardless of their case in the message.
    """
    system: Mapping[str, Value]
    """By canonical name."""


class _Draft:
    """A message with the changes so far, as the next statement sees it."""

    __slots__ = ("_subject", "_system", "_user")

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._user: dict[str, tuple[str, Value | Missing]] = {}
        self._system: dict[str, Value] = {}

    def user(self, name: str) -> Value | Missing:
        change = self._user.get(fold_name(name))
        return self._subject.user(name) if change is None else change[1]

    def system(self, name: str) -> Value:
        return self._system[name] if name in self._system else self._subject.system(name)

    def spend(self, units: int) -> object:
        return self._subject.spend(units)

    def set_user(self, name: str, value: Value | Missing) -> None:
        written, before = self._user.get(fold_name(name), (name, MISSING))
        self._user[fold_name(name)] = (name if before is MISSING else written, value)

    def set_system(self, name: str, value: Value) -> None:
        self._system[name] = value

    def changes(self) -> PropertyChanges:
        return PropertyChanges(user=MappingProxyType(dict(self._user.values())), system=MappingProxyType(self._system))


Apply: TypeAlias = Callable[[_Draft], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SqlAction:
    """A compiled action; created by ``parse_action``."""

    expression: str
    parameters: Mapping[str, Value]
    _statements: tuple[Apply, ...] = field(repr=False)

    def apply(self, subject: Subject) -> PropertyChanges:
        """Run the statements in order; each sees the changes of those before it.

        Raises ``EvaluationError`` if one of them has no result.
        """
        draft = _Draft(subject)
        for statement in self._statements:
            statement(draft)
        return draft.changes()


def parse_action(
    expression: str,
    parameters: Mapping[str, Value] = NO_PARAMETERS,
    *,
    fresh_id: Callable[[], UUID],
    max_statements: int = MAX_STATEMENTS,
) -> SqlAction:
    """Parse and compile an action; raises ``InvalidExpressionError``. ``fresh_id`` is called for every ``newid()``."""
    known = Parameters(parameters, expression)
    compiler = Compiler(expression, fresh_id)
    statements = parse_statements(expression, known, max_statements)
    compiled = tuple(_compile(statement, compiler, expression) for statement in statements)
    return SqlAction(expression=expression, parameters=known.given, _statements=compiled)


def _compile(statement: SqlStatement, compiler: Compiler, expression: str) -> Apply:
    name = statement.target.name
    target = None if isinstance(statement.target, UserName) else system_property(name)
    if isinstance(statement, RemoveStatement):
        return _remove_user(name) if target is None else _unset_system(target.name)
    evaluate = compiler.compile(statement.value)
    if target is None:
        return _set_user(name, evaluate)
    return _set_system(target, evaluate, expression, statement.target.position)


def _set_user(name: str, evaluate: Evaluate) -> Apply:
    def apply(draft: _Draft) -> None:
        value, existing = evaluate(draft), draft.user(name)
        _spend_on_conversion(value, draft)
        converted = convert(value, KINDS[type(existing)])
        draft.set_user(name, value if converted is None else converted)

    return apply


def _set_system(target: SystemProperty, evaluate: Evaluate, expression: str, position: int) -> Apply:
    def apply(draft: _Draft) -> None:
        value = evaluate(draft)
        _spend_on_conversion(value, draft)
        converted = convert(value, KINDS[target.holds])
        if value is not None and converted is None:
            reason = f"sys.{target.name} cannot hold a {type(value).__name__}"
            raise EvaluationError(reason, expression, position)
        draft.set_system(target.name, converted)

    return apply


def _spend_on_conversion(value: Value, draft: _Draft) -> None:
    """Count the characters of a text that may have to be converted to another type."""
    if isinstance(value, str) and len(value) > LONG_TEXT:
        draft.spend(len(value))


def _remove_user(name: str) -> Apply:
    def apply(draft: _Draft) -> None:
        if draft.user(name) is not MISSING:
            draft.set_user(name, MISSING)

    return apply


def _unset_system(name: str) -> Apply:
    return lambda draft: draft.set_system(name, None)
