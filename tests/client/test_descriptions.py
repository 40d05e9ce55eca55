"""Descriptions: what they take, and that they come back as they were from the documents that they travel in."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest
from hypothesis import given

from pairbus.client.endpoint import Endpoint
from pairbus.client.management import atom
from pairbus.client.management.atom import AtomEntity, Description, forwarding_targets, write_description
from pairbus.client.management.descriptions import (
    AccessRights,
    EntityStatus,
    QueueDescription,
    SharedAccessAuthorizationRule,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.client.management.rules import CorrelationFilter, RuleDescription, SqlFilter, SqlRuleAction, TrueFilter
from pairbus.client.validation import (
    from_milliseconds,
    happened_ms,
    to_milliseconds,
    to_ms,
)
from pairbus.dialect.atom import QUEUE, RULE, SUBSCRIPTION, TOPIC, AtomEntry, Table, parse_entry
from tests.client.description_values import QUEUES, RULES, SUBSCRIPTIONS, TOPICS

T = TypeVar("T")
HERE = Endpoint("bus.example", 5671)
HOUR = timedelta(hours=1)


def returned(description: Description, noun: AtomEntity[T], name: str) -> T:
    """Write and parse a description."""
    entry = parse_entry(write_description(description, HERE), noun.table)
    return noun.read(replace(entry, title=name))


# There and back


@given(QUEUES)
def test_queue_round_trips(queue: QueueDescription) -> None:
    assert returned(queue, atom.QUEUES, queue.path) == queue


@given(TOPICS)
def test_topic_round_trips(topic: TopicDescription) -> None:
    assert returned(topic, atom.TOPICS, topic.path) == topic


@given(SUBSCRIPTIONS)
def test_subscription_round_trips(subscription: SubscriptionDescription) -> None:
    assert returned(subscription, atom.SUBSCRIPTIONS, subscription.name) == subscription


@given(RULES)
def test_rule_round_trips(rule: RuleDescription) -> None:
    assert returned(rule, atom.RULES, rule.name) == rule


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (QueueDescription, QUEUE),
        (TopicDescription, TOPIC),
        (SubscriptionDescription, SUBSCRIPTION),
        (RuleDescription, RULE),
    ],
)
def test_every_management_setting_has_a_field(kind: type, table: Table) -> None:
    wanted = {element.attribute for element in table.elements if not element.read_only}
    ours = {atom._ROWS[field.name][0] for field in fields(kind) if field.name in atom._ROWS}
    assert wanted - {"default_rule"} <= ours


def test_unset_fields_are_not_written() -> None:
    entry = parse_entry(write_description(QueueDescription("q"), HERE), QUEUE)
    assert entry.values == {}


def test_never_is_maximum_duration_in_both_directions() -> None:
    document = write_description(QueueDescription("q", auto_delete_on_idle=timedelta.max), HERE)
    assert b"<AutoDeleteOnIdle>P10675199DT2H48M5.4775807S</AutoDeleteOnIdle>" in document
    assert to_milliseconds(timedelta.max) is None
    assert from_milliseconds(None) == timedelta.max
    assert to_milliseconds(timedelta(days=10_675_198)) == 10_675_198 * 86_400_000


def test_forwarding_target_is_path_here_and_address_there() -> None:
    queue = QueueDescription("q", forward_to="a/b", forward_dead_lettered_messages_to="sb://bus.example:5671/dead")
    values = parse_entry(write_description(queue, HERE), QUEUE).values
    assert values["forward_to"] == "sb://bus.example:5671/a/b"
    assert values["forward_dead_letters_to"] == "sb://bus.example:5671/dead"
    assert forwarding_targets(queue) == {
        "ServiceBusSupplementaryAuthorization": "a/b",
        "ServiceBusDlqSupplementaryAuthorization": "dead",
    }
    assert returned(queue, atom.QUEUES, "q").forward_dead_lettered_messages_to == "dead"


@pytest.mark.parametrize("values", [{"filter": {"type": "SqlFilter"}}, {"action": {"type": "SqlRuleAction"}}])
def test_rule_without_expression_raises_value_error(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs an SqlExpression"):
        atom.RULES.read(AtomEntry(table=RULE, values=values, title="large"))


def test_time_is_same_instant_in_every_zone() -> None:
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert happened_ms(to_ms(noon.astimezone(timezone(HOUR)))) == noon
    assert happened_ms(to_ms(datetime.min.replace(tzinfo=UTC))) is None


# What they take


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"lock_duration": 60}, TypeError, "lock_duration must be timedelta or None, got 60 of type int"),
        ({"max_delivery_count": "10"}, TypeError, "max_delivery_count must be int or None"),
        ({"max_delivery_count": True}, TypeError, "max_delivery_count must be int or None, got True of type bool"),
        ({"max_delivery_count": 1.0}, TypeError, "max_delivery_count"),
        ({"requires_session": 1}, TypeError, "requires_session must be bool or None"),
        ({"status": "Active"}, TypeError, "status must be EntityStatus or None"),
        ({"forward_to": b"q"}, TypeError, "forward_to must be str or None"),
        ({"authorization_rules": []}, TypeError, "authorization_rules must be tuple or None"),
        ({"authorization_rules": ("k",)}, TypeError, "SharedAccessAuthorizationRule"),
        ({"lock_duration": timedelta(seconds=-1)}, ValueError, "lock_duration must be >= 0"),
        ({"max_size_in_megabytes": -1}, ValueError, "max_size_in_megabytes must be >= 0, got -1"),
        ({"max_size_in_megabytes": 2**63}, ValueError, "64 bits"),
        ({"user_metadata": "a\x00b"}, ValueError, "user_metadata contains a character that XML cannot represent"),
    ],
)
def test_invalid_value_is_rejected_by_name(given: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        QueueDescription("q", **given)


@pytest.mark.parametrize("kind", [QueueDescription, TopicDescription, SubscriptionDescription, RuleDescription])
@pytest.mark.parametrize("name", ["", "/q", "q/", "a//b", "a?b", "a#b", "*", "a\\b", "a@b", "a\ud800", 5, None, b"q"])
def test_invalid_name_is_rejected(kind: Callable[[Any], object], name: object) -> None:
    with pytest.raises((TypeError, ValueError), match=r"name|path"):
        kind(name)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SqlFilter(""), "the expression must not be empty"),
        (lambda: SqlFilter(None), "expression must be str"),  # type: ignore[arg-type]
        (lambda: SqlRuleAction(" "), "the expression must not be empty"),
        (lambda: SqlFilter("a=@p", {"@p": object()}), "'@p' of the parameters must be str or int"),  # type: ignore[dict-item]
        (lambda: SqlFilter("a=@p", {"@p": 2**63}), "'@p' of the parameters does not fit"),
        (lambda: SqlFilter("a=@p", {"@p": datetime(2030, 1, 1)}), "without a time zone"),  # noqa: DTZ001
        (lambda: SqlFilter("a=@p", {1: 1}), "the name of each of the parameters"),  # type: ignore[dict-item]
        (lambda: CorrelationFilter(label=1), "label must be str or None"),  # type: ignore[arg-type]
        (lambda: CorrelationFilter(properties={"a": b""}), "'a' of the properties"),  # type: ignore[dict-item]
        (lambda: CorrelationFilter(properties=["a"]), "properties must be Mapping"),  # type: ignore[arg-type]
        (lambda: RuleDescription("r", filter="a=1"), "filter must be TrueFilter or"),  # type: ignore[arg-type]
        (lambda: RuleDescription("r", action="SET a=1"), "action must be SqlRuleAction or None"),  # type: ignore[arg-type]
        (lambda: SharedAccessAuthorizationRule("", rights={AccessRights.SEND}), "a name and at least one right"),
        (lambda: SharedAccessAuthorizationRule("k", rights=set()), "a name and at least one right"),
        (lambda: SharedAccessAuthorizationRule("k", rights={"Send"}), "each of the rights"),  # type: ignore[arg-type]
    ],
)
def test_invalid_part_is_rejected_by_name(make: Callable[[], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make()


# What they are


def test_descriptions_are_immutable_and_replaceable() -> None:
    queue = QueueDescription("q", status=EntityStatus.DISABLED)
    with pytest.raises(FrozenInstanceError):
        queue.status = EntityStatus.ACTIVE  # type: ignore[misc]
    assert replace(queue, max_delivery_count=3) == QueueDescription(
        "q", status=EntityStatus.DISABLED, max_delivery_count=3
    )


def test_only_name_is_positional() -> None:
    with pytest.raises(TypeError):
        QueueDescription("q", HOUR)  # type: ignore[call-arg]


def test_filter_keeps_private_copy() -> None:
    parameters: dict[str, Any] = {"@p": 1}
    found = SqlFilter("a = @p", parameters)
    parameters["@p"] = 2
    assert found.parameters == {"@p": 1}
    assert hash(found) == hash(SqlFilter("a = @p", {"@p": 1}))


def test_descriptions_can_be_pickled() -> None:
    rule = RuleDescription("r", filter=SqlFilter("a = @p", {"@p": HOUR}), action=SqlRuleAction("SET a = 1"))
    key = SharedAccessAuthorizationRule("k", rights={AccessRights.SEND})
    queue = QueueDescription("q", authorization_rules=(key,))
    assert pickle.loads(pickle.dumps((rule, queue))) == (rule, queue)  # noqa: S301 (our own)


def test_keys_are_not_shown() -> None:
    rule = SharedAccessAuthorizationRule(
        "k", rights={AccessRights.SEND}, primary_key="first-secret", secondary_key="second-secret"
    )
    shown = repr(QueueDescription("q", authorization_rules=(rule,)))
    assert "'k'" in shown
    assert "secret" not in shown


def test_creation_time_does_not_affect_equality() -> None:
    assert RuleDescription("r", created_at=datetime.now(UTC)) == RuleDescription("r", filter=TrueFilter())
