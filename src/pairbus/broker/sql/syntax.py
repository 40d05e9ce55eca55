"""An expression as a tree.

What the grammar lets be negated in two ways is a ``Not`` here either way, and a parameter is the constant it stands
for. Chains of one precedence are flat, so that the depth of a tree is bounded by how deep its text nests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pairbus.broker.values import Value


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is written out."""

    value: Value
    position: int


@dataclass(frozen=True, slots=True)
class UserName:
    """A user property."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class SystemName:
    """A system property; there may be none of that name."""

    name: str
    position: int


@dataclass(frozen=True, slots=True)
class ComputedName:
    """A user property whose name is the value of an expression."""

    name: Expression
    position: int


@dataclass(frozen=True, slots=True)
class NewId:
    """An id that nothing else has."""

    position: int


@dataclass(frozen=True, slots=True)
class Signed:
    """An expression with a sign before it."""

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
    """Two values beside each other."""

    symbol: str
    left: Expression
    right: Expression
    position: int


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a property is missing or null."""

    name: Name
    position: int


@dataclass(frozen=True, slots=True)
class Exists:
    """Whether a property is there, if only with null."""

    name: Name
    position: int


@dataclass(frozen=True, slots=True)
class Membership:
    """Whether a value is one of several."""

    left: Expression
    items: tuple[Expression, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Like:
    """Whether a text has a certain form."""

    left: Expression
    pattern: Expression
    escape: Expression | None
    position: int


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite."""

    operand: Predicate
    position: int


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Whether all of several hold."""

    operands: tuple[Predicate, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Disjunction:
    """Whether one of several holds."""

    operands: tuple[Predicate, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """``SET``."""

    target: Name
    value: Expression
    position: int


@dataclass(frozen=True, slots=True)
class Removal:
    """``REMOVE``."""

    target: Name
    position: int


Name: TypeAlias = UserName | SystemName
Expression: TypeAlias = Constant | UserName | SystemName | ComputedName | NewId | Signed | Chain
Condition: TypeAlias = Comparison | IsNull | Exists | Membership | Like | Not | Conjunction | Disjunction
Predicate: TypeAlias = Condition | Expression
Statement: TypeAlias = Assignment | Removal
