"""Which messages a subscription gets a copy of, and what is changed in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias, get_args

from pairbus.client.validation import check_fields, check_path, check_type, check_value

FilterValue: TypeAlias = str | int | float | bool | datetime | timedelta | None
"""What properties are compared with, and what parameters stand for. Times count in milliseconds."""

DEFAULT_RULE: Final = "$Default"
"""What the rule is called that a subscription is made with."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """No message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """The messages for which an expression is true, such as ``colour = 'red' AND quantity > @least``."""

    expression: str
    parameters: Mapping[str, FilterValue] = field(default_factory=dict, hash=False)
    """What the expression's parameters stand for: ``{"@least": 10}``."""

    def __post_init__(self) -> None:
        _check_expression(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """The messages whose properties equal all that are given here; faster than an expression that says the same."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, FilterValue] = field(default_factory=dict, hash=False)
    """Application properties."""

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "properties", _checked("properties", self.properties))


RuleFilter: TypeAlias = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class SqlRuleAction:
    """What is changed in the copies that a rule lets through, such as ``SET priority = 1``."""

    expression: str
    parameters: Mapping[str, FilterValue] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        _check_expression(self)


@dataclass(frozen=True, slots=True)
class RuleDescription:
    """A rule of a subscription."""

    name: str
    _: KW_ONLY
    filter: RuleFilter = field(default_factory=TrueFilter)
    action: SqlRuleAction | None = None
    created_at: datetime | None = field(default=None, compare=False)
    """Said by the service."""

    def __post_init__(self) -> None:
        check_path("name", self.name)
        check_fields(self)


def _check_expression(part: SqlFilter | SqlRuleAction) -> None:
    check_fields(part)
    if not part.expression.strip():
        raise ValueError("the expression is empty")
    object.__setattr__(part, "parameters", _checked("parameters", part.parameters))


def _checked(name: str, values: Mapping[str, FilterValue]) -> dict[str, FilterValue]:
    """A copy, which nobody else can change."""
    for key, value in values.items():
        check_type(f"each name among the {name}", key, (str,))
        check_value(f"{key!r} among the {name}", key)
        check_type(f"{key!r} among the {name}", value, get_args(FilterValue))
        check_value(f"{key!r} among the {name}", value)
    return dict(values)
