"""The configuration file of the Azure Service Bus emulator, as its documentation shows it."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker import (
    CorrelationFilter,
    QueueDescription,
    SqlActionDescription,
    SqlFilterDescription,
    SubscriptionDescription,
    TopicDescription,
)
from pairbus.server.declaration import DeclarationError
from pairbus.server.emulator import read_emulator_config

HOUR_MS = 3_600_000

RECEIVING = {
    "DeadLetteringOnMessageExpiration": True,
    "DefaultMessageTimeToLive": "PT1H",
    "ForwardDeadLetteredMessagesTo": "",
    "ForwardTo": "",
    "LockDuration": "PT1M",
    "MaxDeliveryCount": 3,
    "RequiresSession": False,
}
SENDING = {
    "DefaultMessageTimeToLive": "PT1H",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "RequiresDuplicateDetection": True,
}


def document(*namespaces: dict[str, Any]) -> dict[str, Any]:
    return {"UserConfig": {"Namespaces": list(namespaces), "Logging": {"Type": "File"}}}


def namespace(name: str = "sbemulatorns", **parts: Any) -> dict[str, Any]:
    return {"Name": name, **parts}


def with_rule(**properties: Any) -> dict[str, Any]:
    rule = {"Name": "rule", "Properties": properties}
    return document(namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}]))


def refusal(config: object, name: str | None = None) -> str:
    with pytest.raises(DeclarationError) as caught:
        read_emulator_config(config, name)
    return str(caught.value)


def test_queue_with_all_its_properties() -> None:
    name, entities = read_emulator_config(
        document(namespace(Queues=[{"Name": "queue.1", "Properties": RECEIVING | SENDING}], Topics=[]))
    )
    (queue,) = entities.queues
    assert (name, queue.name) == ("sbemulatorns", "queue.1")
    assert queue.description == QueueDescription(
        dead_letter_on_expiration=True,
        default_time_to_live_ms=HOUR_MS,
        duplicate_window_ms=20_000,
        lock_duration_ms=60_000,
        max_delivery_count=3,
        requires_duplicate_detection=True,
    )
    assert {"forward_to", "requires_session"} <= queue.given


def test_omitted_settings_have_the_defaults_of_azure() -> None:
    _, entities = read_emulator_config(document(namespace(Queues=[{"Name": "q"}])))
    (queue,) = entities.queues
    assert queue.description == QueueDescription()
    assert queue.given == frozenset()


def test_topic_with_subscriptions_and_rules() -> None:
    correlation = {
        "ContentType": "application/text", "CorrelationId": "id1", "Label": "subject1", "MessageId": "msgid1",
        "ReplyTo": "someQueue", "ReplyToSessionId": "sessionId", "SessionId": "session1", "To": "xyz",
        "Properties": {"prop1": "value1", "prop2": 2},
    }  # fmt: skip
    rules = [
        {"Name": "equal", "Properties": {"FilterType": "Correlation", "CorrelationFilter": correlation}},
        {
            "Name": "sql",
            "Properties": {
                "FilterType": "Sql",
                "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                "Action": {"SqlExpression": "SET sys.To = 'Entity'"},
            },
        },
    ]
    topic = {
        "Name": "topic.1",
        "Properties": SENDING,
        "Subscriptions": [{"Name": "s", "Properties": RECEIVING, "Rules": rules}, {"Name": "all", "Rules": []}],
    }
    _, entities = read_emulator_config(document(namespace(Queues=[], Topics=[topic])))
    (found,) = entities.topics
    assert found.description == TopicDescription(
        default_time_to_live_ms=HOUR_MS, duplicate_window_ms=20_000, requires_duplicate_detection=True
    )
    first, second = found.subscriptions
    assert first.description == SubscriptionDescription(
        dead_letter_on_expiration=True, default_time_to_live_ms=HOUR_MS, max_delivery_count=3
    )
    assert second.rules == ()
    equal, sql = first.rules
    assert equal.filter == CorrelationFilter(
        content_type="application/text",
        correlation_id="id1",
        label="subject1",
        message_id="msgid1",
        reply_to="someQueue",
        reply_to_session_id="sessionId",
        session_id="session1",
        to="xyz",
        properties={"prop1": "value1", "prop2": 2},
    )
    assert sql.filter == SqlFilterDescription("sys.MessageId = '123456' AND userProp1 = 'value1'")
    assert sql.action == SqlActionDescription("SET sys.To = 'Entity'")


def test_one_of_several_namespaces_is_chosen_by_name() -> None:
    config = document(namespace("one", Queues=[{"Name": "a"}]), namespace("two", Queues=[{"Name": "b"}]))
    assert read_emulator_config(config, "TWO").entities.queues[0].name == "b"
    assert "namespaces one, two; choose" in refusal(config)
    assert "namespaces one, two; choose" in refusal(config, "three")


def test_only_namespace_is_chosen_by_default() -> None:
    assert read_emulator_config(document(namespace("one")), "other").name == "one"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ([], "the file must be an object"),
        ({"UserConfg": {}}, "unknown key 'UserConfg'; did you mean 'UserConfig'?"),
        ({}, "the file has no UserConfig"),
        ({"UserConfig": {"Namespaces": {}}}, "Namespaces of UserConfig must be a list"),
        (document(), "UserConfig has no namespace"),
        (document({"Queues": []}), "has no Name"),
        (document(namespace(Queus=[])), "unknown key 'Queus'; did you mean 'Queues'?"),
        (document(namespace(Queues=["q"])), "each of Queues of namespace 'sbemulatorns' must be an object"),
        (document(namespace(Queues=[{"Properties": {}}])), "has no Name"),
        (
            document(namespace(Queues=[{"Name": "q", "Properties": {"LockDuraton": "PT1M"}}])),
            "queue 'q' has an unknown key 'LockDuraton'; did you mean 'LockDuration'?",
        ),
        (
            document(namespace(Queues=[{"Name": "q", "Properties": {"LockDuration": "soon"}}])),
            "lock_duration of queue 'q'",
        ),
        (document(namespace(Topics=[{"Name": "t", "Properties": {"ForwardTo": ""}}])), "topic 't' has an unknown key"),
        (document(namespace(Queues=[{"Name": "q"}, {"Name": "Q"}])), "the namespace has 'Q' twice"),
        (with_rule(FilterType="Regex"), "FilterType of rule 'rule' must be one of Correlation, Sql"),
        (with_rule(), "has no FilterType"),
        (with_rule(FilterType="Sql"), "SqlFilter of rule 'rule' must be an object"),
        (with_rule(FilterType="Sql", SqlFilter={}), "SqlFilter of rule 'rule' has no SqlExpression"),
        (with_rule(FilterType="Sql", SqlFilter={"SqlExpression": 1}), "must be a text"),
        (with_rule(FilterType="Correlation", CorrelationFilter={"Lable": "x"}), "did you mean 'Label'?"),
        (
            with_rule(FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, CorrelationFilter={}),
            "rule 'rule' has FilterType 'Sql' and a CorrelationFilter",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "config",
)
def test_invalid_document_is_refused(config: object, said: str) -> None:
    assert said in refusal(config)
