"""A reference implementation of the language: trees of tuples, printed as SQL and evaluated recursively."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from fractions import Fraction
from typing import Any, Final

from hypothesis import strategies as st

from pairbus.broker.descriptions import Instant, Span, Value

Tree = tuple[Any, ...]


class Mark(Enum):
    """A marker that is not a value."""

    UNKNOWN = 0
    FAILED = 1


UNKNOWN: Final = Mark.UNKNOWN
FAILED: Final = Mark.FAILED
NAMES: Final = ("a", "B", "long name", "ünï]", "and")
NUMERIC: Final = ("int", "float")


class FailureError(Exception):
    """The tree has no value."""


# Trees.


def constants() -> st.SearchStrategy[Value]:
    return st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 10),
        st.sampled_from([2**63 - 1, -(2**63), 2**53 + 1, 0]),
        st.sampled_from([0.0, 0.5, 2.0, -1.5, 2.0**53, 1e308]),
        st.text("ab%_'", max_size=4),
    )


def properties() -> st.SearchStrategy[dict[str, Value]]:
    times = st.one_of(st.integers(0, 5).map(Instant), st.integers(0, 5).map(Span))
    return st.dictionaries(st.sampled_from(NAMES), st.one_of(constants(), times))


def values() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(
        st.tuples(st.just("constant"), constants()),
        st.tuples(st.just("property"), st.sampled_from(NAMES)),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from("+-*/%"), inner, inner),
            st.tuples(st.just("signed"), st.sampled_from("+-"), inner),
            st.tuples(st.just("p"), st.one_of(st.sampled_from(NAMES).map(lambda name: ("constant", name)), inner)),
        ),
        max_leaves=5,
    )


def predicates() -> st.SearchStrategy[Tree]:
    value = values()
    symbol = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])
    several = st.lists(value, min_size=1, max_size=3)
    name = st.sampled_from(NAMES)
    test = st.one_of(
        st.tuples(symbol, value, value),
        st.tuples(st.sampled_from(["in", "not in"]), value, several),
        st.tuples(st.sampled_from(["like", "not like"]), value, value),
        st.tuples(st.sampled_from(["is null", "is not null", "exists"]), name),
        value,
    )
    return st.recursive(
        test,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=4)),
            st.tuples(st.just("not"), inner),
        ),
        max_leaves=6,
    )


# Printing, with as few parentheses as possible.

_LEVELS: Final = {"or": 1, "and": 2, "not": 3, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "signed": 7}
_TEST: Final = 4
_ATOMS: Final = ("constant", "property", "p")


def _level(tree: Tree) -> int:
    return 8 if tree[0] in _ATOMS else _LEVELS.get(tree[0], _TEST)


def show(tree: Tree, lowest: int = 0) -> str:
    text = _show(tree)
    return f"({text})" if _level(tree) < lowest else text


def _show(tree: Tree) -> str:
    match tree:
        case "constant", value:
            return show_constant(value)
        case "property" | "p" as kind, operand:
            return show_name(operand) if kind == "property" else f"p({show(operand, 5)})"
        case "signed", sign, operand:
            return f"{sign} {show(operand, 7)}"
        case "and" | "or" as word, operands:
            return f" {word} ".join(show(operand, _LEVELS[word] + 1) for operand in operands)
        case "not", operand:
            return f"NOT {show(operand, 3)}"
        case "in" | "not in" as word, left, items:
            return f"{show(left, 5)} {word} ({', '.join(show(item, 5) for item in items)})"
        case "is null" | "is not null" as word, name:
            return f"{show_name(name)} {word}"
        case "exists", name:
            return f"EXISTS({show_name(name)})"
        case symbol, left, right:
            level = _LEVELS.get(symbol, _TEST)
            return f"{show(left, max(level, 5))} {symbol} {show(right, level + 1)}"
    raise AssertionError(tree)


def show_constant(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return "NULL" if value is None else str(value)


def show_name(name: str) -> str:
    return name if len(name) == 1 else "[" + name.replace("]", "]]") + "]"


# Evaluation. Null and unknown are distinct here, and become equal only as operands.


def meaning(tree: Tree, message: Mapping[str, Value]) -> Any:
    """Return the value of a tree; null if it is unknown."""
    try:
        value = evaluate(tree, message)
    except FailureError:
        return FAILED
    return None if value is UNKNOWN else value


def evaluate(tree: Tree, message: Mapping[str, Value]) -> Any:
    match tree:
        case "constant", value:
            return value
        case "property", name:
            return message.get(name, UNKNOWN)
        case "p", operand:
            name = evaluate(operand, message)
            found = [value for key, value in message.items() if isinstance(name, str) and key.lower() == name.lower()]
            return found[0] if found and kind(name) == "text" else UNKNOWN
        case "signed", sign, operand:
            return signed(sign, evaluate(operand, message))
        case "and" | "or" as word, operands:
            return junction(word == "or", operands, message)
        case "not", operand:
            return opposite(evaluate(operand, message))
        case "in" | "not in" as word, left, items:
            verdict = among(evaluate(left, message), items, message)
            return verdict if word == "in" else opposite(verdict)
        case "is null" | "is not null" as word, name:
            return (message.get(name) is None) is (word == "is null")
        case "exists", name:
            return name in message
        case "like" | "not like" as word, left, right:
            verdict = like(evaluate(left, message), evaluate(right, message))
            return verdict if word == "like" else opposite(verdict)
        case symbol, left, right:
            operate = arithmetic if symbol in "+-*/%" else compare
            return operate(symbol, evaluate(left, message), evaluate(right, message))
    raise AssertionError(tree)


def kind(value: Any) -> str:
    if value is None or value is UNKNOWN:
        return "none"
    names: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "text", Instant: "instant", Span: "span"}
    return names[type(value)]


def opposite(verdict: Any) -> Any:
    return {True: False, False: True}[verdict] if kind(verdict) == "bool" else UNKNOWN


def junction(decisive: bool, operands: list[Tree], message: Mapping[str, Value]) -> Any:
    seen = []
    for operand in operands:
        verdict = evaluate(operand, message)
        if verdict is decisive:
            return decisive
        seen.append(verdict)
    return not decisive if all(verdict is not decisive and kind(verdict) == "bool" for verdict in seen) else UNKNOWN


def among(value: Any, items: list[Tree], message: Mapping[str, Value]) -> Any:
    if kind(value) == "none":
        return UNKNOWN
    verdict: Any = False
    for item in items:
        equal = compare("=", value, evaluate(item, message))
        if equal is True:
            return True
        if equal is UNKNOWN:
            verdict = UNKNOWN
    return verdict


def compare(symbol: str, left: Any, right: Any) -> Any:
    kinds = {kind(left), kind(right)}
    if kinds == {"int", "float"}:
        left, right = float(left), float(right)
    elif len(kinds) != 1 or kinds == {"none"} or (kinds == {"bool"} and symbol not in {"=", "<>", "!="}):
        return UNKNOWN
    less, equal = bool(left < right), bool(left == right)
    more = bool(left > right)
    answers = {"=": equal, "<": less, ">": more, "<=": less or equal, ">=": more or equal}
    return answers.get(symbol, not equal)


def arithmetic(symbol: str, left: Any, right: Any) -> Any:
    kinds = (kind(left), kind(right))
    if kinds == ("int", "int"):
        return integer(symbol, left, right)
    if set(kinds) <= set(NUMERIC):
        return real(symbol, float(left), float(right))
    if kinds == ("text", "text") and symbol == "+":
        return f"{left}{right}"
    return time(symbol, kinds, left, right)


TIMES: Final[dict[tuple[str, str, str], type[Instant | Span]]] = {
    ("instant", "-", "instant"): Span,
    ("instant", "+", "span"): Instant,
    ("instant", "-", "span"): Instant,
    ("span", "+", "span"): Span,
    ("span", "-", "span"): Span,
}


def time(symbol: str, kinds: tuple[str, str], left: Any, right: Any) -> Any:
    result = TIMES.get((kinds[0], symbol, kinds[1]))
    return UNKNOWN if result is None else result(int(left) + int(f"{symbol}1") * int(right))


def integer(symbol: str, left: int, right: int) -> int:
    if symbol in "/%" and right == 0:
        raise FailureError
    results = {"+": left + right, "-": left - right, "*": left * right}
    if symbol in "/%":
        quotient = math.trunc(Fraction(left, right))
        results |= {"/": quotient, "%": left - quotient * right}
    return bounded(results[symbol])


def bounded(number: int) -> int:
    if number.bit_length() > 63 and number != -(2**63):
        raise FailureError
    return number


def real(symbol: str, left: float, right: float) -> float:
    if symbol == "/" and right == 0:
        same = math.copysign(1, left) == math.copysign(1, right)
        return math.nan if left == 0 or math.isnan(left) else (math.inf if same else -math.inf)
    if symbol == "%":
        return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)
    return {"+": left + right, "-": left - right, "*": left * right}[symbol] if symbol != "/" else left / right


def signed(sign: str, value: Any) -> Any:
    if kind(value) not in {"int", "float", "span"}:
        return UNKNOWN
    number = value if sign == "+" else type(value)(-value)
    return bounded(number) if kind(value) == "int" else number


def like(text: Any, pattern: Any) -> Any:
    if kind(text) != "text" or kind(pattern) != "text":
        return UNKNOWN
    return resembles(text, pattern)


def resembles(text: str, pattern: str, escape: str | None = None) -> bool:
    """Match by trying everything."""
    if not pattern:
        return not text
    first, rest = pattern[0], pattern[1:]
    if first == escape:
        return text[:1] == rest[0] and resembles(text[1:], rest[1:], escape)
    if first == "%":
        return any(resembles(text[start:], rest, escape) for start in range(len(text) + 1))
    return bool(text) and first in {"_", text[0]} and resembles(text[1:], rest, escape)
