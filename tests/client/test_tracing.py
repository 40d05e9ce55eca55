"""Traces of sends, receives and settlements, and of messages that the official SDK sends and receives."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from azure.core.settings import settings as azure_settings
from azure.core.tracing.ext.opentelemetry_span import OpenTelemetrySpan
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from pairbus import BrokeredMessage, EntityNotFoundError, InvalidMessageError, MessagingFactory, trace_processing
from pairbus import blocking as blocking_client
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import factory_of, make_queue, make_topic, play
from tests.spans import RecordedSpans, context_of, links_of, parent_of, recorded_spans, traceparent_of

GIVEN: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GIVEN_IDS: Final = (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)


@pytest.fixture(scope="module")
def contoso() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with recorded_spans() as spans:
        yield spans


async def received(factory: MessagingFactory, path: str, count: int = 1) -> list[dict[str, Any]]:
    """Receive and complete messages; return their application properties."""
    found: list[dict[str, Any]] = []
    async with await factory.create_message_receiver(path) as receiver:
        while len(found) < count:
            messages = await receiver.receive(count)
            assert messages
            await receiver.complete(messages)
            found += [message.application_properties for message in messages]
    return found


def test_message_carries_the_span_of_its_send(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            message = BrokeredMessage(b"one", message_id="m1", correlation_id="c1", application_properties={"a": 1})
            with trace.get_tracer("app").start_as_current_span("checkout"):
                await sender.send(message)
            assert message.application_properties == {"a": 1}, "the message of the caller stays as it is"
            parent = traceparent_of(spans.one(f"send {path}"))
            assert await received(factory, path) == [{"a": 1, "traceparent": parent, "Diagnostic-Id": parent}]

    play(scenario())
    send = spans.one(f"send {path}")
    assert send.kind is SpanKind.PRODUCER
    assert parent_of(send) == context_of(spans.one("checkout"))
    assert dict(send.attributes or {}) == {
        "messaging.system": "servicebus",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": path,
        "messaging.message.id": "m1",
        "messaging.message.conversation_id": "c1",
        "server.address": "localhost",
        "server.port": contoso.port,
    }


def test_each_message_of_a_batch_has_its_own_span(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            await sender.send([BrokeredMessage(b"1"), BrokeredMessage(b"2")])
            await sender.send_batch(BrokeredMessage(b"3", application_properties=each) for each in ({}, {"b": 2}))
            await sender.send([])
            carried = [properties["traceparent"] for properties in await received(factory, path, 4)]
            assert carried == [traceparent_of(span) for span in spans.named(f"create {path}")]

    play(scenario())
    created, sends = spans.named(f"create {path}"), spans.named(f"send {path}")
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    contexts = [context_of(one) for one in created]
    assert [links_of(span) for span in sends] == [contexts[:2], contexts[2:]]
    assert {(span.kind, (span.attributes or {})["messaging.batch.message_count"]) for span in sends} == {
        (SpanKind.CLIENT, 2)
    }


@pytest.mark.parametrize("name", ["traceparent", "Diagnostic-Id"])
def test_message_with_a_trace_context_keeps_it(contoso: RunningNamespace, spans: RecordedSpans, name: str) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            await sender.send(BrokeredMessage(b"", application_properties={name: GIVEN}))
            assert await received(factory, path) == [{name: GIVEN}]

    play(scenario())
    assert spans.named(f"create {path}") == []
    for operation in ("send", "receive", "complete"):
        assert links_of(spans.one(f"{operation} {path}")) == [GIVEN_IDS]


@pytest.mark.parametrize("value", ["not a trace parent", "", 7])
def test_invalid_trace_context_is_sent_unchanged_and_not_linked(
    contoso: RunningNamespace, spans: RecordedSpans, value: object
) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            await sender.send(BrokeredMessage(b"", application_properties={"traceparent": value}))
            assert await received(factory, path) == [{"traceparent": value}]

    play(scenario())
    assert links_of(spans.one(f"receive {path}")) == []


def test_receive_and_settlements_are_linked_to_the_send(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            assert await receiver.receive(max_wait_time=timedelta()) == []
            assert spans.names == [], "an empty receive is no span"
            await sender.send(BrokeredMessage(b""))
            (message,) = await receiver.receive()
            await receiver.abandon(message)
            (message,) = await receiver.receive()
            await receiver.defer(message)
            (message,) = await receiver.receive_deferred(message.sequence_number)
            await receiver.dead_letter(message, "because")
            dead = await factory.create_message_receiver(f"{path}/$DeadLetterQueue")
            (message,) = await dead.receive()
            await dead.complete(message)

    play(scenario())
    sent = context_of(spans.one(f"send {path}"))
    settled = [spans.one(f"{operation} {path}") for operation in ("abandon", "defer", "dead_letter")]
    settled.append(spans.one(f"complete {path}/$DeadLetterQueue"))
    assert [links_of(span) for span in (*spans.named(f"receive {path}"), *settled)] == [[sent]] * 7
    statuses = [(span.attributes or {})["messaging.servicebus.disposition_status"] for span in settled]
    assert statuses == ["abandon", "defer", "dead_letter", "complete"]
    assert {(span.attributes or {})["messaging.operation.type"] for span in settled} == {"settle"}
    second = spans.named(f"receive {path}")[1]
    assert (second.attributes or {})["messaging.servicebus.message.delivery_count"] == 1


def test_subscription_is_named_beside_its_topic(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    topic = make_topic(contoso, "all")

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            await (await factory.create_message_sender(topic)).send(BrokeredMessage(b""))
            await received(factory, f"{topic}/Subscriptions/all")

    play(scenario())
    receive = spans.one(f"receive {topic}/Subscriptions/all")
    assert links_of(receive) == [context_of(spans.one(f"send {topic}"))]
    attributes = receive.attributes or {}
    assert attributes["messaging.destination.name"] == topic
    assert attributes["messaging.destination.subscription.name"] == "all"


def test_processing_belongs_to_the_trace_of_the_send(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            await (await factory.create_message_sender(path)).send(BrokeredMessage(b""))
            receiver = await factory.create_message_receiver(path)
            (message,) = await receiver.receive()
            with pytest.raises(ValueError, match="no milk"), trace_processing(message, receiver.path):
                raise ValueError("no milk")
            with trace_processing(message, receiver.path):
                await receiver.complete(message)

    play(scenario())
    sent = context_of(spans.one(f"send {path}"))
    failed, processed = spans.named(f"process {path}")
    assert (failed.status.status_code, (failed.attributes or {})["error.type"]) == (StatusCode.ERROR, "ValueError")
    assert processed.kind is SpanKind.CONSUMER
    assert processed.status.status_code is not StatusCode.ERROR
    assert parent_of(processed) == sent
    assert links_of(processed) == [sent]
    assert parent_of(spans.one(f"complete {path}")) == context_of(processed)


def test_scheduled_message_carries_its_span(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            sender = await factory.create_message_sender(path)
            await sender.schedule(BrokeredMessage(b""), datetime.now(UTC))
            (properties,) = await received(factory, path)
            assert properties["traceparent"] == traceparent_of(spans.one(f"schedule {path}"))

    play(scenario())


def test_failed_operations_are_spans_with_the_error(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            with pytest.raises(EntityNotFoundError):
                await (await factory.create_message_sender("missing")).send(BrokeredMessage(b""))
            with pytest.raises(EntityNotFoundError):
                await (await factory.create_message_receiver("missing")).receive()
            with pytest.raises(InvalidMessageError):
                await (await factory.create_message_sender(path)).send(["text"])  # type: ignore[list-item]

    play(scenario())
    for name in ("send missing", "receive missing"):
        span = spans.one(name)
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "EntityNotFoundError"
    assert (spans.one(f"send {path}").attributes or {})["error.type"] == "InvalidMessageError"


def test_blocking_client_continues_the_trace_of_its_caller(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)
    with (
        blocking_client.MessagingFactory.from_connection_string(contoso.connection_string) as factory,
        trace.get_tracer("app").start_as_current_span("checkout") as checkout,
    ):
        factory.create_message_sender(path).send(BrokeredMessage(b""))
    found = spans.one(f"send {path}").parent
    assert found is not None
    assert found.span_id == checkout.get_span_context().span_id


# Without tracing


def test_without_a_tracer_provider_nothing_is_added(contoso: RunningNamespace) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            await (await factory.create_message_sender(path)).send(BrokeredMessage(b""))
            receiver = await factory.create_message_receiver(path)
            (message,) = await receiver.receive()
            with trace_processing(message, path):
                assert message.application_properties == {}
                await receiver.complete(message)

    play(scenario())


_CHILD: Final = """
import asyncio, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ImportError(name)
if sys.argv[2] == "missing":
    sys.meta_path.insert(0, Hidden())
from pairbus import BrokeredMessage, MessagingFactory, trace_processing
async def main():
    async with MessagingFactory.from_connection_string(sys.argv[1]) as factory:
        await (await factory.create_message_sender(sys.argv[3])).send(BrokeredMessage(b""))
        receiver = await factory.create_message_receiver(sys.argv[3])
        (message,) = await receiver.receive()
        with trace_processing(message, receiver.path):
            await receiver.complete(message)
        print(message.application_properties, [name for name in sys.modules if name.startswith("opentelemetry")])
asyncio.run(main())
"""


@pytest.mark.parametrize("api", ["missing", "unused"])
def test_client_works_without_opentelemetry_and_never_imports_it_unasked(contoso: RunningNamespace, api: str) -> None:
    command = [sys.executable, "-c", _CHILD, contoso.connection_string, api, make_queue(contoso)]
    assert subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout == "{} []\n"


# The official SDK


@pytest.fixture
def azure_tracing(spans: RecordedSpans) -> Iterator[RecordedSpans]:
    """Switch on the tracing of the official SDK."""
    azure_settings.tracing_implementation = OpenTelemetrySpan
    try:
        yield spans
    finally:
        azure_settings.tracing_implementation.unset_value()


def test_message_of_the_azure_sdk_is_linked(contoso: RunningNamespace, azure_tracing: RecordedSpans) -> None:
    path = make_queue(contoso)
    client = ServiceBusClient.from_connection_string(contoso.connection_string)
    with client, client.get_queue_sender(path) as sender:
        sender.send_messages(ServiceBusMessage(b"one"))

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            (properties,) = await received(factory, path)
            parent = traceparent_of(azure_tracing.one("ServiceBus.message"))
            assert properties == {"traceparent": parent, "Diagnostic-Id": parent}

    play(scenario())
    sent = context_of(azure_tracing.one("ServiceBus.message"))
    assert links_of(azure_tracing.one(f"receive {path}")) == [sent]
    assert links_of(azure_tracing.one(f"complete {path}")) == [sent]


def test_azure_sdk_links_our_message(contoso: RunningNamespace, azure_tracing: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            await (await factory.create_message_sender(path)).send(BrokeredMessage(b"one"))

    play(scenario())
    client = ServiceBusClient.from_connection_string(contoso.connection_string)
    with client, client.get_queue_receiver(path) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=30)
        receiver.complete_message(message)
    sent = context_of(azure_tracing.one(f"send {path}"))
    assert links_of(azure_tracing.one("ServiceBus.receive")) == [sent]
    assert links_of(azure_tracing.one("ServiceBus.complete")) == [sent]


def test_cancelled_receive_is_no_span(contoso: RunningNamespace, spans: RecordedSpans) -> None:
    path = make_queue(contoso)

    async def scenario() -> None:
        async with factory_of(contoso) as factory:
            receiver = await factory.create_message_receiver(path)
            await receiver.receive(max_wait_time=timedelta())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await receiver.receive()

    play(scenario())
    assert spans.names == []
