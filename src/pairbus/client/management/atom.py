"""Descriptions as the management API's documents have them, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pairbus.client.endpoint import Endpoint
from pairbus.client.management.authorization_rule import AccessRights, SharedAccessAuthorizationRule
from pairbus.client.management.descriptions import (
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.management.rule_atom import read_action, read_filter, write_action, write_filter
from pairbus.client.management.rules import RuleDescription
from pairbus.client.management.runtime_info import (
    NamespaceInfo,
    QueueRuntimeInfo,
    SubscriptionRuntimeInfo,
    TopicRuntimeInfo,
)
from pairbus.client.times import (
    from_milliseconds,
    happened_ms,
    to_milliseconds,
    to_ms,
)
from pairbus.dialect.atom import NAMESPACE, QUEUE, RULE, SUBSCRIPTION, TOPIC, Entry, Table, Values, write_entry
from pairbus.dialect.atom.rules import EMPTY_ACTION
from pairbus.dialect.entity_path import path_within

T = TypeVar("T")
EntityDescription: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription
Description: TypeAlias = EntityDescription | RuleDescription


# Values


@dataclass(frozen=True, slots=True)
class _Kind:
    """How a value of ours becomes one of the dialect's, and back."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


def _word(choice: Enum) -> Any:
    return choice.value


def _write_rights(rights: frozenset[AccessRights]) -> tuple[str, ...]:
    return tuple(right.value for right in AccessRights if right in rights)


def _read_rights(words: tuple[str, ...]) -> frozenset[AccessRights]:
    return frozenset(map(AccessRights, words))


def _write_keys(rules: tuple[SharedAccessAuthorizationRule, ...]) -> tuple[Values, ...]:
    return tuple(map(_values, rules))


def _read_keys(rules: tuple[Values, ...]) -> tuple[SharedAccessAuthorizationRule, ...]:
    return tuple(SharedAccessAuthorizationRule(**_fields(SharedAccessAuthorizationRule, values)) for values in rules)


def _read_target(address: str) -> str | None:
    return path_within(address) or None


_SAME: Final = _Kind(_same, _same)
_LENGTH: Final = _Kind(to_milliseconds, from_milliseconds)
_TIME: Final = _Kind(to_ms, happened_ms)
_STATUS: Final = _Kind(_word, EntityStatus)
_RIGHTS: Final = _Kind(_write_rights, _read_rights)
_KEYS: Final = _Kind(_write_keys, _read_keys)
_TARGET: Final = _Kind(path_within, _read_target)
_FILTER: Final = _Kind(write_filter, read_filter)
_ACTION: Final = _Kind(write_action, read_action)

# our name: (the dialect's, kind). A description has those rows that it has fields for.
_ROWS: Final[Mapping[str, tuple[str, _Kind]]] = {
    "lock_duration": ("lock_duration_ms", _LENGTH),
    "max_size_in_megabytes": ("max_size_megabytes", _SAME),
    "max_message_size_in_kilobytes": ("max_message_kilobytes", _SAME),
    "requires_duplicate_detection": ("requires_duplicate_detection", _SAME),
    "duplicate_detection_history_time_window": ("duplicate_window_ms", _LENGTH),
    "requires_session": ("requires_session", _SAME),
    "default_message_time_to_live": ("default_time_to_live_ms", _LENGTH),
    "enable_dead_lettering_on_message_expiration": ("dead_letter_on_expiration", _SAME),
    "enable_dead_lettering_on_filter_evaluation_exceptions": ("dead_letter_on_filter_errors", _SAME),
    "enable_filtering_messages_before_publishing": ("filtering_before_publishing", _SAME),
    "max_delivery_count": ("max_delivery_count", _SAME),
    "enable_batched_operations": ("batched_operations", _SAME),
    "status": ("status", _STATUS),
    "forward_to": ("forward_to", _TARGET),
    "forward_dead_lettered_messages_to": ("forward_dead_letters_to", _TARGET),
    "auto_delete_on_idle": ("auto_delete_on_idle_ms", _LENGTH),
    "enable_partitioning": ("partitioned", _SAME),
    "enable_subscription_partitioning": ("subscription_partitioning", _SAME),
    "enable_express": ("express", _SAME),
    "support_ordering": ("support_ordering", _SAME),
    "user_metadata": ("user_metadata", _SAME),
    "authorization_rules": ("authorization_rules", _KEYS),
    # Keys
    "key_name": ("name", _SAME),
    "rights": ("rights", _RIGHTS),
    "primary_key": ("primary_key", _SAME),
    "secondary_key": ("secondary_key", _SAME),
    # Rules
    "name": ("name", _SAME),
    "filter": ("filter", _FILTER),
    "action": ("action", _ACTION),
    # What only the service says
    "created_at": ("created_ms", _TIME),
    "updated_at": ("updated_ms", _TIME),
    "accessed_at": ("accessed_ms", _TIME),
    "size_in_bytes": ("size_bytes", _SAME),
    "message_count": ("message_count", _SAME),
    "active_message_count": ("active_message_count", _SAME),
    "dead_letter_message_count": ("dead_letter_message_count", _SAME),
    "scheduled_message_count": ("scheduled_message_count", _SAME),
    "transfer_message_count": ("transfer_message_count", _SAME),
    "transfer_dead_letter_message_count": ("transfer_dead_letter_message_count", _SAME),
    "subscription_count": ("subscription_count", _SAME),
    "availability_status": ("availability", _SAME),
    "is_anonymous_accessible": ("anonymous_access", _SAME),
    "alias": ("alias", _SAME),
    "messaging_sku": ("sku", _SAME),
    "messaging_units": ("messaging_units", _SAME),
    "namespace_type": ("type", _SAME),
}


@cache
def _rows(kind: type) -> tuple[tuple[str, str, _Kind], ...]:
    return tuple((field.name, *_ROWS[field.name]) for field in fields(kind) if field.name in _ROWS)


def _values(description: object) -> dict[str, Any]:
    """What is given; what is not is left to the service."""
    own: type = type(description)
    given = ((getattr(description, name), attribute, kind) for name, attribute, kind in _rows(own))
    return {attribute: kind.write(value) for value, attribute, kind in given if value is not None}


def _fields(kind: type, values: Values) -> dict[str, Any]:
    return {name: row.read(values[attribute]) for name, attribute, row in _rows(kind) if attribute in values}


# Documents


@dataclass(frozen=True, slots=True)
class Noun(Generic[T]):
    """Something that entries describe."""

    word: str
    table: Table
    kind: type[T]
    title: str = "path"
    """The field for what the entry is called."""

    def read(self, entry: Entry) -> T:
        """Raises ``ValueError`` or ``TypeError`` if the service says something that cannot be."""
        counts = {f"{name}_message_count": count for name, count in entry.values.get("counts", {}).items()}
        given = _fields(self.kind, {**entry.values, **counts})
        return self.kind(**{self.title: entry.title, **given})


QUEUES: Final = Noun("queue", QUEUE, QueueDescription)
TOPICS: Final = Noun("topic", TOPIC, TopicDescription)
SUBSCRIPTIONS: Final = Noun("subscription", SUBSCRIPTION, SubscriptionDescription, "name")
RULES: Final = Noun("rule", RULE, RuleDescription, "name")
QUEUE_RUNTIME: Final = Noun("queue", QUEUE, QueueRuntimeInfo)
TOPIC_RUNTIME: Final = Noun("topic", TOPIC, TopicRuntimeInfo)
SUBSCRIPTION_RUNTIME: Final = Noun("subscription", SUBSCRIPTION, SubscriptionRuntimeInfo, "name")
NAMESPACES: Final = Noun("namespace", NAMESPACE, NamespaceInfo, "name")

WORDS: Final = {noun.table.name: noun.word for noun in (QUEUES, TOPICS, SUBSCRIPTIONS, RULES, NAMESPACES)}
_TABLES: Final[Mapping[type, Table]] = {
    QueueDescription: QUEUE,
    TopicDescription: TOPIC,
    SubscriptionDescription: SUBSCRIPTION,
    RuleDescription: RULE,
}
_SUPPLEMENTS: Final = {
    "forward_to": "ServiceBusSupplementaryAuthorization",
    "forward_dead_letters_to": "ServiceBusDlqSupplementaryAuthorization",
}
"""Where the service looks for the token that opens the entity to forward to."""

_NO_ACTION: Final = {"action": {"type": EMPTY_ACTION}}
"""The SDKs say so where a rule has none. Tables pass over what they have no element for."""


def write_description(
    description: Description, endpoint: Endpoint, default_rule: RuleDescription | None = None
) -> bytes:
    """The entry that asks for it."""
    values = _NO_ACTION | _values(description)
    values |= {name: endpoint.uri(values[name]) for name in _SUPPLEMENTS if values.get(name)}
    if default_rule is not None:
        values["default_rule"] = _NO_ACTION | _values(default_rule)
    return write_entry(Entry(table=_TABLES[type(description)], values=values))


def forwarding_targets(description: Description) -> dict[str, str]:
    """The paths of the entities that it forwards to, by the header that takes the token for each."""
    values = _values(description)
    return {header: values[name] for name, header in _SUPPLEMENTS.items() if values.get(name)}
