"""Topics, subscriptions and rules"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from pairbus.broker import CorrelationFilter as BrokerCorrelationFilter
from pairbus.broker import FalseFilter as BrokerFalseFilter
from pairbus.broker import RuleDescription, SqlActionDescription, SqlFilterDescription
from tests.compatibility.administration import (
    Administration,
    CorrelationFilter,
    FalseFilter,
    Rule,
    RuleAction,
    SqlFilter,
    TrueFilter,
)
from tests.compatibility.client import Ability, Client, drain
from tests.compatibility.entities import Entities
from tests.compatibility.feature import EVERY_TRANSPORT, feature
from tests.compatibility.values import Message, Reason, Received, SdkError, SubQueue, Subscription, text
from tests.compatibility.waiting import now


async def through(client: Client, subscription: Subscription, *messages: Message) -> list[Received]:
    """Return the messages that a subscription gets of these."""
    await (await client.topic_sender(subscription.topic)).send_all(messages)
    return await everything(client, subscription)


async def everything(client: Client, subscription: Subscription) -> list[Received]:
    return [received async for received in drain(await client.receiver(subscription))]


def texts(received: list[Received]) -> list[str]:
    return [one.text for one in received]


@feature("Each subscription gets its own copy", transports=EVERY_TRANSPORT)
async def test_copies(client: Client, entities: Entities) -> None:
    topic = entities.topic()
    subscriptions = [entities.subscription(topic), entities.subscription(topic)]
    await (await client.topic_sender(topic)).send(text("hello", message_id="the id", application_properties={"a": 1}))
    for subscription in subscriptions:
        receiver = await client.receiver(subscription)
        received = await receiver.one()
        assert (received.text, received.message.message_id) == ("hello", "the id")
        assert received.message.application_properties == {"a": 1}
        await receiver.complete(received)


@feature("A topic without subscriptions accepts messages and drops them")
async def test_no_subscriptions(client: Client, entities: Entities) -> None:
    topic = entities.topic()
    await (await client.topic_sender(topic)).send(text("dropped"))
    subscription = entities.subscription(topic)
    assert texts(await through(client, subscription, text("kept"))) == ["kept"]


@feature("Settle, peek and dead-letter in a subscription")
async def test_settling(client: Client, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    await (await client.topic_sender(subscription.topic)).send_all([text("1"), text("2"), text("3")])
    receiver = await client.receiver(subscription)
    assert texts(await receiver.peek(2, from_sequence_number=1)) == ["1", "2"]
    one, two, three = await receiver.receive(3)
    await receiver.complete(one)
    await receiver.defer(two)
    await receiver.dead_letter(three, reason="r")
    (deferred,) = await receiver.receive_deferred([two.sequence_number])
    await receiver.complete(deferred)
    dead_letters = await client.receiver(subscription, sub_queue=SubQueue.DEAD_LETTER)
    dead = await dead_letters.one()
    assert (dead.text, dead.dead_letter_reason) == ("3", "r")
    await dead_letters.complete(dead)


@feature("Schedule a message for a topic")
async def test_schedule(client: Client, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    sender = await client.topic_sender(subscription.topic)
    await sender.cancel(await sender.schedule([text("cancelled")], now() + timedelta(hours=1)))
    await sender.schedule([text("kept")], now() + timedelta(milliseconds=500))
    receiver = await client.receiver(subscription)
    received = await receiver.one()
    assert received.text == "kept"
    await receiver.complete(received)
    assert await receiver.receive(wait=timedelta(milliseconds=100)) == []


@feature("Filter: false")
async def test_false_filter(client: Client, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic(), RuleDescription(filter=BrokerFalseFilter()))
    assert await through(client, subscription, text("1")) == []


@feature("Filter: SQL")
async def test_sql_filter(client: Client, entities: Entities) -> None:
    rule = RuleDescription(filter=SqlFilterDescription("color = 'red' AND size > 3 OR sys.Label LIKE 'urgent%'"))
    subscription = entities.subscription(entities.topic(), rule)
    received = await through(
        client,
        subscription,
        text("red 5", application_properties={"color": "red", "size": 5}),
        text("red 3", application_properties={"color": "red", "size": 3}),
        text("red 4.5", application_properties={"color": "red", "size": 4.5}),
        text("blue", application_properties={"color": "blue", "size": 5}),
        text("urgent", subject="urgent: now"),
        text("nothing"),
    )
    assert texts(received) == ["red 5", "red 4.5", "urgent"]


@feature("Filter: correlation")
async def test_correlation_filter(client: Client, entities: Entities) -> None:
    found = BrokerCorrelationFilter(
        correlation_id="c", label="s", content_type="text/plain", properties={"color": "red", "size": 3}
    )
    subscription = entities.subscription(entities.topic(), RuleDescription(filter=found))
    whole = text(
        "all",
        correlation_id="c",
        subject="s",
        content_type="text/plain",
        application_properties={"color": "red", "size": 3},
    )
    received = await through(
        client,
        subscription,
        whole,
        whole.replace(body=text("other id").body, correlation_id="d"),
        whole.replace(body=text("no subject").body, subject=None),
        whole.replace(body=text("other color").body, application_properties={"color": "blue", "size": 3}),
    )
    assert texts(received) == ["all"]


@feature("Action: a rule changes its copy, and adds its name to it")
async def test_action(client: Client, entities: Entities) -> None:
    rule = RuleDescription(
        name="paint",
        action=SqlActionDescription("SET color = 'red'; SET sys.Label = 'painted'; REMOVE old"),
    )
    subscription = entities.subscription(entities.topic(), rule)
    (received,) = await through(client, subscription, text("hello", application_properties={"old": 1, "kept": 2}))
    assert received.message.subject == "painted"
    assert received.message.application_properties == {"color": "red", "kept": 2, "RuleName": "paint"}


@feature("Rules created by the SDK's administration take effect: true, false, SQL with parameters, correlation, action")
async def test_rules_by_administration(client: Client, administration: Administration, entities: Entities) -> None:
    rules = [
        Rule(name="true", filter=TrueFilter()),
        Rule(name="false", filter=FalseFilter()),
        Rule(name="sql", filter=SqlFilter("size > @least AND color = @color", {"@least": 3, "@color": "red"})),
        Rule(name="correlation", filter=CorrelationFilter(subject="s", properties={"color": "blue"})),
        Rule(name="action", filter=SqlFilter("size = 9"), action=RuleAction("SET seen = TRUE")),
    ]
    topic = entities.topic()
    subscriptions = {}
    for rule in rules:
        subscription = entities.subscription(topic)
        await administration.delete_rule(topic, subscription.name, "$Default")
        await administration.create_rule(topic, subscription.name, rule)
        subscriptions[rule.name] = subscription
    await (await client.topic_sender(topic)).send_all(
        [
            text("red 5", application_properties={"color": "red", "size": 5}),
            text("red 2", application_properties={"color": "red", "size": 2}),
            text("blue", subject="s", application_properties={"color": "blue", "size": 9}),
        ]
    )
    found = await asyncio.gather(*(everything(client, subscription) for subscription in subscriptions.values()))
    received = dict(zip(subscriptions, found, strict=True))
    assert {name: texts(found) for name, found in received.items()} == {
        "true": ["red 5", "red 2", "blue"],
        "false": [],
        "sql": ["red 5"],
        "correlation": ["blue"],
        "action": ["blue"],
    }
    assert received["action"][0].message.application_properties == {
        "color": "blue",
        "size": 9,
        "seen": True,
        "RuleName": "action",
    }


@feature("Rules over AMQP: create, list, delete", needs=[Ability.RULES_OVER_AMQP], transports=EVERY_TRANSPORT)
async def test_rules_over_amqp(client: Client, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    manager = await client.rule_manager(subscription)
    assert await manager.rules() == [Rule(name="$Default", filter=TrueFilter())]
    await manager.delete("$Default")
    assert await manager.rules() == []
    rules = [
        Rule(name="sql", filter=SqlFilter("color = 'red'")),
        Rule(name="action", filter=SqlFilter("size > 3"), action=RuleAction("SET seen = TRUE")),
        Rule(
            name="correlation",
            filter=CorrelationFilter(
                correlation_id="c",
                message_id="m",
                to="t",
                reply_to="r",
                subject="s",
                session_id="i",
                reply_to_session_id="j",
                content_type="x",
                properties={"color": "blue", "size": 9},
            ),
        ),
    ]
    for rule in rules:
        await manager.create(rule.name, rule.filter, rule.action)
    assert await manager.rules() == rules
    with pytest.raises(SdkError) as refused:
        await manager.create("sql", TrueFilter())
    assert refused.value.reason is Reason.ALREADY_EXISTS
    with pytest.raises(SdkError) as refused:
        await manager.create("broken", SqlFilter("color ="))
    assert refused.value.reason is Reason.GENERAL
    with pytest.raises(SdkError) as refused:
        await manager.delete("missing")
    assert refused.value.reason is Reason.NOT_FOUND
    received = await through(client, subscription, text("red", application_properties={"color": "red"}), text("none"))
    assert texts(received) == ["red"]


@feature("A message that matches several rules is delivered once, and once more for each action")
async def test_several_rules(client: Client, administration: Administration, entities: Entities) -> None:
    subscription = entities.subscription(entities.topic())
    names = (subscription.topic, subscription.name)
    await administration.create_rule(*names, Rule(name="also", filter=SqlFilter("1 = 1")))
    await administration.create_rule(
        *names, Rule(name="changed", filter=TrueFilter(), action=RuleAction("SET changed = 1"))
    )
    received = await through(client, subscription, text("hello"))
    properties = sorted((one.message.application_properties for one in received), key=len)
    assert properties == [{}, {"changed": 1, "RuleName": "changed"}]
