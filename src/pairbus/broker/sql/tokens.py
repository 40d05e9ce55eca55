"""The words and signs of an expression."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pairbus.broker.errors import InvalidExpressionError


class TokenKind(Enum):
    """What a token is."""

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
class Token:
    """A word or sign and where it stands."""

    kind: TokenKind
    text: str
    """As it is written."""
    position: int
    key: str | None = None
    """What the grammar knows it by: the sign, or the word in upper case; nothing for what may have any content."""


RESERVED: Final = frozenset(
    ("AND", "ESCAPE", "EXISTS", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"),
)
"""Words that name a property only between brackets or quotation marks."""

# A closing quote is never followed by another one, as two of them stand for one inside.
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

_COMPLAINTS: Final = {
    "'": "the string that begins here has no end: expected a closing '",
    "[": "the name that begins here has no end: expected a closing ]",
    '"': 'the name that begins here has no end: expected a closing "',
    "@": "expected a letter after @, the name of a parameter",
    "_": "expected a letter at the beginning of a name, found '_'",
    "!": "expected != instead of a lone '!'",
}


def tokenize(expression: str) -> list[Token]:
    """Cut an expression into tokens, of which the last is its end."""
    return [*_tokens(expression), Token(TokenKind.END, "", len(expression))]


def content(token: Token) -> str:
    """What stands between the quotes or brackets of a string or name."""
    closing = token.text[-1]
    return token.text[1:-1].replace(closing * 2, closing)


def _tokens(expression: str) -> Iterator[Token]:
    position = 0
    while position < len(expression):
        piece = _PIECE.match(expression, position)
        if piece is None:
            raise _unreadable(expression, position)
        if piece.lastgroup and piece.lastgroup != "space":
            yield _token(TokenKind[piece.lastgroup], piece.group(), expression, position)
        position = piece.end()


def _token(kind: TokenKind, text: str, expression: str, position: int) -> Token:
    match kind:
        case TokenKind.SYMBOL:
            return Token(kind, text, position, text)
        case TokenKind.WORD:
            return _word(text, expression, position)
        case TokenKind.PARAMETER:
            _check_letters(text, expression, position)
        case TokenKind.NAME if len(text) == 2:
            raise InvalidExpressionError("expected a name, found an empty one", expression, position)
    return Token(kind, text, position)


def _word(text: str, expression: str, position: int) -> Token:
    if not text.isascii():
        # Never a keyword, although some letters outside ASCII have an upper case inside it.
        _check_letters(text, expression, position)
        return Token(TokenKind.WORD, text, position)
    key = text.upper()
    return Token(TokenKind.KEYWORD if key in RESERVED else TokenKind.WORD, text, position, key)


def _check_letters(text: str, expression: str, position: int) -> None:
    """Refuse what the regular expression takes for a word's letters but is none, such as superscripts."""
    for offset, character in enumerate(text):
        if not (character.isalpha() or character.isdecimal() or character in "_@"):
            raise _unreadable(expression, position + offset)


def _unreadable(expression: str, position: int) -> InvalidExpressionError:
    found = expression[position]
    reason = _COMPLAINTS.get(found) or f"expected a word or a sign of the language, found {found!r}"
    return InvalidExpressionError(reason, expression, position)
