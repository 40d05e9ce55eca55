"""The changes that actions make to a message."""

from __future__ import annotations

import math
from typing import Final
from uuid import UUID

import pytest

from pairbus.broker.descriptions import Instant, Span, Value
from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql import MISSING, EvaluationError, Missing, parse_action
from pairbus.wire import UInt
from tests.broker.sql.message import FRESH, Message, apply, fresh_id

MESSAGE: Final = Message(
    user={
        "count": 5,
        "price": 2.5,
        "color": "red",
        "flag": True,
        "nothing": None,
        "id": UUID(int=1),
        "start": Instant(1000),
        "data": b"x",
        "nan": math.nan,
    },
    system={"MessageId": "m-1", "Label": "order", "TimeToLive": Span(10), "SequenceNumber": 3},
)

User = dict[str, Value | Missing]
System = dict[str, Value]

PARAMETERS: Final[dict[str, Value]] = {"@count": UInt(5), "@span": Span(7), "@when": Instant(99), "@yes": True}

CHANGES: Final[list[tuple[str, User, System]]] = [
    # New properties.
    ("SET a = 1", {"a": 1}, {}),
    ("SET a = 1;", {"a": 1}, {}),
    ("set A = 'x'", {"A": "x"}, {}),
    ("SET user.a = 1.5", {"a": 1.5}, {}),
    ("SET [a]]b] = TRUE", {"a]b": True}, {}),
    ('SET "a b" = FALSE', {"a b": False}, {}),
    ("SET größe = 1", {"größe": 1}, {}),
    ("SET a = newid()", {"a": FRESH}, {}),
    ("SET a = @count", {"a": 5}, {}),
    ("SET a = @span", {"a": Span(7)}, {}),
    ("SET a = start + @span", {"a": Instant(1007)}, {}),
    ("SET a = data", {"a": b"x"}, {}),
    ("SET a = count * 2 + 1", {"a": 11}, {}),
    ("SET a = sys.SequenceNumber", {"a": 3}, {}),
    ("SET set = 1", {"set": 1}, {}),
    ("SET remove = 1 REMOVE remove", {"remove": MISSING}, {}),
    # Null and unknown.
    ("SET a = NULL", {"a": None}, {}),
    ("SET a = missing", {"a": None}, {}),
    ("SET a = missing + 1", {"a": None}, {}),
    ("SET a = color + 1", {"a": None}, {}),
    ("SET count = NULL", {"count": None}, {}),
    ("SET nothing = 5", {"nothing": 5}, {}),
    # Conversion to the type of the property, if it is lossless.
    ("SET count = 7", {"count": 7}, {}),
    ("SET count = '7'", {"count": 7}, {}),
    ("SET count = '-7'", {"count": -7}, {}),
    ("SET count = '07'", {"count": "07"}, {}),
    ("SET count = '+7'", {"count": "+7"}, {}),
    ("SET count = ' 7'", {"count": " 7"}, {}),
    ("SET count = '1_0'", {"count": "1_0"}, {}),
    ("SET count = '\uff17'", {"count": "\uff17"}, {}),
    ("SET count = 'x'", {"count": "x"}, {}),
    ("SET count = '9223372036854775807'", {"count": 2**63 - 1}, {}),
    ("SET count = '9223372036854775808'", {"count": "9223372036854775808"}, {}),
    (f"SET count = '{'9' * 5000}'", {"count": "9" * 5000}, {}),
    ("SET count = 7.0", {"count": 7}, {}),
    ("SET count = 7.5", {"count": 7.5}, {}),
    ("SET count = 1e300", {"count": 1e300}, {}),
    ("SET count = 1.0 / 0", {"count": math.inf}, {}),
    ("SET count = TRUE", {"count": True}, {}),
    ("SET price = 7", {"price": 7.0}, {}),
    ("SET price = 9007199254740993", {"price": 9007199254740993}, {}),
    ("SET price = '7.5'", {"price": 7.5}, {}),
    ("SET price = '7'", {"price": 7.0}, {}),
    ("SET price = '7.50'", {"price": "7.50"}, {}),
    ("SET price = 'inf'", {"price": "inf"}, {}),
    ("SET price = 'nan'", {"price": "nan"}, {}),
    ("SET price = 'x'", {"price": "x"}, {}),
    ("SET price = TRUE", {"price": True}, {}),
    ("SET color = 5", {"color": "5"}, {}),
    ("SET color = 2.5", {"color": "2.5"}, {}),
    ("SET color = 1.0 / 0", {"color": math.inf}, {}),
    ("SET color = TRUE", {"color": "true"}, {}),
    ("SET color = FALSE", {"color": "false"}, {}),
    ("SET color = newid()", {"color": str(FRESH)}, {}),
    ("SET color = start", {"color": Instant(1000)}, {}),
    ("SET color = data", {"color": b"x"}, {}),
    ("SET flag = 'false'", {"flag": False}, {}),
    ("SET flag = 'True'", {"flag": True}, {}),
    ("SET flag = 'yes'", {"flag": "yes"}, {}),
    ("SET flag = 0", {"flag": 0}, {}),
    ("SET id = '00000000-0000-4000-8000-00000000ABCD'", {"id": FRESH}, {}),
    ("SET id = '0000000000004000800000000000abcd'", {"id": "0000000000004000800000000000abcd"}, {}),
    ("SET id = 'none'", {"id": "none"}, {}),
    ("SET start = 5", {"start": 5}, {}),
    ("SET data = 'x'", {"data": "x"}, {}),
    # Removal.
    ("REMOVE color", {"color": MISSING}, {}),
    ("REMOVE COLOR", {"COLOR": MISSING}, {}),
    ("REMOVE user.[color];", {"color": MISSING}, {}),
    ("REMOVE nothing", {"nothing": MISSING}, {}),
    ("REMOVE missing", {}, {}),
    # Sequences of statements.
    ("SET a = 1; SET b = a + 1", {"a": 1, "b": 2}, {}),
    ("SET a = 1, SET b = A + 1;", {"a": 1, "b": 2}, {}),
    ("SET a = 1 SET b = a + 1", {"a": 1, "b": 2}, {}),
    ("SET a = count REMOVE count SET b = count", {"a": 5, "count": MISSING, "b": None}, {}),
    ("SET a = 1; SET A = '2'", {"a": 2}, {}),
    ("SET a = 1; REMOVE a", {"a": MISSING}, {}),
    ("REMOVE color; SET COLOR = 5", {"COLOR": 5}, {}),
    ("SET count = 'x'; SET count = 5", {"count": "5"}, {}),
    ("SET p = 'color'; SET a = p(p)", {"p": "color", "a": "red"}, {}),
    ("SET a = 1; REMOVE A; REMOVE a", {"a": MISSING}, {}),
    # System properties.
    ("SET sys.Label = 'x'", {}, {"Label": "x"}),
    ("SET sys.Subject = 'x'", {}, {"Label": "x"}),
    ("SET SYS.[label] = 'x'", {}, {"Label": "x"}),
    ("SET sys.Label = NULL", {}, {"Label": None}),
    ("SET sys.Label = missing", {}, {"Label": None}),
    ("SET sys.CorrelationId = newid()", {}, {"CorrelationId": str(FRESH)}),
    ("SET sys.Label = 5", {}, {"Label": "5"}),
    ("SET sys.Label = 2.5", {}, {"Label": "2.5"}),
    ("SET sys.Label = TRUE", {}, {"Label": "true"}),
    ("SET sys.TimeToLive = @span", {}, {"TimeToLive": Span(7)}),
    ("SET sys.TimeToLive = sys.TimeToLive + @span", {}, {"TimeToLive": Span(17)}),
    ("SET sys.ScheduledEnqueueTimeUtc = @when", {}, {"ScheduledEnqueueTimeUtc": Instant(99)}),
    ("SET sys.ForcePersistence = 'true'", {}, {"ForcePersistence": True}),
    ("SET sys.Label = 'x' SET sys.To = sys.Label + '!'", {}, {"Label": "x", "To": "x!"}),
    ("SET sys.To = sys.Label; SET sys.Label = sys.MessageId", {}, {"To": "order", "Label": "m-1"}),
    ("REMOVE sys.Label", {}, {"Label": None}),
    ("REMOVE sys.Label; SET a = sys.Label", {"a": None}, {"Label": None}),
    ("SET a = color; SET sys.SessionId = a; REMOVE color", {"a": "red", "color": MISSING}, {"SessionId": "red"}),
]


def shown(values: dict[str, Value | Missing]) -> dict[str, tuple[type, str]]:
    """Return the values such that those of different types differ."""
    return {name: (type(value), repr(value)) for name, value in values.items()}


@pytest.mark.parametrize(("expression", "user", "system"), CHANGES, ids=[ascii(row[0])[:60] for row in CHANGES])
def test_changes(expression: str, user: User, system: System) -> None:
    changes = apply(expression, MESSAGE, PARAMETERS)
    assert shown(dict(changes.user)) == shown(user)
    assert shown(dict(changes.system)) == shown({**system})


@pytest.mark.parametrize(
    "name",
    [
        "MessageId",
        "CorrelationId",
        "ContentType",
        "Label",
        "To",
        "ReplyTo",
        "ReplyToSessionId",
        "SessionId",
        "PartitionKey",
        "ViaPartitionKey",
    ],
)
def test_writable_text(name: str) -> None:
    assert apply(f"SET sys.{name.upper()} = 'x'", MESSAGE).system == {name: "x"}


FAILURES: Final = [
    ("SET a = 1 / 0", 10, "division by zero"),
    ("SET a = 9223372036854775807 + 1", 28, "64 bits"),
    ("SET a = sys.Nonsense", 8, "sys.Nonsense"),
    ("SET b = 1; SET a = b / 0", 21, "division by zero"),
    ("SET sys.TimeToLive = 5", 4, "sys.TimeToLive cannot hold a int"),
    ("SET sys.TimeToLive = '5'", 4, "sys.TimeToLive cannot hold a str"),
    ("SET sys.TimeToLive = start", 4, "sys.TimeToLive cannot hold a Instant"),
    ("SET a = 1; SET sys.ScheduledEnqueueTimeUtc = 5", 15, "cannot hold a int"),
    ("SET sys.ForcePersistence = 1", 4, "cannot hold a int"),
    ("SET sys.ForcePersistence = 'yes'", 4, "cannot hold a str"),
    ("SET sys.Label = start", 4, "cannot hold a Instant"),
    ("SET sys.Label = data", 4, "cannot hold a bytes"),
    ("SET sys.Label = nan", 4, "cannot hold a float"),
    (" ".join(["SET color = color + color + color"] * 12), 324, "more than 65536 characters"),
]


@pytest.mark.parametrize(("expression", "position", "reason"), FAILURES, ids=[row[0][:60] for row in FAILURES])
def test_failure(expression: str, position: int, reason: str) -> None:
    action = parse_action(expression, fresh_id=fresh_id)
    with pytest.raises(EvaluationError) as caught:
        action.apply(MESSAGE)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.expression == expression


BAD: Final = [
    ("", 0, "expected SET or REMOVE, found the end of the expression"),
    (";", 0, "expected SET or REMOVE, found ';'"),
    ("a = 1", 0, "expected SET or REMOVE, found 'a'"),
    ("SET", 3, "expected a property, found the end"),
    ("SET 5 = 1", 4, "expected a property, found '5'"),
    ("SET and = 1", 4, "a property of that name is written [and]"),
    ("SET @x = 1", 4, "expected a property, found '@x'"),
    ("SET a", 5, "expected '=' after the property to set, found the end"),
    ("SET a 1", 6, "expected '=' after the property to set, found '1'"),
    ("SET p('a') = 1", 5, "expected '=' after the property to set, found '('"),
    ("SET a =", 7, "expected a value, found the end"),
    ("SET a = (b = c)", 11, "expected an operator or ')', found '='"),
    ("SET a = b = c", 10, "expected an operator, ';', ',', SET, REMOVE or the end of the expression, found '='"),
    ("SET a = b AND c", 10, "found the reserved word AND"),
    ("SET a = NOT b", 8, "found the reserved word NOT"),
    ("SET a = 1,", 10, "expected SET or REMOVE, found the end"),
    ("SET a = 1;;", 10, "expected SET or REMOVE, found ';'"),
    ("SET a = 1,;", 10, "expected SET or REMOVE, found ';'"),
    ("SET a = 1, b = 2", 11, "expected SET or REMOVE, found 'b'"),
    ("SET a = 1 b", 10, "expected an operator, ';', ',', SET, REMOVE or the end of the expression, found 'b'"),
    ("SET a = @y", 8, "@y has none"),
    ("SET a = foo(1)", 8, "expected newid, property or p"),
    ("REMOVE", 6, "expected a property, found the end"),
    ("REMOVE 'a'", 7, "expected a property, found 'a'"),
    ("REMOVE a b", 9, "found 'b'"),
    ("REMOVE a = 1", 9, "found '='"),
    ("[SET] a = 1", 0, "expected SET or REMOVE, found [SET]"),
    ("SET sys.Nonsense = 1", 4, "expected a system property, found sys.Nonsense"),
    ("REMOVE sys.Nonsense", 7, "expected a system property, found sys.Nonsense"),
    ("SET a = 1; SET sys.SequenceNumber = 1", 15, "expected a property to change, sys.SequenceNumber is read-only"),
    ("SET sys.size = 1", 4, "sys.Size is read-only"),
    ("REMOVE sys.EnqueuedTimeUtc", 7, "sys.EnqueuedTimeUtc is read-only"),
    ("SET sys.LockToken = 'x'", 4, "sys.LockToken is read-only"),
    ("SET sys.To\u212aen = 'x'", 4, "expected a system property"),
    ("SET a = " + "(" * 65 + "1" + ")" * 65, 72, "levels of nesting"),
    ("SET a = 1;" * 33, 320, "expected at most 32 statements, found more"),
]


@pytest.mark.parametrize(("expression", "position", "reason"), BAD, ids=[ascii(row[0])[:60] for row in BAD])
def test_bad(expression: str, position: int, reason: str) -> None:
    with pytest.raises(InvalidExpressionError) as caught:
        parse_action(expression, {"@x": 1}, fresh_id=fresh_id)
    assert reason in caught.value.reason
    assert caught.value.position == position
    assert caught.value.expression == expression


def test_maximum_number_of_statements_is_accepted() -> None:
    assert apply("SET a = 1;" * 32, MESSAGE).user == {"a": 1}
    with pytest.raises(InvalidExpressionError, match="at most 2 statements"):
        parse_action("SET a = 1 SET b = 1 REMOVE a", fresh_id=fresh_id, max_statements=2)


def test_action_exposes_its_expression_and_parameters() -> None:
    action = parse_action("SET a = @x", {"@x": 1}, fresh_id=fresh_id)
    assert (action.expression, dict(action.parameters)) == ("SET a = @x", {"@x": 1})


def test_message_is_not_changed_by_an_action() -> None:
    message = Message({"a": 1}, {"Label": "x"})
    action = parse_action("SET a = a + 1; SET sys.Label = sys.Label + 'x'; REMOVE a", fresh_id=fresh_id)
    first, second = action.apply(message), action.apply(message)
    assert first == second
    assert message.user("a") == 1
    assert message.system("Label") == "x"


def test_changes_are_immutable() -> None:
    changes = apply("SET a = 1; SET sys.Label = 'x'", MESSAGE)
    with pytest.raises(TypeError):
        changes.user["a"] = 2  # type: ignore[index]
    with pytest.raises(TypeError):
        changes.system["Label"] = "y"  # type: ignore[index]
