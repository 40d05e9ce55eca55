"""The rules reference says what is true: each of its examples is run, and its tables are complete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest

from pairbus.broker import (
    MISSING,
    STANDARD,
    Address,
    CorrelationFilter,
    FilterDescription,
    Instant,
    InvalidExpressionError,
    Missing,
    Namespace,
    NewMessage,
    RuleDescription,
    Span,
    SqlActionDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    Value,
)
from pairbus.broker.sql import EvaluationError, parse_action, parse_filter
from pairbus.broker.sql.operators import MAX_PATTERN, MAX_TEXT
from pairbus.broker.sql.parser import MAX_DEPTH
from pairbus.broker.sql.syntax import _PROPERTIES, RESERVED
from pairbus.store import GroupCommitter, MemoryStore
from tests.docs.snippets import ROOT
from tests.docs.tables import code, rows_of

PAGE = ROOT / "docs" / "reference" / "rules.md"
TEXT = PAGE.read_text(encoding="utf-8")

FILTERS = rows_of(PAGE, "filter", "properties", "result")
VALUES = rows_of(PAGE, "value", "properties", "result")
ACTIONS = rows_of(PAGE, "action", "properties", "result")
REFUSALS = rows_of(PAGE, "expression", "position", "reason")

VERDICTS = {"true": True, "false": False, "unknown": None}


class Subject:
    """A message with the properties of an example; those that begin with ``sys.`` are system properties."""

    def __init__(self, properties: Mapping[str, Value]) -> None:
        self._user = {name.lower(): value for name, value in properties.items() if not name.startswith("sys.")}
        self._system = {
            name.removeprefix("sys."): value for name, value in properties.items() if name.startswith("sys.")
        }

    def user(self, name: str) -> Value | Missing:
        return self._user.get(name.lower(), MISSING)

    def system(self, name: str) -> Value:
        return self._system.get(name)

    def spend(self, units: int) -> None:
        pass


def literal(cell: str) -> Any:
    names = {"Instant": Instant, "Span": Span, "UUID": UUID, "MISSING": MISSING}
    return eval(code(cell), {"__builtins__": {}, "True": True, "False": False, "None": None, **names})  # noqa: S307


def judge(expression: str, subject: Subject) -> bool | None:
    """Return the value of a filter for a message; it is unknown if neither the filter nor its negation is true."""
    if parse_filter(expression, fresh_id=uuid4).matches(subject):
        return True
    return False if parse_filter(f"NOT ({expression})", fresh_id=uuid4).matches(subject) else None


def test_there_are_enough_examples() -> None:
    assert len(FILTERS) + len(VALUES) + len(ACTIONS) + len(REFUSALS) >= 40


@pytest.mark.parametrize(("expression", "properties", "result"), FILTERS)
def test_filter_has_the_result_of_the_page(expression: str, properties: str, result: str) -> None:
    subject = Subject(literal(properties))
    if result.startswith("error: "):
        with pytest.raises(EvaluationError, match=f"^{result.removeprefix('error: ')}"):
            judge(code(expression), subject)
    else:
        assert judge(code(expression), subject) is VERDICTS[result]


@pytest.mark.parametrize(("expression", "properties", "result"), VALUES)
def test_value_is_that_of_the_page(expression: str, properties: str, result: str) -> None:
    action = parse_action(f"SET result = {code(expression)}", fresh_id=uuid4)
    subject = Subject(literal(properties))
    if result.startswith("error: "):
        with pytest.raises(EvaluationError, match=f"^{result.removeprefix('error: ')}"):
            action.apply(subject)
    else:
        found = action.apply(subject).user["result"]
        assert (type(found), found) == (type(literal(result)), literal(result))


@pytest.mark.parametrize(("expression", "properties", "result"), ACTIONS)
def test_action_has_the_effect_of_the_page(expression: str, properties: str, result: str) -> None:
    action = parse_action(code(expression), fresh_id=uuid4)
    subject = Subject(literal(properties))
    if result.startswith("error: "):
        with pytest.raises(EvaluationError, match=f"^{result.removeprefix('error: ')}"):
            action.apply(subject)
        return
    changes = action.apply(subject)
    found = {**changes.user, **{f"sys.{name}": value for name, value in changes.system.items()}}
    assert {name: (type(value), value) for name, value in found.items()} == {
        name: (type(value), value) for name, value in literal(result).items()
    }


@pytest.mark.parametrize(("expression", "position", "reason"), REFUSALS)
def test_invalid_expression_of_the_page_is_rejected(expression: str, position: str, reason: str) -> None:
    with pytest.raises(InvalidExpressionError) as refusal:
        parse_filter(code(expression), fresh_id=uuid4)
    assert (refusal.value.position, refusal.value.reason) == (int(position), reason)


@pytest.mark.parametrize("operator", ["AND", "OR"])
def test_tables_of_logic_are_right(operator: str) -> None:
    words = {"true": "TRUE", "false": "FALSE", "unknown": "NULL"}
    for left, *results in rows_of(PAGE, f"`{operator}`", *VERDICTS):
        for right, result in zip(VERDICTS, results, strict=True):
            expression = f"{words[left.strip('*')]} {operator} {words[right]}"
            assert judge(expression, Subject({})) is VERDICTS[result], expression
    for operand, result in rows_of(PAGE, "`NOT`", "result"):
        assert judge(f"NOT {words[operand.strip('*')]}", Subject({})) is VERDICTS[result]


def test_table_of_system_properties_is_complete() -> None:
    types = {str: "text", int: "integer", bool: "truth value", Span: "span", Instant: "point in time"}
    rows = rows_of(PAGE, "property", "type", "an action may set it", "what it is")
    assert [row[:3] for row in rows] == [
        (f"`sys.{known.name}`", types[known.holds], "yes" if known.writable else "no") for known in _PROPERTIES
    ]


def test_reserved_words_and_limits_are_those_of_the_code() -> None:
    reserved = " ".join(TEXT.split()).split("- *Reserved* are ")[1].split(". Write a property")[0]
    assert reserved == ", ".join(f"`{word}`" for word in sorted(RESERVED))
    limits = {row[0]: row[1] for row in rows_of(PAGE, "limit", "value", "error")}
    assert limits["depth of parentheses, functions, `NOT` and signs inside each other"] == f"{MAX_DEPTH:,}"
    assert limits["characters of a `LIKE` pattern"] == f"{MAX_PATTERN:,}"
    assert limits["characters of a text that was joined"] == f"{MAX_TEXT:,}"
    for cell in limits.values():
        for name in cell.split(", ") if cell.startswith("`") else ():
            assert hasattr(STANDARD, code(name))


COPIES = rows_of(PAGE, "rules that match", "copies")
RULES = {
    "none": (0, 0),
    "two without an action": (2, 0),
    "two with an action": (0, 2),
    "two without and two with an action": (2, 2),
}


@pytest.mark.parametrize(("rules", "copies"), COPIES)
def test_subscription_gets_the_number_of_copies_of_the_page(rules: str, copies: str) -> None:
    plain, acting = RULES[rules]
    action = SqlActionDescription("SET a = 1")
    assert received(
        *(RuleDescription(name=f"plain-{number}") for number in range(plain)),
        *(RuleDescription(name=f"acting-{number}", action=action) for number in range(acting)),
    ) == int(copies)


@pytest.mark.parametrize(
    ("description", "matches"),
    [
        (TrueFilter(), True),
        (CorrelationFilter(properties={"N": 1.0}), True),
        (CorrelationFilter(properties={"n": True}), False),
        (CorrelationFilter(properties={"colour": "Red"}), False),
        (CorrelationFilter(properties={"colour": "red", "missing": "x"}), False),
        (CorrelationFilter(properties={"missing": None}), False),
    ],
)
def test_correlation_filters_compare_as_documented(description: FilterDescription, matches: bool) -> None:
    assert received(RuleDescription(name="rule", filter=description)) == matches


def received(*rules: RuleDescription) -> int:
    """Return the number of copies of a message that a subscription with these rules gets."""

    def make(records: Any) -> Namespace:
        view = Subject({"n": 1, "colour": "red"})
        return Namespace(records, view=lambda _: view, fresh_id=uuid4, fresh_token=lambda: uuid4().bytes)

    namespace = GroupCommitter(MemoryStore(), make, 0).namespace
    namespace.create_topic("topic", TopicDescription(), 0)
    namespace.create_subscription("topic", "sub", SubscriptionDescription(), 0)
    namespace.remove_rule("topic", "sub", "$Default", 0)
    for rule in rules:
        namespace.add_rule("topic", "sub", rule, 0)
    namespace.send(Address.of("topic"), [NewMessage(b"")], 0)
    return len(namespace.receive(Address.of("topic", "sub"), 100, 0))
