"""Descriptions of all kinds, with values that a namespace takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from pairbus.client.management.descriptions import (
    AccessRights,
    EntityStatus,
    QueueDescription,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    TopicDescription,
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

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff"), min_size=1)
NAMES = st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,20}", fullmatch=True)
STATUSES = st.sampled_from(list(EntityStatus)[:4])


def lengths(least: timedelta, most: timedelta = timedelta(days=10_000)) -> st.SearchStrategy[timedelta]:
    """Times, which count in milliseconds."""
    span = (most - least) // timedelta(milliseconds=1)
    return st.integers(0, span).map(lambda ms: least + timedelta(milliseconds=ms))


def lengths_or_never(least: timedelta) -> st.SearchStrategy[timedelta]:
    return st.just(timedelta.max) | lengths(least)


KEYS = st.builds(
    SharedAccessAuthorizationRule,
    NAMES,
    rights=st.frozensets(st.sampled_from(AccessRights), min_size=1),
    primary_key=NAMES,
    secondary_key=NAMES,
)

# What a namespace takes, and answers as it was given.
_ENTITY: dict[str, st.SearchStrategy[Any]] = {
    "default_message_time_to_live": lengths_or_never(timedelta(seconds=1)),
    "auto_delete_on_idle": lengths_or_never(timedelta(minutes=5)),
    "enable_batched_operations": st.booleans(),
    "status": STATUSES,
    "user_metadata": TEXT,
}
_SENT_TO: dict[str, st.SearchStrategy[Any]] = {
    "max_size_in_megabytes": st.sampled_from([1024, 2048, 3072, 4096, 5120]),
    "max_message_size_in_kilobytes": st.integers(1, 256),
    "requires_duplicate_detection": st.booleans(),
    "duplicate_detection_history_time_window": lengths(timedelta(seconds=20), timedelta(days=7)),
    "authorization_rules": st.lists(KEYS, max_size=3, unique_by=lambda rule: rule.key_name.lower()).map(tuple),
}
_RECEIVED_FROM: dict[str, st.SearchStrategy[Any]] = {
    "lock_duration": lengths(timedelta(seconds=5), timedelta(minutes=5)),
    "requires_session": st.booleans(),
    "enable_dead_lettering_on_message_expiration": st.booleans(),
    "max_delivery_count": st.integers(1, 2000),
}
QUEUE_FIELDS = _ENTITY | _SENT_TO | _RECEIVED_FROM
TOPIC_FIELDS = _ENTITY | _SENT_TO | {"support_ordering": st.booleans()}
SUBSCRIPTION_FIELDS = (
    _ENTITY | _RECEIVED_FROM | {"enable_dead_lettering_on_filter_evaluation_exceptions": st.booleans()}
)

# What the management API has besides.
_FORWARDING: dict[str, st.SearchStrategy[Any]] = {"forward_to": NAMES, "forward_dead_lettered_messages_to": NAMES}
_PREMIUM: dict[str, st.SearchStrategy[Any]] = {"enable_partitioning": st.booleans(), "enable_express": st.booleans()}


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Values for some of the fields."""
    return st.fixed_dictionaries({}, optional=fields)


QUEUES = st.builds(
    lambda path, given: QueueDescription(path, **given),
    NAMES,
    some_of(QUEUE_FIELDS | _FORWARDING | _PREMIUM | {"support_ordering": st.booleans()}),
)
TOPICS = st.builds(
    lambda path, given: TopicDescription(path, **given),
    NAMES,
    some_of(
        TOPIC_FIELDS
        | _PREMIUM
        | {
            "enable_filtering_messages_before_publishing": st.booleans(),
            "enable_subscription_partitioning": st.booleans(),
        }
    ),
)
SUBSCRIPTIONS = st.builds(
    lambda name, given: SubscriptionDescription(name, **given), NAMES, some_of(SUBSCRIPTION_FIELDS | _FORWARDING)
)

_TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 (made aware at once)
    lambda time: time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=UTC)
)
VALUES: st.SearchStrategy[FilterValue] = st.one_of(
    TEXT,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    _TIMES,
    lengths(timedelta(days=-100), timedelta(days=100)),
    st.just(timedelta.max),
)
_PARAMETERS = st.fixed_dictionaries({"@p": VALUES})
FILTERS: st.SearchStrategy[RuleFilter] = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.just(SqlFilter("colour = 'rosé' OR a < 1")),
    st.builds(SqlFilter, st.just("colour = @p"), _PARAMETERS),
    st.builds(CorrelationFilter, label=TEXT, properties=st.dictionaries(NAMES, VALUES, max_size=3)),
    st.builds(
        CorrelationFilter,
        correlation_id=TEXT,
        message_id=TEXT,
        to=TEXT,
        reply_to=TEXT,
        label=TEXT,
        session_id=TEXT,
        reply_to_session_id=TEXT,
        content_type=TEXT,
    ),
)
ACTIONS = st.none() | st.just(SqlRuleAction("SET a = 1")) | st.builds(SqlRuleAction, st.just("SET a = @p"), _PARAMETERS)
RULES = st.builds(RuleDescription, NAMES, filter=FILTERS, action=ACTIONS)
