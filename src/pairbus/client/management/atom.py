"""Conversion of descriptions to and from the Atom documents of the management API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, Final, Generic, TypeAlias, TypeVar

from pairbus.client.endpoint import Endpoint
from pairbus.client.management.descriptions import (
    AccessRights,
    EntityStatus,
    NamespaceInfo,
    QueueDescription,
    QueueRuntimeInfo,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    SubscriptionRuntimeInfo,
    TopicDescription,
    TopicRuntimeInfo,
)
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    FilterValue,
    RuleDescription,
    RuleFilter,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.validation import (
    from_milliseconds,
    happened_ms,
    to_milliseconds,
    to_ms,
)
from pairbus.dialect.atom import (
    NAMESPACE,
    QUEUE,
    RULE,
    SUBSCRIPTION,
    TOPIC,
    AtomEntry,
    Table,
    TypedValue,
    Values,
    ValueType,
    write_entry,
)
from pairbus.dialect.atom.filters import RuleCodec, typed_value
from pairbus.dialect.atom.rules import CORRELATION_FILTER, EMPTY_ACTION, FALSE_FILTER, SQL_FILTER, TRUE_FILTER
from pairbus.dialect.atom.values import LONGEST_MS
from pairbus.dialect.paths import path_within
from pairbus.entity_settings import ENTITY_SETTINGS, FORWARDING, SettingType


def _typed_value(value: FilterValue) -> TypedValue:
    match value:
        case datetime():
            return TypedValue(ValueType.DATE_TIME, to_ms(value))
        case timedelta():
            length_ms = to_milliseconds(value)
            return TypedValue(ValueType.DURATION, LONGEST_MS if length_ms is None else length_ms)
        case _:
            return typed_value(value)


def _plain_value(typed: TypedValue) -> FilterValue:
    match typed:
        case TypedValue(ValueType.DATE_TIME, int(time_ms)):
            return happened_ms(time_ms)
        case TypedValue(ValueType.DURATION, int(length_ms)):
            return from_milliseconds(length_ms)
        case _:
            value: Any = typed.value
            return value  # type: ignore[no-any-return]


RULE_CODEC: Final = RuleCodec[RuleFilter, SqlRuleAction, FilterValue](
    filters={
        TRUE_FILTER: TrueFilter,
        FALSE_FILTER: FalseFilter,
        SQL_FILTER: SqlFilter,
        CORRELATION_FILTER: CorrelationFilter,
    },
    action=SqlRuleAction,
    write=_typed_value,
    read=_plain_value,
)

T = TypeVar("T")
EntityDescription: TypeAlias = QueueDescription | TopicDescription | SubscriptionDescription
Description: TypeAlias = EntityDescription | RuleDescription


# Values


@dataclass(frozen=True, slots=True)
class _Kind:
    """The conversion of a value to and from the dialect."""

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
_FILTER: Final = _Kind(RULE_CODEC.filter_values, RULE_CODEC.filter_of)
_ACTION: Final = _Kind(RULE_CODEC.action_values, RULE_CODEC.action_of)

_KINDS: Final[Mapping[SettingType, _Kind]] = {
    SettingType.DURATION: _LENGTH,
    SettingType.LIFETIME: _LENGTH,
    SettingType.ENTITY: _TARGET,
    SettingType.STATUS: _STATUS,
}

# our name: (the dialect's name, kind). A description uses the rows for which it has fields.
_ROWS: Final[Mapping[str, tuple[str, _Kind]]] = {
    **{setting.field: (setting.value_name, _KINDS.get(setting.type, _SAME)) for setting in ENTITY_SETTINGS},
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
    # Set by the service only
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
    """Return the fields that are set; the service uses its defaults for the others."""
    own: type = type(description)
    given = ((getattr(description, name), attribute, kind) for name, attribute, kind in _rows(own))
    return {attribute: kind.write(value) for value, attribute, kind in given if value is not None}


def _fields(kind: type, values: Values) -> dict[str, Any]:
    return {name: row.read(values[attribute]) for name, attribute, row in _rows(kind) if attribute in values}


# Documents


@dataclass(frozen=True, slots=True)
class AtomEntity(Generic[T]):
    """A kind of resource that Atom entries describe."""

    word: str
    table: Table
    kind: type[T]
    title: str = "path"
    """The field that holds the entry's title."""

    def read(self, entry: AtomEntry) -> T:
        """Convert an entry. Raises ``ValueError`` or ``TypeError`` if the service sent invalid values."""
        counts = {f"{name}_message_count": count for name, count in entry.values.get("counts", {}).items()}
        given = _fields(self.kind, {**entry.values, **counts})
        return self.kind(**{self.title: entry.title, **given})


QUEUES: Final = AtomEntity("queue", QUEUE, QueueDescription)
TOPICS: Final = AtomEntity("topic", TOPIC, TopicDescription)
SUBSCRIPTIONS: Final = AtomEntity("subscription", SUBSCRIPTION, SubscriptionDescription, "name")
RULES: Final = AtomEntity("rule", RULE, RuleDescription, "name")
QUEUE_RUNTIME: Final = AtomEntity("queue", QUEUE, QueueRuntimeInfo)
TOPIC_RUNTIME: Final = AtomEntity("topic", TOPIC, TopicRuntimeInfo)
SUBSCRIPTION_RUNTIME: Final = AtomEntity("subscription", SUBSCRIPTION, SubscriptionRuntimeInfo, "name")
NAMESPACES: Final = AtomEntity("namespace", NAMESPACE, NamespaceInfo, "name")

WORDS: Final = {noun.table.name: noun.word for noun in (QUEUES, TOPICS, SUBSCRIPTIONS, RULES, NAMESPACES)}
_TABLES: Final[Mapping[type, Table]] = {
    QueueDescription: QUEUE,
    TopicDescription: TOPIC,
    SubscriptionDescription: SUBSCRIPTION,
    RuleDescription: RULE,
}
_NO_ACTION: Final = {"action": {"type": EMPTY_ACTION}}
"""The value that the SDKs send for a rule without an action. Tables ignore fields that they do not contain."""


def write_description(
    description: Description, endpoint: Endpoint, default_rule: RuleDescription | None = None
) -> bytes:
    """Return the Atom entry of a create or update request."""
    values = _NO_ACTION | _values(description)
    values |= {name: endpoint.uri(values[name]) for name in FORWARDING if values.get(name)}
    if default_rule is not None:
        values["default_rule"] = _NO_ACTION | _values(default_rule)
    return write_entry(AtomEntry(table=_TABLES[type(description)], values=values))


def forwarding_targets(description: Description) -> dict[str, str]:
    """Return the paths of the entities that it forwards to, by the header that takes the token for each."""
    values = _values(description)
    return {header: values[name] for name, header in FORWARDING.items() if values.get(name)}
