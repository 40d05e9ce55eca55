"""B2 on the wire: a real server whose store fills up denies sends, lets receivers empty it, and accepts sends again."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from pairbus import (
    FAILURE_RULES,
    BrokeredMessage,
    EntityState,
    FailureVerdict,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
    ServerBusyError,
)
from pairbus.broker import Address
from pairbus.client.settings import MessagingFactorySettings
from pairbus.dialect.sas import make_sas_token
from pairbus.pairing.events import PingSent
from pairbus.testing import RunningNamespace, running_namespace
from tests.waiting import eventually
from tests.waiting import eventually_async as eventually_so

ORDERS: Final = "orders"
LARGE: Final = bytes(200_000)
ENOUGH: Final = 12
BACKOFF_S: Final = 10.0
PATIENCE_S: Final = 60


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    """Yield a namespace with a store threshold of 2 MiB."""
    with running_namespace(queues=[ORDERS], max_store_gb=1, throttle_store_percent=100 * 2 / 1_024) as namespace:
        yield namespace


def fill(namespace: RunningNamespace) -> int:
    """Fill the store beyond the threshold, and wait until that was read; return the number of messages sent."""
    client = ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0)
    count = 0
    with client, client.get_queue_sender(ORDERS) as sender, suppress(ServiceBusServerBusyError):
        while count < ENOUGH and not is_busy(namespace):
            sender.send_messages(ServiceBusMessage(LARGE))
            count += 1
    eventually(lambda: is_busy(namespace))
    return count


def drain(namespace: RunningNamespace, expected: int) -> None:
    """Receive and complete that many messages; check that there are no more."""
    client = ServiceBusClient.from_connection_string(namespace.connection_string)
    with client, client.get_queue_receiver(ORDERS) as receiver:
        for _ in range(expected):
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=PATIENCE_S)
            receiver.complete_message(message)
    eventually(lambda: count_of(namespace) == 0)


def count_of(namespace: RunningNamespace) -> int:
    return namespace.call(lambda host: host.use_namespace().entity(Address.of(ORDERS), host.now_ms()).active_count)


def is_busy(namespace: RunningNamespace) -> bool:
    return namespace.call(lambda host: host.throttle.is_busy)


def metrics(namespace: RunningNamespace) -> dict[str, float]:
    with urlopen(f"http://localhost:{namespace.port}/metrics", timeout=PATIENCE_S) as answer:
        found = re.findall(r'^pairbus_facet_(\w+)\{facet="store".*\} (\S+)$', answer.read().decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}


def request(namespace: RunningNamespace, method: str, path: str) -> int:
    token = make_sas_token(f"http://localhost/{path}", "RootManageSharedAccessKey", namespace.key, 2**31)
    body = (
        b'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
        b'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
    )
    asked = Request(
        f"http://localhost:{namespace.port}/{path}?api-version=2021-05",
        body if method == "PUT" else None,
        {"Authorization": token, "Content-Type": "application/atom+xml"},
        method=method,
    )
    try:
        with urlopen(asked, timeout=PATIENCE_S) as answer:  # noqa: S310 (a local address)
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def test_b2_full_store_denies_sends_until_receivers_free_space(contoso: RunningNamespace) -> None:
    client = ServiceBusClient.from_connection_string(contoso.connection_string, retry_total=0)
    with client, client.get_queue_sender(ORDERS) as sender:
        count = fill(contoso)
        with pytest.raises(ServiceBusServerBusyError, match=r"'store' is at 2.* MB, and its threshold is 2\.0 MB"):
            sender.send_messages(ServiceBusMessage("denied"))
        with client.get_queue_receiver(ORDERS) as receiver:
            assert len(receiver.peek_messages(max_message_count=1)) == 1
        assert request(contoso, "GET", ORDERS) == 200
        assert request(contoso, "PUT", "more") == 503
        drain(contoso, count)
        eventually(lambda: not is_busy(contoso))
        sender.send_messages(ServiceBusMessage("taken"))
        assert request(contoso, "PUT", "more") == 201
        drain(contoso, 1)


def test_b2_readings_thresholds_and_denials_are_metrics(contoso: RunningNamespace) -> None:
    before = metrics(contoso)
    assert before["threshold"] == pytest.approx(2 << 20)
    assert (before["denying"], before["denied_total"]) == (0, 0)
    fill(contoso)
    denied = metrics(contoso)["denied_total"]
    assert request(contoso, "PUT", "more") == 503
    after = metrics(contoso)
    assert after["reading"] >= after["threshold"] > before["reading"]
    assert (after["denying"], after["denied_total"]) == (1, denied + 1)


def test_b2_denials_of_a_test_and_of_the_server_are_independent(
    contoso: RunningNamespace,
) -> None:
    fill(contoso)
    contoso.server_busy = True
    assert request(contoso, "GET", ORDERS) == 503
    contoso.server_busy = False
    assert request(contoso, "GET", ORDERS) == 200
    assert request(contoso, "PUT", "more") == 503


# Paired senders.


async def paired(primary: MessagingFactory, secondary: RunningNamespace, **options: Any) -> Any:
    manager = NamespaceManager.from_connection_string(secondary.connection_string)
    factory = MessagingFactory.from_connection_string(secondary.connection_string)
    pair = await primary.pair_namespace(
        SendAvailabilityPairedNamespaceOptions(manager, factory, 1, timedelta(), **options)
    )
    return manager, factory, pair


@pytest.mark.slow
def test_c7_paired_sender_waits_out_a_store_that_is_full(contoso: RunningNamespace) -> None:
    async def scenario(fabrikam: RunningNamespace) -> None:
        settings = MessagingFactorySettings(operation_timeout=timedelta(seconds=60))
        loop = asyncio.get_running_loop()
        async with MessagingFactory.from_connection_string(contoso.connection_string, settings) as primary:
            manager, factory, pair = await paired(primary, fabrikam)
            async with manager, factory:
                sender = await primary.create_message_sender(ORDERS)
                count = await asyncio.to_thread(fill, contoso)
                began = loop.time()
                sending = asyncio.create_task(sender.send(BrokeredMessage(b"patient")))
                await eventually_so(lambda: contoso.call(lambda host: host.throttle.denied["store"]))
                await asyncio.to_thread(drain, contoso, count)
                await sending
                assert loop.time() - began >= BACKOFF_S
                assert pair.status().entities[0].state is EntityState.HEALTHY
                assert not any((await pair.backlog_depth()).values())

    with running_namespace("fabrikam") as fabrikam:
        asyncio.run(asyncio.wait_for(scenario(fabrikam), 120))
    drain(contoso, 1)


@pytest.mark.slow
def test_c13_pings_see_a_full_store_as_any_send_does(contoso: RunningNamespace) -> None:
    async def scenario(fabrikam: RunningNamespace) -> None:
        rules = {**FAILURE_RULES, ServerBusyError: FailureVerdict.COUNTS}
        async with MessagingFactory.from_connection_string(contoso.connection_string) as primary:
            manager, factory, pair = await paired(
                primary, fabrikam, failure_rules=rules, ping_interval=timedelta(seconds=1)
            )
            async with manager, factory:
                pings: list[PingSent] = []
                pair.subscribe(lambda event: pings.append(event) if isinstance(event, PingSent) else None)
                sender = await primary.create_message_sender(ORDERS)
                count = await asyncio.to_thread(fill, contoso)
                await sender.send(BrokeredMessage(b"diverted"))
                assert sum((await pair.backlog_depth()).values()) == 1
                await eventually_so(lambda: len(pings) >= 2)
                assert all(isinstance(ping.cause, ServerBusyError) for ping in pings[:2])
                await asyncio.to_thread(drain, contoso, count)
                await eventually_so(lambda: pair.status().entities[0].state is EntityState.HEALTHY)
                await sender.send(BrokeredMessage(b"direct"))

    with running_namespace("fabrikam") as fabrikam:
        asyncio.run(asyncio.wait_for(scenario(fabrikam), 120))
    drain(contoso, 1)
