"""Invalid filters: the position and the text of their errors."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

import pytest

from pairbus.broker.descriptions import Value
from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql import parse_filter
from pairbus.broker.sql.parser import MAX_DEPTH
from pairbus.wire import UInt
from tests.broker.sql.message import Message, fresh_id

BAD: Final = [
    # Nothing, or not enough.
    ("", 0, "expected a value, found the end of the expression"),
    ("   ", 3, "expected a value, found the end of the expression"),
    ("a =", 3, "expected a value, found the end"),
    ("a = 1 AND", 9, "expected a value, found the end"),
    ("a = 1 OR ", 9, "expected a value, found the end"),
    ("NOT", 3, "expected a value, found the end"),
    ("a +", 3, "expected a value, found the end"),
    ("-", 1, "expected a value, found the end"),
    ("(a = 1", 6, "expected an operator or ')', found the end"),
    ("()", 1, "expected a value, found ')'"),
    ("((a = 1)", 8, "expected an operator or ')', found the end"),
    # Too much.
    ("a = 1)", 5, "expected an operator or the end of the expression, found ')'"),
    ("a b", 2, "expected an operator or the end of the expression, found 'b'"),
    ("a = 1;", 5, "found ';'"),
    ("a = 1 b = 2", 6, "expected an operator or the end of the expression, found 'b'"),
    ("a = 5x", 5, "found 'x'"),
    ("a = 1.2.3", 7, "found '.3'"),
    ("a = 'x' 'y'", 8, "found 'y'"),
    ("a = 1 TRUE", 6, "found the reserved word TRUE"),
    ("a, b", 1, "found ','"),
    ("SET a = 1", 4, "expected an operator or the end of the expression, found 'a'"),
    # Comparisons.
    ("a = b = c", 6, "expected an operator or the end of the expression, found '='"),
    ("a < b < c", 6, "found '<'"),
    ("(a = b = c)", 7, "expected an operator or ')', found '='"),
    ("(a = b) = c", 0, "expected a value, found a condition"),
    ("a = (b = c)", 7, "expected an operator or ')', found '='"),
    ("a == b", 3, "expected a value, found '='"),
    ("a => b", 3, "expected a value, found '>'"),
    ("a =< b", 3, "expected a value, found '<'"),
    ("= 1", 0, "expected a value, found '='"),
    ("a = NOT b", 4, "expected a value (a property of that name is written [NOT]), found the reserved word NOT"),
    ("a ! b", 2, "expected != instead of a lone '!'"),
    ("a & b", 2, "expected a word or a symbol of the language, found '&'"),
    ("a = b AND OR c", 10, "found the reserved word OR"),
    # Conditions where values belong.
    ("(a = b) + 1 = 2", 0, "expected a value, found a condition"),
    ("1 + (a = b) = 2", 7, "expected an operator or ')', found '='"),
    ("2 * (a OR b) = 2", 7, "expected an operator or ')', found the reserved word OR"),
    ("-(a AND b) = 2", 4, "found the reserved word AND"),
    ("(NOT a) IN (1)", 0, "expected a value, found a condition"),
    ("a IN (1, (b = 2))", 12, "expected an operator or ')', found '='"),
    ("(a = 1) LIKE 'x'", 0, "expected a value, found a condition"),
    ("a LIKE (b = 1)", 10, "found '='"),
    ("a LIKE 'b' ESCAPE (b = 1)", 21, "found '='"),
    ("p((a = 1)) = 2", 5, "found '='"),
    ("(a = 1) IS NULL", 0, "expected a value, found a condition"),
    ("(a = 1) NOT IN (1)", 0, "expected a value, found a condition"),
    ("(a = 1) * 2 > 1", 0, "expected a value, found a condition"),
    ("((a = 1)) < 2", 0, "expected a value, found a condition"),
    ("EXISTS(a) = TRUE", 10, "found '='"),
    # IS.
    ("a IS", 4, "expected NULL after IS, found the end"),
    ("a IS 5", 5, "expected NULL after IS, found '5'"),
    ("a IS NOT", 8, "expected NULL after IS, found the end"),
    ("a IS NOT TRUE", 9, "expected NULL after IS, found the reserved word TRUE"),
    ("5 IS NULL", 0, "expected a property on the left of IS"),
    ("a + b IS NULL", 0, "expected a property on the left of IS"),
    ("(a) IS NULL", 0, "expected a property on the left of IS"),
    ("p('a') IS NULL", 0, "expected a property on the left of IS"),
    ("a = b IS NULL", 6, "found the reserved word IS"),
    ("c AND @x IS NULL", 6, "expected a property on the left of IS"),
    # IN, LIKE, EXISTS.
    ("a IN", 4, "expected '(' after IN, found the end"),
    ("a IN 5", 5, "expected '(' after IN, found '5'"),
    ("a IN ()", 6, "expected a value, found ')'"),
    ("a IN (1,)", 8, "expected a value, found ')'"),
    ("a IN (1 2)", 8, "expected an operator or ')', found '2'"),
    ("a IN (1, 2", 10, "expected an operator or ')', found the end"),
    ("a NOT 5", 6, "expected IN or LIKE after NOT, found '5'"),
    ("a NOT = 5", 6, "expected IN or LIKE after NOT, found '='"),
    ("a NOT", 5, "expected IN or LIKE after NOT, found the end"),
    ("a LIKE", 6, "expected a value, found the end"),
    ("a LIKE 'x' ESCAPE", 17, "expected a value, found the end"),
    ("a ESCAPE 'x'", 2, "found the reserved word ESCAPE"),
    ("a LIKE 'x' ESCAPE ''", 18, "expected a string of one character after ESCAPE, found ''"),
    ("a LIKE 'x' ESCAPE 'ab'", 18, "expected a string of one character after ESCAPE, found 'ab'"),
    ("a LIKE b ESCAPE 'ab'", 16, "expected a string of one character after ESCAPE"),
    ("a LIKE 'x' ESCAPE 5", 18, "expected a string of one character after ESCAPE, found 5"),
    ("a LIKE 'x!' ESCAPE '!'", 7, "the pattern of LIKE ends with its escape '!'"),
    ("a LIKE 'x!y' ESCAPE '!'", 7, "the escape '!' is before 'y'"),
    ("a LIKE @x ESCAPE 'v'", 7, "the escape 'v' is before 'a'"),
    (f"a LIKE '{'x' * 1025}'", 7, "the pattern of LIKE has more than 1024 characters"),
    ("EXISTS a", 7, "expected '(' after EXISTS, found 'a'"),
    ("EXISTS()", 7, "expected a property, found ')'"),
    ("EXISTS(5)", 7, "expected a property, found '5'"),
    ("EXISTS('a')", 7, "expected a property, found 'a'"),
    ("EXISTS(@x)", 7, "expected a property, found '@x'"),
    ("EXISTS(a", 8, "expected ')' after the property, found the end"),
    ("EXISTS(p('a'))", 8, "expected ')' after the property, found '('"),
    ("EXISTS(a + b)", 9, "expected ')' after the property, found '+'"),
    # Names.
    ("and = 1", 0, "expected a value (a property of that name is written [and]), found the reserved word and"),
    ("a = like", 4, "a property of that name is written [like]"),
    (
        "user.Null = 1",
        5,
        "expected a property (a property of that name is written [Null]), found the reserved word Null",
    ),
    ("EXISTS(in)", 7, "a property of that name is written [in]"),
    ("foo.bar = 1", 0, "expected sys or user before '.', found 'foo'"),
    ("größe.x = 1", 0, "expected sys or user before '.', found 'größe'"),
    ("[sys].To = 1", 5, "found '.'"),
    ("sys. = 1", 5, "expected a property, found '='"),
    ("sys.", 4, "expected a property, found the end"),
    ("user.sys.To = 1", 8, "found '.'"),
    ("sys.'To' = 1", 4, "expected a property, found 'To'"),
    ("_a = 1", 0, "expected a letter at the beginning of a name, found '_'"),
    ("a\u00b2 = 1", 1, "found '\u00b2'"),
    ("a-b.c = 1", 2, "expected sys or user before '.', found 'b'"),
    ("[] = 1", 0, "expected a name, found an empty one"),
    ('a = ""', 4, "expected a name, found an empty one"),
    ("[a = 1", 0, "the name that begins here is not closed: expected a closing ]"),
    ("b = [a]] = 1", 4, "the name that begins here is not closed: expected a closing ]"),
    ('"a = 1', 0, 'the name that begins here is not closed: expected a closing "'),
    ('"a"" = 1', 0, 'the name that begins here is not closed: expected a closing "'),
    ("a] = 1", 1, "found ']'"),
    # Constants.
    ("a = 'x", 4, "the string that begins here is not closed: expected a closing '"),
    ("a = 'x''", 4, "the string that begins here is not closed: expected a closing '"),
    ("a = '", 4, "the string that begins here is not closed: expected a closing '"),
    ("a = 9223372036854775808", 4, "expected an integer of 64 bits, found a larger one"),
    ("a = -9223372036854775809", 5, "expected an integer of 64 bits, found a larger one"),
    ("a = -(9223372036854775808)", 6, "expected an integer of 64 bits, found a larger one"),
    (f"a = {'9' * 900}", 4, "expected an integer of 64 bits, found a larger one"),
    (f"a = {'9' * 9000}", 4, "expected an integer of 64 bits, found a larger one"),
    ("a = 1e999", 4, "expected a number that a double can hold, found a larger one"),
    ("a = 1e", 5, "found 'e'"),
    ("a = .", 4, "expected a value, found '.'"),
    ("a = \u0663", 4, "found '\u0663'"),
    ("a = #", 4, "found '#'"),
    ("a = \x00", 4, "found '\\x00'"),
    ("a = \ud800", 4, "found '\\ud800'"),
    ("a = b\u0301", 5, "expected a word or a symbol of the language"),
    # Parameters and functions.
    ("a = @y", 4, "expected a parameter with a value, @y has none"),
    ("a = @", 4, "expected a letter after @"),
    ("a = @1", 4, "expected a letter after @"),
    ("a = @x\u00b2", 6, "found '\u00b2'"),
    ("a = @[x]", 4, "expected a letter after @"),
    ("foo(1) = 1", 0, "expected newid, property or p, found 'foo'"),
    ("a = größe()", 4, "expected newid, property or p, found 'größe'"),
    ("set(1) = 1", 0, "expected newid, property or p, found 'set'"),
    ("newid(1) = a", 6, "expected ')' as newid takes no argument, found '1'"),
    ("p() = a", 2, "expected a value, found ')'"),
    ("p('a', 'b') = a", 5, "expected an operator or ')' as p takes one argument, found ','"),
    ("property('a' = 1", 13, "expected an operator or ')' as property takes one argument, found '='"),
    ("[p]('a') = a", 3, "found '('"),
    ("user.p('a') = a", 6, "found '('"),
    # Depth.
    ("(" * 65 + "a" + ")" * 65, 64, "expected at most 64 levels of nesting, found more"),
    ("NOT " * 65 + "a", 256, "expected at most 64 levels of nesting, found more"),
    ("-" * 65 + "a = 1", 64, "expected at most 64 levels of nesting, found more"),
    ("p(" * 65 + "a" + ")" * 65, 129, "expected at most 64 levels of nesting, found more"),
    ("NOT (" * 33 + "a" + ")" * 33, 160, "expected at most 64 levels of nesting, found more"),
    # The first error counts, but invalid tokens are found before anything else.
    ("a = = b = #", 10, "found '#'"),
    (f"a b{'c' * 100}", 2, f"found 'b{'c' * 23}…'"),
]


@pytest.mark.parametrize(("expression", "position", "reason"), BAD, ids=[ascii(row[0])[:60] for row in BAD])
def test_bad(expression: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidExpressionError) as caught:
        parse_filter(expression, {"@x": "vat"}, fresh_id=fresh_id)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.expression == expression


def test_table_is_large() -> None:
    assert len(BAD) >= 60


BAD_PARAMETERS: Final[list[tuple[dict[Any, Any], str]]] = [
    ({"p": 1}, "expected the name of a parameter to begin with @, found 'p'"),
    ({"": 1}, "expected the name of a parameter to begin with @, found ''"),
    ({5: 1}, "expected the name of a parameter to begin with @, found 5"),
    ({"@p": 1, "@P": 2}, "the parameter @P is given more than once"),
    ({"@p": b"x"}, "the parameter @p holds a bytes, which no expression can use"),
    ({"@p": UUID(int=0)}, "the parameter @p holds a UUID, which no expression can use"),
    ({"@p": [1]}, "the parameter @p holds a list, which no expression can use"),
    ({"@p": 2**63}, "the parameter @p does not fit into 64 bits"),
    ({"@p": UInt(2**63)}, "the parameter @p does not fit into 64 bits"),
]


@pytest.mark.parametrize(("parameters", "reason"), BAD_PARAMETERS)
def test_bad_parameters(parameters: dict[Any, Any], reason: str) -> None:
    with pytest.raises(InvalidExpressionError) as caught:
        parse_filter("TRUE", parameters, fresh_id=fresh_id)
    assert caught.value.reason == reason
    assert caught.value.position == 0


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, UInt(7), None, "", float("inf")])
def test_good_parameters(value: Value) -> None:
    parse_filter("@p = 1", {"@p": value, "@unused": 1}, fresh_id=fresh_id)


@pytest.mark.parametrize(
    "expression",
    [
        "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
        "NOT " * MAX_DEPTH + "a",
        "NOT (" * (MAX_DEPTH // 2) + "a" + ")" * (MAX_DEPTH // 2),
        "p(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
        "-" * MAX_DEPTH + "a = 1",
    ],
)
def test_deepest_allowed_nesting_is_parsed(expression: str) -> None:
    parse_filter(expression, fresh_id=fresh_id).matches(Message({"a": True}))
