"""The end of a topic that gives messages out, and its rules."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from pairbus.client.errors import (
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InternalServerError,
    InvalidRequestError,
)
from pairbus.client.management.rules import (
    CorrelationFilter,
    FalseFilter,
    RuleDescription,
    SqlFilter,
    SqlRuleAction,
    TrueFilter,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import ReceiveMode
from pairbus.dialect.management import Response
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import Described, Symbol
from tests.client.amqp_peer import run, scripted
from tests.client.stage import factory_of, make_topic, play

ENUMERATE: Final = "com.microsoft:enumerate-rules"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


def test_a1_each_subscription_gets_a_copy(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one", "two")
        async with factory_of(namespace) as factory:
            sender = await factory.create_topic_client(topic)
            await sender.send(BrokeredMessage(b"news"))
            for name in ("one", "two"):
                subscription = await factory.create_subscription_client(topic, name)
                assert (subscription.topic_path, subscription.name) == (topic, name)
                assert subscription.path == f"{topic}/Subscriptions/{name}"
                [message] = await subscription.receive()
                assert message.body == b"news"
                await subscription.complete(message)
                assert await subscription.peek() == []

    play(scenario())


def test_a5_subscription_can_have_sessions(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one", requires_session=True)
        async with factory_of(namespace) as factory:
            sender = await factory.create_topic_client(topic)
            await sender.send(BrokeredMessage(b"1", session_id="a"))
            subscription = await factory.create_subscription_client(topic, "one", ReceiveMode.RECEIVE_AND_DELETE)
            assert await subscription.get_message_sessions() == ["a"]
            async with await subscription.accept_message_session("a") as session:
                assert session.receive_mode is ReceiveMode.RECEIVE_AND_DELETE
                assert [message.body for message in await session.receive()] == [b"1"]

    play(scenario())


RULES: Final = [
    RuleDescription("true", filter=TrueFilter()),
    RuleDescription("false", filter=FalseFilter()),
    RuleDescription("sql", filter=SqlFilter("colour = 'red' AND quantity > 5"), action=SqlRuleAction("SET a = 1")),
    RuleDescription(
        "correlation",
        filter=CorrelationFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="l",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties={"text": "é", "number": 5, "at": datetime(2030, 1, 1, tzinfo=UTC), "yes": True},
        ),
    ),
    RuleDescription("empty", filter=CorrelationFilter(label="")),
]


def test_a1_rules_are_added_listed_and_removed(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one")
        async with factory_of(namespace) as factory:
            subscription = await factory.create_subscription_client(topic, "one")
            [default] = await subscription.get_rules()
            assert (default.name, default.filter, default.action) == ("$Default", TrueFilter(), None)
            await subscription.remove_rule("$Default")
            assert await subscription.get_rules() == []
            for rule in RULES:
                await subscription.add_rule(rule)
            found = {rule.name: rule for rule in await subscription.get_rules()}
            assert [*found] == [rule.name for rule in RULES]
            for rule in RULES[2:]:
                assert found[rule.name] == rule
            assert found["true"].filter in (TrueFilter(), SqlFilter("1=1"))
            assert found["false"].filter in (FalseFilter(), SqlFilter("1=0"))
            assert all(rule.created_at is not None for rule in found.values())

    play(scenario())


def test_a1_rules_decide_what_is_received(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one")
        async with factory_of(namespace) as factory:
            subscription = await factory.create_subscription_client(topic, "one")
            await subscription.remove_rule("$Default")
            red = RuleDescription("red", filter=SqlFilter("colour = 'red'"), action=SqlRuleAction("SET seen = 'yes'"))
            await subscription.add_rule(red)
            sender = await factory.create_topic_client(topic)
            for colour in ("red", "blue"):
                await sender.send(BrokeredMessage(colour, application_properties={"colour": colour}))
            [message] = await subscription.receive(5)
            assert {"colour": "red", "seen": "yes"}.items() <= message.application_properties.items()

    play(scenario())


def test_a1_failed_rule_changes_raise(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one")
        async with factory_of(namespace) as factory:
            subscription = await factory.create_subscription_client(topic, "one")
            await subscription.add_rule(RuleDescription("twice"))
            with pytest.raises(EntityAlreadyExistsError) as caught:
                await subscription.add_rule(RuleDescription("twice"))
            assert caught.value.entity == subscription.path
            with pytest.raises(EntityNotFoundError) as missing:
                await subscription.remove_rule("nowhere")
            assert missing.value.entity == subscription.path
            with pytest.raises(InvalidRequestError):
                await subscription.add_rule(RuleDescription("wrong", filter=SqlFilter("this is no expression")))
            with pytest.raises(InvalidRequestError, match=r"use NamespaceManager\.create_rule"):
                await subscription.add_rule(RuleDescription("p", filter=SqlFilter("a = @a", {"@a": 1})))
            nobody = await factory.create_subscription_client(topic, "nobody")
            with pytest.raises(EntityNotFoundError):
                await nobody.receive()
            with pytest.raises(EntityNotFoundError):
                await nobody.get_rules()

    play(scenario())


def test_rules_are_listed_in_pages(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "one")
        async with factory_of(namespace) as factory:
            subscription = await factory.create_subscription_client(topic, "one")
            for number in range(120):
                await subscription.add_rule(RuleDescription(f"rule-{number}"))
            assert len({rule.name for rule in await subscription.get_rules()}) == 121

    play(scenario())


@pytest.mark.parametrize(
    "rules",
    [
        ["x"],
        [{}],
        [{"rule-description": None}],
        [{"rule-description": "x"}],
        [{"rule-description": Described(Symbol("odd"), [])}],
        [{"rule-description": Described(Symbol("odd"), [Described(Symbol("odd"), []), None, "name", 0])}],
    ],
    ids=str,
)
def test_e3_malformed_rule_is_internal_server_error(rules: list[Any]) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.answers[ENUMERATE] = lambda _request: Response(body={"rules": rules})
            subscription = await factory.create_subscription_client("topic", "one")
            with pytest.raises(InternalServerError) as caught:
                await subscription.get_rules()
            assert caught.value.entity == "topic/Subscriptions/one"

    run(scenario())


def test_closed_subscription_client_rejects_operations() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            subscription = await factory.create_subscription_client("topic", "one")
            await subscription.receive(1, timedelta())
            await subscription.close()
            for operation in (
                subscription.add_rule(RuleDescription("a")),
                subscription.remove_rule("a"),
                subscription.get_rules(),
                subscription.receive(),
            ):
                with pytest.raises(ClosedError, match="SubscriptionClient has been closed"):
                    await operation

    run(scenario())
