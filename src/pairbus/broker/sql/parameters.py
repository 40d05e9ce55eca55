"""The values that stand for the parameters of an expression."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pairbus.broker.errors import InvalidExpressionError
from pairbus.broker.sql.operators import fits
from pairbus.broker.values import Instant, Span, Value

NO_PARAMETERS: Final[Mapping[str, Value]] = MappingProxyType({})


class Parameters:
    """Parameters by their names, in whatever case these are written."""

    __slots__ = ("_values", "given")

    def __init__(self, given: Mapping[str, Value], expression: str) -> None:
        self.given: Final[Mapping[str, Value]] = MappingProxyType(dict(given))
        self._values: Final[dict[str, Value]] = {}
        for name, value in self.given.items():
            reason = self._objection(name, value)
            if reason is not None:
                raise InvalidExpressionError(reason, expression, 0)
            self._values[name.lower()] = _plain(value)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def __getitem__(self, name: str) -> Value:
        return self._values[name.lower()]

    def _objection(self, name: str, value: Value) -> str | None:
        if not isinstance(name, str) or not name.startswith("@"):
            return f"expected the name of a parameter to begin with @, found {name!r}"
        if name in self:
            return f"the parameter {name} is given more than once"
        if value is not None and not isinstance(value, bool | int | float | str):
            return f"the parameter {name} holds a {type(value).__name__}, which no expression can use"
        if isinstance(value, int) and not fits(value):
            return f"the parameter {name} does not fit into 64 bits"
        return None


def _plain(value: Value) -> Value:
    """The value without the name that some protocol has for its type."""
    if isinstance(value, bool):
        return value
    for plain in (Instant, Span, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    return value
