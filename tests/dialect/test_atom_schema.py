"""Descriptions: every element, in the order of the service, there and back."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pairbus.dialect.atom import (
    AUTHORIZATION_RULE,
    NAMESPACE,
    QUEUE,
    RULE,
    SUBSCRIPTION,
    TOPIC,
    AtomEntry,
    AtomError,
    Table,
    parse_entry,
    parse_request,
    write_entry,
)

CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
MINUTE = 60_000
COUNTS = {"active": 1, "dead_letter": 2, "scheduled": 3, "transfer": 4, "transfer_dead_letter": 5}
KEY = {
    "claim_type": "SharedAccessKey",
    "claim_value": "None",
    "rights": ("Listen", "Send"),
    "created_ms": 0,
    "updated_ms": 1_000,
    "name": "k",
    "primary_key": "cA==",
    "secondary_key": "cw==",
}
ENTITY: dict[str, Any] = {
    "max_size_megabytes": 2048,
    "requires_duplicate_detection": True,
    "default_time_to_live_ms": None,
    "duplicate_window_ms": 7 * MINUTE,
    "batched_operations": False,
    "size_bytes": 12,
    "anonymous_access": False,
    "status": "SendDisabled",
    "user_metadata": " <&> \r\n\xe9 ",
    "created_ms": 1_618_852_870_257,
    "updated_ms": 1_618_852_870_258,
    "accessed_ms": -62_135_596_800_000,
    "support_ordering": True,
    "counts": COUNTS,
    "auto_delete_on_idle_ms": 5 * MINUTE,
    "partitioned": True,
    "availability": "Available",
    "express": False,
    "max_message_kilobytes": 1024,
}
HOLDER: dict[str, Any] = {
    "lock_duration_ms": 13_500,
    "requires_session": True,
    "dead_letter_on_expiration": True,
    "max_delivery_count": 2**31 - 1,
    "message_count": 9,
    "forward_to": "sb://bus.example/q2",
    "forward_dead_letters_to": "q3",
}
SUBSCRIBED = (
    "default_time_to_live_ms", "batched_operations", "status", "created_ms", "updated_ms", "accessed_ms", "counts",
    "user_metadata", "auto_delete_on_idle_ms", "availability",
)  # fmt: skip

FULL: dict[str, tuple[Table, dict[str, Any]]] = {
    "queue": (QUEUE, {**ENTITY, **HOLDER}),
    "topic": (
        TOPIC,
        {
            **ENTITY,
            "filtering_before_publishing": True,
            "subscription_count": 3,
            "sql_filter_count": 1,
            "correlation_filter_count": 2,
            "subscription_partitioning": True,
        },
    ),
    "subscription": (
        SUBSCRIPTION,
        {**{name: ENTITY[name] for name in SUBSCRIBED}, **HOLDER, "dead_letter_on_filter_errors": False},
    ),
    "namespace": (
        NAMESPACE,
        {
            "alias": "other",
            "created_ms": 1,
            "sku": "Premium",
            "messaging_units": 4,
            "updated_ms": 2,
            "name": "bus",
            "type": "Messaging",
        },
    ),
    "key": (AUTHORIZATION_RULE, KEY),
}

ORDER = {
    "queue": (
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive"
        " DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations"
        " SizeInBytes MessageCount IsAnonymousAccessible Status ForwardTo UserMetadata CreatedAt UpdatedAt AccessedAt"
        " SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus"
        " ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes"
    ),
    "topic": (
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow"
        " EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible Status"
        " UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount SqlFilterCount"
        " CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus"
        " EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes"
    ),
    "subscription": (
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration"
        " DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status"
        " ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails UserMetadata ForwardDeadLetteredMessagesTo"
        " AutoDeleteOnIdle EntityAvailabilityStatus"
    ),
    "namespace": "Alias CreatedTime MessagingSKU MessagingUnits ModifiedTime Name NamespaceType",
    "key": "ClaimType ClaimValue Rights CreatedTime ModifiedTime KeyName PrimaryKey SecondaryKey",
}


def written(table: Table, values: dict[str, Any]) -> ET.Element:
    root = ET.fromstring(write_entry(AtomEntry(table=table, values=values)))  # noqa: S314 (our own)
    description = root.find(f".//{{{CONNECT}}}{table.name}")
    assert description is not None
    return description


def request(content: str) -> bytes:
    return f'<entry xmlns="http://www.w3.org/2005/Atom"><content>{content}</content></entry>'.encode()


def queue(content: str) -> bytes:
    return request(f'<QueueDescription xmlns="{CONNECT}">{content}</QueueDescription>')


@pytest.mark.parametrize("name", FULL)
def test_every_value_round_trips(name: str) -> None:
    table, values = FULL[name]
    found = parse_entry(write_entry(AtomEntry(table=table, values=values)), table)
    assert found.table is table
    assert found.values == values


@pytest.mark.parametrize("name", FULL)
def test_elements_have_order_of_service(name: str) -> None:
    table, values = FULL[name]
    backwards = dict(reversed(values.items()))
    assert [element.tag.rpartition("}")[2] for element in written(table, backwards)] == ORDER[name].split()


@pytest.mark.parametrize("name", FULL)
def test_request_contains_only_writable_elements(name: str) -> None:
    table, values = FULL[name]
    settable = {element.attribute for element in table.elements if not element.read_only}
    found, said = parse_request(write_entry(AtomEntry(table=table, values=values)), table)
    assert found is table
    assert said == {name: value for name, value in values.items() if name in settable}


@pytest.mark.parametrize("table", [QUEUE, TOPIC], ids=lambda table: table.name)
def test_authorization_rules_round_trip(table: Table) -> None:
    other = {**KEY, "name": "other", "rights": ("Manage",)}
    document = write_entry(AtomEntry(table=table, values={"authorization_rules": (KEY, other)}))
    assert b'<AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>' in document
    assert parse_request(document, table)[1]["authorization_rules"] == tuple(
        {name: key[name] for name in ("rights", "name", "primary_key", "secondary_key")} for key in (KEY, other)
    )


def test_default_rule_of_subscription_round_trips() -> None:
    rule = {"filter": {"type": "SqlFilter", "expression": "a=1"}, "action": {"type": "EmptyRuleAction"}, "name": "r"}
    document = write_entry(AtomEntry(table=SUBSCRIPTION, values={"default_rule": rule}))
    assert parse_request(document, SUBSCRIPTION)[1] == {"default_rule": rule}


def test_counts_use_one_declared_prefix() -> None:
    document = write_entry(AtomEntry(table=QUEUE, values={"counts": COUNTS}))
    assert (
        b'<CountDetails xmlns:d2p1="http://schemas.microsoft.com/netservices/2011/06/servicebus">'
        b"<d2p1:ActiveMessageCount>1</d2p1:ActiveMessageCount>"
        b"<d2p1:DeadLetterMessageCount>2</d2p1:DeadLetterMessageCount>"
        b"<d2p1:ScheduledMessageCount>3</d2p1:ScheduledMessageCount>"
        b"<d2p1:TransferMessageCount>4</d2p1:TransferMessageCount>"
        b"<d2p1:TransferDeadLetterMessageCount>5</d2p1:TransferDeadLetterMessageCount></CountDetails>"
    ) in document


def test_order_prefixes_and_unknown_elements_do_not_matter() -> None:
    document = (
        f'<x:entry xmlns:x="http://www.w3.org/2005/Atom" xmlns:y="{CONNECT}"><x:title>t</x:title><x:content>'
        "<y:QueueDescription><y:New>1</y:New><MaxDeliveryCount>no namespace</MaxDeliveryCount>"
        "<y:RequiresSession>true</y:RequiresSession><y:LockDuration> PT5S </y:LockDuration></y:QueueDescription>"
        "</x:content></x:entry>"
    ).encode()
    assert parse_request(document, TOPIC, QUEUE) == (QUEUE, {"requires_session": True, "lock_duration_ms": 5_000})


def test_empty_description_is_valid() -> None:
    assert parse_request(request(f'<QueueDescription xmlns="{CONNECT}" />'), QUEUE, TOPIC) == (QUEUE, {})


def test_nil_element_is_ignored() -> None:
    nil = 'xmlns:z="http://www.w3.org/2001/XMLSchema-instance" z:nil="true"'
    assert parse_request(queue(f"<ForwardTo {nil}/><LockDuration {nil}/>"), QUEUE) == (QUEUE, {})


WRONG = {
    "LockDuration": ("", "soon", "60", "PT1", "<b/>"),
    "MaxSizeInMegabytes": ("", "1.5", "1e3", "0x10", "9" * 40, "--1", "\u0661", "1 2", "9223372036854775808"),
    "RequiresSession": ("", "yes", "2", "truefalse"),
    "Status": ("", "active", "On"),
    "DefaultMessageTimeToLive": ("never", "-P99999999999D"),
}


@pytest.mark.parametrize(("element", "text"), [(element, text) for element, texts in WRONG.items() for text in texts])
def test_invalid_value_is_rejected_by_name(element: str, text: str) -> None:
    with pytest.raises(AtomError, match=f"^{element}: ") as caught:
        parse_request(queue(f"<{element}>{text}</{element}>"), QUEUE)
    assert caught.value.element == element


def test_repeated_value_is_rejected() -> None:
    with pytest.raises(AtomError, match="LockDuration: occurs twice"):
        parse_request(queue("<LockDuration>PT5S</LockDuration><LockDuration>PT6S</LockDuration>"), QUEUE)


def test_unknown_right_is_rejected() -> None:
    rule = "<AuthorizationRule><Rights><AccessRights>Own</AccessRights></Rights></AuthorizationRule>"
    with pytest.raises(AtomError, match="AccessRights: 'Own' is not one of"):
        parse_request(queue(f"<AuthorizationRules>{rule}</AuthorizationRules>"), QUEUE)


@pytest.mark.parametrize(
    "document",
    [
        b"<entry/>",
        b'<feed xmlns="http://www.w3.org/2005/Atom"/>',
        b'<entry xmlns="http://www.w3.org/2005/Atom"/>',
        request(""),
        request("<QueueDescription/>"),
        request(f'<TopicDescription xmlns="{CONNECT}"/>'),
        queue("")[:-8],
    ],
    ids=["no namespace", "feed", "no content", "empty content", "other namespace", "other description", "cut"],
)
def test_document_without_description_is_rejected(document: bytes) -> None:
    with pytest.raises(AtomError):
        parse_request(document, QUEUE)


def test_rule_is_in_order() -> None:
    values = {
        "name": "r",
        "created_ms": 0,
        "action": {"type": "EmptyRuleAction"},
        "filter": {"type": "TrueFilter", "expression": "1=1"},
    }
    names = [element.tag.rpartition("}")[2] for element in written(RULE, values)]
    assert names == ["Filter", "Action", "CreatedAt", "Name"]
