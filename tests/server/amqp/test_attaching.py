"""E3: links that the server does not attach: each is answered with an attach to nothing, and a detach that says why."""

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
                host.namespace.create_queue("orders", QueueDescription(), host.now_ms()),
                host.namespace.create_queue("visits", QueueDescription(requires_session=True), host.now_ms()),
                host.namespace.create_queue("off", QueueDescription(status=EntityStatus.DISABLED), host.now_ms()),
                host.namespace.create_queue("passing", QueueDescription(forward_to="orders"), host.now_ms()),
                host.namespace.create_queue("deep/down/below", QueueDescription(), host.now_ms()),
                host.namespace.create_topic("news", TopicDescription(), host.now_ms()),
                host.namespace.create_subscription("news", "all", SubscriptionDescription(), host.now_ms()),
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
    """As part 2.6.3 of the standard has it, and as the SDKs need it."""
    assert answer.source is None
    assert answer.target is None
    assert answer.role is not role
    assert answer.initial_delivery_count == (0 if role == RECEIVER else None)
    client.barrier()  # the connection goes on


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
def test_what_cannot_be_sent_to_is_refused(client: WireClient, name: str) -> None:
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
def test_what_cannot_be_received_from_is_refused(client: WireClient, name: str) -> None:
    source, condition = RECEIVING[name]
    caught = refused(client, RECEIVER, source=source, target=Target(address="here"))
    assert caught.error.condition == condition
    assert caught.error.description
    check_form(client, caught.attach, RECEIVER)


def test_the_sentence_of_a_missing_entity_is_the_one_that_javascript_looks_for(client: WireClient) -> None:
    for role in (SENDER, RECEIVER):
        caught = refused(client, role, source=Source(address="absent"), target=Target(address="absent"))
        assert (caught.error.description or "").startswith("The messaging entity 'absent' could not be found.")


def test_missing_subscription_is_named_by_the_path_that_was_asked_for(client: WireClient) -> None:
    caught = refused(client, RECEIVER, source=Source(address="news/Subscriptions/absent"), target=Target(address="x"))
    expected = "The messaging entity 'news/Subscriptions/absent' could not be found."
    assert (caught.error.description or "").startswith(expected)


def test_who_deletes_as_it_receives_cannot_name_a_largest_message(client: WireClient) -> None:
    caught = refused(
        client,
        RECEIVER,
        source=Source(address="orders"),
        target=Target(address="here"),
        snd_settle_mode=SenderSettleMode.SETTLED,
        max_message_size=1_000,
    )
    assert caught.error.condition == Condition.NOT_ALLOWED


def test_a_busy_server_attaches_nothing_but_listens_to_tokens(namespace: RunningNamespace, client: WireClient) -> None:
    namespace.server_busy = True
    try:
        caught = refused(client, SENDER, source=Source(address="here"), target=Target(address="orders"))
        assert caught.error.condition == ServiceBusCondition.SERVER_BUSY
    finally:
        namespace.server_busy = False
    assert client.sender("orders").is_attached


def test_a_name_that_was_refused_can_be_used_again(client: WireClient) -> None:
    refused(client, SENDER, source=Source(address="here"), target=Target(address="absent"), name="mine")
    link = client.sender("orders", name="mine")
    assert client.send(link, text_message("one")) == ACCEPTED


def test_many_refusals_use_up_nothing(client: WireClient) -> None:
    """More than there are handles in a session."""
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
def test_addresses_are_understood_as_the_sdks_write_them(client: WireClient, address: str) -> None:
    sender = client.sender(address)
    answer = client.attach_of(sender).attach
    assert answer.target == Target(address=address)
    assert answer.source == Source(address="here")
    receiver = client.receiver(address)
    echo = client.attach_of(receiver).attach
    assert echo.source == Source(address=address)
    assert echo.target == Target(address="there")


def test_a_sender_is_told_how_large_a_message_may_be(client: WireClient) -> None:
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


def test_a_link_with_a_name_in_use_does_not_harm_the_other(client: WireClient) -> None:
    """The same name for the other direction is another link."""
    sender = client.sender("orders", name="both")
    receiver = client.receiver("orders", name="both", credit=1)
    assert client.send(sender, text_message("one")) == ACCEPTED
    assert client.settle(client.receive(receiver)[0], ACCEPTED) == ACCEPTED


def test_every_session_of_a_connection_has_links_of_its_own(client: WireClient) -> None:
    links = [client.sender("orders", session=client.session(), name="same") for _ in range(3)]
    for link in links:
        assert client.send(link, text_message("one")) == ACCEPTED
    links[0].session.end()  # type: ignore[attr-defined]
    assert client.send(links[1], text_message("one")) == ACCEPTED


@pytest.mark.parametrize("wait_ms", [UInt(0), UInt(1)])
def test_no_time_to_wait_for_a_session_is_no_time(client: WireClient, wait_ms: UInt) -> None:
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
