"""Subscription rules: filters select messages, actions change the copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import Final, TypeAlias, get_args

from pairbus.client.validation import check_fields, check_path, check_type, check_value

FilterValue: TypeAlias = str | int | float | bool | datetime | timedelta | None
"""The values of properties and parameters. Times have a resolution of milliseconds."""

DEFAULT_RULE: Final = "$Default"
"""The name of the rule that a subscription is created with."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Matches messages for which an expression is true, such as ``colour = 'red' AND quantity > @least``."""

    expression: str
    parameters: Mapping[str, FilterValue] = field(default_factory=dict, hash=False)
    """The values of the expression's parameters: ``{"@least": 10}``."""

    def __post_init__(self) -> None:
        _check_expression(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Matches messages whose properties equal all given values; faster than an equivalent expression."""

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
    """Changes the copies that match a rule, with a statement such as ``SET priority = 1``."""

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
    """Set by the service."""

    def __post_init__(self) -> None:
        check_path("name", self.name)
        check_fields(self)


def _check_expression(part: SqlFilter | SqlRuleAction) -> None:
    check_fields(part)
    if not part.expression.strip():
        raise ValueError("the expression must not be empty")
    object.__setattr__(part, "parameters", _checked("parameters", part.parameters))


def _checked(name: str, values: Mapping[str, FilterValue]) -> dict[str, FilterValue]:
    """Return a private copy."""
    for key, value in values.items():
        check_type(f"the name of each of the {name}", key, (str,))
        check_value(f"{key!r} of the {name}", key)
        check_type(f"{key!r} of the {name}", value, get_args(FilterValue))
        check_value(f"{key!r} of the {name}", value)
    return dict(values)
