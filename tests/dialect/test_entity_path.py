"""The addresses that the official SDKs attach links to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.dialect.annotations import from_ticks, to_ticks
from pairbus.dialect.paths import EntityPath, SubQueue, parse_entity_path, takes_messages

DEAD, TRANSFER = SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("q", EntityPath("q")),
        ("/Q/", EntityPath("Q")),
        ("amqps://localhost:5672/q", EntityPath("q")),
        ("sb://contoso/a/b/c", EntityPath("a/b/c")),
        ("q/$management", EntityPath("q", management=True)),
        ("q/$DeadLetterQueue", EntityPath("q", None, DEAD)),
        ("q/$deadletterqueue/$Management", EntityPath("q", None, DEAD, management=True)),
        ("q/$Transfer/$DeadLetterQueue", EntityPath("q", None, TRANSFER)),
        ("t/Subscriptions/s", EntityPath("t", "s")),
        ("t/subscriptions/s/$DeadLetterQueue", EntityPath("t", "s", DEAD)),
        ("a/t/SUBSCRIPTIONS/s/$Transfer/$DeadLetterQueue", EntityPath("a/t", "s", TRANSFER)),
        ("contoso/x-servicebus-transfer/0", EntityPath("contoso/x-servicebus-transfer/0")),
        ("subscriptions/s", EntityPath("subscriptions/s")),
    ],
)
def test_every_form_of_address_is_parsed(address: str, expected: EntityPath) -> None:
    assert parse_entity_path(address) == expected
    assert parse_entity_path(str(expected)) == expected


@pytest.mark.parametrize("address", ["", "/", "amqps://localhost", "a//b", "$management", "$DeadLetterQueue"])
def test_address_without_entity_is_none(address: str) -> None:
    assert parse_entity_path(address) is None


@pytest.mark.parametrize(
    "path", ["orders", "Orders", "a/b/c", "contoso/x-servicebus-transfer/0", "subscriptions/s", "a,b"]
)
def test_queues_and_topics_accept_messages(path: str) -> None:
    assert takes_messages(path)


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/orders", "orders/", "a//b"),
        *("news/Subscriptions/all", "orders/$DeadLetterQueue", "orders/$Transfer/$DeadLetterQueue"),
        *("orders/$management", "$cbs", "$management", "a/$b/c"),
        *("a*", "a?", "a@b", "a#b", "a\\b", "a\nb", "a\x00b"),
    ],
)
def test_other_paths_accept_no_messages(path: str) -> None:
    assert not takes_messages(path)


@given(st.text())
def test_e3_any_text_is_path_or_none(address: str) -> None:
    path = parse_entity_path(address)
    if path is not None:
        assert path.entity
    assert path is not None or not takes_messages(address)


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_ticks_convert_to_milliseconds(time_ms: int) -> None:
    assert from_ticks(to_ticks(time_ms)) == time_ms
