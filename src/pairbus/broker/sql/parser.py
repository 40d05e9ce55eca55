"""The grammar: a recursive-descent parser from an expression's text to its syntax tree.

At the beginning of a condition a parenthesis may hold a condition or a value; anywhere else it holds a value. The
parser reads the former as a condition, which includes values; if it turns out to be a value, it may be the first
operand of what follows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pairbus.broker.descriptions import Instant, Span, Value
from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql.operators import COMPARE, fits
from pairbus.broker.sql.syntax import (
    Chain,
    Comparison,
    ComputedName,
    Conjunction,
    Constant,
    Cursor,
    Disjunction,
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
    SetStatement,
    Signed,
    SqlCondition,
    SqlStatement,
    SqlToken,
    SqlTokenKind,
    Step,
    SystemName,
    UserName,
    content,
    system_property,
)

NO_PARAMETERS: Final[Mapping[str, Value]] = MappingProxyType({})


class Parameters:
    """Parameters by name; names compare without regard to case."""

    __slots__ = ("_values", "given")

    def __init__(self, given: Mapping[str, Value], expression: str) -> None:
        self.given: Final[Mapping[str, Value]] = MappingProxyType(dict(given))
        self._values: Final[dict[str, Value]] = {}
        unchecked: Mapping[Any, Any] = self.given
        for name, value in unchecked.items():
            reason = self._objection(name, value)
            if reason is not None:
                raise InvalidExpressionError(reason, expression, 0)
            self._values[name.lower()] = _plain(value)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def __getitem__(self, name: str) -> Value:
        return self._values[name.lower()]

    def _objection(self, name: Any, value: Any) -> str | None:
        if not isinstance(name, str) or not name.startswith("@"):
            return f"expected the name of a parameter to begin with @, found {name!r}"
        if name in self:
            return f"the parameter {name} is given more than once"
        if value is not None and not isinstance(value, bool | int | float | str):
            return f"the parameter {name} holds a {type(value).__name__}, which no expression can use"
        if isinstance(value, int) and not fits(value):
            return f"the parameter {name} does not fit into 64 bits"
        return None


def _plain(value: Value) -> Value:
    """Return the value without a protocol's own wrapper of its type."""
    if isinstance(value, bool):
        return value
    for plain in (Instant, Span, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return value


MAX_DEPTH: Final = 64
"""Deepest nesting of parentheses, functions, ``NOT`` and signs: each level takes about five frames of Python's stack.
"""

_WANT_VALUES: Final = (*COMPARE, "+", "-", "*", "/", "%", "IS", "NOT", "IN", "LIKE")
_LITERALS: Final[dict[str | None, Value]] = {"TRUE": True, "FALSE": False, "NULL": None}


def parse_predicate(expression: str, parameters: Parameters) -> Predicate:
    """Parse the text of a filter."""
    cursor = Cursor(expression)
    predicate = _Grammar(cursor, parameters).predicate()
    if cursor.token.kind is not SqlTokenKind.END:
        raise cursor.unexpected("an operator or the end of the expression")
    return predicate


def parse_statements(expression: str, parameters: Parameters, max_statements: int) -> tuple[SqlStatement, ...]:
    """Parse the text of an action."""
    cursor = Cursor(expression)
    grammar = _Grammar(cursor, parameters)
    statements = [grammar.statement()]
    while _continues(cursor):
        if len(statements) == max_statements:
            raise cursor.error(f"expected at most {max_statements} statements, found more", cursor.token.position)
        statements.append(grammar.statement())
    return tuple(statements)


def _continues(cursor: Cursor) -> bool:
    """Return whether another statement follows, after skipping the optional separator."""
    separator = cursor.take(";", ",")
    if cursor.token.kind is SqlTokenKind.END and (separator is None or separator.key == ";"):
        return False
    if separator is None and not cursor.at("SET", "REMOVE"):
        raise cursor.unexpected("an operator, ';', ',', SET, REMOVE or the end of the expression")
    return True


def _negated(condition: SqlCondition, negation: SqlToken | None) -> SqlCondition:
    return condition if negation is None else Not(condition, negation.position)


class _Grammar:
    """One method per grammar rule; each reads from the cursor what its rule describes."""

    __slots__ = ("_cursor", "_depth", "_parameters")

    def __init__(self, cursor: Cursor, parameters: Parameters) -> None:
        self._cursor = cursor
        self._parameters = parameters
        self._depth = 0

    # Statements.

    def statement(self) -> SqlStatement:
        cursor = self._cursor
        position = cursor.token.position
        if cursor.take("SET"):
            target = self._target()
            cursor.expect("=", " after the property to set")
            return SetStatement(target, self._value(), position)
        if cursor.take("REMOVE"):
            return RemoveStatement(self._target(), position)
        raise cursor.unexpected("SET or REMOVE")

    def _target(self) -> PropertyName:
        name = self._name()
        if isinstance(name, UserName):
            return name
        known = system_property(name.name)
        if known is None:
            raise self._cursor.error(f"expected a system property, found sys.{name.name}", name.position)
        if not known.writable:
            raise self._cursor.error(f"expected a property to change, sys.{known.name} is read-only", name.position)
        return name

    # Conditions.

    def predicate(self) -> Predicate:
        position = self._cursor.token.position
        operands = [self._conjunction()]
        while self._cursor.take("OR"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else Disjunction(tuple(operands), position)

    def _conjunction(self) -> Predicate:
        position = self._cursor.token.position
        operands = [self._negation()]
        while self._cursor.take("AND"):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else Conjunction(tuple(operands), position)

    def _negation(self) -> Predicate:
        position = self._cursor.token.position
        if self._cursor.take("NOT"):
            self._descend(position)
            operand = self._negation()
            self._depth -= 1
            return Not(operand, position)
        return self._condition()

    def _condition(self) -> Predicate:
        start = self._cursor.token.position
        if self._cursor.at("EXISTS"):
            return self._exists()
        left = self._group() if self._cursor.at("(") else self._factor()
        if not isinstance(left, SqlCondition):
            return self._test(self._sum(left, start), start)
        if self._cursor.at(*_WANT_VALUES):
            raise self._cursor.error("expected a value, found a condition", start)
        return left

    def _group(self) -> Predicate:
        self._descend(self._cursor.advance().position)
        inside = self.predicate()
        self._depth -= 1
        self._close()
        return inside

    def _test(self, left: Expression, start: int) -> Predicate:
        """Read the test of a value, if there is one."""
        cursor = self._cursor
        if cursor.at(*COMPARE):
            return self._comparison(left)
        if cursor.at("IS"):
            return self._is_null(left, start)
        negation = cursor.take("NOT")
        if cursor.at("LIKE"):
            return _negated(self._like(left), negation)
        if cursor.at("IN"):
            return _negated(self._membership(left), negation)
        if negation:
            raise cursor.unexpected("IN or LIKE after NOT")
        return left

    def _exists(self) -> Exists:
        position = self._cursor.advance().position
        self._cursor.expect("(", " after EXISTS")
        name = self._name()
        self._cursor.expect(")", " after the property")
        return Exists(name, position)

    def _comparison(self, left: Expression) -> Comparison:
        token = self._cursor.advance()
        return Comparison(token.text, left, self._value(), token.position)

    def _is_null(self, left: Expression, start: int) -> Predicate:
        # Parentheses around the property make it an expression, and then it begins before its name does.
        if not isinstance(left, PropertyName) or left.position != start:
            raise self._cursor.error("expected a property on the left of IS, found another expression", start)
        position = self._cursor.advance().position
        negation = self._cursor.take("NOT")
        self._cursor.expect("NULL", " after IS")
        return _negated(IsNull(left, position), negation)

    def _membership(self, left: Expression) -> Membership:
        position = self._cursor.advance().position
        self._cursor.expect("(", " after IN")
        items = [self._value()]
        while self._cursor.take(","):
            items.append(self._value())
        self._close()
        return Membership(left, tuple(items), position)

    def _like(self, left: Expression) -> Like:
        position = self._cursor.advance().position
        pattern = self._value()
        escape = self._value() if self._cursor.take("ESCAPE") else None
        return Like(left, pattern, escape, position)

    # Values.

    def _value(self) -> Expression:
        start = self._cursor.token.position
        return self._sum(self._factor(), start)

    def _sum(self, first: Expression, start: int) -> Expression:
        """Read the rest of a sum whose first factor has been read."""
        first = self._product(first, start)
        steps = []
        while token := self._cursor.take("+", "-"):
            operand_start = self._cursor.token.position
            steps.append(Step(token.text, self._product(self._factor(), operand_start), token.position))
        return Chain(first, tuple(steps), start) if steps else first

    def _product(self, first: Expression, start: int) -> Expression:
        """Read the rest of a product whose first factor has been read."""
        steps = []
        while token := self._cursor.take("*", "/", "%"):
            steps.append(Step(token.text, self._factor(), token.position))
        return Chain(first, tuple(steps), start) if steps else first

    def _factor(self) -> Expression:
        sign = self._cursor.take("+", "-")
        if sign is None:
            return self._atom()
        if self._cursor.token.kind is SqlTokenKind.INTEGER:
            # The sign belongs to the number: the lowest integer has no positive counterpart.
            return self._integer(sign.text)
        self._descend(sign.position)
        operand = self._factor()
        self._depth -= 1
        return Signed(sign.text, operand, sign.position)

    def _atom(self) -> Expression:
        token = self._cursor.token
        match token.kind:
            case SqlTokenKind.STRING:
                return Constant(content(self._cursor.advance()), token.position)
            case SqlTokenKind.INTEGER:
                return self._integer("")
            case SqlTokenKind.DECIMAL:
                return self._decimal()
            case SqlTokenKind.PARAMETER:
                return self._parameter()
            case SqlTokenKind.WORD if self._cursor.before("("):
                return self._function()
            case SqlTokenKind.WORD | SqlTokenKind.NAME:
                return self._name()
            case SqlTokenKind.SYMBOL if token.key == "(":
                return self._argument()
            case SqlTokenKind.KEYWORD if token.key in _LITERALS:
                return Constant(_LITERALS[self._cursor.advance().key], token.position)
        raise self._cursor.unexpected(f"a value{self._advice()}")

    def _argument(self, why: str = "") -> Expression:
        """Read a value between parentheses."""
        self._descend(self._cursor.advance().position)
        value = self._value()
        self._depth -= 1
        self._close(why)
        return value

    def _integer(self, sign: str) -> Constant:
        token = self._cursor.advance()
        digits = token.text.lstrip("0") or "0"
        # Python itself refuses to parse numbers of thousands of digits.
        if len(digits) > 19 or not fits(int(sign + digits)):
            raise self._cursor.error("expected an integer of 64 bits, found a larger one", token.position)
        return Constant(int(sign + digits), token.position - len(sign))

    def _decimal(self) -> Constant:
        token = self._cursor.advance()
        number = float(token.text)
        if math.isinf(number):
            raise self._cursor.error("expected a number that a double can hold, found a larger one", token.position)
        return Constant(number, token.position)

    def _parameter(self) -> Constant:
        token = self._cursor.advance()
        if token.text not in self._parameters:
            raise self._cursor.error(f"expected a parameter with a value, {token.text} has none", token.position)
        return Constant(self._parameters[token.text], token.position)

    def _function(self) -> Expression:
        token = self._cursor.advance()
        if token.key not in {"NEWID", "P", "PROPERTY"}:
            raise self._cursor.error(f"expected newid, property or p, found '{token.text}'", token.position)
        if token.key != "NEWID":
            return ComputedName(self._argument(f" as {token.text} takes one argument"), token.position)
        self._cursor.advance()
        self._cursor.expect(")", " as newid takes no argument")
        return NewId(token.position)

    # Names.

    def _name(self) -> PropertyName:
        """Read a property, with or without a scope before it."""
        cursor = self._cursor
        position = cursor.token.position
        if cursor.token.kind is not SqlTokenKind.WORD or not cursor.before("."):
            return UserName(self._identifier(), position)
        if not cursor.at("SYS", "USER"):
            raise cursor.unexpected("sys or user before '.'")
        scope = cursor.advance().key
        cursor.advance()
        name = self._identifier()
        return SystemName(name, position) if scope == "SYS" else UserName(name, position)

    def _identifier(self) -> str:
        token = self._cursor.token
        match token.kind:
            case SqlTokenKind.WORD:
                return self._cursor.advance().text
            case SqlTokenKind.NAME:
                return content(self._cursor.advance())
        raise self._cursor.unexpected(f"a property{self._advice()}")

    # Shared by several rules.

    def _advice(self) -> str:
        token = self._cursor.token
        return f" (a property of that name is written [{token.text}])" if token.kind is SqlTokenKind.KEYWORD else ""

    def _close(self, why: str = "") -> None:
        if not self._cursor.at(")"):
            raise self._cursor.unexpected(f"an operator or ')'{why}")
        self._cursor.advance()

    def _descend(self, position: int) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._cursor.error(f"expected at most {MAX_DEPTH} levels of nesting, found more", position)
