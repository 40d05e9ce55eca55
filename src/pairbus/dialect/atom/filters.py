"""Conversion of rules: filters and actions, between the classes of one side and the values of Atom documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Generic, TypeVar

from pairbus.dialect.atom.document import AtomError
from pairbus.dialect.atom.rules import (
    COMPATIBILITY_LEVEL,
    EMPTY_ACTION,
    FALSE_FILTER,
    SQL_ACTION,
    SQL_FILTER,
    TRUE_FILTER,
)
from pairbus.dialect.atom.table import Values
from pairbus.dialect.atom.values import Plain, TypedValue, ValueType

F = TypeVar("F")
A = TypeVar("A")
V = TypeVar("V")

_INT32: Final = range(-(2**31), 2**31)
_LEVEL: Final = {"compatibility_level": COMPATIBILITY_LEVEL}
_CONSTANTS: Final = {TRUE_FILTER: "1=1", FALSE_FILTER: "1=0"}
"""The expressions that the service writes for the filters that have none."""


def typed_value(value: Plain) -> TypedValue:
    """Return a value with its type; an integer gets the smallest type that holds it."""
    match value:  # a bool is an int, and an int passes for a float
        case bool():
            return TypedValue(ValueType.BOOLEAN, value)
        case int():
            return TypedValue(ValueType.INT if value in _INT32 else ValueType.LONG, value)
        case float():
            return TypedValue(ValueType.DOUBLE, value)
        case _:
            return TypedValue(ValueType.STRING, value)


@dataclass(frozen=True, kw_only=True)  # no slots: Python 3.11 cannot call a generic class that has them
class RuleCodec(Generic[F, A, V]):
    """Converts filters ``F``, actions ``A`` and the values ``V`` of their properties and parameters.

    The fields of the classes must have the names that the tables of the Atom elements use.
    """

    filters: Mapping[str, Callable[..., F]]
    """The class of each type of filter."""

    action: Callable[..., A]
    write: Callable[[V], TypedValue]
    read: Callable[[TypedValue], V]

    def filter_values(self, description: F) -> Values:
        kind = next(kind for kind, own in self.filters.items() if own is type(description))
        if kind in _CONSTANTS:
            return {"type": kind, "expression": _CONSTANTS[kind], **_LEVEL}
        if kind == SQL_FILTER:
            return self._sql_values(kind, description)
        given = {field.name: getattr(description, field.name) for field in fields(description)}  # type: ignore[arg-type]
        return given | {"type": kind, "properties": self._typed(given["properties"])}

    def action_values(self, description: A | None) -> Values:
        return {"type": EMPTY_ACTION} if description is None else self._sql_values(SQL_ACTION, description)

    def filter_of(self, values: Values) -> F:
        """Return a filter; raise ``AtomError`` if it has no expression but needs one."""
        kind = values["type"]
        make = self.filters[kind]
        if kind in _CONSTANTS:
            return make()
        if kind == SQL_FILTER:
            return make(_expression(values, "Filter"), self._plain(values.get("parameters", {})))
        given = {name: value for name, value in values.items() if name not in {"type", "properties"}}
        return make(**given, properties=self._plain(values.get("properties", {})))

    def action_of(self, values: Values) -> A | None:
        """Return an action, if there is one; raise ``AtomError`` if it has no expression."""
        if values["type"] == EMPTY_ACTION:
            return None
        return self.action(_expression(values, "Action"), self._plain(values.get("parameters", {})))

    def _sql_values(self, kind: str, description: Any) -> Values:
        parameters = self._typed(description.parameters)
        return {"type": kind, "expression": description.expression, "parameters": parameters, **_LEVEL}

    def _typed(self, values: Mapping[str, V]) -> dict[str, TypedValue]:
        return {name: self.write(value) for name, value in values.items()}

    def _plain(self, values: Mapping[str, TypedValue]) -> dict[str, V]:
        return {name: self.read(value) for name, value in values.items()}


def _expression(values: Values, element: str) -> str:
    expression = values.get("expression")
    if not isinstance(expression, str):
        raise AtomError(f"{element} needs an SqlExpression")
    return expression
