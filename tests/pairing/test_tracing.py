"""A trace continues over an outage: the send, the diversion to the backlog, the delivery by the syphon, the receive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Final

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from pairbus import (
    BacklogUnavailableError,
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.client.settings import MessagingFactorySettings
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import factory_of, play
from tests.spans import RecordedSpans, context_of, links_of, parent_of, recorded_spans, traceparent_of
from tests.waiting import eventually_async

ORDERS: Final = "orders"


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with recorded_spans() as spans:
        yield spans


@pytest.fixture
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace(queues=[ORDERS]) as namespace:
        yield namespace


@pytest.fixture
def fabrikam() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


def options_of(secondary: MessagingFactory, manager: NamespaceManager) -> SendAvailabilityPairedNamespaceOptions:
    return SendAvailabilityPairedNamespaceOptions(
        manager, secondary, 1, timedelta(), enable_syphon=True, ping_interval=timedelta(seconds=1)
    )


def test_message_keeps_its_trace_over_an_outage(
    contoso: RunningNamespace, fabrikam: RunningNamespace, spans: RecordedSpans
) -> None:
    async def scenario() -> None:
        async with (
            factory_of(contoso) as primary,
            factory_of(fabrikam) as secondary,
            NamespaceManager.from_connection_string(fabrikam.connection_string) as manager,
        ):
            await primary.pair_namespace(options_of(secondary, manager))
            sender = await primary.create_message_sender(ORDERS)
            await asyncio.to_thread(contoso.stop)
            await sender.send(BrokeredMessage(b"one", application_properties={"a": 1}))
            await sender.send([BrokeredMessage(b"two"), BrokeredMessage(b"three")])
            await asyncio.to_thread(contoso.start)
            receiver = await primary.create_message_receiver(ORDERS)
            found: dict[bytes, object] = {}
            while len(found) < 3:
                for message in await receiver.receive(3):
                    found[message.body] = message.application_properties
                    await receiver.complete(message)
            await eventually_async(lambda: len(spans.named(f"syphon {ORDERS}")) >= 3)
            producers = [spans.named(f"send {ORDERS}")[0], *spans.named(f"create {ORDERS}")]
            parents = [traceparent_of(span) for span in producers]
            assert found == {
                b"one": {"a": 1, "traceparent": parents[0], "Diagnostic-Id": parents[0]},
                b"two": {"traceparent": parents[1], "Diagnostic-Id": parents[1]},
                b"three": {"traceparent": parents[2], "Diagnostic-Id": parents[2]},
            }

    play(scenario())
    sent = [context_of(spans.named(f"send {ORDERS}")[0]), *map(context_of, spans.named(f"create {ORDERS}"))]
    diverted, syphoned = spans.named(f"divert {ORDERS}"), spans.named(f"syphon {ORDERS}")
    assert [parent_of(span) for span in diverted] == sent
    assert [links_of(span) for span in diverted] == [[one] for one in sent]
    delivered = [span for span in syphoned if span.status.status_code is not StatusCode.ERROR]
    assert {parent_of(span) for span in delivered} == {*sent}
    assert sorted(link for span in delivered for link in links_of(span)) == sorted(sent)
    assert {link for span in spans.named(f"receive {ORDERS}") for link in links_of(span)} == {*sent}
    for span in diverted:
        assert span.kind is SpanKind.CLIENT
        assert (span.attributes or {})["pairbus.backlog.queue"] == "contoso/x-servicebus-transfer/0"
        assert (span.attributes or {})["server.port"] == fabrikam.port
    assert not [name for name in spans.names if "x-servicebus-transfer" in name], "the syphon's own work is no span"


def test_failed_diversion_is_a_span_with_the_error(
    contoso: RunningNamespace, fabrikam: RunningNamespace, spans: RecordedSpans
) -> None:
    async def scenario() -> None:
        quick = MessagingFactorySettings(operation_timeout=timedelta(seconds=1))
        async with (
            MessagingFactory.from_connection_string(contoso.connection_string, quick) as primary,
            MessagingFactory.from_connection_string(fabrikam.connection_string, quick) as secondary,
            NamespaceManager.from_connection_string(fabrikam.connection_string) as manager,
        ):
            await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, timedelta()))
            sender = await primary.create_message_sender(ORDERS)
            await asyncio.to_thread(contoso.stop)
            await asyncio.to_thread(fabrikam.stop)
            with pytest.raises(BacklogUnavailableError):
                await sender.send(BrokeredMessage(b""))

    play(scenario())
    for name in (f"send {ORDERS}", f"divert {ORDERS}"):
        assert (spans.one(name).attributes or {})["error.type"] == "BacklogUnavailableError"
