"""Results of filters for one message: true, false or unknown."""

from __future__ import annotations

import math
from itertools import product
from typing import Final
from uuid import UUID

import pytest

from pairbus.broker.descriptions import Instant, Span, Value
from pairbus.broker.sql import EvaluationError, parse_filter
from pairbus.wire import Symbol, UInt, ULong
from tests.broker.sql.message import FRESH, F, Message, T, U, fresh_id, judge

HOUR: Final = 3_600_000

MESSAGE: Final = Message(
    user={
        "yes": True,
        "no": False,
        "nothing": None,
        "five": 5,
        "Seven": 7,
        "minus": -7,
        "half": 0.5,
        "two": 2.0,
        "nan": math.nan,
        "inf": math.inf,
        "highest": 2**63 - 1,
        "lowest": -(2**63),
        "unsigned": ULong(2**64 - 1),
        "small": UInt(5),
        "color": "red",
        "numeral": "5",
        "empty": "",
        "percent": "50% off",
        "path": "a_b",
        "lines": "one\ntwo",
        "quote": "it's",
        "symbol": Symbol("red"),
        "start": Instant(10 * HOUR),
        "end": Instant(12 * HOUR),
        "hours": Span(2 * HOUR),
        "id": FRESH,
        "other id": UUID(int=1),
        "data": b"\x00\x01",
        "pattern": "r_d",
        "name": "color",
        "größe": 42,
        "数量": 3,
        "emoji": "👍🏽!",
        "a]b": "bracket",
        'a"b': "quote",
        "and": "reserved",
        "dotted.name": "dot",
        "sys": "user property sys",
        "p": "user property p",
        "set": 1,
        "under_score1": 1,
    },
    system={
        "MessageId": "m-1",
        "Label": "order",
        "SequenceNumber": 17,
        "TimeToLive": Span(HOUR),
        "EnqueuedTimeUtc": Instant(11 * HOUR),
        "Size": 100,
    },
)

PARAMETERS: Final[dict[str, Value]] = {
    "@color": "red",
    "@Five": 5,
    "@half": 0.5,
    "@yes": True,
    "@null": None,
    "@noon": Instant(12 * HOUR),
    "@hour": Span(HOUR),
    "@form": "r%",
    "@unsigned": UInt(5),
    "@größe": 42,
}

COMPARISON: Final = [
    ("five = 5", T),
    ("five = 6", F),
    ("five <> 6", T),
    ("five != 5", F),
    ("five < 6", T),
    ("five < 5", F),
    ("five <= 5", T),
    ("five > 4", T),
    ("five > 5", F),
    ("five >= 5", T),
    ("5 = five", T),
    ("5 < Seven", T),
    ("five < Seven", T),
    ("five=5", T),
    ("five\n=\t5", T),
    ("color = 'red'", T),
    ("color = 'Red'", F),
    ("color <> 'Red'", T),
    ("color > 'RED'", T),
    ("color < 'red '", T),
    ("color < 'rf'", T),
    ("color >= 'red'", T),
    ("empty = ''", T),
    ("empty < 'a'", T),
    ("quote = 'it''s'", T),
    ("'''' = ''''", T),
    ("symbol = 'red'", T),
    ("symbol = color", T),
    ("yes = TRUE", T),
    ("yes = FALSE", F),
    ("yes <> no", T),
    ("TRUE = TRUE", T),
    ("id = id", T),
    ("id = [other id]", F),
    ("id <> [other id]", T),
    ("data = data", T),
    ("data <> data", F),
]

PROMOTION: Final = [
    ("two = 2", T),
    ("2 = two", T),
    ("five > half", T),
    ("half < five", T),
    ("five = 5.0", T),
    ("five = 5e0", T),
    ("small = 5", T),
    ("small = five", T),
    ("small = 5.0", T),
    ("highest = 9223372036854775807", T),
    ("lowest = -9223372036854775808", T),
    ("unsigned > highest", T),
    ("unsigned = -1", F),
    # The integer is converted to a double, as in C#, and the nearest double is equal.
    ("9007199254740993 = 9007199254740992.0", T),
    ("9007199254740993 = 9007199254740992", F),
    ("nan = nan", F),
    ("nan <> nan", T),
    ("nan < 1", F),
    ("nan >= 1", F),
    ("inf > highest", T),
]

MISMATCH: Final = [
    ("five = '5'", U),
    ("five <> '5'", U),
    ("numeral = 5", U),
    ("numeral < 6", U),
    ("yes = 1", U),
    ("1 = yes", U),
    ("yes = 'true'", U),
    ("yes > no", U),
    ("yes >= TRUE", U),
    ("id < [other id]", U),
    ("data < data", U),
    ("data = 'x'", U),
    ("id = '00000000-0000-4000-8000-00000000abcd'", U),
    ("start = 36000000", U),
    ("hours = 7200000", U),
    ("start > hours", U),
    ("start = start", T),
    ("start < end", T),
    ("hours = end", U),
]

NULLS: Final = [
    ("missing = 5", U),
    ("missing <> 5", U),
    ("missing = missing", U),
    ("missing < 'a'", U),
    ("nothing = 5", U),
    ("nothing = NULL", U),
    ("nothing <> NULL", U),
    ("five = NULL", U),
    ("NULL = NULL", U),
    ("NULL", U),
    ("missing IS NULL", T),
    ("missing IS NOT NULL", F),
    ("nothing IS NULL", T),
    ("nothing IS NOT NULL", F),
    ("five IS NULL", F),
    ("five IS NOT NULL", T),
    ("empty IS NULL", F),
    ("NOT five IS NULL", T),
    ("sys.Label IS NULL", F),
    ("sys.To IS NULL", T),
    ("sys.To IS NOT NULL", F),
    ("EXISTS(five)", T),
    ("EXISTS(missing)", F),
    ("EXISTS(nothing)", T),
    ("EXISTS ( user.five )", T),
    ("NOT EXISTS(missing)", T),
    ("EXISTS(FIVE)", T),
    ("EXISTS([a]]b])", T),
    ("EXISTS(sys.Label)", T),
    ("EXISTS(sys.To)", T),
    ("missing + 1 = 2", U),
    ("1 + missing = 2", U),
    ("missing * 2 > 1", U),
    ("-missing = 2", U),
    ("nothing + 1 = 1", U),
    ("color + missing = 'red'", U),
]

BARE: Final = [
    ("yes", T),
    ("no", F),
    ("TRUE", T),
    ("FALSE", F),
    ("NOT yes", F),
    ("NOT NOT yes", T),
    ("(yes)", T),
    ("((yes)) = TRUE", T),
    ("five", U),
    ("color", U),
    ("missing", U),
    ("1", U),
    ("'true'", U),
    ("yes AND five = 5", T),
    ("five AND yes", U),
    ("five OR yes", T),
    ("five OR no", U),
    ("five AND no", F),
    ("NOT five", U),
    ("1 + 1", U),
    ("@yes", T),
    ("newid()", U),
    ("p('yes')", T),
]

PRECEDENCE: Final = [
    ("yes OR yes AND no", T),
    ("(yes OR yes) AND no", F),
    ("no AND no OR yes", T),
    ("no AND (no OR yes)", F),
    ("NOT no AND no", F),
    ("NOT (no AND no)", T),
    ("NOT five = 6", T),
    ("NOT no OR yes", T),
    ("NOT (no OR yes)", F),
    ("1 + 2 * 3 = 7", T),
    ("(1 + 2) * 3 = 9", T),
    ("10 - 2 - 3 = 5", T),
    ("10 - (2 - 3) = 11", T),
    ("100 / 10 / 5 = 2", T),
    ("100 / (10 / 5) = 50", T),
    ("2 * 7 % 4 = 2", T),
    ("-2 * 3 = -6", T),
    ("- (2 + 3) = -5", T),
    ("2 - -3 = 5", T),
    ("2 - + - 3 = 5", T),
    ("-five + 5 = 0", T),
    ("--5 = 5", T),
    ("five-5=0", T),
    ("((1 + 2)) = ((3))", T),
    ("(five = 5) AND (Seven = 7)", T),
    ("((five) = (5))", T),
]

ARITHMETIC: Final = [
    ("five + Seven = 12", T),
    ("five - Seven = -2", T),
    ("five * Seven = 35", T),
    ("Seven / 2 = 3", T),
    ("minus / 2 = -3", T),
    ("7 / -2 = -3", T),
    ("-7 / -2 = 3", T),
    ("Seven % 4 = 3", T),
    ("minus % 4 = -3", T),
    ("7 % -4 = 3", T),
    ("-7 % -4 = -3", T),
    ("lowest % -1 = 0", T),
    ("five / 2.0 = 2.5", T),
    ("5.0 / 2 = 2.5", T),
    ("five + half = 5.5", T),
    ("half * 4 = 2", T),
    ("half - 1 = -0.5", T),
    ("-7.5 % 2 = -1.5", T),
    ("7.5 % -2 = 1.5", T),
    ("1.0 / 0 > highest", T),
    ("-1.0 / 0 < lowest", T),
    ("1 / 0.0 = inf", T),
    ("1 / -0.0 = -inf", T),
    ("0.0 / 0 = 0", F),
    ("nan / 0 = 0", F),
    ("5.0 % 0 = 0", F),
    ("inf % 2 = 0", F),
    ("5.0 % inf = 5", T),
    ("1e308 * 10 = inf", T),
    ("highest + 0.0 = 9.223372036854775807e18", T),
    ("small + small = 10", T),
    ("highest - 1 + 1 = highest", T),
    ("-highest - 1 = lowest", T),
    ("color + 'dish' = 'reddish'", T),
    ("'a' + 'b' + 'c' = 'abc'", T),
    ("symbol + '!' = 'red!'", T),
    ("color - 'd' = 're'", U),
    ("color * 2 = 'redred'", U),
    ("color + 5 = 'red5'", U),
    ("5 + color = '5red'", U),
    ("yes + 1 = 2", U),
    ("-yes = -1", U),
    ("-color = 'x'", U),
    ("+color = 'red'", U),
    ("+five = 5", T),
    ("+half = 0.5", T),
    ("-half = -0.5", T),
    ("id + 1 = 1", U),
    ("data + data = data", U),
    ("1. = .1e1", T),
    ("1.5e+1 = 15", T),
    ("15E-1 = 1.5", T),
    ("007 = 7", T),
]

TIMES: Final = [
    ("end - start = hours", T),
    ("end - start > @hour", T),
    ("end - start <= @hour", F),
    ("start + hours = end", T),
    ("end - hours = start", T),
    ("@noon = end", T),
    ("@noon - start = @hour + @hour", T),
    ("hours - @hour = @hour", T),
    ("-@hour < @hour", T),
    ("+@hour = @hour", T),
    ("hours + start = end", U),
    ("start + end = end", U),
    ("start + 1 > start", U),
    ("hours * 2 > hours", U),
    ("-start < start", U),
    ("sys.EnqueuedTimeUtc + sys.TimeToLive = @noon", T),
    ("sys.EnqueuedTimeUtc < @noon", T),
    ("sys.TimeToLive = @hour", T),
]

MEMBERSHIP: Final = [
    ("five IN (5)", T),
    ("five IN (1, 5, 9)", T),
    ("five IN (1, 2)", F),
    ("five NOT IN (1, 2)", T),
    ("five NOT IN (1, 5)", F),
    ("five IN (5.0)", T),
    ("two IN (2)", T),
    ("color IN ('blue', 'red')", T),
    ("color IN ('blue', 'Red')", F),
    ("color NOT IN ('blue')", T),
    ("symbol IN ('blue', 'red')", T),
    ("five IN ('5', '6')", U),
    ("missing IN ('a')", U),
    ("missing IN (1)", U),
    ("missing NOT IN (1)", U),
    ("nothing IN (NULL)", U),
    ("five IN (1, missing)", U),
    ("five NOT IN (1, missing)", U),
    ("five IN (5, missing)", T),
    ("five IN (missing, 5)", T),
    ("five NOT IN (missing, 5)", F),
    ("five IN (1, NULL)", U),
    ("five IN (1, 'a')", U),
    ("five IN ('a', 5)", T),
    ("color IN ('blue', missing)", U),
    ("color IN ('blue', name, color)", T),
    ("five IN (2 + 3, 1)", T),
    ("five + 1 IN (6)", T),
    ("color IN (@color)", T),
    ("color IN ('blue', @color)", T),
    ("five IN (Seven - 2)", T),
    ("yes IN (FALSE, TRUE)", T),
    ("yes IN (1)", U),
    ("NOT five IN (5)", F),
    # Items after the equal one are not evaluated, nor any item for an unknown left side.
    ("five IN (5, 1 / 0)", T),
    ("missing IN (1 / 0)", U),
]

LIKE: Final = [
    ("color LIKE 'red'", T),
    ("color LIKE 're'", F),
    ("color LIKE 'ed'", F),
    ("color LIKE 'RED'", F),
    ("color LIKE 'r%'", T),
    ("color LIKE 'R%'", F),
    ("color LIKE '%d'", T),
    ("color LIKE '%e%'", T),
    ("color LIKE 'r%d'", T),
    ("color LIKE 'red%'", T),
    ("color LIKE 're%ed'", F),
    ("color LIKE '%'", T),
    ("color LIKE '%%'", T),
    ("color LIKE '___'", T),
    ("color LIKE '____'", F),
    ("color LIKE '__'", F),
    ("color LIKE '_%_%_'", T),
    ("color LIKE '_e_'", T),
    ("color LIKE '%_e%'", T),
    ("color LIKE '%d%e%'", F),
    ("empty LIKE ''", T),
    ("empty LIKE '%'", T),
    ("empty LIKE '_'", F),
    ("color LIKE ''", F),
    ("color NOT LIKE 'b%'", T),
    ("color NOT LIKE 'r%'", F),
    ("NOT color LIKE 'r%'", F),
    ("lines LIKE 'one%two'", T),
    ("lines LIKE 'one_two'", T),
    ("'one\n' LIKE 'one'", F),
    ("'a.c' LIKE 'a.c'", T),
    ("'abc' LIKE 'a.c'", F),
    ("'a*' LIKE 'a*'", T),
    ("'[a]' LIKE '[a]'", T),
    ("'a\\' LIKE 'a\\'", T),
    ("percent LIKE '50!% %' ESCAPE '!'", T),
    ("'50 percent' LIKE '50!% %' ESCAPE '!'", F),
    ("path LIKE 'a\\_b' ESCAPE '\\'", T),
    ("'axb' LIKE 'a\\_b' ESCAPE '\\'", F),
    ("'a!b' LIKE 'a!!b' ESCAPE '!'", T),
    ("'100%' LIKE '100%%' ESCAPE '%'", T),
    ("'100x' LIKE '100%%' ESCAPE '%'", F),
    ("'a_' LIKE 'a__' ESCAPE '_'", T),
    ("color LIKE 'r%' ESCAPE '!'", T),
    ("color LIKE pattern", T),
    ("color LIKE 'r' + '%'", T),
    ("color LIKE @form", T),
    ("percent LIKE '50!%%' ESCAPE p('missing')", U),
    ("percent LIKE '50!%%' ESCAPE NULL", U),
    ("percent LIKE '50' + '!%%' ESCAPE '!'", T),
    ("color + 'dish' LIKE '%dish'", T),
    ("missing LIKE '%'", U),
    ("missing NOT LIKE '%'", U),
    ("nothing LIKE '%'", U),
    ("five LIKE '5'", U),
    ("color LIKE missing", U),
    ("color LIKE 5", U),
    ("color LIKE NULL", U),
    ("symbol LIKE 'r%'", T),
    ("emoji LIKE '👍%'", T),
    ("emoji LIKE '___'", T),
]

NAMES: Final = [
    ("FIVE = 5", T),
    ("seven = 7", T),
    ("user.five = 5", T),
    ("USER.five = 5", T),
    ("user . five = 5", T),
    ("[five] = 5", T),
    ('"five" = 5', T),
    ("user.[five] = 5", T),
    ("[other id] IS NOT NULL", T),
    ("[a]]b] = 'bracket'", T),
    ("[a\"b] = 'quote'", T),
    ('"a""b" = \'quote\'', T),
    ("\"a]b\" = 'bracket'", T),
    ("[and] = 'reserved'", T),
    ("user.\"and\" = 'reserved'", T),
    ("[dotted.name] = 'dot'", T),
    ("[user.five] = 5", U),
    ("sys = 'user property sys'", T),
    ("user.sys = 'user property sys'", T),
    ("p = 'user property p'", T),
    ("set = 1", T),
    ("under_score1 = 1", T),
    ("größe = 42", T),
    ("GRÖSSE = 42", U),
    ("数量 = 3", T),
    ("emoji = '👍🏽!'", T),
    ("sys.MessageId = 'm-1'", T),
    ("SYS.MESSAGEID = 'm-1'", T),
    ("sys.[MessageId] = 'm-1'", T),
    ("sys.\"messageid\" = 'm-1'", T),
    ("sys.Label = 'order'", T),
    ("sys.Subject = 'order'", T),
    ("sys.To = 'x'", U),
    ("sys.SequenceNumber > 16", T),
    ("sys.Size + 1 = 101", T),
    ("MessageId = 'm-1'", U),
]

PARAMETER: Final = [
    ("color = @color", T),
    ("color = @COLOR", T),
    ("five = @five", T),
    ("five = @unsigned", T),
    ("@half + @half = 1", T),
    ("five = @null", U),
    ("größe = @größe", T),
    ("@Five + 1 = 6", T),
    ("-@Five = -5", T),
]

FUNCTIONS: Final = [
    ("property('color') = 'red'", T),
    ("p('color') = 'red'", T),
    ("P('COLOR') = 'red'", T),
    ("Property ( 'color' ) = 'red'", T),
    ("p(name) = 'red'", T),
    ("p('col' + 'or') = 'red'", T),
    ("p(p('name')) = 'red'", T),
    ("p('missing') = 'red'", U),
    ("p('nothing') = 'red'", U),
    ("p(missing) = 'red'", U),
    ("p(five) = 'red'", U),
    ("p('') = 'red'", U),
    ("p('a]b') = 'bracket'", T),
    ("newid() = id", T),
    ("NEWID ( ) <> [other id]", T),
    ("newid() = 'x'", U),
]

CASES: Final = [
    ("five = 5 and seven = 7", T),
    ("five = 5 Or missing = 7", T),
    ("nOt five = 5", F),
    ("color like 'r%' escape '!'", T),
    ("color not in ('x')", T),
    ("missing is null", T),
    ("missing is not null", F),
    ("exists(five)", T),
    ("tRuE", T),
    ("false", F),
    ("null", U),
    # Neither a long s nor a dotless i forms a keyword.
    ("\u0131n = 5", U),
    ("fal\u017fe = 5", U),
]

SHORT_CIRCUIT: Final = [
    ("no AND 1 / 0 = 1", F),
    ("yes OR 1 / 0 = 1", T),
    ("no AND sys.Nonsense = 1", F),
    ("missing = 1 AND no AND 1 / 0 = 1", F),
    ("missing = 1 OR yes OR 1 / 0 = 1", T),
]

_OPERANDS: Final = [("yes", T), ("no", F), ("missing", U)]


def kleene_and(left: bool | None, right: bool | None) -> bool | None:
    if F in (left, right):
        return F
    return U if U in (left, right) else T


def kleene_or(left: bool | None, right: bool | None) -> bool | None:
    if T in (left, right):
        return T
    return U if U in (left, right) else F


KLEENE: Final = [
    *((f"{a} AND {b}", kleene_and(x, y)) for (a, x), (b, y) in product(_OPERANDS, repeat=2)),
    *((f"{a} OR {b}", kleene_or(x, y)) for (a, x), (b, y) in product(_OPERANDS, repeat=2)),
    *((f"{a} = TRUE AND {b} = TRUE", kleene_and(x, y)) for (a, x), (b, y) in product(_OPERANDS, repeat=2)),
    ("NOT yes", F),
    ("NOT no", T),
    ("NOT missing", U),
    *(
        (f"{a} AND {b} OR {c}", kleene_or(kleene_and(x, y), z))
        for (a, x), (b, y), (c, z) in product(_OPERANDS, repeat=3)
    ),
]

ALL: Final = [
    *COMPARISON,
    *PROMOTION,
    *MISMATCH,
    *NULLS,
    *BARE,
    *PRECEDENCE,
    *ARITHMETIC,
    *TIMES,
    *MEMBERSHIP,
    *LIKE,
    *NAMES,
    *PARAMETER,
    *FUNCTIONS,
    *CASES,
    *SHORT_CIRCUIT,
    *KLEENE,
]


@pytest.mark.parametrize(("expression", "expected"), ALL, ids=[ascii(expression) for expression, _ in ALL])
def test_filter(expression: str, expected: bool | None) -> None:
    assert judge(expression, MESSAGE, PARAMETERS) is expected


def test_table_is_large_and_has_no_row_twice() -> None:
    written_by_hand = ALL[: -len(KLEENE)]
    assert len(written_by_hand) >= 200
    assert len({expression for expression, _ in written_by_hand}) == len(written_by_hand)


FAILURES: Final = [
    ("1 / 0 = 1", 2, "division by zero"),
    ("five % 0 = 1", 5, "division by zero"),
    ("1 + five / (five - 5) = 1", 9, "division by zero"),
    ("highest + 1 > 0", 8, "64 bits"),
    ("lowest - 1 < 0", 7, "64 bits"),
    ("highest * 2 > 0", 8, "64 bits"),
    ("lowest / -1 > 0", 7, "64 bits"),
    ("-lowest > 0", 0, "64 bits"),
    ("five = 5 AND unsigned + 0 > 1", 22, "64 bits"),
    ("sys.Nonsense = 1", 0, "sys.Nonsense"),
    ("five = 5 AND sys.[No such] IS NULL", 13, "sys.No such"),
    ("EXISTS(sys.Nonsense)", 7, "sys.Nonsense"),
    ("sys.Loc\u212aToken = 1", 0, "no system property"),
    ("missing AND 1 / 0 = 1", 14, "division by zero"),
    ("1 / 0 = 1 AND no", 2, "division by zero"),
    ("1 / 0 = 1 OR yes", 2, "division by zero"),
    ("five IN (1 / 0, 5)", 11, "division by zero"),
    ("color LIKE 'a' + '!b' ESCAPE '!'", 6, "is before 'b'"),
    ("color LIKE 'a!' + '' ESCAPE '!'", 6, "ends with its escape"),
    ("color LIKE 'a' ESCAPE color", 6, "one character"),
    ("color LIKE 'a' ESCAPE five", 6, "one character"),
    ("color LIKE 'a' ESCAPE empty", 6, "one character"),
]


@pytest.mark.parametrize(("expression", "position", "reason"), FAILURES, ids=[ascii(row[0]) for row in FAILURES])
def test_failure(expression: str, position: int, reason: str) -> None:
    sql_filter = parse_filter(expression, fresh_id=fresh_id)
    with pytest.raises(EvaluationError) as caught:
        sql_filter.matches(MESSAGE)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.expression == expression


def test_times_beyond_64_bits_fail() -> None:
    message = Message({"late": Instant(2**63 - 1)})
    with pytest.raises(EvaluationError, match="64 bits"):
        parse_filter("late + @hour > late", PARAMETERS, fresh_id=fresh_id).matches(message)


def test_filter_exposes_its_expression_and_parameters() -> None:
    given: dict[str, Value] = {"@Color": "red"}
    sql_filter = parse_filter("color = @color", given, fresh_id=fresh_id)
    given["@Color"] = "blue"
    assert sql_filter.expression == "color = @color"
    assert dict(sql_filter.parameters) == {"@Color": "red"}
    assert sql_filter.matches(MESSAGE)


def test_filter_cannot_be_changed() -> None:
    sql_filter = parse_filter("color = @color", PARAMETERS, fresh_id=fresh_id)
    with pytest.raises(AttributeError):
        sql_filter.expression = "TRUE"  # type: ignore[misc]
    with pytest.raises(TypeError):
        sql_filter.parameters["@color"] = "blue"  # type: ignore[index]


def test_fresh_id_is_called_for_every_newid() -> None:
    ids = iter(UUID(int=number) for number in range(1, 5))
    sql_filter = parse_filter("newid() = newid()", fresh_id=lambda: next(ids))
    assert not sql_filter.matches(MESSAGE)
    assert not sql_filter.matches(MESSAGE)
    assert next(ids, None) is None


def test_property_name_is_passed_as_written() -> None:
    asked = []

    class Listening(Message):
        def user(self, name: str) -> None:
            asked.append(name)

        def system(self, name: str) -> None:
            asked.append(name)

    parse_filter("Color = 1 OR [SIZE]]] = 1 OR sys.SUBJECT = 1", fresh_id=fresh_id).matches(Listening())
    assert asked == ["Color", "SIZE]", "Label"]
