"""Messages that are sent together: as few batches as they fit into, each of which arrives whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from random import Random
from typing import Any, Final

import pytest

from pairbus.client.errors import (
    InvalidMessageError,
    MessageSizeExceededError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    UnauthorizedError,
)
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.received_message import ReceivedMessage
from pairbus.client.sender import MessageSender
from pairbus.client.settings import NO_RETRY
from pairbus.dialect.sent import BATCH_FORMAT
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, RELEASED, Delivery, Error, Rejected
from tests.client.amqp_peer import Peer, batches, run, scripted, settled
from tests.client.stage import factory_of, make_queue, play

ENVELOPE: Final = 8
"""The overhead of a message in a batch, in bytes."""
LIMIT: Final = 2_000


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@asynccontextmanager
async def sending(limit: int | None = LIMIT, **options: Any) -> AsyncIterator[tuple[Peer, MessageSender]]:
    peer = Peer()
    peer.max_message_size = limit
    async with scripted(peer=peer, **options) as (_, factory):
        yield peer, await factory.create_message_sender("orders")


def of_size(size: int, message_id: int = 0) -> BrokeredMessage:
    """A message whose bytes are so many."""
    bare = len(encode_brokered(BrokeredMessage(bytes(300), message_id=f"{message_id:06d}")))
    message = BrokeredMessage(bytes(300 + size - bare), message_id=f"{message_id:06d}")
    assert len(encode_brokered(message)) == size
    return message


def test_several_messages_are_one_batch() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            messages = [BrokeredMessage(f"{number}") for number in range(10)]
            await sender.send(messages)
            assert batches(peer) == [[encode_brokered(message) for message in messages]]
            assert peer.received[0].message_format == BATCH_FORMAT

    run(scenario())


def test_single_message_is_not_batched_and_empty_batch_is_not_sent() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            await sender.send([])
            await sender.send(iter([]))
            message = BrokeredMessage(b"body")
            await sender.send([message])
            assert peer.bodies == [encode_brokered(message)]
            assert peer.received[0].message_format == 0

    run(scenario())


@pytest.mark.parametrize(("extra", "transfers"), [(0, 1), (1, 2)])
def test_a7_batch_fills_up_to_limit(extra: int, transfers: int) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            each = LIMIT // 4 - ENVELOPE
            messages = [of_size(each, number) for number in range(3)]
            messages.append(of_size(each + extra, 3))
            await sender.send(messages)
            assert len(batches(peer)) == transfers
            assert [*chain(*batches(peer))] == [encode_brokered(message) for message in messages]
            assert all(len(body) <= LIMIT for body in peer.bodies)

    run(scenario())


@pytest.mark.parametrize(("extra", "is_taken"), [(0, True), (1, False)])
def test_a7_single_message_may_reach_size_limit(extra: int, is_taken: bool) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            message = of_size(LIMIT + extra)
            if is_taken:
                await sender.send(message)
                await sender.send([message])
            else:
                for given_message in (message, [message], message):  # before the link is open, and after
                    with pytest.raises(MessageSizeExceededError, match=r"2,001 bytes .* limit is 2,000"):
                        await sender.send(given_message)
            assert len(peer.received) == (2 if is_taken else 0)

    run(scenario())


def test_a7_oversized_message_rejects_whole_batch() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            messages = [of_size(LIMIT // 2, number) for number in range(20)]
            messages.append(of_size(LIMIT + 1, 20))
            with pytest.raises(MessageSizeExceededError) as caught:
                await sender.send(messages)
            assert caught.value.entity == "orders"
            await settled()
            assert peer.received == []

    run(scenario())


def test_e3_invalid_message_rejects_whole_batch() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            for wrong in (BrokeredMessage(object()), "text", None):
                with pytest.raises(InvalidMessageError):
                    await sender.send([BrokeredMessage(b"good"), wrong])  # type: ignore[list-item]
            await settled()
            assert peer.connections == []

    run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a7_messages_of_any_size_are_packed_into_full_batches_in_order(seed: int) -> None:
    async def scenario() -> None:
        random = Random(seed)  # noqa: S311 (the same each time)
        async with sending() as (peer, sender):
            for _ in range(20):
                peer.received.clear()
                sizes = [random.choice((400, 500, 900, LIMIT, random.randint(400, LIMIT))) for _ in range(30)]
                messages = [of_size(size, number) for number, size in enumerate(sizes)]
                await sender.send(messages)
                found = batches(peer)
                assert [*chain(*found)] == [encode_brokered(message) for message in messages]
                weights = [sum(len(payload) + ENVELOPE for payload in batch) for batch in found]
                assert all(weight <= LIMIT or len(batch) == 1 for batch, weight in zip(found, weights, strict=True))
                for weight, following in zip(weights, found[1:], strict=False):
                    assert weight + len(following[0]) + ENVELOPE > LIMIT

    run(scenario())


def test_e1_only_unconfirmed_messages_are_resent() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            messages = [of_size(LIMIT // 2, number) for number in range(6)]
            refused = {3}

            def outcome(_delivery: Delivery) -> object:
                return RELEASED if len(peer.received) in refused else ACCEPTED

            peer.outcome = outcome
            await sender.send(messages)
            assert len(peer.received) == 7
            assert peer.bodies[6] == peer.bodies[2]

    run(scenario())


def test_e1_only_unconfirmed_messages_are_resent_after_lost_connection() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            messages = [of_size(LIMIT // 2, number) for number in range(6)]
            peer.outcome = lambda _delivery: ACCEPTED if len(peer.received) <= 2 else None
            task = asyncio.create_task(sender.send(messages))
            await settled()
            peer.outcome = lambda _delivery: ACCEPTED
            peer.last.hang_up()
            await task
            encoded = [encode_brokered(message) for message in messages]
            assert peer.bodies == encoded + encoded[2:]

    run(scenario())


def test_permanent_error_takes_precedence_over_transient() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            outcomes = iter(
                [RELEASED, Rejected(Error("amqp:unauthorized-access", "no")), ACCEPTED, RELEASED, RELEASED, RELEASED]
            )
            peer.outcome = lambda _delivery: next(outcomes)
            with pytest.raises(UnauthorizedError):
                await sender.send([of_size(LIMIT // 2, number) for number in range(3)])
            await settled()
            assert len(peer.received) == 3

    run(scenario())


def test_cancelled_send_leaves_no_pending_futures() -> None:
    async def scenario() -> None:
        peer_credit = 2
        peer = Peer()
        peer.max_message_size = LIMIT
        peer.credit = peer_credit
        peer.replenishes = False
        async with scripted(peer=peer) as (_, factory):
            peer.outcome = lambda _delivery: None
            sender = await factory.create_message_sender("orders")
            task = asyncio.create_task(sender.send([of_size(LIMIT // 2, number) for number in range(10)]))
            await settled()
            assert len(peer.received) == peer_credit
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            peer.outcome = lambda _delivery: ACCEPTED
            peer.settle(peer.received)
            peer.sender.flow(100)
            peer.flush()
            await sender.send(BrokeredMessage(b"the next one"))
            assert len(peer.received) == peer_credit + 1

    run(scenario())


# One batch or none


def test_whole_batch_is_sent_as_one_or_not_at_all() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            fitting = [of_size(LIMIT // 4 - ENVELOPE, number) for number in range(4)]
            await sender.send_batch(fitting)
            assert batches(peer) == [[encode_brokered(message) for message in fitting]]
            with pytest.raises(MessageSizeExceededError, match=r"5 messages do not fit .* 2,000 bytes"):
                await sender.send_batch([*fitting, of_size(400, 5)])
            await sender.send_batch([])
            assert len(peer.received) == 1

    run(scenario())


# With a real namespace


def test_a7_batch_at_limit_of_namespace_is_accepted(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace, retry_policy=NO_RETRY) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            count = 600
            await sender.send([of_size(1_000, number) for number in range(count)])
            found: list[ReceivedMessage] = []
            while len(found) < count:
                found += await receiver.receive(1_000)
            assert [message.message_id for message in found] == [f"{number:06d}" for number in range(count)]

    play(scenario())


def test_a7_oversized_message_is_rejected_by_client_and_namespace(
    namespace: RunningNamespace,
) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            await sender.send(of_size(256 * 1_024))
            with pytest.raises(MessageSizeExceededError, match="262,145 bytes"):
                await sender.send(of_size(256 * 1_024 + 1))

    play(scenario())


def test_a6_batch_is_atomic(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace, requires_session=True)
        async with factory_of(namespace, retry_policy=NO_RETRY) as factory:
            sender = await factory.create_message_sender(path)
            with pytest.raises(MessagingError) as caught:
                await sender.send([BrokeredMessage(b"1", session_id="a"), BrokeredMessage(b"without a session")])
            assert not isinstance(caught.value, MessagingTimeoutError | QuotaExceededError)
            assert caught.value.entity == path
            receiver = await factory.create_queue_client(path)
            assert await receiver.peek(10) == []

    play(scenario())


def test_e2_slow_peer_is_not_sent_everything_again() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.outcome = lambda _delivery: None
            task = asyncio.create_task(sender.send([of_size(LIMIT // 2, number) for number in range(40)]))
            confirmed = 0
            while not task.done():
                await asyncio.sleep(1)
                peer.settle(peer.received[confirmed : confirmed + 1])
                confirmed += 1
            await task
            assert len(peer.received) == 40

    run(scenario())
