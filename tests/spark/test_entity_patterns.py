"""Resolution of names and patterns to the entities of a real namespace, in order, each once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.broker import AuthorizationRule, Right
from pairbus.client.errors import MessagingCommunicationError
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings
from pairbus.client.token_provider import TokenProvider
from pairbus.spark.entity_patterns import resolve_entities
from pairbus.spark.errors import EntityPatternError, SparkOptionError
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import play

ONE_TRY: Final = MessagingFactorySettings(retry_policy=NO_RETRY)
NOWHERE: Final = "amqp://localhost:1"
BACKLOG: Final = tuple(f"contoso/x-servicebus-transfer/{index}" for index in range(3))
QUEUES: Final = ("Orders", "orders-eu", "orders-us", "orders-us/late", "mail", *BACKLOG)
TOPICS: Final = {"news": ("audit", "archive", "All"), "news/local": ("audit",), "empty": ()}


def rule(name: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, rights=rights, primary_key=f"{name}-1", secondary_key=f"{name}-2")


RULES: Final = (rule("manager", Right.MANAGE, Right.SEND, Right.LISTEN), rule("listener", Right.LISTEN))


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace(queues=QUEUES, topics=TOPICS) as running:
        running.call(lambda host: host.use_namespace().set_authorization_rules(RULES, host.now_ms()))
        yield running


def manager_of(namespace: RunningNamespace, key: str = "manager") -> NamespaceManager:
    address = f"amqp://localhost:{namespace.port}"
    return NamespaceManager.create(address, TokenProvider.from_key(key, f"{key}-1"), ONE_TRY)


def resolve(namespace: RunningNamespace, *patterns: str, key: str = "manager") -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    async def scenario() -> None:
        async with manager_of(namespace, key) as manager:
            found.append(await resolve_entities(patterns, manager))

    play(scenario())
    return found[0]


def refused(namespace: RunningNamespace, *patterns: str, key: str = "manager") -> str:
    with pytest.raises(EntityPatternError) as caught:
        resolve(namespace, *patterns, key=key)
    assert isinstance(caught.value, SparkOptionError)
    return str(caught.value)


# Names


def resolve_nowhere(*names: str) -> tuple[str, ...]:
    found: list[tuple[str, ...]] = []

    async def scenario() -> None:
        async with NamespaceManager.create(NOWHERE, None, ONE_TRY) as manager:
            found.append(await resolve_entities(names, manager))

    play(scenario())
    return found[0]


def test_names_are_not_looked_up() -> None:
    names = ("news/subscriptions/audit", "Orders/$deadletterqueue", "a")
    assert resolve_nowhere(*names) == ("a", "news/subscriptions/audit", "Orders/$deadletterqueue")
    assert resolve_nowhere() == ()


def test_name_given_twice_is_one_entity() -> None:
    assert len(resolve_nowhere("Orders", "orders", "ORDERS")) == 1


def test_pattern_requires_a_reachable_namespace() -> None:
    with pytest.raises(MessagingCommunicationError):
        resolve_nowhere("orders", "orders-*")


# Patterns


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("orders-*", ("orders-eu", "orders-us")),
        ("ORDERS*", ("Orders", "orders-eu", "orders-us")),
        ("orders-?s", ("orders-us",)),
        ("*", ("mail", "Orders", "orders-eu", "orders-us")),
        ("?ail", ("mail",)),
        ("*/*", ("orders-us/late",)),
        ("contoso/x-servicebus-transfer/*", BACKLOG),
        ("Contoso/*/[1]*", ()),
        ("contoso/*/1", BACKLOG[1:2]),
        ("orders-*/$DeadLetterQueue", ("orders-eu/$DeadLetterQueue", "orders-us/$DeadLetterQueue")),
        ("m*/$transfer/$deadletterqueue", ("mail/$Transfer/$DeadLetterQueue",)),
        ("news/subscriptions/*", ("news/Subscriptions/All", "news/Subscriptions/archive", "news/Subscriptions/audit")),
        ("news/Subscriptions/A*T", ("news/Subscriptions/audit",)),
        ("news/local/subscriptions/*", ("news/local/Subscriptions/audit",)),
        ("*/subscriptions/audit", ("news/Subscriptions/audit",)),
        ("*/*/subscriptions/audit", ("news/local/Subscriptions/audit",)),
        ("news/subscriptions/arch*/$DeadLetterQueue", ("news/Subscriptions/archive/$DeadLetterQueue",)),
    ],
)
def test_pattern_resolves_to_existing_entities(
    namespace: RunningNamespace, pattern: str, found: tuple[str, ...]
) -> None:
    if found:
        assert resolve(namespace, pattern) == found
    else:
        assert f"no queue matches '{pattern}'" in refused(namespace, pattern)


def test_d2_backlog_queues_match_only_their_own_pattern(namespace: RunningNamespace) -> None:
    assert resolve(namespace, "contoso/x-servicebus-transfer/*") == BACKLOG
    assert set(resolve(namespace, "*", "*/*")).isdisjoint(BACKLOG)


def test_names_and_patterns_give_each_entity_once(namespace: RunningNamespace) -> None:
    found = resolve(namespace, "orders-*", "ORDERS-EU", "orders-us", "elsewhere", "news/subscriptions/a???*")
    assert found == ("elsewhere", "news/Subscriptions/archive", "news/Subscriptions/audit", "ORDERS-EU", "orders-us")


# No match


def test_error_without_match_lists_available_entities(namespace: RunningNamespace) -> None:
    said = refused(namespace, "orders-*", "order-?")
    assert said.startswith("no queue matches 'order-?'; available: contoso/x-servicebus-transfer/0, ")
    assert said.endswith("mail, Orders, orders-eu, orders-us, orders-us/late")
    said = refused(namespace, "news/subscriptions/b*")
    assert said.startswith("no subscription of 'news' matches 'b*'; available: news/Subscriptions/All, ")
    assert refused(namespace, "x*/subscriptions/*") == "no topic matches 'x*'; available: empty, news, news/local"
    assert refused(namespace, "nwes/subscriptions/*") == "no topic matches 'nwes'; available: empty, news, news/local"
    assert refused(namespace, "empty/subscriptions/*") == "no subscription of 'empty' matches '*'; available: none"


def test_error_text_is_bounded() -> None:
    with running_namespace(queues=[f"queue-{number:04}" for number in range(150)]) as namespace:
        namespace.call(lambda host: host.use_namespace().set_authorization_rules(RULES, host.now_ms()))
        said = refused(namespace, "orders-*")
        assert said.endswith("queue-0009 and 140 more")
        assert len(resolve(namespace, "queue-*")) == 150


@pytest.mark.parametrize("pattern", ["*//x", "*/$management", "orders//*"])
def test_invalid_pattern_is_rejected(namespace: RunningNamespace, pattern: str) -> None:
    said = refused(namespace, pattern)
    assert "is not a pattern of queues or subscriptions" in said or "no queue matches" in said


# Authorization


def test_pattern_requires_manage_and_name_does_not(namespace: RunningNamespace) -> None:
    assert resolve(namespace, "orders", key="listener") == ("orders",)
    for pattern in ("orders-*", "news/subscriptions/*", "*/subscriptions/*"):
        said = refused(namespace, "orders", pattern, key="listener")
        assert f"looking up the pattern '{pattern}' requires a key with the Manage claim" in said
        assert "name the entities one by one" in said
        assert "listener-1" not in said


# All patterns


@given(st.text("ab*?/", min_size=1, max_size=12), st.lists(st.text("ab/", min_size=1, max_size=8), max_size=6))
def test_pattern_matches_like_a_reference_implementation(pattern: str, names: list[str]) -> None:
    from pairbus.spark.entity_patterns import _matches

    for name in names:
        assert _matches(pattern, name) == naive(pattern, name)


def naive(pattern: str, name: str) -> bool:
    if not pattern or not name:
        return name == pattern.replace("*", "")
    if pattern[0] == "*":
        return naive(pattern[1:], name) or (name[0] != "/" and naive(pattern, name[1:]))
    return (pattern[0] == name[0] or (pattern[0] == "?" and name[0] != "/")) and naive(pattern[1:], name[1:])


def test_pattern_with_many_stars_is_fast() -> None:
    from pairbus.spark.entity_patterns import _matches

    begun_s = time.thread_time()
    assert not _matches("*a" * 60 + "b", "a" * 260)
    assert time.thread_time() - begun_s < 5
