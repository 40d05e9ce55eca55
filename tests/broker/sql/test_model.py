"""Filters compared with the reference: the printed text of any tree evaluates like the tree."""

from __future__ import annotations

import re
from contextlib import suppress

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pairbus.broker.descriptions import Value
from pairbus.broker.sql import EvaluationError, parse_filter
from tests.broker.sql.message import Message, apply, fresh_id, judge
from tests.broker.sql.reference import FAILED, Tree, meaning, predicates, properties, resembles, show, values
from tests.thoroughness import times


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def tries(count: int) -> settings:
    return settings(max_examples=times(count), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@tries(600)
@given(predicates(), properties())
@example(("=", ("-", ("constant", 1), ("-", ("constant", 2), ("constant", 3))), ("constant", 2)), {})
def test_filter_result_equals_the_reference_evaluation(tree: Tree, message: dict[str, Value]) -> None:
    expected = meaning(tree, message)
    found: object = FAILED
    with suppress(EvaluationError):
        found = judge(show(tree), Message(message))
    assert found is (expected if expected in (True, False, FAILED) and not is_number(expected) else None), show(tree)


@tries(300)
@given(values(), properties())
def test_action_result_equals_the_reference_evaluation(tree: Tree, message: dict[str, Value]) -> None:
    expected = meaning(tree, message)
    found: object = FAILED
    with suppress(EvaluationError):
        found = apply(f"SET result = {show(tree)}", Message(message)).user["result"]
    assert (type(found), repr(found)) == (type(expected), repr(expected)), show(tree)


@tries(400)
@given(st.text("aab", max_size=12), st.text("aab%_", max_size=8))
@example("aab", "%a%ab")
@example("ab", "%b%b")
@example("ab", "%b%_%")
def test_like_equals_an_exhaustive_match(text: str, pattern: str) -> None:
    assert judge("a LIKE b", Message({"a": text, "b": pattern})) is resembles(text, pattern)


_ESCAPED = st.lists(st.sampled_from(["a", "%", "_", "!%", "!_", "!!"]), max_size=7).map("".join)


@tries(300)
@given(st.text("a%_!", max_size=8), _ESCAPED)
def test_like_with_an_escape_equals_an_exhaustive_match(text: str, pattern: str) -> None:
    expected = resembles(text, pattern, "!")
    assert judge(f"a LIKE '{pattern}' ESCAPE '!'", Message({"a": text})) is expected
    assert judge("a LIKE b ESCAPE c", Message({"a": text, "b": pattern, "c": "!"})) is expected


@tries(200)
@given(st.text(max_size=20))
def test_any_text_can_be_written_as_a_string(text: str) -> None:
    written = text.replace("'", "''")
    assert parse_filter(f"a = '{written}'", fresh_id=fresh_id).matches(Message({"a": text}))


@tries(200)
@given(st.text(min_size=1, max_size=20), st.sampled_from([("[", "]"), ('"', '"')]))
def test_any_text_can_be_the_name_of_a_property(name: str, quotes: tuple[str, str]) -> None:
    opening, closing = quotes
    written = f"{opening}{name.replace(closing, closing * 2)}{closing}"
    assert parse_filter(f"{written} = 1", fresh_id=fresh_id).matches(Message({name: 1}))


def as_regular_expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern character by character, without regard to speed."""
    meanings = {"%": ".*", "_": "."}
    return re.compile("".join(meanings.get(character) or re.escape(character) for character in pattern), re.DOTALL)


@tries(600)
@given(st.text("ab.\n\U0001f600", max_size=16), st.text("ab.\n\U0001f600%%__", max_size=12))
@example("aaab", "%a_b%")
@example("abab", "%_b%_b")
@example("aXbaXc", "%a_c%")
@example("aab", "%_a_%")
@example("", "%%")
def test_like_agrees_with_a_regular_expression(text: str, pattern: str) -> None:
    expected = as_regular_expression(pattern).fullmatch(text) is not None
    assert judge("a LIKE b", Message({"a": text, "b": pattern})) is expected
    assert judge(f"a LIKE '{pattern}'", Message({"a": text})) is expected
