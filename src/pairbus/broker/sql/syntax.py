"""The tokens and the syntax tree of SQL filters and actions, and the errors of parsing them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from pairbus.broker.descriptions import Instant, Span, Value
from pairbus.broker.errors import BrokerError, InvalidExpressionError


class EvaluationError(BrokerError):
    """A rule cannot be evaluated for a message.

    ``position`` counts the characters of the ``expression`` from 0; both are ``None`` if the message is at fault.
    """

    def __init__(self, reason: str, expression: str | None = None, position: int | None = None) -> None:
        super().__init__(reason if expression is None else f"{reason} at position {position} of: {expression}")
        self.reason = reason
        self.expression = expression
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemProperty:
    """A system property: its name, type, and whether actions may set it."""

    name: str
    holds: type
    writable: bool


def _row(name: str, holds: type, *, writable: bool = False) -> SystemProperty:
    return SystemProperty(name=name, holds=holds, writable=writable)


_PROPERTIES: Final = (
    # Properties that senders may set: actions may set them, too.
    _row("MessageId", str, writable=True),
    _row("CorrelationId", str, writable=True),
    _row("ContentType", str, writable=True),
    _row("Label", str, writable=True),
    _row("To", str, writable=True),
    _row("ReplyTo", str, writable=True),
    _row("ReplyToSessionId", str, writable=True),
    _row("SessionId", str, writable=True),
    _row("PartitionKey", str, writable=True),
    _row("ViaPartitionKey", str, writable=True),
    _row("TimeToLive", Span, writable=True),
    _row("ScheduledEnqueueTimeUtc", Instant, writable=True),
    _row("ForcePersistence", bool, writable=True),
    # Properties that only the broker sets.
    _row("EnqueuedTimeUtc", Instant),
    _row("SequenceNumber", int),
    _row("EnqueuedSequenceNumber", int),
    _row("DeliveryCount", int),
    _row("ExpiresAtUtc", Instant),
    _row("Size", int),
    _row("State", str),
    _row("DeadLetterSource", str),
    _row("LockToken", str),
    _row("LockedUntilUtc", Instant),
)
_ALIASES: Final = {"subject": "label"}
_BY_NAME: Final = {row.name.lower(): row for row in _PROPERTIES}


def system_property(name: str) -> SystemProperty | None:
    """Return the system property of that name, which compares without regard to case, or ``None``."""
    # Some letters outside ASCII have a lower case inside it: the Kelvin sign is no k.
    lower = name.lower() if name.isascii() else name
    return _BY_NAME.get(_ALIASES.get(lower, lower))


class SqlTokenKind(Enum):
    """The kind of a token."""

    KEYWORD = "keyword"
    WORD = "word"
    NAME = "name"
    PARAMETER = "parameter"
    INTEGER = "integer"
    DECIMAL = "decimal"
    STRING = "string"
    SYMBOL = "symbol"
    END = "end"


@dataclass(frozen=True, slots=True)
class SqlToken:
    """A word or symbol and its position."""

    kind: SqlTokenKind
    text: str
    """The text as written."""
    position: int
    key: str | None = None
    """The grammar's name for it: the symbol, or the word in upper case; ``None`` for tokens with arbitrary content."""


RESERVED: Final = frozenset(
    ("AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"),
)
"""Words that name a property only between brackets or quotation marks."""

# A closing quote is never followed by another one: two of them are an escaped quote.
_PIECE: Final = re.compile(
    r"""
      (?P<space>     \s+ )
    | (?P<DECIMAL>   [0-9]+ (?: \.[0-9]* (?: [eE][+-]?[0-9]+ )? | [eE][+-]?[0-9]+ ) | \.[0-9]+ (?: [eE][+-]?[0-9]+ )? )
    | (?P<INTEGER>   [0-9]+ )
    | (?P<WORD>      [^\W\d_]\w* )
    | (?P<PARAMETER> @[^\W\d_]\w* )
    | (?P<STRING>    '[^']*(?:''[^']*)*'(?!') )
    | (?P<NAME>      \[[^]]*(?:]][^]]*)*](?!]) | "[^"]*(?:""[^"]*)*"(?!") )
    | (?P<SYMBOL>    <> | != | <= | >= | [-=<>+*/%(),;.] )
    """,
    re.VERBOSE,
)

_TOKEN_ERRORS: Final = {
    "'": "the string that begins here is not closed: expected a closing '",
    "[": "the name that begins here is not closed: expected a closing ]",
    '"': 'the name that begins here is not closed: expected a closing "',
    "@": "expected a letter after @, the name of a parameter",
    "_": "expected a letter at the beginning of a name, found '_'",
    "!": "expected != instead of a lone '!'",
}


def tokenize(expression: str) -> list[SqlToken]:
    """Split an expression into tokens; the last one is the end token."""
    return [*_tokens(expression), SqlToken(SqlTokenKind.END, "", len(expression))]


def content(token: SqlToken) -> str:
    """Return the content between the quotes or brackets of a string or name."""
    closing = token.text[-1]
    return token.text[1:-1].replace(closing * 2, closing)


def _tokens(expression: str) -> Iterator[SqlToken]:
    position = 0
    while position < len(expression):
        piece = _PIECE.match(expression, position)
        if piece is None:
            raise _unreadable(expression, position)
        if piece.lastgroup and piece.lastgroup != "space":
            yield _token(SqlTokenKind[piece.lastgroup], piece.group(), expression, position)
        position = piece.end()


def _token(kind: SqlTokenKind, text: str, expression: str, position: int) -> SqlToken:
    match kind:
        case SqlTokenKind.SYMBOL:
            return SqlToken(kind, text, position, text)
        case SqlTokenKind.WORD:
            return _word(text, expression, position)
        case SqlTokenKind.PARAMETER:
            _check_letters(text, expression, position)
        case SqlTokenKind.NAME if len(text) == 2:
            raise InvalidExpressionError("expected a name, found an empty one", expression, position)
    return SqlToken(kind, text, position)


def _word(text: str, expression: str, position: int) -> SqlToken:
    if not text.isascii():
        # Never a keyword, although some letters outside ASCII have an upper case inside it.
        _check_letters(text, expression, position)
        return SqlToken(SqlTokenKind.WORD, text, position)
    key = text.upper()
    return SqlToken(SqlTokenKind.KEYWORD if key in RESERVED else SqlTokenKind.WORD, text, position, key)


def _check_letters(text: str, expression: str, position: int) -> None:
    """Reject characters that only the regular expression accepts as letters, such as superscripts."""
    for offset, character in enumerate(text):
        if not (character.isalpha() or character.isdecimal() or character in "_@"):
            raise _unreadable(expression, position + offset)


def _unreadable(expression: str, position: int) -> InvalidExpressionError:
    found = expression[position]
    reason = _TOKEN_ERRORS.get(found) or f"expected a word or a symbol of the language, found {found!r}"
    return InvalidExpressionError(reason, expression, position)


_SHOWN: Final = 24
"""Most characters of a token that an error shows."""


class Cursor:
    """Steps from token to token, and creates the errors for unexpected ones."""

    __slots__ = ("_expression", "_index", "_tokens", "token")

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._index = 0
        self.token = self._tokens[0]
        """The next token."""

    def at(self, *keys: str) -> bool:
        return self.token.key in keys

    def before(self, key: str) -> bool:
        """Return whether the token after the next one is this."""
        return self.token.kind is not SqlTokenKind.END and self._tokens[self._index + 1].key == key

    def advance(self) -> SqlToken:
        """Consume the next token, which is not the end, and return it."""
        token = self.token
        self._index += 1
        self.token = self._tokens[self._index]
        return token

    def take(self, *keys: str) -> SqlToken | None:
        """Consume the next token and return it if it is one of these, else ``None``."""
        return self.advance() if self.token.key in keys else None

    def expect(self, key: str, where: str = "") -> SqlToken:
        if self.token.key != key:
            raise self.unexpected(f"{_quoted(key)}{where}")
        return self.advance()

    def unexpected(self, expected: str) -> InvalidExpressionError:
        """Return the error that says what was expected here."""
        return self.error(f"expected {expected}, found {_describe(self.token)}", self.token.position)

    def error(self, reason: str, position: int) -> InvalidExpressionError:
        return InvalidExpressionError(reason, self._expression, position)


def _quoted(key: str) -> str:
    return key if key.isalpha() else f"'{key}'"


def _describe(token: SqlToken) -> str:
    if token.kind is SqlTokenKind.END:
        return "the end of the expression"
    if token.kind is SqlTokenKind.KEYWORD:
        return f"the reserved word {token.text}"
    text = token.text if len(token.text) <= _SHOWN else f"{token.text[:_SHOWN]}…"
    return text if token.kind in {SqlTokenKind.STRING, SqlTokenKind.NAME} else f"'{text}'"


# The syntax tree of an expression.
#
# A negation that the grammar allows in two forms is a ``Not`` in both, and a parameter is the constant that it stands
# for. Chains of one precedence are flat, so that the depth of a tree is bounded by the nesting of its text.


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value."""

    value: Value
    position: int


@dataclass(frozen=True, slots=True)
class UserName:
    """A user property."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class SystemName:
    """A system property; it may not exist."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class ComputedName:
    """A user property whose name is the value of an expression."""

    name: Expression
    position: int


@dataclass(frozen=True, slots=True)
class NewId:
    """A new unique id."""

    position: int


@dataclass(frozen=True, slots=True)
class Signed:
    """An expression with a sign."""

    sign: str
    operand: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Step:
    """An operator and its right operand."""

    symbol: str
    operand: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators of one precedence, from left to right."""

    first: Expression
    steps: tuple[Step, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values."""

    symbol: str
    left: Expression
    right: Expression
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """A test whether a property is missing or null."""

    name: PropertyName
    position: int


@dataclass(frozen=True, slots=True)
class Exists:
    """A test whether a property is present, possibly null."""

    name: PropertyName
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    """A test whether a value is one of several."""

    left: Expression
    items: tuple[Expression, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """A test whether a text matches a pattern."""

    left: Expression
    pattern: Expression
    escape: Expression | None
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """A negation."""

    operand: Predicate
    position: int


@dataclass(frozen=True, slots=True)
class Conjunction:
    """A conjunction: true if all operands are."""

    operands: tuple[Predicate, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Disjunction:
    """A disjunction: true if any operand is."""

    operands: tuple[Predicate, ...]
    position: int


@dataclass(frozen=True, slots=True)
class SetStatement:
    """A ``SET`` statement."""

    target: PropertyName
    value: Expression
    position: int


@dataclass(frozen=True, slots=True)
class RemoveStatement:
    """A ``REMOVE`` statement."""

    target: PropertyName
    position: int


PropertyName: TypeAlias = UserName | SystemName
Expression: TypeAlias = Constant | UserName | SystemName | ComputedName | NewId | Signed | Chain
SqlCondition: TypeAlias = Comparison | IsNull | Exists | Membership | Like | Not | Conjunction | Disjunction
Predicate: TypeAlias = SqlCondition | Expression
SqlStatement: TypeAlias = SetStatement | RemoveStatement
