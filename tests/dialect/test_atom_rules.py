"""Filters, actions and their typed values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.atom import (
    RULE,
    AtomEntry,
    AtomError,
    TypedValue,
    ValueType,
    parse_entry,
    parse_request,
    write_entry,
)

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
XSI = "http://www.w3.org/2001/XMLSchema-instance"
XS = "http://www.w3.org/2001/XMLSchema"

VALUES = {
    "string": TypedValue(ValueType.STRING, " <x> & \xe9 "),
    "empty": TypedValue(ValueType.STRING, ""),
    "int": TypedValue(ValueType.INT, -5),
    "long": TypedValue(ValueType.LONG, 2**40),
    "double": TypedValue(ValueType.DOUBLE, 1.5),
    "infinite": TypedValue(ValueType.DOUBLE, float("-inf")),
    "boolean": TypedValue(ValueType.BOOLEAN, True),
    "dateTime": TypedValue(ValueType.DATE_TIME, 1_618_852_870_257),
    "duration": TypedValue(ValueType.DURATION, -90_500),
    "nothing": TypedValue(ValueType.STRING, None),
}
FILTERS: dict[str, dict[str, Any]] = {
    "true": {"type": "TrueFilter", "expression": "1=1"},
    "false": {"type": "FalseFilter", "expression": "1=0"},
    "sql": {"type": "SqlFilter", "expression": "a < @p", "parameters": VALUES},
    "correlation": {
        "type": "CorrelationFilter",
        "correlation_id": "c",
        "message_id": "m",
        "to": "t",
        "reply_to": "r",
        "label": "",
        "session_id": "s",
        "reply_to_session_id": "rs",
        "content_type": "ct",
        "properties": VALUES,
    },
}
ACTIONS: dict[str, dict[str, Any]] = {
    "empty": {"type": "EmptyRuleAction"},
    "sql": {"type": "SqlRuleAction", "expression": "SET a=@p", "parameters": VALUES},
}


def rule(content: str) -> bytes:
    return (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content><RuleDescription xmlns="{CONNECT}" xmlns:i="{XSI}"'
        f' xmlns:s="{XS}">{content}</RuleDescription></content></entry>'
    ).encode()


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("filter_", FILTERS)
def test_rules_round_trip(filter_: str, action: str) -> None:
    values = {"filter": FILTERS[filter_], "action": ACTIONS[action], "name": "$Default"}
    document = write_entry(AtomEntry(table=RULE, values=values))
    assert parse_request(document, RULE) == (RULE, values)
    assert parse_entry(document, RULE).values == values


def test_types_are_written_as_javascript_expects() -> None:
    document = write_entry(AtomEntry(table=RULE, values={"filter": FILTERS["sql"], "action": ACTIONS["empty"]}))
    assert b'<Filter i:type="SqlFilter"><SqlExpression>a &lt; @p</SqlExpression><Parameters>' in document
    pair = b"<KeyValueOfstringanyType><Key>int</Key>"
    assert pair + b'<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">-5</Value>' in document
    assert b'<Action i:type="EmptyRuleAction" />' in document


def test_empty_pairs_are_not_written() -> None:
    filter_ = {"type": "SqlFilter", "expression": "a=1", "parameters": {}}
    assert b"Parameters" not in write_entry(AtomEntry(table=RULE, values={"filter": filter_}))


@pytest.mark.parametrize("prefix", ["", "x:", "d6p1:"])
def test_prefix_of_type_does_not_matter(prefix: str) -> None:
    content = (
        f'<Filter i:type="{prefix}SqlFilter"><SqlExpression>a=@p</SqlExpression><Parameters><KeyValueOfstringanyType>'
        f'<Key>@p</Key><Value i:type="{prefix}int"> 2 </Value></KeyValueOfstringanyType></Parameters></Filter>'
    )
    filter_ = parse_request(rule(content), RULE)[1]["filter"]
    assert filter_["type"] == "SqlFilter"
    assert filter_["parameters"] == {"@p": TypedValue(ValueType.INT, 2)}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<Filter/>", "Filter: its type must be one of .*, got ''"),
        ('<Filter i:type="Magic"/>', "Filter: its type must be one of .*, got 'Magic'"),
        ('<Filter i:type="SqlRuleAction"/>', "Filter: its type must be one of .*, got 'SqlRuleAction'"),
        ('<Filter type="SqlFilter"/>', "Filter: its type must be one of .*, got ''"),
        ('<Action i:type="SqlFilter"/>', "Action: its type must be one of .*, got 'SqlFilter'"),
    ],
)
def test_wrong_type_is_rejected(content: str, reason: str) -> None:
    with pytest.raises(AtomError, match=reason):
        parse_request(rule(content), RULE)


PAIR = '<Filter i:type="CorrelationFilter"><Properties>{}</Properties></Filter>'


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ("<KeyValueOfstringanyType><Key>a</Key></KeyValueOfstringanyType>", "Properties: a pair needs"),
        ("<KeyValueOfstringanyType><Value>a</Value></KeyValueOfstringanyType>", "Properties: a pair needs"),
        ("<KeyValueOfstringanyType><Key>a</Key><Value/></KeyValueOfstringanyType>" * 2, "'a' occurs twice"),
    ],
)
def test_invalid_pairs_are_rejected(pairs: str, reason: str) -> None:
    with pytest.raises(AtomError, match=reason):
        parse_request(rule(PAIR.format(pairs)), RULE)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "x"), ("int", ""), ("long", "9" * 19), ("double", "one"), ("boolean", "maybe"), ("dateTime", "today"),
     ("duration", "long"), ("guid", "00000000-0000-0000-0000-000000000000"), ("", "x")],
)  # fmt: skip
def test_invalid_values_are_rejected(kind: str, text: str) -> None:
    pair = f'<KeyValueOfstringanyType><Key>a</Key><Value i:type="s:{kind}">{text}</Value></KeyValueOfstringanyType>'
    with pytest.raises(AtomError, match="Value: of 'a': "):
        parse_request(rule(PAIR.format(pair)), RULE)


def test_control_characters_are_replaced() -> None:
    filter_ = {"type": "SqlFilter", "expression": "a='\x00\x1f\ud800\uffff'"}
    found = parse_request(write_entry(AtomEntry(table=RULE, values={"filter": filter_})), RULE)[1]["filter"]
    assert found["expression"] == "a='" + "\N{REPLACEMENT CHARACTER}" * 4 + "'"


TEXTS = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff") | st.sampled_from("\r\n\t")
)
TYPED = (
    st.builds(TypedValue, st.just(ValueType.STRING), TEXTS | st.none())
    | st.builds(TypedValue, st.sampled_from([ValueType.INT, ValueType.LONG]), st.integers(-(2**63), 2**63 - 1))
    | st.builds(TypedValue, st.just(ValueType.DOUBLE), st.floats(allow_nan=False))
    | st.builds(TypedValue, st.just(ValueType.BOOLEAN), st.booleans())
    | st.builds(TypedValue, st.just(ValueType.DATE_TIME), st.integers(0, 253_402_300_799_999))
    | st.builds(TypedValue, st.just(ValueType.DURATION), st.integers(-(10**14), 10**14))
)


@given(st.dictionaries(TEXTS, TYPED, min_size=1))
def test_all_values_round_trip(pairs: dict[str, TypedValue]) -> None:
    filter_ = {"type": "CorrelationFilter", "properties": pairs}
    document = write_entry(AtomEntry(table=RULE, values={"filter": filter_}))
    assert parse_request(document, RULE)[1]["filter"] == filter_
