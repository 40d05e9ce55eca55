"""A place in an expression, and what may stand there."""

from __future__ import annotations

from typing import Final

from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql.tokens import Token, TokenKind, tokenize

_SHOWN: Final = 24
"""So many characters of a token an error shows."""


class Cursor:
    """Goes from token to token, and says what it expected where it finds something else."""

    __slots__ = ("_expression", "_index", "_tokens", "token")

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._index = 0
        self.token = self._tokens[0]
        """The token that is next."""

    def at(self, *keys: str) -> bool:
        return self.token.key in keys

    def before(self, key: str) -> bool:
        """Whether the token behind the next one is this."""
        return self.token.kind is not TokenKind.END and self._tokens[self._index + 1].key == key

    def advance(self) -> Token:
        """Step over the next token, which is not the end, and return it."""
        token = self.token
        self._index += 1
        self.token = self._tokens[self._index]
        return token

    def take(self, *keys: str) -> Token | None:
        """Step over the next token if it is one of these."""
        return self.advance() if self.token.key in keys else None

    def expect(self, key: str, where: str = "") -> Token:
        if self.token.key != key:
            raise self.unexpected(f"{_quoted(key)}{where}")
        return self.advance()

    def unexpected(self, expected: str) -> InvalidExpressionError:
        """The error that says what should stand here."""
        return self.error(f"expected {expected}, found {_describe(self.token)}", self.token.position)

    def error(self, reason: str, position: int) -> InvalidExpressionError:
        return InvalidExpressionError(reason, self._expression, position)


def _quoted(key: str) -> str:
    return key if key.isalpha() else f"'{key}'"


def _describe(token: Token) -> str:
    if token.kind is TokenKind.END:
        return "the end of the expression"
    if token.kind is TokenKind.KEYWORD:
        return f"the reserved word {token.text}"
    text = token.text if len(token.text) <= _SHOWN else f"{token.text[:_SHOWN]}…"
    return text if token.kind in {TokenKind.STRING, TokenKind.NAME} else f"'{text}'"
