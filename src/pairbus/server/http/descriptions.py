"""Conversion between the broker's descriptions and those of the management API."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

from pairbus.broker import (
    DEFAULT_RULE,
    AuthorizationRule,
    CorrelationFilter,
    EntityDescription,
    EntityInfo,
    EntityStatus,
    FalseFilter,
    FilterDescription,
    Instant,
    InvalidDescriptionError,
    Limits,
    QueueDescription,
    Right,
    RuleDescription,
    Span,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
    Value,
    ZonelessInstant,
)
from pairbus.broker.descriptions import KIND_OF
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC, AtomError, Table, TypedValue, Values, ValueType, Zoneless
from pairbus.dialect.atom.filters import RuleCodec, typed_value
from pairbus.dialect.atom.rules import CORRELATION_FILTER, FALSE_FILTER, SQL_FILTER, TRUE_FILTER
from pairbus.dialect.paths import path_within
from pairbus.entity_settings import ENTITY_SETTINGS, FIXED, FORWARDING, STATUSES
from pairbus.server.access import fresh_key
from pairbus.server.errors import BadRequestError

TABLES: Final[dict[type[EntityDescription], Table]] = {
    QueueDescription: QUEUE,
    TopicDescription: TOPIC,
    SubscriptionDescription: SUBSCRIPTION,
}
_DESCRIPTIONS: Final[dict[str, type[EntityDescription]]] = {
    table.name: description for description, table in TABLES.items()
}
_STATUSES: Final = {EntityStatus(own): word for own, word in STATUSES.items()}
_STATUS_WORDS: Final = {word: status for status, word in _STATUSES.items()}
_KILOBYTE: Final = 1024


def settings_of(description: EntityDescription, limits: Limits) -> dict[str, Any]:
    """Return the settings that a client could have requested. Forwarding targets are given by their paths."""
    values = {field.name: getattr(description, field.name) for field in fields(description)}
    values["status"] = _STATUSES[description.status]
    values["user_metadata"] = description.user_metadata or None
    if not isinstance(description, SubscriptionDescription):
        own_bytes = values.pop("max_message_bytes")
        values["max_message_kilobytes"] = (limits.message_bytes if own_bytes is None else own_bytes) // _KILOBYTE
        values["max_size_megabytes"] *= _scale(limits) if description.partitioned else 1
        values["authorization_rules"] = tuple(map(key_values, description.authorization_rules))
    return values


def state_of(info: EntityInfo, api_version: str) -> dict[str, Any]:
    """Return the properties that only the service sets."""
    values = {
        **{each.name: each.default for each in ENTITY_SETTINGS if KIND_OF[type(info.description)] in each.fixed_for},
        "anonymous_access": False,
        "availability": "Available",
        "created_ms": info.created_ms,
        "updated_ms": info.updated_ms,
        "accessed_ms": info.accessed_ms,
        "size_bytes": info.size_bytes,
        "message_count": info.message_count,
        "subscription_count": info.subscription_count,
        "counts": {
            "active": info.active_count,
            "dead_letter": info.dead_letter_count,
            "scheduled": info.scheduled_count,
            "transfer_dead_letter": info.transfer_dead_letter_count,
        },
    }
    if api_version >= "2024-05":  # versions are dates: they sort as text
        values["sql_filter_count"] = info.sql_filter_count
        values["correlation_filter_count"] = info.correlation_filter_count
    return values


def description_of(
    table: Table, values: Values, limits: Limits, path: str, before: EntityDescription | None = None
) -> EntityDescription:
    """Return the broker's description. Omitted settings get defaults, except those that an update cannot change."""
    kind = _DESCRIPTIONS[table.name]
    known = {field.name for field in fields(kind)}
    given = {name: value for name, value in values.items() if name in known}
    if type(before) is kind:
        given = {name: getattr(before, name) for name in FIXED if hasattr(before, name)} | given
    if "status" in given:
        given["status"] = _status(given["status"], path)
    for name in FORWARDING:
        if name in given:
            given[name] = path_of_target(given[name])
    if "authorization_rules" in given:
        given["authorization_rules"] = _keys(given["authorization_rules"], before)
    if "max_message_kilobytes" in values:
        max_bytes = values["max_message_kilobytes"] * _KILOBYTE
        given["max_message_bytes"] = None if max_bytes == limits.message_bytes else max_bytes
    if given.get("partitioned") and "max_size_megabytes" in given:
        given["max_size_megabytes"] = _without_scale(given["max_size_megabytes"], limits)
    return kind(**given)


def _status(word: str, path: str) -> EntityStatus:
    status = _STATUS_WORDS.get(word)
    if status is None:
        raise InvalidDescriptionError(f"the status of '{path}' cannot be set to {word}", path)
    return status


def path_of_target(address: str) -> str | None:
    """Return the path of an entity that is given with or without the server's address."""
    return path_within(address.strip()) or None


def _scale(limits: Limits) -> int:
    """Return the factor of a partitioned entity's reported size, if that cannot be mistaken for another size."""
    sizes = limits.entity_megabytes
    return limits.partitions if sizes and min(sizes) * limits.partitions > max(sizes) else 1


def _without_scale(megabytes: int, limits: Limits) -> int:
    """Return the size without that factor: an update repeats the reported size."""
    once, rest = divmod(megabytes, _scale(limits))
    return once if not rest and once in limits.entity_megabytes else megabytes


# Keys


def key_values(rule: AuthorizationRule) -> dict[str, Any]:
    return {
        "claim_type": "SharedAccessKey",
        "claim_value": "None",
        "rights": tuple(right.value.capitalize() for right in rule.rights),
        "name": rule.name,
        "primary_key": rule.primary_key,
        "secondary_key": rule.secondary_key,
    }


def key_of(values: Mapping[str, Any], before: AuthorizationRule | None = None) -> AuthorizationRule:
    """Return a key rule; keys that are not given stay unchanged, or are generated."""
    return AuthorizationRule(
        name=values.get("name", ""),
        rights=tuple(dict.fromkeys(Right(right.lower()) for right in values.get("rights", ()))),
        primary_key=values.get("primary_key") or (fresh_key() if before is None else before.primary_key),
        secondary_key=values.get("secondary_key") or (fresh_key() if before is None else before.secondary_key),
    )


def _keys(rules: Iterable[Values], before: EntityDescription | None) -> tuple[AuthorizationRule, ...]:
    known: Sequence[AuthorizationRule] = getattr(before, "authorization_rules", ())
    by_name = {rule.name.lower(): rule for rule in known}
    return tuple(key_of(values, by_name.get(values.get("name", "").lower())) for values in rules)


def rule_values(rule: RuleDescription) -> dict[str, Any]:
    return {"name": rule.name, "filter": _RULES.filter_values(rule.filter), "action": _RULES.action_values(rule.action)}


def rule_of(values: Values, name: str | None = None) -> RuleDescription:
    """Return the broker's rule, under the name in the path; raises ``BadRequestError``."""
    try:
        return _rule_of(values, name)
    except AtomError as error:
        raise BadRequestError(str(error)) from error


def _rule_of(values: Values, name: str | None) -> RuleDescription:
    return RuleDescription(
        name=values.get("name", DEFAULT_RULE) if name is None else name,
        filter=_RULES.filter_of(values["filter"]) if "filter" in values else TrueFilter(),
        action=_RULES.action_of(values["action"]) if "action" in values else None,
    )


# Values: times are numbers whose class says what they are.


def _typed_value(value: Value) -> TypedValue:
    match value:
        case ZonelessInstant():
            return TypedValue(ValueType.DATE_TIME, Zoneless(value))
        case Instant():
            return TypedValue(ValueType.DATE_TIME, int(value))
        case Span():
            return TypedValue(ValueType.DURATION, int(value))
        case UUID():
            return TypedValue(ValueType.STRING, str(value))
        case bytes():
            return TypedValue(ValueType.STRING, base64.b64encode(value).decode())
        case _:
            return typed_value(value)


def _plain_value(typed: TypedValue) -> Value:
    match typed:
        case TypedValue(ValueType.DATE_TIME, Zoneless(value)):
            return ZonelessInstant(value)
        case TypedValue(ValueType.DATE_TIME, int(value)):
            return Instant(value)
        case TypedValue(ValueType.DURATION, int(value)):
            return Span(value)
        case _:
            return typed.value


_RULES: Final = RuleCodec[FilterDescription, SqlActionDescription, Value](
    filters={
        TRUE_FILTER: TrueFilter,
        FALSE_FILTER: FalseFilter,
        SQL_FILTER: SqlFilterDescription,
        CORRELATION_FILTER: CorrelationFilter,
    },
    action=SqlActionDescription,
    write=_typed_value,
    read=_plain_value,
)
