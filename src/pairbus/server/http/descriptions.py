"""The broker's descriptions as the management API's, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from pairbus.broker import (
    AuthorizationRule,
    EntityDescription,
    EntityInfo,
    EntityStatus,
    InvalidDescriptionError,
    Limits,
    QueueDescription,
    Right,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.dialect.atom import QUEUE, SUBSCRIPTION, TOPIC, Table, Values
from pairbus.dialect.entity_path import path_within
from pairbus.server.keys import fresh_key

TABLES: Final[dict[type[EntityDescription], Table]] = {
    QueueDescription: QUEUE,
    TopicDescription: TOPIC,
    SubscriptionDescription: SUBSCRIPTION,
}
_DESCRIPTIONS: Final[dict[str, type[EntityDescription]]] = {
    table.name: description for description, table in TABLES.items()
}
_STATUSES: Final = {
    EntityStatus.ACTIVE: "Active",
    EntityStatus.DISABLED: "Disabled",
    EntityStatus.SEND_DISABLED: "SendDisabled",
    EntityStatus.RECEIVE_DISABLED: "ReceiveDisabled",
}
_STATUS_WORDS: Final = {word: status for status, word in _STATUSES.items()}
_FIXED: Final = ("requires_session", "requires_duplicate_detection", "partitioned")
"""What an update may leave out, because it cannot change."""

# What the service has and this one does not: always the same.
_CONSTANTS: Final[dict[type[EntityDescription], Values]] = {
    QueueDescription: {"anonymous_access": False, "support_ordering": True},
    TopicDescription: {
        "anonymous_access": False,
        "filtering_before_publishing": False,
        "subscription_partitioning": False,
    },
    SubscriptionDescription: {},
}
_KILOBYTE: Final = 1024
FORWARDING: Final = ("forward_to", "forward_dead_letters_to")


def settings_of(description: EntityDescription, limits: Limits) -> dict[str, Any]:
    """What was, or could have been, asked for. Entities to forward to are given by their paths."""
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
    """What only the service can say."""
    values = {
        **_CONSTANTS[type(info.description)],
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
    """The broker's description. What is not given gets its default, save what an update cannot change anyway."""
    kind = _DESCRIPTIONS[table.name]
    known = {field.name for field in fields(kind)}
    given = {name: value for name, value in values.items() if name in known}
    if type(before) is kind:
        given = {name: getattr(before, name) for name in _FIXED if hasattr(before, name)} | given
    if "status" in given:
        given["status"] = _status(given["status"], path)
    for name in FORWARDING:
        if name in given:
            given[name] = path_of_target(given[name])
    if "authorization_rules" in given:
        given["authorization_rules"] = _keys(given["authorization_rules"], before)
    if "max_message_kilobytes" in values:
        most_bytes = values["max_message_kilobytes"] * _KILOBYTE
        given["max_message_bytes"] = None if most_bytes == limits.message_bytes else most_bytes
    if given.get("partitioned") and "max_size_megabytes" in given:
        given["max_size_megabytes"] = _without_scale(given["max_size_megabytes"], limits)
    return kind(**given)


def _status(word: str, path: str) -> EntityStatus:
    status = _STATUS_WORDS.get(word)
    if status is None:
        raise InvalidDescriptionError(f"the status of '{path}' cannot be set to {word}", path)
    return status


def path_of_target(address: str) -> str | None:
    """The path of an entity that is given with or without the server's address."""
    return path_within(address.strip()) or None


def _scale(limits: Limits) -> int:
    """How many times its size a partitioned entity is said to have, where that cannot be taken for another size."""
    sizes = limits.entity_megabytes
    return limits.partitions if sizes and min(sizes) * limits.partitions > max(sizes) else 1


def _without_scale(megabytes: int, limits: Limits) -> int:
    """An update repeats what was said."""
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
    """A rule; keys that are not given stay as they were, or are made."""
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
