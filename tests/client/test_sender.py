"""Sending, with a real namespace and with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import pytest

from pairbus.client.errors import (
    ClosedError,
    EntityDisabledError,
    EntityNotFoundError,
    InternalServerError,
    InvalidMessageError,
    MessageNotFoundError,
    MessageSizeExceededError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BodyKind, BrokeredMessage
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.sender import MessageSender
from pairbus.client.settings import NO_RETRY
from pairbus.dialect.management import Response
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, RELEASED, Array, Delivery, Error, Modified, Rejected
from tests.client.amqp_peer import Peer, batches, run, scripted, settled, until
from tests.client.stage import factory_of, make_queue, play

SCHEDULE: Final = "com.microsoft:schedule-message"
CANCEL: Final = "com.microsoft:cancel-scheduled-message"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@asynccontextmanager
async def sending(peer: Peer | None = None, **settings: Any) -> AsyncIterator[tuple[Peer, MessageSender]]:
    async with scripted(peer=peer, **settings) as (chosen, factory):
        yield chosen, await factory.create_message_sender("orders")


def bodies(peer: Peer) -> list[bytes]:
    return [ReceivedMessage(payload).body for payload in peer.bodies]


def numbered(count: int) -> list[BrokeredMessage]:
    return [BrokeredMessage(f"{number}") for number in range(count)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# Order and pipelining


def test_concurrent_sends_keep_their_order() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            for _ in range(2):  # while the link opens, and when it is open
                peer.received.clear()
                await asyncio.gather(*(sender.send(message) for message in numbered(200)))
                assert bodies(peer) == numbers(200)

    run(scenario())


def test_sends_while_link_opens_keep_their_order() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            tasks = []
            for message in numbered(400):
                tasks.append(asyncio.create_task(sender.send(message)))
                await asyncio.sleep(0.0001)
            await asyncio.gather(*tasks)
            assert bodies(peer) == numbers(400)

    run(scenario())


def test_single_and_batch_sends_keep_their_order() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.max_message_size = 1_000
        async with sending(peer) as (_, sender):
            messages = [BrokeredMessage(b"%d" % number, label="x" * 300) for number in range(30)]
            for _ in range(2):
                peer.received.clear()
                tasks = []
                for start in range(0, 30, 6):
                    tasks.append(sender.send(messages[start]))
                    tasks.append(sender.send(messages[start + 1 : start + 6]))
                await asyncio.gather(*tasks)
                assert [ReceivedMessage(one).body for batch in batches(peer) for one in batch] == numbers(30)

    run(scenario())


def test_sends_are_pipelined_before_first_confirmation() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.outcome = lambda _delivery: None
            tasks = [asyncio.create_task(sender.send(message)) for message in numbered(300)]
            await settled()
            assert bodies(peer) == numbers(300)
            assert not any(task.done() for task in tasks)
            peer.settle(peer.received)
            await asyncio.gather(*tasks)

    run(scenario())


def test_a1_real_namespace_keeps_order(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            await asyncio.gather(*(sender.send(message) for message in numbered(1_000)))
            receiver = await factory.create_message_receiver(path, prefetch_count=500)
            found: list[ReceivedMessage] = []
            while len(found) < 1_000:
                found += await receiver.receive(500)
            assert [message.body for message in found] == numbers(1_000)
            assert [message.sequence_number for message in found] == [*range(1, 1_001)]

    play(scenario())


# Connecting


def test_sender_connects_at_first_send() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            await settled()
            assert peer.connections == []
            await sender.send(BrokeredMessage())
            await sender.send(BrokeredMessage())
            assert len(peer.attached) == 1

    run(scenario())


def test_lost_link_is_reopened() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            await sender.send(BrokeredMessage(b"1"))
            peer.detach(peer.sender, Error("amqp:link:detach-forced", "idle"))
            await settled()
            await sender.send(BrokeredMessage(b"2"))
            assert len(peer.connections) == 1
            peer.last.hang_up()
            await settled()
            await sender.send(BrokeredMessage(b"3"))
            assert len(peer.connections) == 2
            assert bodies(peer) == [b"1", b"2", b"3"]

    run(scenario())


def test_send_waits_for_unreachable_namespace() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.stop()
            task = asyncio.create_task(sender.send(BrokeredMessage(b"body")))
            await asyncio.sleep(20)
            assert not task.done()
            await peer.listen()
            await task
            assert bodies(peer) == [b"body"]

    run(scenario())


def test_send_to_unreachable_namespace_times_out() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.stop()
            with pytest.raises(MessagingTimeoutError, match="timed out after 60 s") as caught:
                await sender.send(BrokeredMessage(b"body"))
            assert isinstance(caught.value.__cause__, MessagingCommunicationError)
            assert caught.value.entity == "orders"
            assert asyncio.get_running_loop().time() <= 60

    run(scenario())


# Trying again


@pytest.mark.parametrize(
    "outcome",
    [
        RELEASED,
        Modified(delivery_failed=True),
        Rejected(Error("amqp:internal-error", "oops")),
        Rejected(Error("com.microsoft:timeout", "slow")),
        Rejected(Error("com.microsoft:operation-cancelled", "stopping")),
    ],
    ids=str,
)
def test_e2_transient_failure_is_resent_with_same_id(outcome: object) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            outcomes = iter([outcome, outcome, ACCEPTED] * 2)
            peer.outcome = lambda _delivery: next(outcomes)
            for _ in range(2):  # while the link opens, and when it is open
                peer.received.clear()
                message = BrokeredMessage(b"body", application_properties={"a": 1})
                await sender.send(message)
                assert len(peer.received) == 3
                assert set(peer.bodies) == {peer.bodies[0]}
                assert ReceivedMessage(peer.bodies[0]).message_id == message.message_id

    run(scenario())


def test_e2_message_in_flight_at_connection_loss_is_resent_with_same_id() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.outcome = lambda _delivery: None
            tasks = [asyncio.create_task(sender.send(message)) for message in numbered(5)]
            await settled()
            peer.outcome = lambda _delivery: ACCEPTED
            peer.last.hang_up()
            await asyncio.gather(*tasks)
            assert sorted(peer.bodies[:5]) == sorted(peer.bodies[5:])

    run(scenario())


def test_e2_duplicate_detection_stores_resent_message_once(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace, requires_duplicate_detection=True)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            message = BrokeredMessage(b"body", message_id="once")
            await sender.send(message)
            await sender.send(message)
            assert len(await (await factory.create_message_receiver(path)).peek(10)) == 1

    play(scenario())


def test_b2_busy_namespace_is_retried_after_ten_seconds() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with sending() as (peer, sender):
            times_s: list[float] = []

            def outcome(_delivery: Delivery) -> object:
                times_s.append(loop.time())
                return ACCEPTED if len(times_s) > 2 else Rejected(Error("com.microsoft:server-busy", "busy"))

            peer.outcome = outcome
            await sender.send(BrokeredMessage())
            assert times_s[1] - times_s[0] >= 10
            assert times_s[2] - times_s[1] >= 10

    run(scenario())


def test_b2_namespace_that_stays_busy_raises_server_busy() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.outcome = lambda _delivery: Rejected(Error("com.microsoft:server-busy", "busy"))
            with pytest.raises(ServerBusyError) as caught:
                await sender.send(BrokeredMessage())
            assert caught.value.condition == "com.microsoft:server-busy"
            assert asyncio.get_running_loop().time() <= 60

    run(scenario())


@pytest.mark.parametrize(
    ("condition", "kind"),
    [("amqp:not-found", EntityNotFoundError), ("com.microsoft:entity-disabled", EntityDisabledError)],
)
def test_permanent_failure_is_not_retried(condition: str, kind: type[MessagingError]) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.outcome = lambda _delivery: Rejected(Error(condition, "no"))
            for _ in range(2):
                peer.received.clear()
                with pytest.raises(kind):
                    await sender.send(BrokeredMessage())
                await asyncio.sleep(30)
                assert len(peer.received) == 1

    run(scenario())


def test_transient_link_refusal_is_retried() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.refusals.extend([Error("amqp:internal-error"), Error("com.microsoft:timeout")])
            await sender.send(BrokeredMessage(b"body"))
            assert bodies(peer) == [b"body"]

    run(scenario())


def test_first_failure_is_raised_without_retries() -> None:
    async def scenario() -> None:
        async with sending(retry_policy=NO_RETRY) as (peer, sender):
            peer.outcome = lambda _delivery: RELEASED
            for _ in range(2):
                with pytest.raises(InternalServerError, match="released"):
                    await sender.send(BrokeredMessage())
            assert len(peer.received) == 2

    run(scenario())


def test_send_never_exceeds_operation_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with sending(operation_timeout=timedelta(seconds=20), attempt_timeout=timedelta(seconds=8)) as (
            peer,
            sender,
        ):
            await sender.send(BrokeredMessage())
            peer.outcome = lambda _delivery: None
            started_s = loop.time()
            with pytest.raises(MessagingTimeoutError, match="timed out after 20 s") as caught:
                await sender.send(BrokeredMessage(b"body"))
            assert loop.time() - started_s == pytest.approx(20, abs=8)
            assert loop.time() - started_s <= 20.01
            assert caught.value.entity == "orders"

    run(scenario())


# Back pressure


def test_peer_that_does_not_read_fills_neither_transport_nor_next_receiver() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.credit = 10_000
        async with sending(peer) as (_, sender):
            await sender.send(BrokeredMessage(b"first"))
            link = sender._entity_link.ready
            assert link is not None
            peer.last.pause()
            tasks = [asyncio.create_task(sender.send(BrokeredMessage(bytes(100_000)))) for _ in range(1_000)]
            await settled()
            transport = link.connection._transport
            assert transport is not None
            assert transport.get_write_buffer_size() < 1_000_000
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            peer.last.resume()
            await sender.send(BrokeredMessage(b"last"))
            assert len(peer.received) < 30
            assert bodies(peer)[-1] == b"last"

    run(scenario())


# Scheduling


def later(hours: float = 1) -> datetime:
    return datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)


def test_a4_scheduled_message_is_not_received_before_its_time(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            at = later()
            message = BrokeredMessage(b"later", session_id=None, partition_key="p", label="l")
            number = await sender.schedule(message, at)
            assert await receiver.receive(1, timedelta()) == []
            [found] = await receiver.peek()
            assert (found.sequence_number, found.state) == (number, MessageState.SCHEDULED)
            assert (found.scheduled_enqueue_time, found.body, found.label) == (at, b"later", "l")
            assert found.partition_key == "p"
            assert message.scheduled_enqueue_time is None

    play(scenario())


def test_a4_schedule_in_the_past_means_now(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            await sender.schedule(BrokeredMessage(b"now"), later(-1))
            [found] = await (await factory.create_message_receiver(path)).receive()
            assert found.body == b"now"

    play(scenario())


def test_a4_several_messages_are_scheduled_and_cancelled_at_once(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            scheduled = await sender.schedule(numbered(5), later())
            assert len(set(scheduled)) == 5
            await sender.cancel_scheduled(scheduled[0])
            await sender.cancel_scheduled(scheduled[1:3])
            await sender.cancel_scheduled([])
            assert [message.sequence_number for message in await receiver.peek(10)] == scheduled[3:]
            assert await sender.schedule([], later()) == []

    play(scenario())


def test_a4_cancelling_unscheduled_message_raises(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            number = await sender.schedule(BrokeredMessage(), later())
            await sender.cancel_scheduled(number)
            for gone in (number, 10**9):
                with pytest.raises(MessageNotFoundError) as caught:
                    await sender.cancel_scheduled(gone)
                assert caught.value.entity == path

    play(scenario())


@pytest.mark.parametrize(
    "at",
    [datetime(2030, 1, 1), "tomorrow", 5, None, timedelta(hours=1)],  # noqa: DTZ001 (that is the point)
    ids=str,
)
def test_e3_invalid_scheduled_time_is_rejected(at: Any) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            if at is None:  # to be scheduled for no time is to be sent
                return
            with pytest.raises(InvalidMessageError):
                await sender.schedule(BrokeredMessage(), at)
            assert peer.connections == []

    run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"sequence-numbers": "x"},
        {"sequence-numbers": ["x"]},
        {"sequence-numbers": [None]},
        {"sequence-numbers": Array((1, 2, 3))},
    ],
    ids=str,
)
def test_e3_response_without_sequence_numbers_is_internal_server_error(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.answers[SCHEDULE] = lambda _request: Response(body=body)
            with pytest.raises(InternalServerError) as caught:
                await sender.schedule(BrokeredMessage(), later())
            assert caught.value.entity == "orders"

    run(scenario())


def test_scheduling_is_retried_after_transient_error() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            answers = iter([Response(status=500), None, b"garbage", Response(body={"sequence-numbers": Array((7,))})])
            peer.answers[SCHEDULE] = lambda _request: next(answers)
            message = BrokeredMessage(b"body")
            task = asyncio.create_task(sender.schedule(message, later()))
            await until(lambda: len(peer.requests) == 2)
            await asyncio.sleep(1)
            peer.last.beat()
            assert await task == 7
            ids = {request.body["messages"][0]["message-id"] for request in peer.requests}
            assert ids == {message.message_id}

    run(scenario())


def test_request_beyond_size_limit_is_rejected() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.max_message_size = 1_000
        async with sending(peer) as (_, sender):
            with pytest.raises(MessageSizeExceededError) as caught:
                await sender.schedule(BrokeredMessage(bytes(1_000)), later())
            assert caught.value.entity == "orders"

    run(scenario())


@pytest.mark.parametrize("numbers", [2**70, [1, 2**70], ["x"], "x"], ids=str)
def test_e3_invalid_sequence_number_is_rejected(namespace: RunningNamespace, numbers: Any) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            with pytest.raises((MessagingError, TypeError)) as caught:
                await sender.cancel_scheduled(numbers)
            assert not isinstance(caught.value, MessagingTimeoutError)

    play(scenario())


@pytest.mark.parametrize("wrong", ["1", ["1"], [1, "2"], 1.0, None, True], ids=repr)
def test_e4_invalid_sequence_number_is_rejected_before_connecting(wrong: Any) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            queue = await factory.create_queue_client("orders")
            for operation in (queue.cancel_scheduled, queue.receive_deferred):
                with pytest.raises(TypeError, match="sequence_number must be int"):
                    await operation(wrong)
            assert peer.connections == []

    run(scenario())


# Every property, and every body


def test_a9_every_property_arrives(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            at = datetime.now(UTC).replace(microsecond=5_000) - timedelta(hours=1)
            sent = BrokeredMessage(
                b"body",
                message_id="m",
                partition_key="p",
                via_partition_key="v",
                label="l",
                content_type="text/plain",
                correlation_id="c",
                to="t",
                reply_to="r",
                reply_to_session_id="rs",
                time_to_live=timedelta(days=100),
                scheduled_enqueue_time=at,
                application_properties={
                    "at": at,
                    "n": 1,
                    "none": None,
                    "id": UUID(int=5),
                    "b": b"\0",
                    "f": 0.5,
                    "t": "é",
                },
            )
            before = datetime.now(UTC) - timedelta(seconds=5)
            await sender.send(sent)
            [found] = await receiver.receive()
            for name in {*BrokeredMessage.__slots__} - {"amqp"}:
                assert getattr(found, name) == getattr(sent, name), name
            assert (found.sequence_number, found.enqueued_sequence_number, found.delivery_count) == (1, 1, 0)
            assert before < found.enqueued_time < datetime.now(UTC) + timedelta(seconds=5)
            assert found.expires_at == found.enqueued_time + timedelta(days=100)
            assert found.locked_until is not None
            assert found.lock_token is not None
            assert found.state is MessageState.ACTIVE

    play(scenario())


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"\0\xff", BodyKind.DATA, b"\0\xff"),
        ("é", BodyKind.DATA, "é".encode()),
        ({"a": [1, None]}, BodyKind.DATA, b'{"a":[1,null]}'),
        (b"", BodyKind.DATA, b""),
        ("text", BodyKind.VALUE, "text"),
        ({"a": [1, None]}, BodyKind.VALUE, {"a": [1, None]}),
        (None, BodyKind.VALUE, None),
        ([1, "two", b"3"], BodyKind.SEQUENCE, [1, "two", b"3"]),
        ([], BodyKind.SEQUENCE, []),
    ],
    ids=str,
)
def test_a9_bodies_of_every_kind_arrive(namespace: RunningNamespace, body: Any, kind: BodyKind, expected: Any) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(path)
            receiver = await factory.create_message_receiver(path)
            await sender.send(BrokeredMessage(body, body_kind=kind))
            [found] = await receiver.receive()
            assert (found.body, found.body_kind) == (expected, kind)
            await sender.send(found)
            [again] = await receiver.receive()
            assert (again.body, again.body_kind) == (expected, kind)

    play(scenario())


# What a real namespace refuses


def test_a1_missing_queue_raises_entity_not_found(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender("nowhere")
            with pytest.raises(EntityNotFoundError, match="nowhere") as caught:
                await sender.send(BrokeredMessage())
            assert caught.value.entity == "nowhere"
            assert caught.value.condition == "amqp:not-found"

    play(scenario())


def test_a8_wrong_key_raises_unauthorized(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        path = make_queue(namespace)
        wrong = namespace.connection_string.replace(namespace.key, "d3Jvbmc=")
        async with MessagingFactory.from_connection_string(wrong) as factory:
            sender = await factory.create_message_sender(path)
            with pytest.raises(UnauthorizedError) as caught:
                await sender.send(BrokeredMessage())
            assert caught.value.entity == path
            assert caught.value.condition == "amqp:unauthorized-access"
            assert "wrong" not in str(caught.value)

    play(scenario())


# Its end


def test_closed_sender_rejects_sends() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            await sender.send(BrokeredMessage())
            await sender.close()
            await sender.close()
            assert sender.is_closed
            assert "closed" in repr(sender)
            for operation in (
                sender.send(BrokeredMessage()),
                sender.send([BrokeredMessage()]),
                sender.send_batch([BrokeredMessage()]),
                sender.schedule(BrokeredMessage(), later()),
                sender.cancel_scheduled(1),
            ):
                with pytest.raises(ClosedError, match="MessageSender has been closed") as caught:
                    await operation
                assert caught.value.entity == "orders"
            assert len(peer.received) == 1
            assert peer.all_links() == []

    run(scenario())


@pytest.mark.parametrize("settings", [{}, {"retry_policy": NO_RETRY}], ids=["with retries", "without"])
def test_sends_in_flight_at_close_raise_closed_error(settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with sending(**settings) as (peer, sender):
            peer.outcome = lambda _delivery: None
            tasks = [asyncio.create_task(sender.send(message)) for message in numbered(3)]
            tasks.append(asyncio.create_task(sender.send(numbered(3))))
            await settled()
            await sender.close()
            for task in tasks:
                with pytest.raises(ClosedError):
                    await task

    run(scenario())


def test_sends_waiting_for_link_at_close_raise_closed_error() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            peer.attaches = False
            tasks = [asyncio.create_task(sender.send(message)) for message in numbered(3)]
            await settled()
            await sender.close()
            peer.attaches = True
            for task in tasks:
                with pytest.raises(ClosedError):
                    await task
            await settled()
            assert peer.received == []
            assert peer.all_links() == []

    run(scenario())


def test_sender_closes_at_end_of_with_block() -> None:
    async def scenario() -> None:
        async with sending() as (_, sender):
            async with sender as same:
                assert same is sender
                await sender.send(BrokeredMessage())
            assert sender.is_closed

    run(scenario())


def test_cancelled_send_does_not_cancel_opening_for_others() -> None:
    async def scenario() -> None:
        async with sending() as (peer, sender):
            first, second = (asyncio.create_task(sender.send(message)) for message in numbered(2))
            await asyncio.sleep(0)
            first.cancel()
            await second
            with pytest.raises(asyncio.CancelledError):
                await first
            assert bodies(peer) == [b"1"]

    run(scenario())
