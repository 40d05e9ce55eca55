"""Whether what comes in is of the kind that it should be: callers without a type checker make mistakes too.

Nothing else in the broker looks at this again: whatever passes here can be kept, and read after a restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints
from uuid import UUID

from pairbus.broker.address import Address, Part
from pairbus.broker.descriptions import (
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    FilterDescription,
    QueueDescription,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.broker.errors import InvalidDescriptionError, InvalidRequestError

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. What is beyond is a time in another unit."""

_VALUES: Final = (bool, int, float, str, bytes, UUID, NoneType)
_FILTERS: Final = (TrueFilter, FalseFilter, SqlFilterDescription, CorrelationFilter)


def check_time(now_ms: int) -> None:
    if type(now_ms) is not int or not 0 <= now_ms <= LATEST_MS:
        raise InvalidRequestError("this is no time: give whole milliseconds since 1970")


def check_address(address: Address) -> None:
    if (
        type(address) is Address
        and type(address.entity) is str
        and address.subscription is None
        and type(address.part) is Part
    ):
        return  # nearly always
    if not isinstance(address, Address):
        raise InvalidRequestError(f"{address!r} is no address: make one with Address.of(…)")
    if not isinstance(address.entity, str) or not isinstance(address.subscription, str | None):
        raise InvalidRequestError(f"{address!r} is no address: the names of entities are text")
    if not isinstance(address.part, Part):
        raise InvalidRequestError(
            f"{address.part!r} is no part of an entity: take one of {', '.join(part.name for part in Part)}"
        )


def check_name_text(name: str) -> None:
    if not isinstance(name, str):
        raise InvalidRequestError(f"{name!r:.100} is no name: a name is text")


def check_token(token: bytes) -> None:
    if not isinstance(token, bytes):
        raise InvalidRequestError(
            f"a token is bytes, as a delivery or a session has it, and not {type(token).__name__}"
        )


def check_numbers(numbers: Sequence[int]) -> None:
    """Sequence numbers."""
    if not isinstance(numbers, Sequence) or not all(type(number) is int for number in numbers):
        raise InvalidRequestError("sequence numbers come as a list of integers")


def check_list(items: Sequence[object], what: str) -> None:
    if not isinstance(items, list | tuple):
        raise InvalidRequestError(f"{what} come as a list, and not as {type(items).__name__}")


def check_number(number: int | None, what: str) -> None:
    if number is not None and type(number) is not int:
        raise InvalidRequestError(f"{what} is {number!r:.100}; it has to be a whole number")


def check_values(values: Mapping[str, Any], what: str, entity: str | None) -> None:
    """Properties or parameters."""
    if not isinstance(values, Mapping):
        raise InvalidRequestError(f"{what} are {values!r}; they have to be a mapping", entity)
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, _VALUES) or not _is_in_range(value):
            raise InvalidRequestError(
                f"{what} have {name!r:.100} of {type(value).__name__}; names are text, and values None, bool, int of 64"
                " bits, float, str, bytes, UUID, Instant or Span",
                entity,
            )


def _is_in_range(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def check_text(value: str | None, what: str, entity: str | None) -> None:
    if not isinstance(value, str | None):
        raise InvalidRequestError(f"{what} is {value!r}; it has to be text", entity)


def check_settings(path: str, description: EntityDescription, *kinds: type) -> None:
    """Whether a description is of one of these kinds, and each of its settings of its own."""
    if not isinstance(description, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidDescriptionError(f"'{path}' needs a {names}, and not {description!r}", path)
    hints = _HINTS[type(description)]
    for field in fields(description):
        value = getattr(description, field.name)
        if not _fits(value, hints[field.name]):
            raise InvalidDescriptionError(
                f"{field.name} of '{path}' is a {type(value).__name__} that it cannot be", path
            )


def check_rule(path: str, rule: RuleDescription) -> None:
    if not isinstance(rule, RuleDescription) or not isinstance(rule.name, str):
        raise InvalidDescriptionError(f"{rule!r} is no RuleDescription with a name", path)
    _check_kind(path, f"the filter of rule '{rule.name}'", rule.filter, _FILTERS)
    _check_kind(path, f"the action of rule '{rule.name}'", rule.action, (SqlActionDescription, NoneType))
    _check_filter(path, rule.name, rule.filter)
    if rule.action is not None:
        _check_expression(path, rule.name, rule.action)


def _check_kind(path: str, what: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidDescriptionError(f"{what} is {value!r}; possible are {names}", path)


def _check_filter(path: str, name: str, description: FilterDescription) -> None:
    if isinstance(description, SqlFilterDescription):
        _check_expression(path, name, description)
    elif isinstance(description, CorrelationFilter):
        for field in fields(description):
            if field.name != "properties":
                check_text(getattr(description, field.name), f"{field.name} of rule '{name}'", path)
        check_values(description.properties, f"the properties of rule '{name}'", path)


def _check_expression(path: str, name: str, described: SqlFilterDescription | SqlActionDescription) -> None:
    if not isinstance(described.expression, str):
        raise InvalidDescriptionError(f"the expression of rule '{name}' is {described.expression!r}", path)
    check_values(described.parameters, f"the parameters of rule '{name}'", path)


_HINTS: Final = {
    kind: get_type_hints(kind)
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription, AuthorizationRule)
}


def is_authorization_rule(value: object) -> bool:
    return _fits(value, AuthorizationRule)


def _fits(value: object, kind: Any) -> bool:
    """Whether a value is of the kind that an annotation says."""
    if get_origin(kind) is UnionType:
        return any(_fits(value, member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        return isinstance(value, tuple) and all(_fits(item, member) for item in value)
    if kind is int:
        return type(value) is int and _is_in_range(value)  # a truth value is no number here
    if kind is AuthorizationRule:
        return isinstance(value, AuthorizationRule) and all(
            _fits(getattr(value, name), hint) for name, hint in _HINTS[AuthorizationRule].items()
        )
    return isinstance(value, kind)
