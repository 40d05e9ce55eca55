"""The elements of each description in the management API, in the order in which the service writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pairbus.dialect.atom.rules import ACTION, FILTER
from pairbus.dialect.atom.table import (
    BOOLEAN,
    COUNTS,
    DURATION,
    INSTANT,
    INTEGER,
    TEXT,
    Element,
    ElementKind,
    ListOf,
    Nested,
    Table,
    one_of,
)
from pairbus.entity_settings import (
    AUTO_DELETE_ON_IDLE,
    BATCHED_OPERATIONS,
    DEAD_LETTER_ON_EXPIRATION,
    DEAD_LETTER_ON_FILTER_ERRORS,
    DEFAULT_TIME_TO_LIVE,
    DUPLICATE_WINDOW,
    EXPRESS,
    FILTERING_BEFORE_PUBLISHING,
    FORWARD_DEAD_LETTERS_TO,
    FORWARD_TO,
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    MAX_MESSAGE_SIZE,
    MAX_SIZE,
    PARTITIONED,
    REQUIRES_DUPLICATE_DETECTION,
    REQUIRES_SESSION,
    STATUS,
    SUBSCRIPTION_PARTITIONING,
    SUPPORT_ORDERING,
    USER_METADATA,
    EntitySetting,
    SettingType,
)
from pairbus.entity_settings import STATUSES as SETTABLE_STATUSES

STATUSES: Final = (
    *SETTABLE_STATUSES.values(),
    "Restoring",
    "Creating",
    "Deleting",
    "Renaming",
    "Unknown",
)
_STATUS: Final = one_of(*STATUSES)
_RIGHT: Final = one_of("Manage", "Send", "Listen")
_KINDS: Final[Mapping[SettingType, ElementKind]] = {
    SettingType.BOOLEAN: BOOLEAN,
    SettingType.INTEGER: INTEGER,
    SettingType.SIZE: INTEGER,
    SettingType.DURATION: DURATION,
    SettingType.LIFETIME: DURATION,
    SettingType.TEXT: TEXT,
    SettingType.ENTITY: TEXT,
    SettingType.STATUS: _STATUS,
}


def _setting(setting: EntitySetting[Any]) -> Element:
    return Element(setting.element, _KINDS[setting.type], setting.value_name)


AUTHORIZATION_RULE: Final = Table(
    "SharedAccessAuthorizationRule",
    (
        Element("ClaimType", TEXT, "claim_type", read_only=True),
        Element("ClaimValue", TEXT, "claim_value", read_only=True),
        Element("Rights", ListOf("AccessRights", _RIGHT), "rights"),
        Element("CreatedTime", INSTANT, "created_ms", read_only=True),
        Element("ModifiedTime", INSTANT, "updated_ms", read_only=True),
        Element("KeyName", TEXT, "name"),
        Element("PrimaryKey", TEXT, "primary_key"),
        Element("SecondaryKey", TEXT, "secondary_key"),
    ),
)
_AUTHORIZATION_RULES: Final = Element(
    "AuthorizationRules",
    ListOf("AuthorizationRule", Nested(AUTHORIZATION_RULE), type="SharedAccessAuthorizationRule"),
    "authorization_rules",
)

QUEUE: Final = Table(
    "QueueDescription",
    (
        _setting(LOCK_DURATION),
        _setting(MAX_SIZE),
        _setting(REQUIRES_DUPLICATE_DETECTION),
        _setting(REQUIRES_SESSION),
        _setting(DEFAULT_TIME_TO_LIVE),
        _setting(DEAD_LETTER_ON_EXPIRATION),
        _setting(DUPLICATE_WINDOW),
        _setting(MAX_DELIVERY_COUNT),
        _setting(BATCHED_OPERATIONS),
        Element("SizeInBytes", INTEGER, "size_bytes", read_only=True),
        Element("MessageCount", INTEGER, "message_count", read_only=True),
        Element("IsAnonymousAccessible", BOOLEAN, "anonymous_access", read_only=True),
        _AUTHORIZATION_RULES,
        _setting(STATUS),
        _setting(FORWARD_TO),
        _setting(USER_METADATA),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        _setting(SUPPORT_ORDERING),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        _setting(AUTO_DELETE_ON_IDLE),
        _setting(PARTITIONED),
        Element("EntityAvailabilityStatus", TEXT, "availability", read_only=True),
        _setting(FORWARD_DEAD_LETTERS_TO),
        _setting(EXPRESS),
        _setting(MAX_MESSAGE_SIZE),
    ),
)

TOPIC: Final = Table(
    "TopicDescription",
    (
        _setting(DEFAULT_TIME_TO_LIVE),
        _setting(MAX_SIZE),
        _setting(REQUIRES_DUPLICATE_DETECTION),
        _setting(DUPLICATE_WINDOW),
        _setting(BATCHED_OPERATIONS),
        Element("SizeInBytes", INTEGER, "size_bytes", read_only=True),
        _setting(FILTERING_BEFORE_PUBLISHING),
        Element("IsAnonymousAccessible", BOOLEAN, "anonymous_access", read_only=True),
        _AUTHORIZATION_RULES,
        _setting(STATUS),
        _setting(USER_METADATA),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        _setting(SUPPORT_ORDERING),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        Element("SubscriptionCount", INTEGER, "subscription_count", read_only=True),
        Element("SqlFilterCount", INTEGER, "sql_filter_count", read_only=True),
        Element("CorrelationFilterCount", INTEGER, "correlation_filter_count", read_only=True),
        _setting(AUTO_DELETE_ON_IDLE),
        _setting(PARTITIONED),
        Element("EntityAvailabilityStatus", TEXT, "availability", read_only=True),
        _setting(SUBSCRIPTION_PARTITIONING),
        _setting(EXPRESS),
        _setting(MAX_MESSAGE_SIZE),
    ),
)

RULE: Final = Table(
    "RuleDescription",
    (
        Element("Filter", FILTER, "filter"),
        Element("Action", ACTION, "action"),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("Name", TEXT, "name"),
    ),
)

SUBSCRIPTION: Final = Table(
    "SubscriptionDescription",
    (
        _setting(LOCK_DURATION),
        _setting(REQUIRES_SESSION),
        _setting(DEFAULT_TIME_TO_LIVE),
        _setting(DEAD_LETTER_ON_EXPIRATION),
        _setting(DEAD_LETTER_ON_FILTER_ERRORS),
        Element("DefaultRuleDescription", Nested(RULE), "default_rule"),  # in requests only
        Element("MessageCount", INTEGER, "message_count", read_only=True),
        _setting(MAX_DELIVERY_COUNT),
        _setting(BATCHED_OPERATIONS),
        _setting(STATUS),
        _setting(FORWARD_TO),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        _setting(USER_METADATA),
        _setting(FORWARD_DEAD_LETTERS_TO),
        _setting(AUTO_DELETE_ON_IDLE),
        Element("EntityAvailabilityStatus", TEXT, "availability", read_only=True),
    ),
)

NAMESPACE: Final = Table(
    "NamespaceInfo",
    (
        Element("Alias", TEXT, "alias", read_only=True),
        Element("CreatedTime", INSTANT, "created_ms", read_only=True),
        Element("MessagingSKU", TEXT, "sku", read_only=True),
        Element("MessagingUnits", INTEGER, "messaging_units", read_only=True),
        Element("ModifiedTime", INSTANT, "updated_ms", read_only=True),
        Element("Name", TEXT, "name", read_only=True),
        Element("NamespaceType", TEXT, "type", read_only=True),
    ),
)
