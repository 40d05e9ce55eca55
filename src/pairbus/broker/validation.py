"""Checks of everything that callers pass to the broker: types, names and limits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints
from uuid import UUID

from pairbus.broker.descriptions import (
    KIND_OF,
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    FalseFilter,
    QueueDescription,
    RuleDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from pairbus.broker.errors import InvalidDescriptionError, InvalidNameError, InvalidRequestError
from pairbus.broker.limits import Limits
from pairbus.broker.message import Address, QueuePart
from pairbus.entity_settings import FIXED, settings_of

# Type checks of arguments: callers without a type checker make mistakes too.
#
# Nothing else in the broker checks these again: every value that passes here can be stored, and read after a restart.

Unchecked: TypeAlias = Any
"""An argument as a caller has passed it. Compiled code raises ``TypeError`` for a value that does not have the declared
type, so a parameter has this type until its value is checked.
"""

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999. A larger value is a time in another unit."""

_VALUES: Final = (bool, int, float, str, bytes, UUID, NoneType)
_FILTERS: Final = (TrueFilter, FalseFilter, SqlFilterDescription, CorrelationFilter)


def check_time(now_ms: Unchecked) -> None:
    if type(now_ms) is not int or not 0 <= now_ms <= LATEST_MS:
        raise InvalidRequestError("the time must be whole milliseconds since 1970")


def check_address(address: Unchecked) -> None:
    if (
        type(address) is Address
        and type(address.entity) is str
        and address.subscription is None
        and type(address.part) is QueuePart
    ):
        return  # the common case
    if not isinstance(address, Address):
        raise InvalidRequestError(f"expected an Address, got {address!r}: create one with Address.of(…)")
    if not isinstance(address.entity, str) or not isinstance(address.subscription, str | None):
        raise InvalidRequestError(f"the entity names of an address must be text, got {address!r}")
    if not isinstance(address.part, QueuePart):
        raise InvalidRequestError(
            f"the part of an address must be one of {', '.join(part.name for part in QueuePart)}, got {address.part!r}"
        )


def check_name_text(name: Unchecked) -> None:
    if not isinstance(name, str):
        raise InvalidRequestError(f"a name must be text, got {name!r:.100}")


def check_token(token: Unchecked) -> None:
    if not isinstance(token, bytes):
        raise InvalidRequestError(f"a token must be bytes, as in a delivery or a session, got {type(token).__name__}")


def check_numbers(numbers: Unchecked) -> None:
    """Check a list of sequence numbers."""
    if not isinstance(numbers, Sequence) or not all(type(number) is int for number in numbers):
        raise InvalidRequestError("sequence numbers must be a list of integers")


def check_list(items: Unchecked, what: str) -> None:
    if not isinstance(items, list | tuple):
        raise InvalidRequestError(f"{what} must be a list, got {type(items).__name__}")


def check_number(number: Unchecked, what: str) -> None:
    if number is not None and type(number) is not int:
        raise InvalidRequestError(f"{what} must be a whole number, got {number!r:.100}")


def check_values(values: Unchecked, what: str, entity: str | None) -> None:
    """Check properties or parameters."""
    if not isinstance(values, Mapping):
        raise InvalidRequestError(f"{what} must be a mapping, got {values!r}", entity)
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, _VALUES) or not _is_in_range(value):
            raise InvalidRequestError(
                f"{what} have {name!r:.100} of type {type(value).__name__}; names must be text, and values None,"
                " bool, int of 64 bits, float, str, bytes, UUID, Instant or Span",
                entity,
            )


def _is_in_range(value: object) -> bool:
    return not isinstance(value, int) or -(2**63) <= value < 2**64


def check_text(value: Unchecked, what: str, entity: str | None) -> None:
    if not isinstance(value, str | None):
        raise InvalidRequestError(f"{what} must be text, got {value!r}", entity)


def check_settings(path: Unchecked, description: Unchecked, *kinds: Any) -> None:
    """Check the type of a description, and of each of its settings."""
    if not isinstance(description, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidDescriptionError(f"'{path}' needs a {names}, got {description!r}", path)
    hints = _HINTS[type(description)]
    for field in fields(description):
        value = getattr(description, field.name)
        if not _fits(value, hints[field.name]):
            raise InvalidDescriptionError(f"{field.name} of '{path}' cannot be of type {type(value).__name__}", path)


def check_rule(path: str, rule: Unchecked) -> None:
    if not isinstance(rule, RuleDescription) or not isinstance(rule.name, str):
        raise InvalidDescriptionError(f"expected a RuleDescription with a name, got {rule!r}", path)
    _check_kind(path, f"the filter of rule '{rule.name}'", rule.filter, _FILTERS)
    _check_kind(path, f"the action of rule '{rule.name}'", rule.action, (SqlActionDescription, NoneType))
    _check_filter(path, rule.name, rule.filter)
    if rule.action is not None:
        _check_expression(path, rule.name, rule.action)


def _check_kind(path: str, what: str, value: object, kinds: tuple[type, ...]) -> None:
    if not isinstance(value, kinds):
        names = ", ".join(kind.__name__ for kind in kinds)
        raise InvalidDescriptionError(f"{what} must be one of {names}, got {value!r}", path)


def _check_filter(path: str, name: str, description: Unchecked) -> None:
    if isinstance(description, SqlFilterDescription):
        _check_expression(path, name, description)
    elif isinstance(description, CorrelationFilter):
        for field in fields(description):
            if field.name != "properties":
                check_text(getattr(description, field.name), f"{field.name} of rule '{name}'", path)
        check_values(description.properties, f"the properties of rule '{name}'", path)


def _check_expression(path: str, name: str, described: Unchecked) -> None:
    if not isinstance(described.expression, str):
        raise InvalidDescriptionError(
            f"the expression of rule '{name}' must be text, got {described.expression!r}", path
        )
    check_values(described.parameters, f"the parameters of rule '{name}'", path)


_HINTS: Final = {
    kind: get_type_hints(kind)
    for kind in (QueueDescription, TopicDescription, SubscriptionDescription, AuthorizationRule)
}


def is_authorization_rule(value: object) -> bool:
    return _fits(value, AuthorizationRule)


def _fits(value: object, kind: Any) -> bool:
    """Return whether a value is of the type that an annotation names."""
    if get_origin(kind) is UnionType:
        return any(_fits(value, member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        member = get_args(kind)[0]
        return isinstance(value, tuple) and all(_fits(item, member) for item in value)
    if kind is int:
        return type(value) is int and _is_in_range(value)  # a bool is not a number here
    if kind is AuthorizationRule:
        return isinstance(value, AuthorizationRule) and all(
            _fits(getattr(value, name), hint) for name, hint in _HINTS[AuthorizationRule].items()
        )
    return isinstance(value, kind)


# Azure's naming rules for Microsoft.ServiceBus; Azure Resource Manager writes a tilde for a slash in a path.
_NOT_IN_PATHS: Final = re.compile(r"[^A-Za-z0-9._~/-]")
_IN_PATHS: Final = "letters (a-z, A-Z), digits, '.', '-', '_', '~' and '/'"
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]")
_IN_NAMES: Final = "letters (a-z, A-Z), digits, '.', '-' and '_'"
_NOT_IN_KEY_NAMES: Final = re.compile(r"[@?#*\\/\x00-\x1f\x7f\ud800-\udfff]")
_KEY_NAME_CHARACTERS: Final = 256
_RESERVED: Final = {"subscriptions", "rules"}


def check_path(path: Unchecked, limits: Limits) -> None:
    """Check the path of a queue or topic that is about to be created; raises ``InvalidNameError``.

    Existing entities keep the names that an earlier version allowed.
    """
    _check_text(path, limits.path_characters)
    for segment in path.split("/"):
        if not segment or segment in {".", ".."}:
            raise InvalidNameError(f"{path!r} has the invalid segment '{segment}'", path)
        if segment.startswith("$") or segment.lower() in _RESERVED:
            raise InvalidNameError(f"{path!r} has the reserved segment '{segment}'", path)
    _check_characters(path, _NOT_IN_PATHS, f"the name of a queue or topic may have {_IN_PATHS}")


def check_name(name: Unchecked, limits: Limits) -> None:
    """Check the name of a subscription or rule that is about to be created; raises ``InvalidNameError``."""
    _check_text(name, limits.name_characters)
    if name.startswith("$"):
        raise InvalidNameError(f"{name!r} begins with a dollar sign, which is reserved", name)
    _check_characters(name, _NOT_IN_NAMES, f"the name of a subscription or rule may have {_IN_NAMES}")


def _check_text(name: Unchecked, characters: int) -> None:
    if not isinstance(name, str):
        raise InvalidNameError(f"a name must be text, got {name!r}")
    if not name or name.isspace():
        raise InvalidNameError("the name is empty", name)
    if len(name) > characters:
        raise InvalidNameError(f"the name has {len(name)} characters; at most {characters} are allowed", name)


def _check_characters(name: str, forbidden: re.Pattern[str], allowed: str) -> None:
    found = forbidden.search(name)
    if found is not None:
        raise InvalidNameError(
            f"{name!r} has the character {found.group()!r} at position {found.start() + 1}; {allowed}", name
        )


def check_description(path: str, description: EntityDescription, limits: Limits) -> None:
    """Check every setting that can be checked without other entities."""
    for setting in settings_of(KIND_OF[type(description)]):
        value = getattr(description, setting.name)
        if setting.choices is not None:
            _check_choice(path, setting.name, value, getattr(limits, setting.choices))
        if setting.minimum is not None and value is not None:
            _check_range(path, setting.name, value, _bound(setting.minimum, limits), _bound(setting.maximum, limits))
    if not isinstance(description, SubscriptionDescription):
        _check_rule_count(path, description, limits)


def check_update(path: str, before: EntityDescription, after: EntityDescription) -> None:
    if type(before) is not type(after):
        raise InvalidDescriptionError(f"'{path}' is an entity of another kind", path)
    for name in FIXED:
        if getattr(before, name, None) != getattr(after, name, None):
            raise InvalidDescriptionError(f"{name} of '{path}' cannot be changed; it was set at creation", path)


def _check_rule_count(path: str, description: QueueDescription | TopicDescription, limits: Limits) -> None:
    check_keys(path, description.authorization_rules)
    if len(description.authorization_rules) > limits.authorization_rules:
        raise InvalidDescriptionError(
            f"'{path}' has {len(description.authorization_rules)} authorization rules;"
            f" at most {limits.authorization_rules} are allowed",
            path,
        )


def _bound(bound: int | str | None, limits: Limits) -> int | None:
    return getattr(limits, bound) if isinstance(bound, str) else bound


def _check_choice(path: str, name: str, value: int, choices: Sequence[int]) -> None:
    if choices and value not in choices:
        raise InvalidDescriptionError(
            f"{name} of '{path}' must be one of {', '.join(map(str, choices))}, got {value}", path
        )


def _check_range(path: str, name: str, value: int, minimum: int | None, maximum: int | None) -> None:
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InvalidDescriptionError(f"{name} of '{path}' must be {bounds}, got {value}", path)


def check_keys(path: str, rules: Sequence[AuthorizationRule]) -> None:
    """Check authorization rules: each has a unique name, rights and two keys."""
    names = [rule.name.lower() for rule in rules]
    if len(set(names)) < len(names):
        raise InvalidDescriptionError(f"'{path}' has two authorization rules of the same name", path)
    for rule in rules:
        if _NOT_IN_KEY_NAMES.search(rule.name) or len(rule.name) > _KEY_NAME_CHARACTERS:
            raise InvalidDescriptionError(
                f"authorization rule {rule.name[:300]!r} of '{path}' has an invalid name: control characters and @"
                f" ? # * \\ / are not allowed, nor more than {_KEY_NAME_CHARACTERS} characters",
                path,
            )
        if not (rule.name and rule.rights and rule.primary_key and rule.secondary_key):
            raise InvalidDescriptionError(
                f"authorization rule '{rule.name}' of '{path}' needs a name, rights and two keys", path
            )
