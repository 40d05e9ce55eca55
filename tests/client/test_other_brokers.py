"""Our client with brokers that are no Service Bus: queues on Qpid Proton, and RabbitMQ where it is installed."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from pairbus import (
    BrokeredMessage,
    EntityNotFoundError,
    MessageReceiver,
    MessagingFactory,
    MessagingFactorySettings,
    PlainCredentials,
    QuotaExceededError,
    ReceivedMessage,
    ReceiveMode,
    RetryPolicy,
    UnauthorizedError,
)
from tests.client.other_brokers import OtherBroker, ProtonBroker, proton_broker, rabbitmq
from tests.peers.payload import pattern

SETTINGS: Final = MessagingFactorySettings(
    operation_timeout=timedelta(seconds=60),
    attempt_timeout=timedelta(seconds=15),
    retry_policy=RetryPolicy(maximum_backoff=timedelta(milliseconds=500)),
)
PATIENCE: Final = timedelta(seconds=10)
MANY: Final = 1_000
LARGE: Final = 1024 * 1024
TEST_S: Final = 120.0
RABBITMQ: Final = pytest.param("rabbitmq", marks=pytest.mark.slow)


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test on its own event loop, with a timeout."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TEST_S):
                await test(**fixtures)

        asyncio.run(bounded())

    return run


@pytest.fixture(scope="module", params=["proton", RABBITMQ])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherBroker]:
    with proton_broker() if request.param == "proton" else rabbitmq(tmp_path_factory.mktemp("rabbitmq")) as broker:
        yield broker


@pytest.fixture
def proton() -> Iterator[ProtonBroker]:
    with proton_broker() as broker:
        yield broker


@asynccontextmanager
async def connected(
    broker: OtherBroker, credentials: PlainCredentials | None = None
) -> AsyncIterator[MessagingFactory]:
    async with MessagingFactory.create(broker.endpoint, credentials, SETTINGS) as factory:
        yield factory


async def send(factory: MessagingFactory, path: str, *bodies: bytes) -> None:
    async with await factory.create_message_sender(path) as sender:
        for body in bodies:
            await sender.send(BrokeredMessage(body))


async def receive_all(receiver: MessageReceiver, count: int) -> list[ReceivedMessage]:
    """Send messages one at a time, for a queue that has to hold them all."""
    received: list[ReceivedMessage] = []
    while len(received) < count:
        messages = await receiver.receive(1, PATIENCE)
        assert messages, f"only {len(received)} of {count} have come"
        received += messages
    return received


async def receive_until(receiver: MessageReceiver, last: bytes) -> set[bytes]:
    """Complete what comes until this has come. What a broker has not heard of when it went may come once more."""
    seen: set[bytes] = set()
    while last not in seen:
        for message in await receiver.receive(1, PATIENCE):
            seen.add(message.body)
            await receiver.complete(message)
    return seen


async def assert_holds(factory: MessagingFactory, path: str, *bodies: bytes) -> None:
    """Send one more message, and find it behind these and no others; the queue is empty then."""
    await send(factory, path, b"the last")
    async with await factory.create_message_receiver(path, ReceiveMode.PEEK_LOCK) as receiver:
        received = await receive_all(receiver, len(bodies) + 1)
        assert sorted(message.body for message in received) == sorted([*bodies, b"the last"])
        await receiver.complete(received)


# Connecting.


@asynchronous
async def test_anonymous_client_sends_and_receives(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"hello")
        await assert_holds(factory, path, b"hello")


@pytest.mark.parametrize("broker", [RABBITMQ], indirect=True, scope="module")
@asynchronous
async def test_user_and_password_are_accepted_by_broker(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker, broker.credentials) as factory:
        await send(factory, path, b"hello")
        await assert_holds(factory, path, b"hello")


@asynchronous
async def test_wrong_password_is_rejected_without_retry(broker: OtherBroker) -> None:
    async with connected(broker, PlainCredentials("guest", "wrong")) as factory:
        with pytest.raises(UnauthorizedError):
            await send(factory, broker.queue(), b"hello")


@asynchronous
async def test_proton_accepts_anonymous_client(proton: ProtonBroker) -> None:
    async with connected(proton) as factory:
        await send(factory, proton.queue(), b"hello")
    assert proton.users == ["anonymous"]


@asynchronous
async def test_missing_queue_raises(proton: ProtonBroker) -> None:
    async with connected(proton) as factory:
        with pytest.raises(EntityNotFoundError, match="there is no such queue"):
            await send(factory, "missing", b"hello")
        async with await factory.create_message_receiver("missing") as receiver:
            with pytest.raises(EntityNotFoundError, match="there is no such queue"):
                await receiver.receive(1, PATIENCE)


# Sending.


@asynchronous
async def test_pipelined_messages_are_confirmed_individually(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        async with await factory.create_message_sender(path) as sender, asyncio.TaskGroup() as group:
            for number in range(MANY):
                group.create_task(sender.send(BrokeredMessage(b"%d" % number)))
        async with await factory.create_message_receiver(path, prefetch_count=100) as receiver:
            received = await receive_all(receiver, MANY)
            assert [int(message.body) for message in received] == [*range(MANY)]
            await receiver.complete(received)


@asynchronous
async def test_messages_sent_together_arrive_individually(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        async with await factory.create_message_sender(path) as sender:
            await sender.send([BrokeredMessage(b"1"), BrokeredMessage(b"2"), BrokeredMessage(b"3")])
        await assert_holds(factory, path, b"1", b"2", b"3")


@asynchronous
async def test_refusal_is_raised_to_its_sender(proton: ProtonBroker) -> None:
    path = proton.queue()
    async with connected(proton) as factory:
        with pytest.raises(QuotaExceededError, match="not one more"):
            await send(factory, "full", b"hello")
        await send(factory, path, b"hello")
    assert len(proton.queues[path]) == 1


@asynchronous
async def test_large_message_round_trips(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, pattern(LARGE))
        async with await factory.create_message_receiver(path) as receiver:
            (message,) = await receive_all(receiver, 1)
            assert message.body == pattern(LARGE)
            await receiver.complete(message)


@asynchronous
async def test_properties_round_trip(broker: OtherBroker) -> None:
    path = broker.queue()
    sent = BrokeredMessage(
        b"body",
        message_id="m-1",
        label="order",
        correlation_id="c-1",
        content_type="text/plain",
        reply_to="answers",
        application_properties={"region": "eu", "count": 5, "paid": True},
    )
    async with connected(broker) as factory:
        async with await factory.create_message_sender(path) as sender:
            await sender.send(sent)
        async with await factory.create_message_receiver(path) as receiver:
            (message,) = await receive_all(receiver, 1)
            await receiver.complete(message)
    for name in ("body", "message_id", "label", "correlation_id", "content_type", "reply_to", "application_properties"):
        assert getattr(message, name) == getattr(sent, name), name


# Receiving.


@pytest.mark.parametrize("prefetch", [0, 1, 50])
@asynchronous
async def test_messages_arrive_in_order_with_and_without_prefetch(broker: OtherBroker, prefetch: int) -> None:
    path = broker.queue()
    bodies = [b"%d" % number for number in range(20)]
    async with connected(broker) as factory:
        await send(factory, path, *bodies)
        async with await factory.create_message_receiver(path, prefetch_count=prefetch) as receiver:
            received = await receive_all(receiver, len(bodies))
            assert [message.body for message in received] == bodies
            await receiver.complete(received)
        await assert_holds(factory, path)


@asynchronous
async def test_receiver_waits_for_later_message(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory, await factory.create_message_receiver(path) as receiver:
        receiving = asyncio.create_task(receiver.receive(1, PATIENCE))
        await send(factory, path, b"later")
        (message,) = await receiving
        assert message.body == b"later"
        await receiver.complete(message)


@asynchronous
async def test_empty_queue_returns_no_message(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        async with await factory.create_message_receiver(path) as receiver:
            assert await receiver.receive(5, timedelta(milliseconds=200)) == []
            await send(factory, path, b"now")
            (message,) = await receiver.receive(1, PATIENCE)
            await receiver.complete(message)
        await assert_holds(factory, path)


@asynchronous
async def test_received_and_deleted_message_is_not_redelivered(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"once")
        async with await factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
            (message,) = await receive_all(receiver, 1)
            assert message.body == b"once"
        await assert_holds(factory, path)


@asynchronous
async def test_untaken_prefetched_messages_are_released(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"1", b"2", b"3")
        async with await factory.create_message_receiver(path, prefetch_count=3) as receiver:
            (message,) = await receive_all(receiver, 1)
            await receiver.complete(message)
        await assert_holds(factory, path, b"2", b"3")


# Settling.


@asynchronous
async def test_completed_message_is_removed(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"1", b"2", b"3")
        async with await factory.create_message_receiver(path) as receiver:
            first, second, third = await receive_all(receiver, 3)
            await receiver.complete(second)
            await receiver.complete([first, third])
        await assert_holds(factory, path)


@asynchronous
async def test_abandoned_message_is_redelivered(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"again")
        async with await factory.create_message_receiver(path) as receiver:
            (message,) = await receive_all(receiver, 1)
            await receiver.abandon(message)
            (message,) = await receive_all(receiver, 1)
            assert message.body == b"again"
            await receiver.complete(message)
        await assert_holds(factory, path)


@asynchronous
async def test_unsettled_message_is_redelivered(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"again")
        async with await factory.create_message_receiver(path) as receiver:
            await receive_all(receiver, 1)
    async with connected(broker) as factory:
        await assert_holds(factory, path, b"again")


@asynchronous
async def test_dead_lettered_message_is_rejected(broker: OtherBroker) -> None:
    path = broker.queue()
    async with connected(broker) as factory:
        await send(factory, path, b"no good")
        async with await factory.create_message_receiver(path) as receiver:
            (message,) = await receive_all(receiver, 1)
            await receiver.dead_letter(message, "Bad", "not good enough")
        await assert_holds(factory, path)


@asynchronous
async def test_proton_receives_each_outcome(proton: ProtonBroker) -> None:
    path = proton.queue()
    async with connected(proton) as factory:
        await send(factory, path, b"1")
        async with await factory.create_message_receiver(path) as receiver:
            (message,) = await receive_all(receiver, 1)
            await receiver.abandon(message)
            (message,) = await receive_all(receiver, 1)
            await receiver.complete(message)
            await send(factory, path, b"2")
            (message,) = await receive_all(receiver, 1)
            await receiver.dead_letter(message, "Bad", "not good enough")
    assert [settled.outcome for settled in proton.settled] == ["modified", "accepted", "rejected"]
    assert proton.settled[-1].condition is not None


# Outages.


@asynchronous
async def test_sender_and_receiver_survive_broker_restart(broker: OtherBroker) -> None:
    path = broker.queue()
    async with (
        connected(broker) as factory,
        await factory.create_message_sender(path) as sender,
        await factory.create_message_receiver(path) as receiver,
    ):
        await sender.send(BrokeredMessage(b"before"))
        (message,) = await receive_all(receiver, 1)
        await receiver.complete(message)
        await asyncio.to_thread(broker.stop)
        sending = asyncio.create_task(sender.send(BrokeredMessage(b"meanwhile")))
        receiving = asyncio.create_task(receive_until(receiver, b"meanwhile"))
        await asyncio.to_thread(broker.start)
        await sending
        assert await receiving <= {b"before", b"meanwhile"}
        await assert_holds(factory, path)


@asynchronous
async def test_confirmed_messages_survive_broker_restart(broker: OtherBroker) -> None:
    path = broker.lasting_queue
    async with connected(broker) as factory:
        await send(factory, path, b"kept")
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await assert_holds(factory, path, b"kept")


@asynchronous
async def test_iteration_survives_broker_restart(broker: OtherBroker) -> None:
    path = broker.queue()
    seen: set[bytes] = set()
    async with (
        connected(broker) as factory,
        await factory.create_message_sender(path) as sender,
        await factory.create_message_receiver(path, prefetch_count=10) as receiver,
    ):
        await sender.send(BrokeredMessage(b"before"))
        async for message in receiver:
            await receiver.complete(message)
            if not seen:
                await asyncio.to_thread(broker.stop)
                await asyncio.to_thread(broker.start)
                await sender.send(BrokeredMessage(b"after"))
            seen.add(message.body)
            if message.body == b"after":
                break
        assert seen == {b"before", b"after"}
