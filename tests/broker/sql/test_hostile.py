"""Any input is parsed or refused, quickly, and with no other error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.broker.descriptions import Instant, Span, Value
from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql import EvaluationError, parse_action, parse_filter
from pairbus.broker.sql.parser import MAX_DEPTH
from tests.broker.sql.message import Message, fresh_id
from tests.thoroughness import times

PARAMETERS: Final[dict[str, Value]] = {"@p": 1, "@q": "%!", "@t": Instant(5), "@s": Span(5), "@n": None}
MESSAGE: Final = Message({"a": 1, "b": "x%", "c": True, "d": None, "e": 2.5}, {"Label": "x"})

# Random tokens get much further than random characters.
_TOKENS: Final = (
    'a b c d e missing sys user . sys.Label sys.Nope [a] [x]]] "b" ( ) ( ) , ; = <> != < <= > >= + - * / % '
    "AND OR NOT IN LIKE ESCAPE IS NULL EXISTS TRUE FALSE and not is null newid newid() p p( property( @p @q @t @s @n "
    "@zz 0 1 2 9223372036854775807 9223372036854775808 1.5 .5 1e3 1e400 '' 'x' '!' '%' '!%' 'a''b' ' \" [ ] @ ! _ # "
    "SET REMOVE set 1/0 \x00 \ud800 \u212a é 数 ² ٣"
)
TOKENS: Final = _TOKENS.split(" ")

SOUP: Final = st.one_of(
    st.lists(st.sampled_from(TOKENS), max_size=14).map(" ".join),
    st.lists(st.sampled_from(TOKENS), max_size=8).map("".join),
)

# Mostly valid input, so that much of it is parsed.
WORDS: Final = st.lists(
    st.tuples(
        st.sampled_from(["", "", "NOT ", "(", "-"]),
        st.sampled_from(["a", "b", "c", "d", "e", "missing", "1", "'x'", "@q", "@t", "p(b)", "EXISTS(a)", "2.5", "0"]),
        st.sampled_from([" IS NULL", "", "", "", ")", " IN (1, 'x')", " LIKE @q ESCAPE '!'"]),
        st.sampled_from([" AND ", " OR ", " = ", " < ", " + ", " - ", " / ", " % ", " LIKE "]),
    ).map("".join),
    max_size=6,
).map(lambda parts: "".join(parts) + "c")
RAW: Final = st.text(st.characters(exclude_categories=()), max_size=30)


@contextmanager
def soon() -> Iterator[None]:
    """Check that the block takes less than a second of processor time; it should be milliseconds."""
    start = time.process_time()
    yield
    assert time.process_time() - start < 1


def read_or_refused(expression: str, read: Callable[[str], Callable[[Message], object]]) -> None:
    refusal: InvalidExpressionError | EvaluationError
    try:
        read(expression)(MESSAGE)
    except (InvalidExpressionError, EvaluationError) as error:
        refusal = error
    else:
        return
    assert refusal.expression == expression
    assert refusal.position is not None
    assert 0 <= refusal.position <= len(expression)
    assert refusal.reason


def a_filter(expression: str) -> Callable[[Message], object]:
    return parse_filter(expression, PARAMETERS, fresh_id=fresh_id).matches


def an_action(expression: str) -> Callable[[Message], object]:
    return parse_action(expression, PARAMETERS, fresh_id=fresh_id).apply


@settings(max_examples=times(1000), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(SOUP, WORDS, RAW))
def test_any_text_is_a_filter_or_raises_an_invalid_expression_error(expression: str) -> None:
    read_or_refused(expression, a_filter)


@settings(max_examples=times(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(SOUP, RAW, WORDS.map("SET a = {}".format), SOUP.map("SET sys.Label = {}".format)))
def test_any_text_is_an_action_or_raises_an_invalid_expression_error(expression: str) -> None:
    read_or_refused(expression, an_action)


REFUSED_FOR_DEPTH: Final = [
    "(" * 1024,
    "(" * 512 + ")" * 512,
    "(" * 511 + "c" + ")" * 511,
    "NOT " * 255 + "c",
    "NOT(" * 250 + "c" + ")" * 250,
    "-" * 1022 + "a",
    "- " * 511 + "a",
    "+-" * 500 + "(1)",
    "p(" * 340 + "b" + ")" * 340,
    "a = (" * 200,
    "a + (" * 200 + "a" + ")" * 200,
    "1 + 1 * (" * 100 + "a" + ")" * 100,
    "c OR c AND NOT (" * 64,
    "-(" * 300 + "a" + ")" * 300,
]


@pytest.mark.parametrize("expression", REFUSED_FOR_DEPTH, ids=[text[:20] for text in REFUSED_FOR_DEPTH])
def test_too_deep(expression: str) -> None:
    with soon(), pytest.raises(InvalidExpressionError):
        parse_filter(expression, fresh_id=fresh_id)


def from_the_depth(levels: int, call: Callable[[], bool]) -> bool:
    return from_the_depth(levels - 1, call) if levels else call()


AS_DEEP_AS_MAY_BE: Final = [
    ("(" * MAX_DEPTH + "c" + ")" * MAX_DEPTH, True),
    ("NOT " * MAX_DEPTH + "c", True),
    ("NOT (" * (MAX_DEPTH // 2) + "c" + ")" * (MAX_DEPTH // 2), True),
    ("a = 2 OR c AND NOT (" * (MAX_DEPTH // 2) + "c" + ")" * (MAX_DEPTH // 2), True),
    ("a = 2 OR c AND (" * MAX_DEPTH + "c" + ")" * MAX_DEPTH, True),
    ("a + 1 * (" * MAX_DEPTH + "a" + ")" * MAX_DEPTH + f" = {MAX_DEPTH + 1}", True),
    ("65 = a + 1 * (" + "a + 1 * (" * (MAX_DEPTH - 1) + "a" + ")" * MAX_DEPTH, True),
    ("1 = a - 1 * -(" + "a - 1 * -(" * (MAX_DEPTH // 2 - 1) + "0" + ")" * (MAX_DEPTH // 2), False),
    ("b LIKE 'x' + p(" + "'x' + p(" * (MAX_DEPTH - 1) + "b" + ")" * MAX_DEPTH, False),
]


@pytest.mark.parametrize(("expression", "expected"), AS_DEEP_AS_MAY_BE, ids=[row[0][:20] for row in AS_DEEP_AS_MAY_BE])
def test_deepest_allowed_nesting_is_parsed_below_a_deep_call_stack(expression: str, expected: bool) -> None:
    def call() -> bool:
        return parse_filter(expression, fresh_id=fresh_id).matches(MESSAGE)

    assert from_the_depth(300, call) is expected


def test_long_chains() -> None:
    for expression, expected in [
        (" OR ".join(["a = 2"] * 5000 + ["a = 1"]), True),
        (" AND ".join(["c"] * 5000), True),
        (" AND ".join(["c", "a = 2"] * 2500), False),
        ("5000 = " + " + ".join(["a"] * 5000), True),
        ("-5000 = " + " + ".join(["-a"] * 5000), True),
        ("5000 = " + " + ".join(["(a)"] * 5000), True),
        ("5000 = " + " + ".join(["p('a')"] * 5000), True),
        (" AND ".join(["NOT (a = 2)"] * 5000), True),
        ("1 = " + " * ".join(["a"] * 5000), True),
        (f"a IN ({', '.join(map(str, range(2, 5000)))}, 1)", True),
        (f"b IN ({', '.join(map(repr, map(str, range(5000))))}, 'x%')", True),
        (" OR ".join(f"(a = {number} AND c)" for number in range(2000)), True),
    ]:
        with soon():
            assert parse_filter(expression, fresh_id=fresh_id).matches(MESSAGE) is expected


def test_long_words() -> None:
    with soon():
        for expression in ["a" * 100_000, "'" * 100_001, "[" + "]" * 100_001, '"' * 100_001, "1" * 100_000 + ".0"]:
            read_or_refused(expression, a_filter)


PATTERNS: Final = [
    "%a%a%a%a%a%a%a%a%b",
    "%a" * 400 + "b",
    "%a" * 400 + "%b%",
    "%_a" * 300 + "b",
    "%" + "_a" * 500 + "b%",
    "%" + "a" * 1000 + "b%",
    "%" + "a" * 500 + "b%" + "a" * 500,
    "%" + "a" * 1000 + "b",
    "%" + "_" * 1000 + "b%",
    "%" * 1000 + "b",
    "_%" * 500 + "b",
    "a%" * 500 + "b",
    "%_" * 511 + "b",
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern[:12] for pattern in PATTERNS])
def test_patterns_prone_to_backtracking_match_in_bounded_time(pattern: str) -> None:
    message = Message({"text": "a" * 30_000, "pattern": pattern})
    with soon():
        assert not parse_filter(f"text LIKE '{pattern}'", fresh_id=fresh_id).matches(message)
        assert not parse_filter("text LIKE pattern", fresh_id=fresh_id).matches(message)
        assert parse_filter(f"text + 'b' LIKE '%{pattern[:1000]}%'", fresh_id=fresh_id).matches(message) in {
            True,
            False,
        }


def test_pattern_from_a_message_is_limited_like_one_in_a_filter() -> None:
    with pytest.raises(EvaluationError, match="more than 1024 characters"):
        parse_filter("a LIKE b", fresh_id=fresh_id).matches(Message({"a": "", "b": "%" * 1025}))


def test_action_cannot_build_a_text_beyond_the_limit() -> None:
    action = parse_action("SET a = a + a + a + a;" * 32, fresh_id=fresh_id)
    with soon(), pytest.raises(EvaluationError, match="65536"):
        action.apply(Message({"a": "x"}))


LONG: Final = "a" * 60_000


@pytest.mark.parametrize(
    "pattern",
    [
        "%" + "a" * 1000 + "b%",
        "%" + "a" * 40 + "b" + "a" * 40 + "%",
        "%" + "a" * 500 + "b%" + "a" * 500,
        "%a" * 500 + "%b%",
    ],
    ids=["long", "short", "with a tail", "many segments"],
)
@pytest.mark.parametrize("length", [2_400, 29_000, 60_000])
def test_like_without_underscore_takes_linear_work(pattern: str, length: int) -> None:
    message = Message({"text": "a" * length})
    with soon():
        for _ in range(100):
            assert not parse_filter(f"text LIKE '{pattern}'", fresh_id=fresh_id).matches(message)
    assert message.spent <= 100 * 2 * length


def test_like_with_underscore_counts_text_times_segment() -> None:
    message = Message({"text": LONG})
    assert not parse_filter(f"text LIKE '%{'a_' * 400}aab%'", fresh_id=fresh_id).matches(message)
    assert message.spent == 2 * len(LONG)  # the longest piece is missing
    assert not parse_filter(f"text LIKE '%a{'a_' * 400}b%'", fresh_id=fresh_id).matches(message)
    assert message.spent >= 800 * len(LONG)


@pytest.mark.parametrize(
    ("expression", "units"),
    [
        ("text < other", len(LONG) // 16),
        ("text = other", len(LONG) // 16),
        ("text IN (other, other)", len(LONG) // 16),
        ("text + 'b' = other", len(LONG) // 16),
        ("p(text) = 1", len(LONG)),
        ("short LIKE short + '%x%'", 10_000),
    ],
)
def test_work_on_long_texts_is_counted(expression: str, units: int) -> None:
    message = Message({"text": LONG, "other": LONG + "", "short": "a"})
    parse_filter(expression, fresh_id=fresh_id).matches(message)
    assert message.spent >= units


@pytest.mark.parametrize(
    "expression", ["text = 'a'", "text IN ('a', 'b')", "text LIKE 'b%'", "text LIKE '%b'", "n = 1"]
)
def test_work_that_does_not_depend_on_the_message_is_not_counted(expression: str) -> None:
    message = Message({"text": LONG, "n": 1})
    parse_filter(expression, fresh_id=fresh_id).matches(message)
    assert message.spent == 0


def test_action_counts_the_texts_that_it_copies_and_converts() -> None:
    message = Message({"text": LONG, "n": 1})
    parse_action("SET n = text + 'b'; SET sys.Label = text", fresh_id=fresh_id).apply(message)
    assert message.spent >= 2 * len(LONG)
