"""What each description of the management API is made of, in the order in which the service writes it."""

from __future__ import annotations

from typing import Final

from pairbus.dialect.atom.kinds import BOOLEAN, COUNTS, DURATION, INSTANT, INTEGER, TEXT, ListOf, Nested, one_of
from pairbus.dialect.atom.rules import ACTION, FILTER
from pairbus.dialect.atom.table import Element, Table

STATUSES: Final = (
    "Active",
    "Disabled",
    "SendDisabled",
    "ReceiveDisabled",
    "Restoring",
    "Creating",
    "Deleting",
    "Renaming",
    "Unknown",
)
_STATUS: Final = one_of(*STATUSES)
_RIGHT: Final = one_of("Manage", "Send", "Listen")

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
        Element("LockDuration", DURATION, "lock_duration_ms"),
        Element("MaxSizeInMegabytes", INTEGER, "max_size_megabytes"),
        Element("RequiresDuplicateDetection", BOOLEAN, "requires_duplicate_detection"),
        Element("RequiresSession", BOOLEAN, "requires_session"),
        Element("DefaultMessageTimeToLive", DURATION, "default_time_to_live_ms"),
        Element("DeadLetteringOnMessageExpiration", BOOLEAN, "dead_letter_on_expiration"),
        Element("DuplicateDetectionHistoryTimeWindow", DURATION, "duplicate_window_ms"),
        Element("MaxDeliveryCount", INTEGER, "max_delivery_count"),
        Element("EnableBatchedOperations", BOOLEAN, "batched_operations"),
        Element("SizeInBytes", INTEGER, "size_bytes", read_only=True),
        Element("MessageCount", INTEGER, "message_count", read_only=True),
        Element("IsAnonymousAccessible", BOOLEAN, "anonymous_access", read_only=True),
        _AUTHORIZATION_RULES,
        Element("Status", _STATUS, "status"),
        Element("ForwardTo", TEXT, "forward_to"),
        Element("UserMetadata", TEXT, "user_metadata"),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        Element("SupportOrdering", BOOLEAN, "support_ordering"),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        Element("AutoDeleteOnIdle", DURATION, "auto_delete_on_idle_ms"),
        Element("EnablePartitioning", BOOLEAN, "partitioned"),
        Element("EntityAvailabilityStatus", TEXT, "availability", read_only=True),
        Element("ForwardDeadLetteredMessagesTo", TEXT, "forward_dead_letters_to"),
        Element("EnableExpress", BOOLEAN, "express"),
        Element("MaxMessageSizeInKilobytes", INTEGER, "max_message_kilobytes"),
    ),
)

TOPIC: Final = Table(
    "TopicDescription",
    (
        Element("DefaultMessageTimeToLive", DURATION, "default_time_to_live_ms"),
        Element("MaxSizeInMegabytes", INTEGER, "max_size_megabytes"),
        Element("RequiresDuplicateDetection", BOOLEAN, "requires_duplicate_detection"),
        Element("DuplicateDetectionHistoryTimeWindow", DURATION, "duplicate_window_ms"),
        Element("EnableBatchedOperations", BOOLEAN, "batched_operations"),
        Element("SizeInBytes", INTEGER, "size_bytes", read_only=True),
        Element("FilteringMessagesBeforePublishing", BOOLEAN, "filtering_before_publishing"),
        Element("IsAnonymousAccessible", BOOLEAN, "anonymous_access", read_only=True),
        _AUTHORIZATION_RULES,
        Element("Status", _STATUS, "status"),
        Element("UserMetadata", TEXT, "user_metadata"),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        Element("SupportOrdering", BOOLEAN, "support_ordering"),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        Element("SubscriptionCount", INTEGER, "subscription_count", read_only=True),
        Element("SqlFilterCount", INTEGER, "sql_filter_count", read_only=True),
        Element("CorrelationFilterCount", INTEGER, "correlation_filter_count", read_only=True),
        Element("AutoDeleteOnIdle", DURATION, "auto_delete_on_idle_ms"),
        Element("EnablePartitioning", BOOLEAN, "partitioned"),
        Element("EntityAvailabilityStatus", TEXT, "availability", read_only=True),
        Element("EnableSubscriptionPartitioning", BOOLEAN, "subscription_partitioning"),
        Element("EnableExpress", BOOLEAN, "express"),
        Element("MaxMessageSizeInKilobytes", INTEGER, "max_message_kilobytes"),
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
        Element("LockDuration", DURATION, "lock_duration_ms"),
        Element("RequiresSession", BOOLEAN, "requires_session"),
        Element("DefaultMessageTimeToLive", DURATION, "default_time_to_live_ms"),
        Element("DeadLetteringOnMessageExpiration", BOOLEAN, "dead_letter_on_expiration"),
        Element("DeadLetteringOnFilterEvaluationExceptions", BOOLEAN, "dead_letter_on_filter_errors"),
        Element("DefaultRuleDescription", Nested(RULE), "default_rule"),  # in requests only
        Element("MessageCount", INTEGER, "message_count", read_only=True),
        Element("MaxDeliveryCount", INTEGER, "max_delivery_count"),
        Element("EnableBatchedOperations", BOOLEAN, "batched_operations"),
        Element("Status", _STATUS, "status"),
        Element("ForwardTo", TEXT, "forward_to"),
        Element("CreatedAt", INSTANT, "created_ms", read_only=True),
        Element("UpdatedAt", INSTANT, "updated_ms", read_only=True),
        Element("AccessedAt", INSTANT, "accessed_ms", read_only=True),
        Element("CountDetails", COUNTS, "counts", read_only=True),
        Element("UserMetadata", TEXT, "user_metadata"),
        Element("ForwardDeadLetteredMessagesTo", TEXT, "forward_dead_letters_to"),
        Element("AutoDeleteOnIdle", DURATION, "auto_delete_on_idle_ms"),
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
