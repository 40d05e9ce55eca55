"""E3: links that the server refuses: each gets an attach without a terminus, and a detach with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pairbus.broker import EntityStatus, QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.dialect.conditions import ServiceBusCondition
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    SENDER,
    Attach,
    Condition,
    Int,
    ReceiverSettleMode,
    SenderSettleMode,
    Source,
    Symbol,
    Target,
    UInt,
    ULong,
)
from tests.server.amqp.wire_client import LinkRefusedError, WireClient, failures, text_message

SESSION_FILTER = Symbol("com.microsoft:session-filter")


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as served:
        served.call(
            lambda host: [
                host.use_namespace().create_queue("orders", QueueDescription(), host.now_ms()),
                host.use_namespace().create_queue("visits", QueueDescription(requires_session=True), host.now_ms()),
                host.use_namespace().create_queue("off", QueueDescription(status=EntityStatus.DISABLED), host.now_ms()),
                host.use_namespace().create_queue("passing", QueueDescription(forward_to="orders"), host.now_ms()),
                host.use_namespace().create_queue("deep/down/below", QueueDescription(), host.now_ms()),
                host.use_namespace().create_topic("news", TopicDescription(), host.now_ms()),
                host.use_namespace().create_subscription("news", "all", SubscriptionDescription(), host.now_ms()),
            ]
        )
        yield served


@pytest.fixture(autouse=True)
def _no_failures(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert failures(caplog) == []


def refused(client: WireClient, role: bool, **options: Any) -> LinkRefusedError:
    with pytest.raises(LinkRefusedError) as caught:
        client.attach(role, **options)
    return caught.value


def check_form(client: WireClient, answer: Attach, role: bool) -> None:
    """Check the form in part 2.6.3 of the standard, which the SDKs need."""
    assert answer.source is None
    assert answer.target is None
    assert answer.role is not role
    assert answer.initial_delivery_count == (0 if role == RECEIVER else None)
    client.barrier()  # the connection stays usable


SENDING = {
    "nothing": (None, ServiceBusCondition.ARGUMENT_ERROR),
    "no address": (Target(), ServiceBusCondition.ARGUMENT_ERROR),
    "an empty address": (Target(address=""), ServiceBusCondition.ARGUMENT_ERROR),
    "on demand": (Target(dynamic=True), ServiceBusCondition.ARGUMENT_ERROR),
    "no entity": (Target(address="absent"), Condition.NOT_FOUND),
    "a management node of no entity": (Target(address="absent/$management"), Condition.NOT_FOUND),
    "a subscription": (Target(address="news/Subscriptions/all"), Condition.NOT_ALLOWED),
    "dead letters": (Target(address="orders/$DeadLetterQueue"), Condition.NOT_ALLOWED),
    "failed transfers": (Target(address="orders/$Transfer/$DeadLetterQueue"), Condition.NOT_ALLOWED),
    "slashes": (Target(address="////"), ServiceBusCondition.ARGUMENT_ERROR),
    "an address with a query": (Target(address="orders?x"), ServiceBusCondition.ARGUMENT_ERROR),
    "a full address with a query": (Target(address="amqps://localhost/orders?x=1"), ServiceBusCondition.ARGUMENT_ERROR),
    "a subscription of a queue": (Target(address="orders/Subscriptions/all"), Condition.NOT_FOUND),
}


@pytest.mark.parametrize("name", SENDING)
def test_sender_to_an_invalid_target_is_refused(client: WireClient, name: str) -> None:
    target, condition = SENDING[name]
    caught = refused(client, SENDER, source=Source(address="here"), target=target)
    assert caught.error.condition == condition
    assert caught.error.description
    check_form(client, caught.attach, SENDER)


RECEIVING = {
    "nothing": (None, ServiceBusCondition.ARGUMENT_ERROR),
    "no address": (Source(), ServiceBusCondition.ARGUMENT_ERROR),
    "on demand": (Source(dynamic=True), ServiceBusCondition.ARGUMENT_ERROR),
    "no entity": (Source(address="absent"), Condition.NOT_FOUND),
    "dead letters of no entity": (Source(address="absent/$DeadLetterQueue"), Condition.NOT_FOUND),
    "an address with a query": (Source(address="orders?x"), ServiceBusCondition.ARGUMENT_ERROR),
    "no subscription": (Source(address="news/Subscriptions/absent"), Condition.NOT_FOUND),
    "a topic": (Source(address="news"), Condition.NOT_ALLOWED),
    "what is disabled": (Source(address="off"), ServiceBusCondition.ENTITY_DISABLED),
    "what forwards": (Source(address="passing"), Condition.NOT_ALLOWED),
    "sessions without a filter": (Source(address="visits"), Condition.NOT_ALLOWED),
    "a filter without sessions": (Source(address="orders", filter={SESSION_FILTER: "a"}), Condition.NOT_ALLOWED),
    "a session among dead letters": (
        Source(address="visits/$DeadLetterQueue", filter={SESSION_FILTER: "a"}),
        Condition.NOT_ALLOWED,
    ),
    "a session id that is a number": (
        Source(address="visits", filter={SESSION_FILTER: Int(1)}),
        ServiceBusCondition.ARGUMENT_ERROR,
    ),
    "a session id that is too long": (
        Source(address="visits", filter={SESSION_FILTER: "a" * 129}),
        ServiceBusCondition.ARGUMENT_ERROR,
    ),
}


@pytest.mark.parametrize("name", RECEIVING)
def test_receiver_from_an_invalid_source_is_refused(client: WireClient, name: str) -> None:
    source, condition = RECEIVING[name]
    caught = refused(client, RECEIVER, source=source, target=Target(address="here"))
    assert caught.error.condition == condition
    assert caught.error.description
    check_form(client, caught.attach, RECEIVER)


def test_error_of_a_missing_entity_has_the_sentence_that_javascript_parses(client: WireClient) -> None:
    for role in (SENDER, RECEIVER):
        caught = refused(client, role, source=Source(address="absent"), target=Target(address="absent"))
        assert (caught.error.description or "").startswith("The messaging entity 'absent' could not be found.")


def test_missing_subscription_is_named_by_the_path_that_was_asked_for(client: WireClient) -> None:
    caught = refused(client, RECEIVER, source=Source(address="news/Subscriptions/absent"), target=Target(address="x"))
    expected = "The messaging entity 'news/Subscriptions/absent' could not be found."
    assert (caught.error.description or "").startswith(expected)


def test_receive_and_delete_link_with_a_maximum_message_size_is_refused(client: WireClient) -> None:
    caught = refused(
        client,
        RECEIVER,
        source=Source(address="orders"),
        target=Target(address="here"),
        snd_settle_mode=SenderSettleMode.SETTLED,
        max_message_size=1_000,
    )
    assert caught.error.condition == Condition.NOT_ALLOWED


def test_busy_server_refuses_links(namespace: RunningNamespace, client: WireClient) -> None:
    namespace.server_busy = True
    try:
        caught = refused(client, SENDER, source=Source(address="here"), target=Target(address="orders"))
        assert caught.error.condition == ServiceBusCondition.SERVER_BUSY
    finally:
        namespace.server_busy = False
    assert client.sender("orders").is_attached


def test_name_of_a_refused_link_can_be_reused(client: WireClient) -> None:
    refused(client, SENDER, source=Source(address="here"), target=Target(address="absent"), name="mine")
    link = client.sender("orders", name="mine")
    assert client.send(link, text_message("one")) == ACCEPTED


def test_many_refusals_consume_no_resources(client: WireClient) -> None:
    """Refuse more links than a session has handles."""
    for _ in range(300):
        refused(client, RECEIVER, source=Source(address="absent"), target=Target(address="here"))
    assert client.sender("orders").is_attached


@pytest.mark.parametrize(
    "address",
    [
        "orders",
        "ORDERS",
        "/orders",
        "amqps://localhost/orders",
        "amqps://localhost:5671/Orders",
        "sb://contoso.servicebus.windows.net/orders",
        "amqp://anything/orders/",
    ],
)
def test_addresses_are_accepted_as_the_sdks_write_them(client: WireClient, address: str) -> None:
    sender = client.sender(address)
    answer = client.attach_of(sender).attach
    assert answer.target == Target(address=address)
    assert answer.source == Source(address="here")
    receiver = client.receiver(address)
    echo = client.attach_of(receiver).attach
    assert echo.source == Source(address=address)
    assert echo.target == Target(address="there")


def test_attach_announces_the_maximum_message_size(client: WireClient) -> None:
    link = client.sender("orders")
    answer = client.attach_of(link).attach
    assert answer.max_message_size == 262_144
    properties = answer.properties
    assert properties is not None
    largest = properties[Symbol("com.microsoft:max-message-batch-size")]
    assert (type(largest), largest) == (ULong, 262_144)
    assert link.credit >= 1_000


def test_settle_modes_are_echoed(client: WireClient) -> None:
    locked = client.attach_of(client.receiver("orders")).attach
    assert (locked.snd_settle_mode, locked.rcv_settle_mode) == (SenderSettleMode.UNSETTLED, ReceiverSettleMode.SECOND)
    assert locked.initial_delivery_count == 0
    deleted = client.attach_of(client.receiver("orders", deletes=True)).attach
    assert (deleted.snd_settle_mode, deleted.rcv_settle_mode) == (SenderSettleMode.SETTLED, ReceiverSettleMode.FIRST)


def test_empty_termini_are_echoed_as_the_sdk_for_javascript_sends_them(client: WireClient) -> None:
    asking = client.attach(SENDER, source=Source(), target=Target(address="$cbs"))
    replies = client.attach(RECEIVER, source=Source(address="$cbs"), target=Target())
    assert client.attach_of(asking).attach.source == Source()
    assert client.attach_of(replies).attach.target == Target()
    client.until(lambda: asking.credit >= 1_000)


def test_link_with_a_name_in_use_does_not_harm_the_other(client: WireClient) -> None:
    """Use the same name for the other direction: that is another link."""
    sender = client.sender("orders", name="both")
    receiver = client.receiver("orders", name="both", credit=1)
    assert client.send(sender, text_message("one")) == ACCEPTED
    assert client.settle(client.receive(receiver)[0], ACCEPTED) == ACCEPTED


def test_link_names_are_scoped_to_the_session(client: WireClient) -> None:
    links = [client.sender("orders", session=client.session(), name="same") for _ in range(3)]
    for link in links:
        assert client.send(link, text_message("one")) == ACCEPTED
    links[0].session.end()
    assert client.send(links[1], text_message("one")) == ACCEPTED


@pytest.mark.parametrize("wait_ms", [UInt(0), UInt(1)])
def test_session_timeout_of_zero_expires_at_once(client: WireClient, wait_ms: UInt) -> None:
    source = Source(address="visits", filter={SESSION_FILTER: None})
    caught = refused(
        client,
        RECEIVER,
        source=source,
        target=Target(address="here"),
        properties={Symbol("com.microsoft:timeout"): wait_ms},
    )
    assert caught.error.condition == ServiceBusCondition.TIMEOUT
    check_form(client, caught.attach, RECEIVER)
