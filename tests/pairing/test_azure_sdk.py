"""C11, C14: to the official SDK, a message that was in the backlog looks like one sent straight to the primary.

Each message is sent twice, once straight to the primary and once through the backlog. Everything that the SDK shows of
the two is compared, but for what is a delivery's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from pairbus import (
    AmqpView,
    BodyKind,
    BrokeredMessage,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.client.entity_link import SendBatch
from pairbus.client.message import encode_brokered
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    AMQP_SEQUENCE,
    Byte,
    Float,
    Header,
    Int,
    Message,
    Properties,
    Short,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    encode_message,
)
from tests.client.stage import factory_of, make_queue, make_topic
from tests.waiting import eventually_async

DEADLINE_S: Final = 60.0
SUBSCRIPTION: Final = "all"
SESSION: Final = "the session"

PER_DELIVERY: Final = frozenset(
    {
        "enqueued_sequence_number",
        "enqueued_time_utc",
        "expires_at_utc",
        "lock_token",
        "locked_until_utc",
        "message",
        "raw_amqp_message",
        "sequence_number",
    }
)
"""Attributes that differ between any two deliveries, or are compared in parts."""

PER_DELIVERY_ANNOTATIONS: Final = frozenset(
    {
        b"x-opt-enqueue-sequence-number",
        b"x-opt-enqueued-time",
        b"x-opt-lock-token",
        b"x-opt-locked-until",
        b"x-opt-sequence-number",
    }
)


# Messages

Makers: TypeAlias = Mapping[str, Callable[[], BrokeredMessage | bytes]]
"""Functions that create messages, by their speciality."""

MOMENT: Final = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)

PLAIN: Makers = {
    "nothing": BrokeredMessage,
    "every property": lambda: BrokeredMessage(
        b"body",
        message_id="the id",
        partition_key="the partition",
        label="the label",
        content_type="text/plain",
        correlation_id="the correlation",
        to="the destination",
        reply_to="the sender",
        reply_to_session_id="the other session",
        time_to_live=timedelta(minutes=5),
        application_properties={"a": 1},
    ),
    "a session id where none is asked for": lambda: BrokeredMessage(
        b"body", session_id=SESSION, partition_key=SESSION, reply_to_session_id="the other session"
    ),
    "a time to live": lambda: BrokeredMessage(b"body", time_to_live=timedelta(milliseconds=1_234_567)),
    "a time to live that the header has no room for": lambda: BrokeredMessage(
        b"body", time_to_live=timedelta(days=100)
    ),
    "no end, in so many words": lambda: BrokeredMessage(b"body", time_to_live=timedelta.max),
    "a scheduled time that is over": lambda: BrokeredMessage(
        b"body", scheduled_enqueue_time=MOMENT - timedelta(days=3_650), partition_key="the partition"
    ),
    "a number as id": lambda: BrokeredMessage(b"body", message_id=66, correlation_id=2**40),
    "a UUID as id": lambda: BrokeredMessage(b"body", message_id=UUID(int=66), correlation_id=UUID(int=2**127)),
    "bytes as id": lambda: BrokeredMessage(b"body", message_id=b"\xff1", correlation_id=b"\xff2"),
    "application properties of every type that the SDK reads": lambda: BrokeredMessage(
        b"body",
        application_properties={
            "text": "Grüße",
            "empty": "",
            "long text": "x" * 1_000,
            "null": None,
            "yes": True,
            "no": False,
            "byte": Byte(-128),
            "short": Short(-32_768),
            "int": Int(-(2**31)),
            "long": -(2**63),
            "ubyte": UByte(255),
            "ushort": UShort(65_535),
            "uint": UInt(2**32 - 1),
            "ulong": ULong(2**64 - 1),
            "float": Float(1.5),
            "double": 5e-324,
            "timestamp": MOMENT,
            "uuid": UUID("12345678-1234-5678-1234-567812345678"),
            "binary": b"\xff\xfe\x00\x80",
            "symbol": Symbol("a symbol"),
            "x-ms-mine": "like the backlog's own, but not one of them",
        },
    ),
    "the rest of AMQP": lambda: BrokeredMessage(
        b"body",
        amqp=AmqpView(
            durable=False,
            priority=7,
            user_id=b"\xff\xfe",
            content_encoding="gzip",
            creation_time=MOMENT,
            absolute_expiry_time=MOMENT + timedelta(days=3_650),
            group_sequence=3,
            annotations={"x-mine": "annotated", "x-number": 7, "x-opt-mine": MOMENT},
            delivery_annotations={"x-delivered": "for this hop"},
            footer={"x-foot": "note"},
        ),
    ),
    "text": lambda: BrokeredMessage("Grüße"),
    "JSON": lambda: BrokeredMessage({"id": 66, "items": ["a", None, 1.5]}),
    "every byte": lambda: BrokeredMessage(bytes(range(256)) * 100),
    "a text as value": lambda: BrokeredMessage("Grüße", body_kind=BodyKind.VALUE),
    "a number as value": lambda: BrokeredMessage(-7, body_kind=BodyKind.VALUE),
    "null as value": lambda: BrokeredMessage(None, body_kind=BodyKind.VALUE),
    "bytes as value": lambda: BrokeredMessage(b"\xff\xfe\x00\x80", body_kind=BodyKind.VALUE),
    "a map as value": lambda: BrokeredMessage(
        {"number": UInt(3), "nested": {"list": [1, 2.5, None]}, "moment": MOMENT}, body_kind=BodyKind.VALUE
    ),
    "a list as sequence": lambda: BrokeredMessage(
        ["a", 1, True, None, ["nested", {"key": "value"}]], body_kind=BodyKind.SEQUENCE
    ),
    "several sections of bytes": lambda: encode_message(
        Message(properties=Properties(message_id="sections"), body=(b"one", b"two", b"\xff\xfe"))
    ),
    "several sequences": lambda: encode_message(
        Message(properties=Properties(message_id="sequences"), body=(["a", 1], ["b"]), body_kind=AMQP_SEQUENCE)
    ),
    "a header of another client": lambda: encode_message(
        Message(header=Header(ttl=UInt(60_000)), properties=Properties(message_id="other"), body=(b"body",))
    ),
}
"""Messages that a queue without sessions accepts; some are not sent like this by the pairbus client."""

SCHEDULED: Makers = {
    "scheduled": lambda: BrokeredMessage(b"body", scheduled_enqueue_time=MOMENT + timedelta(days=3_650)),
    "scheduled, with all that is cleared in the backlog": lambda: BrokeredMessage(
        b"body",
        session_id=SESSION,
        time_to_live=timedelta(hours=1),
        scheduled_enqueue_time=MOMENT + timedelta(days=3_650, milliseconds=1),
        partition_key=SESSION,
        application_properties={"a": 1},
    ),
}
"""Messages that can only be peeked for the next years."""


def in_session(make: Callable[[], BrokeredMessage | bytes]) -> Callable[[], BrokeredMessage]:
    def made() -> BrokeredMessage:
        message = make()
        assert isinstance(message, BrokeredMessage)
        message.session_id = SESSION
        if message.partition_key is not None:
            message.partition_key = SESSION
        return message

    return made


IN_SESSION: Final = {name: in_session(make) for name, make in PLAIN.items() if isinstance(make(), BrokeredMessage)}


# Routes


Namespaces: TypeAlias = tuple[RunningNamespace, RunningNamespace]
"""The primary and the secondary."""


@pytest.fixture(scope="module")
def namespaces() -> Iterator[Namespaces]:
    with running_namespace("contoso") as primary, running_namespace("fabrikam") as secondary:
        yield primary, secondary


@asynccontextmanager
async def paired(
    primary: RunningNamespace, secondary: RunningNamespace, *, enable_syphon: bool = False
) -> AsyncIterator[tuple[MessagingFactory, NamespacePair]]:
    async with (
        NamespaceManager.from_connection_string(secondary.connection_string) as manager,
        factory_of(secondary) as backup,
        factory_of(primary) as factory,
    ):
        options = SendAvailabilityPairedNamespaceOptions(manager, backup, 2, enable_syphon=enable_syphon)
        yield factory, await factory.pair_namespace(options)


class Journey:
    """Sends the same bytes over both routes."""

    def __init__(self, primary: RunningNamespace, secondary: RunningNamespace, payloads: Sequence[bytes]) -> None:
        self._namespaces = primary, secondary
        self._payloads = payloads

    async def directly(self, path: str) -> None:
        assert await self._send(path, lambda _: None) == 0

    async def through_the_backlog(self, path: str) -> None:
        """Send through the backlog; return when the syphon has delivered everything."""
        assert await self._send(path, lambda pair: pair.engage()) == len(self._payloads)
        async with paired(*self._namespaces, enable_syphon=True) as (_, pair):
            await eventually_async(lambda: _syphoned(pair) == len(self._payloads))

    async def _send(self, path: str, switch: Callable[[NamespacePair], None]) -> int:
        """Send all messages; return how many were diverted."""
        async with paired(*self._namespaces) as (factory, pair):
            switch(pair)
            sender = await factory.create_message_sender(path)
            for payload in self._payloads:
                await sender._send_batch(SendBatch([payload]))  # some cannot be expressed as a BrokeredMessage
            return pair.status().diverted


def _syphoned(pair: NamespacePair) -> int:
    syphon = pair.status().syphon
    assert syphon is not None
    assert syphon.dead_lettered == 0
    return syphon.syphoned


# The view of the SDK

Open: TypeAlias = Callable[[ServiceBusClient], ServiceBusReceiver]
Take: TypeAlias = Callable[[ServiceBusReceiver, int], Coroutine[Any, Any, list[ServiceBusReceivedMessage]]]


async def received(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    messages: list[ServiceBusReceivedMessage] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(messages) < count:
            messages += await receiver.receive_messages(count - len(messages), max_wait_time=5)
    for message in messages:
        await receiver.complete_message(message)
    return messages


async def peeked(receiver: ServiceBusReceiver, count: int) -> list[ServiceBusReceivedMessage]:
    """Return the last ``count`` messages: earlier ones are still in the entity."""
    return (await receiver.peek_messages(2 * count, sequence_number=0))[-count:]


def shown(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """Return all attributes of a message with their types, except those that differ between deliveries."""
    names = [name for name in dir(message) if isinstance(getattr(type(message), name, None), property)]
    raw = message.raw_amqp_message
    expires, enqueued = message.expires_at_utc, message.enqueued_time_utc
    attributes = {
        **{name: getattr(message, name) for name in names if name not in PER_DELIVERY and not name.startswith("_")},
        "body": list(message.body) if isinstance(message.body, Iterator) else message.body,
        "lives for": None if expires is None or enqueued is None else expires - enqueued,
        "has a lock": message.lock_token is not None,
        "header": None if raw.header is None else vars(raw.header),
        "properties": None if raw.properties is None else vars(raw.properties),
        "annotations": _own(raw.annotations),
        "delivery annotations": _own(raw.delivery_annotations),
        "footer": raw.footer,
    }
    return {name: typed(value) for name, value in attributes.items()}


def _own(annotations: Mapping[Any, Any] | None) -> dict[Any, Any]:
    return {name: value for name, value in (annotations or {}).items() if name not in PER_DELIVERY_ANNOTATIONS}


def typed(value: Any) -> Any:
    """Return a value with its types, recursively: true is not 1, and text is not bytes."""
    if isinstance(value, Mapping):
        return {typed(name): typed(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [typed(item) for item in value]
    return type(value).__name__, value


# Tests


def check(namespaces: Namespaces, path: str, made: Makers, open_receiver: Open, take: Take) -> None:
    """Send everything over both routes, and compare the attributes that the SDK shows."""
    payloads = [_payload(make()) for make in made.values()]

    async def scenario() -> None:
        journey = Journey(*namespaces, payloads)
        async with ServiceBusClient.from_connection_string(namespaces[0].connection_string) as client:
            shows: list[dict[str, dict[str, Any]]] = []
            numbers: set[int | None] = set()
            for way in (journey.directly, journey.through_the_backlog):
                await way(path)
                async with open_receiver(client) as receiver:
                    messages = await take(receiver, len(payloads))
                shows.append({repr(one.message_id): shown(one) for one in messages})
                numbers.update(one.sequence_number for one in messages)
        direct, diverted = shows
        assert (len(direct), len(numbers)) == (len(payloads), 2 * len(payloads))
        assert diverted.keys() == direct.keys()
        for message_id, attributes in direct.items():
            assert diverted[message_id] == attributes

    asyncio.run(scenario())


def _payload(message: BrokeredMessage | bytes) -> bytes:
    return message if isinstance(message, bytes) else encode_brokered(message)


def test_c14_message_of_a_queue_shows_no_trace_of_the_backlog(namespaces: Namespaces) -> None:
    path = make_queue(namespaces[0])
    check(namespaces, path, PLAIN, lambda client: client.get_queue_receiver(path), received)


def test_c14_message_of_a_session_shows_no_trace_of_the_backlog(namespaces: Namespaces) -> None:
    path = make_queue(namespaces[0], requires_session=True)
    check(namespaces, path, IN_SESSION, lambda client: client.get_queue_receiver(path, session_id=SESSION), received)


def test_c14_message_of_a_subscription_shows_no_trace_of_the_backlog(namespaces: Namespaces) -> None:
    path = make_topic(namespaces[0], SUBSCRIPTION)
    check(namespaces, path, PLAIN, lambda client: client.get_subscription_receiver(path, SUBSCRIPTION), received)


def test_c14_scheduled_message_shows_no_trace_of_the_backlog(namespaces: Namespaces) -> None:
    path = make_queue(namespaces[0])
    check(namespaces, path, SCHEDULED, lambda client: client.get_queue_receiver(path), peeked)
