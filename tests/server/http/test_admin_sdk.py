"""The administration client of the official Python SDK, against a full server."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    EntityStatus,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from pairbus.testing import RunningNamespace, running_namespace


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as running:
        yield running


@pytest.fixture(scope="module")
def client(namespace: RunningNamespace) -> Iterator[ServiceBusAdministrationClient]:
    with connect(namespace, namespace.connection_string) as connected:
        yield connected


def connect(namespace: RunningNamespace, connection_string: str) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        connection_string, connection_verify=str(namespace.ca_file)
    )


def test_queue_lifecycle(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("life/target")
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.SEND],
        key_name="k",
        primary_key="p",
        secondary_key="s",
    )
    created = client.create_queue(
        "life/queue",
        lock_duration=timedelta(seconds=13),
        max_delivery_count=14,
        forward_dead_lettered_messages_to="life/target",
        user_metadata="said & done",
        authorization_rules=[rule],
    )
    assert created.name == "life/queue"
    queue = client.get_queue("life/queue")
    assert (queue.lock_duration, queue.max_delivery_count) == (timedelta(seconds=13), 14)
    assert queue.user_metadata == "said & done"
    assert str(queue.forward_dead_lettered_messages_to).endswith("/life/target")
    assert [found.key_name for found in queue.authorization_rules or ()] == ["k"]
    queue.status = EntityStatus.SEND_DISABLED
    queue.forward_dead_lettered_messages_to = None
    client.update_queue(queue)
    changed = client.get_queue("life/queue")
    assert changed.status == EntityStatus.SEND_DISABLED
    assert changed.forward_dead_lettered_messages_to is None
    assert changed.default_message_time_to_live == queue.default_message_time_to_live
    runtime = client.get_queue_runtime_properties("life/queue")
    assert (runtime.total_message_count, runtime.active_message_count) == (0, 0)
    assert runtime.created_at_utc is not None
    assert abs(runtime.created_at_utc - datetime.now(UTC)) < timedelta(minutes=5)
    client.delete_queue("life/queue")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("life/queue")


def test_topics_subscriptions_and_rules(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("news")
    client.create_subscription("news", "all")
    parameters: dict[str, str | int | float | bool | datetime | timedelta] = {
        "@string": "text",
        "@int": 1,
        "@long": 2**40,
        "@double": 1.5,
        "@bool": True,
        "@time": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC),
        "@span": timedelta(days=1, hours=2),
    }
    client.create_rule(
        "news", "all", "sql", filter=SqlRuleFilter("a=@int", parameters), action=SqlRuleAction("SET b=1")
    )
    found = client.get_rule("news", "all", "sql")
    assert isinstance(found.filter, SqlRuleFilter)
    assert found.filter.parameters == parameters
    assert isinstance(found.action, SqlRuleAction)
    client.create_rule("news", "all", "same", filter=CorrelationRuleFilter(label="l", properties={"k": 3}))
    same = client.get_rule("news", "all", "same")
    assert isinstance(same.filter, CorrelationRuleFilter)
    assert (same.filter.label, same.filter.properties) == ("l", {"k": 3})
    same.filter = FalseRuleFilter()
    client.update_rule("news", "all", same)
    assert [(rule.name, type(rule.filter)) for rule in client.list_rules("news", "all")] == [
        ("$Default", TrueRuleFilter),
        ("sql", SqlRuleFilter),
        ("same", FalseRuleFilter),
    ]
    counted = client.get_topic_runtime_properties("news")
    assert (counted.subscription_count, counted.sql_filter_count) == (1, 3)
    client.delete_rule("news", "all", "sql")
    client.delete_subscription("news", "all")
    assert list(client.list_subscriptions("news")) == []
    client.delete_topic("news")
    for missing in (
        lambda: client.get_topic("news"),
        lambda: client.get_subscription("news", "all"),
        lambda: client.get_rule("news", "all", "sql"),
    ):
        with pytest.raises(ResourceNotFoundError):
            missing()


@pytest.mark.slow
def test_lists_of_more_than_a_page(client: ServiceBusAdministrationClient) -> None:
    names = [f"page/{number:03}" for number in range(120)]
    for name in names:
        client.create_queue(name)
    assert [queue.name for queue in client.list_queues() if queue.name.startswith("page/")] == names


def test_refusals(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("taken")
    with pytest.raises(ResourceExistsError):
        client.create_queue("taken")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("missing")
    taken = client.get_queue("taken")
    taken.requires_session = True
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        client.update_queue(taken)
    for name in ("/", "a/", "a?", "a#", "a*", "a@", "a\\", "x" * 261):
        with pytest.raises(HttpResponseError, match="SubCode=40000"):
            client.create_queue(name)


def test_namespace(client: ServiceBusAdministrationClient) -> None:
    found = client.get_namespace_properties()
    assert found.name
    assert found.messaging_sku in {"Standard", "Premium"}


def test_wrong_key(namespace: RunningNamespace) -> None:
    wrong = namespace.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with connect(namespace, wrong) as unauthorized:
        for name in ("taken", "missing"):
            with pytest.raises(ClientAuthenticationError):
                unauthorized.get_queue(name)


def test_settings_of_the_service_are_accepted(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("as-service/topic", enable_express=True)
    client.create_queue("as-service/queue", enable_express=True, requires_session=True, forward_to="as-service/topic")
    queue = client.get_queue("as-service/queue")
    assert (queue.enable_express, queue.requires_session) == (True, True)
    assert client.get_topic("as-service/topic").enable_express is True
    queue.enable_express = False
    queue.forward_to = queue.forward_dead_lettered_messages_to = "as-service/queue"
    client.update_queue(queue)
    changed = client.get_queue("as-service/queue")
    assert changed.enable_express is False
    assert str(changed.forward_to).endswith("/as-service/queue")
    topic = client.get_topic("as-service/topic")
    topic.duplicate_detection_history_time_window = timedelta(days=25)
    with pytest.raises(HttpResponseError):
        client.update_topic(topic)


def test_time_without_a_zone_is_returned_without_one(client: ServiceBusAdministrationClient) -> None:
    client.create_topic("times")
    client.create_subscription("times", "all")
    times = {"naive": datetime(2020, 7, 5, 11, 12, 13), "aware": datetime(2020, 7, 5, 11, 12, 13, tzinfo=UTC)}  # noqa: DTZ001
    action = SqlRuleAction("SET at = @naive", parameters={"@naive": times["naive"]})
    client.create_rule("times", "all", "rule", filter=CorrelationRuleFilter(properties=dict(times)), action=action)
    rule = client.get_rule("times", "all", "rule")
    assert isinstance(rule.filter, CorrelationRuleFilter)
    assert rule.filter.properties == times
    assert rule.action is not None
    assert rule.action.parameters == {"@naive": times["naive"]}
