"""A8: keys with the rights to send, listen and manage, for the namespace and for single entities."""

from __future__ import annotations

from typing import Any

import pytest

from pairbus.broker import Address, AuthorizationRule, BrokerError, InvalidDescriptionError, Right
from tests.broker.broker import START, Broker


def key(name: str, *rights: Right, primary: str = "p", secondary: str = "s") -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights or (Right.LISTEN,), primary_key=primary, secondary_key=secondary)


ROOT = key("Root", Right.MANAGE, Right.SEND, Right.LISTEN)


def names(broker: Broker, key_name: str, address: Address | None) -> list[tuple[str, tuple[Right, ...]]]:
    return [(rule.name, rule.rights) for rule in broker.namespace.authorization(key_name, address, START)]


def test_a8_key_of_the_namespace_grants_access_to_everything() -> None:
    broker = Broker()
    queue = broker.queue()
    broker.namespace.set_authorization_rules([ROOT], START)
    for address in (None, queue, Address.of("not there")):
        assert names(broker, "ROOT", address) == [("Root", ROOT.rights)]
        assert names(broker, "other", address) == []


def test_a8_key_of_an_entity_grants_access_to_that_entity_only() -> None:
    broker = Broker()
    queue = broker.queue(authorization_rules=(key("till", Right.SEND),))
    other = broker.queue("other")
    assert names(broker, "till", queue) == [("till", (Right.SEND,))]
    assert names(broker, "till", other) == []
    assert names(broker, "till", None) == []


def test_a8_key_of_a_topic_grants_access_to_its_subscriptions() -> None:
    broker = Broker()
    broker.topic(authorization_rules=(key("reader"),))
    assert names(broker, "reader", broker.subscription()) == [("reader", (Right.LISTEN,))]


def test_a8_entity_and_the_namespace_may_have_keys_of_the_same_name() -> None:
    broker = Broker()
    queue = broker.queue(authorization_rules=(key("Root", Right.SEND),))
    broker.namespace.set_authorization_rules([ROOT], START)
    assert names(broker, "root", queue) == [("Root", (Right.SEND,)), ("Root", ROOT.rights)]


def test_a8_keys_survive_a_restart_and_are_replaced_as_a_whole() -> None:
    broker = Broker()
    broker.namespace.set_authorization_rules([ROOT, key("old")], START)
    broker.namespace.set_authorization_rules([ROOT], START)
    broker.queue(authorization_rules=(key("till", primary="1", secondary="2"),))
    broker.restart()
    assert broker.namespace.authorization_rules(START) == (ROOT,)
    (rule,) = broker.namespace.authorization("till", Address.of("queue"), START)
    assert (rule.primary_key, rule.secondary_key) == ("1", "2")


@pytest.mark.parametrize(
    "rules",
    [
        [key("a"), key("A")],
        [key("")],
        [key("a", primary="")],
        [key("a", secondary="")],
        [key(f"k{number}") for number in range(13)],
        [AuthorizationRule(name="a", rights=(), primary_key="p", secondary_key="s")],
        ["text"],
        [AuthorizationRule(name="a", rights=("send",), primary_key="p", secondary_key="s")],  # type: ignore[arg-type]
    ],
    ids=range(8),
)
def test_a8_unusable_authorization_rules_are_refused(rules: list[Any]) -> None:
    broker = Broker()
    with pytest.raises(InvalidDescriptionError):
        broker.namespace.set_authorization_rules(rules, START)
    with pytest.raises(BrokerError):
        broker.queue(authorization_rules=tuple(rules))
    assert broker.namespace.authorization_rules(START) == ()


def test_a8_keys_are_not_in_the_repr() -> None:
    rule = key("a", primary="primary secret", secondary="secondary secret")
    assert "secret" not in repr(rule)
