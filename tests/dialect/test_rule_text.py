"""Rules as people read them: the SQL of a correlation filter matches the same messages as the filter."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pairbus.broker import STANDARD, CorrelationFilter, InvalidExpressionError, RuleDescription, ZonelessInstant
from pairbus.broker.descriptions import Value
from pairbus.broker.rules import make_rule
from pairbus.broker.sql.syntax import RESERVED
from pairbus.dialect.atom.rules import filter_text
from pairbus.server.http.descriptions import rule_values
from tests.broker.sql.message import Message, fresh_id, judge

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(
    [
        *RESERVED,
        "my prop",
        "order-id",
        "brack]et",
        "]",
        "[a]",
        'quo"te',
        "1a",
        "_a",
        "sys.Label",
        "user.x",
        "sys",
        "gr\xf6\xdfe",
    ]
)
VALUES = (
    st.text(max_size=8)
    | st.booleans()
    | st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
LABELS = st.none() | st.text(max_size=8)


def text_of(correlation: CorrelationFilter) -> str:
    values: dict[str, Any] = rule_values(RuleDescription(filter=correlation))
    return filter_text(values["filter"])


@given(st.dictionaries(NAMES, VALUES, max_size=3), LABELS, VALUES)
@example({"sys.Label": "x"}, None, 1)
@example({"a": None}, None, 1)
@example({"a": "li\nne"}, "\\n", 1)
@example({"na\nme": 1}, None, 1)
def test_sql_of_a_correlation_filter_matches_the_same_messages(
    properties: dict[str, Value], label: str | None, other: Value
) -> None:
    correlation = CorrelationFilter(label=label, properties=properties)
    text = text_of(correlation)
    assert len(text.splitlines()) == 1
    if not properties and label is None:
        return
    if not all(str(part).isprintable() for part in (label, *properties, *properties.values())):
        with pytest.raises(InvalidExpressionError):
            judge(text, Message())
        return
    rule = make_rule(RuleDescription(filter=correlation), 0, 0, STANDARD, fresh_id)
    system = {} if label is None else {"Label": label}
    messages = [Message(properties, system), Message({}, system), Message(properties, {"Label": "x"}), Message()]
    messages += [Message(properties | {name: other}, system) for name in properties]
    for message in messages:
        assert (judge(text, message) is True) == rule.matches(message)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ZonelessInstant(1_500), "due = 1970-01-01T00:00:01.500Z (a time)"),
        (float("inf"), "due = inf (a double)"),
        ("a\r\n\\b\u2028", r"due = 'a\r\n\\b\u2028' (with escapes)"),
    ],
)
def test_value_without_sql_literal_has_a_note(value: Value, text: str) -> None:
    assert text_of(CorrelationFilter(properties={"due": value})) == text
    with pytest.raises(InvalidExpressionError):
        judge(text, Message())


def test_multiline_sql_filter_is_shown_on_one_line() -> None:
    values = {"type": "SqlFilter", "expression": "a = 1\nOR b = 2", "parameters": {}}
    assert filter_text(values) == r"a = 1\nOR b = 2 (with escapes)"
