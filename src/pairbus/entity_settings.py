"""The settings of queues, topics and subscriptions: one table, which everything that names a setting reads.

The broker takes names, defaults and ranges from it, the management API its elements, the client its fields, the command
line its options, the console its labels, the declaration file and the emulator's configuration file their keys. A
setting is added here, and as a field of the broker's and the client's descriptions, which are classes so that a type
checker knows them.

Authorization rules are not in the table: each of these formats writes them in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

MINUTE_MS: Final = 60_000


class EntityKind(Enum):
    """A kind of entity; the value is its name in texts."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


class SettingType(Enum):
    """The type of a setting's value."""

    BOOLEAN = auto()
    INTEGER = auto()
    SIZE = auto()
    """Bytes for the broker; kilobytes on the wire and the command line. ``None`` means the namespace's limit."""

    DURATION = auto()
    """Milliseconds."""

    LIFETIME = auto()
    """Milliseconds, or ``None`` for never."""

    TEXT = auto()
    ENTITY = auto()
    """The path of a queue or topic in the same namespace, or ``None``."""

    STATUS = auto()


@dataclass(frozen=True, kw_only=True)  # no slots: Python 3.11 cannot call a generic class that has them
class EntitySetting(Generic[T]):
    """One setting, with its name in each format."""

    name: str
    """The name in the broker's descriptions, in the store and in the HTTP API's errors."""

    type: SettingType
    kinds: tuple[EntityKind, ...]
    """The entities that have the setting."""

    default: T
    field: str
    """The name in the client's descriptions."""

    element: str
    """The element of the management API."""

    label: str
    """The label on the console."""

    option: str | None = None
    """The option of ``pairbus entities create`` and ``update``; ``None`` if there is none."""

    help: str = ""
    """The description, for the command line and the reference."""

    unit: str = ""
    """The unit that follows a number on the console."""

    emulator_key: str | None = None
    """The key in the emulator's ``Config.json``; ``None`` if it has none."""

    forwarding_header: str | None = None
    """The header of a request with the token for the entity that the setting names; ``None`` for other settings."""

    minimum: int | str | None = None
    """The smallest value, or the name of the limit of the namespace that says it."""

    maximum: int | str | None = None
    choices: str | None = None
    """The name of the limit that lists the values."""

    is_fixed: bool = False
    """True if the setting can only be set when the entity is created."""

    fixed_for: tuple[EntityKind, ...] = ()
    """The entities for which the service has the setting and pairbus only its default."""

    @property
    def key(self) -> str:
        """The key in the declaration file: durations are texts with a unit there."""
        return self.name.removesuffix("_ms")

    @property
    def value_name(self) -> str:
        """The name of the value in a document of the management API."""
        return self.name.replace("_bytes", "_kilobytes") if self.type is SettingType.SIZE else self.name


_QUEUE: Final = (EntityKind.QUEUE,)
_TOPIC: Final = (EntityKind.TOPIC,)
_SENDING: Final = (EntityKind.QUEUE, EntityKind.TOPIC)
_RECEIVING: Final = (EntityKind.QUEUE, EntityKind.SUBSCRIPTION)
_ALL: Final = (EntityKind.QUEUE, EntityKind.TOPIC, EntityKind.SUBSCRIPTION)

STATUSES: Final = {
    "active": "Active",
    "disabled": "Disabled",
    "send-disabled": "SendDisabled",
    "receive-disabled": "ReceiveDisabled",
}
"""The statuses that can be set: the broker's word, and the service's. The command line takes the latter in any case."""

LOCK_DURATION: Final = EntitySetting[int](
    name="lock_duration_ms",
    type=SettingType.DURATION,
    kinds=_RECEIVING,
    default=MINUTE_MS,
    minimum="min_lock_ms",
    maximum="max_lock_ms",
    field="lock_duration",
    element="LockDuration",
    label="Lock duration",
    option="--lock-duration",
    help="the duration of a lock on a message or session",
    emulator_key="LockDuration",
)
MAX_DELIVERY_COUNT: Final = EntitySetting[int](
    name="max_delivery_count",
    type=SettingType.INTEGER,
    kinds=_RECEIVING,
    default=10,
    minimum=1,
    maximum="max_delivery_count",
    field="max_delivery_count",
    element="MaxDeliveryCount",
    label="Max delivery count",
    option="--max-delivery-count",
    help="the number of deliveries after which a message is dead-lettered",
    emulator_key="MaxDeliveryCount",
)
DEFAULT_TIME_TO_LIVE: Final = EntitySetting[int | None](
    name="default_time_to_live_ms",
    type=SettingType.LIFETIME,
    kinds=_ALL,
    default=None,
    minimum="min_time_to_live_ms",
    field="default_message_time_to_live",
    element="DefaultMessageTimeToLive",
    label="Default time to live",
    option="--ttl",
    help="the default and maximum time to live of messages, or never",
    emulator_key="DefaultMessageTimeToLive",
)
DEAD_LETTER_ON_EXPIRATION: Final = EntitySetting[bool](
    name="dead_letter_on_expiration",
    type=SettingType.BOOLEAN,
    kinds=_RECEIVING,
    default=False,
    field="enable_dead_lettering_on_message_expiration",
    element="DeadLetteringOnMessageExpiration",
    label="Dead-letter expired messages",
    option="--dead-letter-expired",
    help="dead-letter expired messages instead of removing them",
    emulator_key="DeadLetteringOnMessageExpiration",
)
REQUIRES_SESSION: Final = EntitySetting[bool](
    name="requires_session",
    type=SettingType.BOOLEAN,
    kinds=_RECEIVING,
    default=False,
    is_fixed=True,
    field="requires_session",
    element="RequiresSession",
    label="Requires sessions",
    option="--sessions",
    help="require a session for every message",
    emulator_key="RequiresSession",
)
REQUIRES_DUPLICATE_DETECTION: Final = EntitySetting[bool](
    name="requires_duplicate_detection",
    type=SettingType.BOOLEAN,
    kinds=_SENDING,
    default=False,
    is_fixed=True,
    field="requires_duplicate_detection",
    element="RequiresDuplicateDetection",
    label="Detects duplicates",
    option="--detect-duplicates",
    help="drop messages with an id that was received before",
    emulator_key="RequiresDuplicateDetection",
)
DUPLICATE_WINDOW: Final = EntitySetting[int](
    name="duplicate_window_ms",
    type=SettingType.DURATION,
    kinds=_SENDING,
    default=10 * MINUTE_MS,
    minimum="min_duplicate_window_ms",
    maximum="max_duplicate_window_ms",
    field="duplicate_detection_history_time_window",
    element="DuplicateDetectionHistoryTimeWindow",
    label="Duplicate detection window",
    option="--duplicate-window",
    help="the time that ids are remembered for duplicate detection",
    emulator_key="DuplicateDetectionHistoryTimeWindow",
)
MAX_SIZE: Final = EntitySetting[int](
    name="max_size_megabytes",
    type=SettingType.INTEGER,
    kinds=_SENDING,
    default=1024,
    minimum=1,
    choices="entity_megabytes",
    field="max_size_in_megabytes",
    element="MaxSizeInMegabytes",
    label="Max size",
    unit=" MB",
    option="--max-size-mb",
    help="the maximum size of the entity, with dead letters and subscriptions",
)
MAX_MESSAGE_SIZE: Final = EntitySetting[int | None](
    name="max_message_bytes",
    type=SettingType.SIZE,
    kinds=_SENDING,
    default=None,
    minimum=1,
    maximum="largest_message_bytes",
    field="max_message_size_in_kilobytes",
    element="MaxMessageSizeInKilobytes",
    label="Max message size",
    unit=" KB",
    option="--max-message-kb",
    help="the maximum size of a message; unset: the limit of the namespace",
)
PARTITIONED: Final = EntitySetting[bool](
    name="partitioned",
    type=SettingType.BOOLEAN,
    kinds=_SENDING,
    default=False,
    is_fixed=True,
    field="enable_partitioning",
    element="EnablePartitioning",
    label="Partitioned",
    option="--partitioned",
    help="spread the entity over 16 partitions, with 16 times the size",
)
FORWARD_TO: Final = EntitySetting[str | None](
    name="forward_to",
    type=SettingType.ENTITY,
    kinds=_RECEIVING,
    default=None,
    field="forward_to",
    element="ForwardTo",
    label="Forward to",
    forwarding_header="ServiceBusSupplementaryAuthorization",
    option="--forward-to",
    help="the entity that messages are forwarded to",
    emulator_key="ForwardTo",
)
FORWARD_DEAD_LETTERS_TO: Final = EntitySetting[str | None](
    name="forward_dead_letters_to",
    type=SettingType.ENTITY,
    kinds=_RECEIVING,
    default=None,
    field="forward_dead_lettered_messages_to",
    element="ForwardDeadLetteredMessagesTo",
    label="Forward dead letters to",
    forwarding_header="ServiceBusDlqSupplementaryAuthorization",
    option="--forward-dead-letters-to",
    help="the entity that dead letters are forwarded to",
    emulator_key="ForwardDeadLetteredMessagesTo",
)
AUTO_DELETE_ON_IDLE: Final = EntitySetting[int | None](
    name="auto_delete_on_idle_ms",
    type=SettingType.LIFETIME,
    kinds=_ALL,
    default=None,
    minimum="min_idle_ms",
    field="auto_delete_on_idle",
    element="AutoDeleteOnIdle",
    label="Auto-delete on idle",
    option="--auto-delete-on-idle",
    help="the idle time after which the entity is deleted, or never",
)
STATUS: Final = EntitySetting[str](
    name="status",
    type=SettingType.STATUS,
    kinds=_ALL,
    default="active",
    field="status",
    element="Status",
    label="Status",
    option="--status",
    help=f"the status: {', '.join(word.lower() for word in STATUSES.values())}",
)
USER_METADATA: Final = EntitySetting[str](
    name="user_metadata",
    type=SettingType.TEXT,
    kinds=_ALL,
    default="",
    field="user_metadata",
    element="UserMetadata",
    label="User metadata",
    option="--metadata",
    help="a free text for users",
)
BATCHED_OPERATIONS: Final = EntitySetting[bool](
    name="batched_operations",
    type=SettingType.BOOLEAN,
    kinds=_ALL,
    default=True,
    field="enable_batched_operations",
    element="EnableBatchedOperations",
    label="Batched operations",
    help="stored for clients; commits are always grouped",
)
EXPRESS: Final = EntitySetting[bool](
    name="express",
    type=SettingType.BOOLEAN,
    kinds=_SENDING,
    default=False,
    field="enable_express",
    element="EnableExpress",
    label="Express",
    help="stored for clients; messages are always durable",
)
SUPPORT_ORDERING: Final = EntitySetting[bool](
    name="support_ordering",
    type=SettingType.BOOLEAN,
    kinds=_TOPIC,
    default=True,
    fixed_for=_QUEUE,
    field="support_ordering",
    element="SupportOrdering",
    label="Supports ordering",
    help="stored for clients",
)
DEAD_LETTER_ON_FILTER_ERRORS: Final = EntitySetting[bool](
    name="dead_letter_on_filter_errors",
    type=SettingType.BOOLEAN,
    kinds=(EntityKind.SUBSCRIPTION,),
    default=True,
    field="enable_dead_lettering_on_filter_evaluation_exceptions",
    element="DeadLetteringOnFilterEvaluationExceptions",
    label="Dead-letter on filter errors",
    help="dead-letter messages on which a rule fails",
)
FILTERING_BEFORE_PUBLISHING: Final = EntitySetting[bool](
    name="filtering_before_publishing",
    type=SettingType.BOOLEAN,
    kinds=(),
    default=False,
    fixed_for=_TOPIC,
    field="enable_filtering_messages_before_publishing",
    element="FilteringMessagesBeforePublishing",
    label="Filters before publishing",
)
SUBSCRIPTION_PARTITIONING: Final = EntitySetting[bool](
    name="subscription_partitioning",
    type=SettingType.BOOLEAN,
    kinds=(),
    default=False,
    fixed_for=_TOPIC,
    field="enable_subscription_partitioning",
    element="EnableSubscriptionPartitioning",
    label="Partitions subscriptions",
)

ENTITY_SETTINGS: Final[tuple[EntitySetting[Any], ...]] = (
    LOCK_DURATION,
    MAX_DELIVERY_COUNT,
    DEFAULT_TIME_TO_LIVE,
    DEAD_LETTER_ON_EXPIRATION,
    REQUIRES_SESSION,
    REQUIRES_DUPLICATE_DETECTION,
    DUPLICATE_WINDOW,
    MAX_SIZE,
    MAX_MESSAGE_SIZE,
    PARTITIONED,
    FORWARD_TO,
    FORWARD_DEAD_LETTERS_TO,
    AUTO_DELETE_ON_IDLE,
    STATUS,
    USER_METADATA,
    BATCHED_OPERATIONS,
    EXPRESS,
    SUPPORT_ORDERING,
    DEAD_LETTER_ON_FILTER_ERRORS,
    FILTERING_BEFORE_PUBLISHING,
    SUBSCRIPTION_PARTITIONING,
)
"""All settings, in the order in which the command line lists their options."""

FORWARDING: Final = {
    setting.name: setting.forwarding_header for setting in ENTITY_SETTINGS if setting.forwarding_header is not None
}
"""The names of the settings that forward messages, with the headers of the tokens for their targets."""

FIXED: Final = tuple(setting.name for setting in ENTITY_SETTINGS if setting.is_fixed)
"""The names of the settings that cannot be changed after creation."""


def settings_of(kind: EntityKind) -> tuple[EntitySetting[Any], ...]:
    """Return the settings of a kind of entity."""
    return tuple(setting for setting in ENTITY_SETTINGS if kind in setting.kinds)


_NUMBER: Final = re.compile(r"\d+")
_REFUSED: Final = re.compile(r"(\w+) of '[^']*' must be (.+), got (\d+)")


def rewrite_refusal(message: str, terms: Mapping[str, tuple[str, Callable[[int], str]]]) -> str | None:
    """Rewrite the broker's error about the range of a setting; return ``None`` for other errors.

    ``terms`` has, by the broker's name of a setting, the name that the user has written, and how its values are shown.
    """
    refused = _REFUSED.fullmatch(message)
    if refused is None or refused[1] not in terms:
        return None
    name, shown = terms[refused[1]]
    allowed = _NUMBER.sub(lambda number: shown(int(number[0])), refused[2])
    return f"{name} must be {allowed}, got {shown(int(refused[3]))}"
