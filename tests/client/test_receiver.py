"""Receiving and settling, with a real namespace and with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final, Self

import pytest

from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    FactoryFaultedError,
    InternalServerError,
    InvalidMessageError,
    InvalidRequestError,
    MessageLockLostError,
    MessageNotFoundError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.message import BrokeredMessage
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.settings import NO_RETRY, ReceiveMode, RetryPolicy
from pairbus.dialect.management import Request, Response
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import (
    ACCEPTED,
    RECEIVER,
    RELEASED,
    Array,
    CreditGranted,
    DispositionReceived,
    Error,
    Modified,
    ReceiverSettleMode,
    Rejected,
    Timestamp,
)
from tests.client.amqp_peer import SECOND, Peer, message_bytes, run, scripted, settled, until
from tests.client.stage import factory_of, make_queue, make_topic, play

NO_WAIT: Final = timedelta()
SHORT: Final = timedelta(milliseconds=100)
UPDATE: Final = "com.microsoft:update-disposition"
RENEW: Final = "com.microsoft:renew-lock"


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace() as namespace:
        yield namespace


@asynccontextmanager
async def receiving(
    receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK,
    *,
    peer: Peer | None = None,
    prefetch_count: int = 0,
    **settings: Any,
) -> AsyncIterator[tuple[Peer, MessageReceiver]]:
    async with scripted(peer=peer, **settings) as (chosen, factory):
        yield chosen, await factory.create_message_receiver("orders", receive_mode, prefetch_count=prefetch_count)


def stock(peer: Peer, count: int) -> None:
    peer.stock.extend(message_bytes(b"%d" % number, sequence_number=number + 1) for number in range(count))


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


def reported(peer: Peer) -> list[tuple[int, object]]:
    """Return the dispositions of the client over links, and the number of deliveries of each."""
    return [(len(event.deliveries), event.state) for event in peer.seen(DispositionReceived)]


def tokens(request: Request) -> list[Any]:
    return list(request.body["lock-tokens"].items)


class Queue:
    """A queue of a real namespace with a sender and as many receivers as are wanted."""

    def __init__(self, namespace: RunningNamespace, **description: Any) -> None:
        self.path = make_queue(namespace, **description)
        self.factory = factory_of(namespace)
        self.namespace = namespace

    async def __aenter__(self) -> Self:
        self._sender = await self.factory.create_message_sender(self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.factory.close()

    async def send(self, *texts: str) -> None:
        await self._sender.send([BrokeredMessage(text) for text in texts])

    async def receiver(self, receive_mode: ReceiveMode = ReceiveMode.PEEK_LOCK, **options: Any) -> MessageReceiver:
        return await self.factory.create_message_receiver(self.path, receive_mode, **options)

    async def dead_letters(self) -> MessageReceiver:
        return await self.factory.create_message_receiver(f"{self.path}/$DeadLetterQueue")

    async def count(self) -> int:
        return len(await (await self.receiver()).peek(100))


Scenario = Callable[[Queue], Awaitable[None]]


def with_queue(namespace: RunningNamespace, scenario: Scenario, **description: Any) -> None:
    async def whole() -> None:
        async with Queue(namespace, **description) as queue:
            await scenario(queue)

    play(whole())


# Receiving


def test_a3_receive_returns_up_to_maximum(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2", "3")
        assert bodies(await receiver.receive(2)) == [b"1", b"2"]
        assert bodies(await receiver.receive(10)) == [b"3"]

    with_queue(namespace, scenario)


def test_a3_receive_without_wait_returns_available_messages(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        assert await receiver.receive(5, NO_WAIT) == []
        await queue.send("1", "2")
        assert bodies(await receiver.receive(5, NO_WAIT)) == [b"1", b"2"]
        with pytest.raises(ValueError, match="must be >= 0"):
            await receiver.receive(5, timedelta(seconds=-1))

    with_queue(namespace, scenario)


def test_a3_waiting_receive_gets_message_on_arrival(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        task = asyncio.create_task(receiver.receive())
        await receiver.peek()
        await queue.send("late")
        assert bodies(await task) == [b"late"]

    with_queue(namespace, scenario)


def test_a3_received_and_deleted_message_is_removed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver(ReceiveMode.RECEIVE_AND_DELETE)
        await queue.send("1", "2")
        [message] = await receiver.receive()
        assert message.lock_token is None or message.locked_until is None
        assert await queue.count() == 1
        for operation in (
            receiver.complete(message),
            receiver.abandon(message),
            receiver.defer(message),
            receiver.dead_letter(message),
            receiver.renew_lock(message),
        ):
            with pytest.raises(InvalidRequestError, match="receive-and-delete"):
                await operation

    with_queue(namespace, scenario)


def test_a3_message_of_cancelled_receive_goes_to_next(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        first, second = await queue.receiver(), await queue.receiver()
        for _ in range(20):
            task = asyncio.create_task(first.receive(10))
            await first.peek()  # by then it has asked
            sending = asyncio.create_task(queue.send("1", "2", "3"))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await sending
            taken = [] if task.cancelled() else task.result()
            while len(taken) < 3:
                found = await second.receive(10, SECOND)
                assert found, "it stays locked"
                taken += found
            await second.complete(taken)
        assert await queue.count() == 0

    with_queue(namespace, scenario, max_delivery_count=100)


def test_concurrent_receives_share_messages_without_loss(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        tasks = [asyncio.create_task(receiver.receive(2)) for _ in range(5)]
        await queue.send(*(str(number) for number in range(10)))
        results = await asyncio.gather(*tasks)
        found = sorted(int(body) for messages in results for body in bodies(messages))
        while len(found) < 10:
            found += [int(body) for body in bodies(await receiver.receive(10))]
        assert sorted(found) == [*range(10)]

    with_queue(namespace, scenario)


def test_queued_receive_keeps_its_own_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving() as (_, receiver):
            first = asyncio.create_task(receiver.receive(1, 30 * SECOND))
            await settled()
            started_s = loop.time()
            assert await receiver.receive(1, 5 * SECOND) == []
            assert loop.time() - started_s == pytest.approx(5, abs=0.1)
            assert await receiver.receive(1, NO_WAIT) == []
            assert await first == []

    run(scenario())


def test_repeated_receive_keeps_its_own_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving() as (_, receiver):

            async def twice() -> float:
                await receiver.receive(1, 5 * SECOND)
                started_s = loop.time()  # the next one has its turn, and does not know it yet
                assert await receiver.receive(1, SECOND) == []
                return loop.time() - started_s

            first = asyncio.create_task(twice())
            await settled()
            second = asyncio.create_task(receiver.receive(1, 30 * SECOND))
            assert await first == pytest.approx(1, abs=0.1)
            assert await second == []

    run(scenario())


def test_receive_waits_for_operation_timeout_by_default() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving(operation_timeout=timedelta(seconds=40)) as (_, receiver):
            assert await receiver.receive() == []
            assert loop.time() == pytest.approx(40, abs=0.2)

    run(scenario())


@pytest.mark.parametrize("count", [0, -1])
def test_e3_message_count_below_one_is_rejected(count: int) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            with pytest.raises(ValueError, match="max_message_count must be >= 1"):
                await receiver.receive(count)
            with pytest.raises(ValueError, match="max_message_count must be >= 1"):
                await receiver.peek(count)
            assert peer.connections == []

    run(scenario())


def test_message_count_beyond_credit_range_is_accepted() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 3)
            assert len(await receiver.receive(2**40, SECOND)) == 3

    run(scenario())


# Prefetching


def test_prefetch_count_is_sent_as_credit(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver, other = await queue.receiver(prefetch_count=3), await queue.receiver()
        assert await receiver.receive(1, NO_WAIT) == []
        await queue.send("1", "2", "3", "4", "5")
        assert bodies(await other.receive(5)) == [b"4", b"5"]
        found: list[ReceivedMessage] = []
        while len(found) < 3:
            found += await receiver.receive(5)
        assert bodies(found) == [b"1", b"2", b"3"]

    with_queue(namespace, scenario)


def test_a3_prefetched_messages_are_released_when_receiver_is_closed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        await queue.send("1", "2", "3")
        receiver = await queue.receiver(prefetch_count=10)
        [first] = await receiver.receive()
        await receiver.complete(first)
        await receiver.close()
        found = await (await queue.receiver()).receive(10, SECOND)
        assert bodies(found) == [b"2", b"3"]

    with_queue(namespace, scenario)


def test_prefetch_is_replenished_as_messages_are_returned() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=10) as (peer, receiver):
            stock(peer, 100)
            found: list[ReceivedMessage] = []
            while len(found) < 100:
                found += await receiver.receive(1)
            assert [message.sequence_number for message in found] == [*range(1, 101)]
            given = [event.credit for event in peer.seen(CreditGranted) if event.link is peer.receiver]
            assert len(given) < 40
            assert max(given) == 10

    run(scenario())


@pytest.mark.parametrize("prefetch_count", [-1, 2**31])
def test_e3_invalid_prefetch_count_is_rejected(prefetch_count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            for make in (factory.create_message_receiver, factory.create_queue_client):
                with pytest.raises(ValueError, match="prefetch_count"):
                    await make("orders", prefetch_count=prefetch_count)
            with pytest.raises(ValueError, match="prefetch_count"):
                await factory.accept_message_session("orders", prefetch_count=prefetch_count)

    run(scenario())


# Settling with a real namespace


def test_a3_completed_message_is_removed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2", "3")
        messages = await receiver.receive(3)
        await receiver.complete(messages[0])
        await receiver.complete(iter(messages[1:]))
        assert all(message.is_settled for message in messages)
        assert await queue.count() == 0
        await receiver.complete([])

    with_queue(namespace, scenario)


def test_a3_abandoned_message_is_redelivered_with_changes(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        at = datetime.now(UTC).replace(microsecond=0)
        await receiver.abandon(message, {"tries": 1, "at": at})
        [again] = await receiver.receive()
        assert (again.body, again.delivery_count) == (b"1", 1)
        assert again.application_properties == {"tries": 1, "at": at}
        await receiver.abandon(again)
        [third] = await receiver.receive()
        assert third.delivery_count == 2

    with_queue(namespace, scenario)


def test_a3_deferred_message_is_received_only_by_number(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2")
        messages = await receiver.receive(2)
        await receiver.defer(messages, {"why": "later"})
        assert await receiver.receive(5, NO_WAIT) == []
        assert [message.state for message in await receiver.peek(5)] == [MessageState.DEFERRED] * 2
        numbers = [message.sequence_number for message in messages]
        [first] = await receiver.receive_deferred(numbers[0])
        assert (first.body, first.application_properties) == (b"1", {"why": "later"})
        assert first.lock_token is not None
        assert first.locked_until is not None
        assert await receiver.renew_lock(first) >= first.locked_until
        await receiver.complete(first)
        [second] = await receiver.receive_deferred([numbers[1]])
        await receiver.dead_letter(second, "reason")
        assert await queue.count() == 0
        assert await receiver.receive_deferred([]) == []
        with pytest.raises(MessageNotFoundError) as caught:
            await receiver.receive_deferred(numbers[0])
        assert caught.value.entity == queue.path

    with_queue(namespace, scenario)


def test_a3_deferred_message_supports_receive_and_delete(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        await receiver.defer(message)
        deleting = await queue.receiver(ReceiveMode.RECEIVE_AND_DELETE)
        [found] = await deleting.receive_deferred(message.sequence_number)
        assert (found.body, found.lock_token) == (b"1", None)
        assert await queue.count() == 0

    with_queue(namespace, scenario)


def test_a3_dead_lettered_message_is_in_dead_letter_queue_with_reason(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2")
        first, second = await receiver.receive(2)
        await receiver.dead_letter(first, "the reason", "the description", {"a": 1})
        await receiver.dead_letter(second)
        dead_letters = await queue.dead_letters()
        one, two = sorted(await dead_letters.receive(2), key=lambda message: bytes(message.body))
        assert (one.dead_letter_reason, one.dead_letter_error_description) == ("the reason", "the description")
        assert one.application_properties["a"] == 1
        assert (two.dead_letter_reason, two.dead_letter_error_description) == (None, None)
        await dead_letters.complete([one, two])

    with_queue(namespace, scenario)


def test_a3_locks_are_renewed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        before = message.locked_until
        assert before is not None
        until_when = await receiver.renew_lock(message)
        assert message.locked_until == until_when >= before

    with_queue(namespace, scenario)


def test_a3_settled_message_cannot_be_settled_again(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        await receiver.complete(message)
        for operation in (receiver.complete(message), receiver.abandon([message]), receiver.renew_lock(message)):
            with pytest.raises(MessageLockLostError, match="is already settled"):
                await operation

    with_queue(namespace, scenario)


def test_a3_concurrent_settlement_settles_once(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2")
        first, second = await receiver.receive(2)
        results = await asyncio.gather(receiver.complete(first), receiver.complete(first), return_exceptions=True)
        assert results[0] is None
        assert isinstance(results[1], MessageLockLostError)
        await receiver.complete([second, second])
        assert await queue.count() == 0

    with_queue(namespace, scenario)


def test_a3_another_receiver_of_the_same_entity_can_settle(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver, other = await queue.receiver(), await queue.receiver()
        await queue.send("1", "2")
        messages = await receiver.receive(2)
        await other.complete(messages[0])
        assert await other.receive(1, NO_WAIT) == []
        await other.abandon(messages[1], {"a": 1})
        [again] = await other.receive()
        assert (again.body, again.application_properties) == (b"2", {"a": 1})

    with_queue(namespace, scenario)


def test_a3_every_settlement_works_after_the_connection_was_lost(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("complete", "abandon", "defer", "dead letter", "renew")
        one, two, three, four, five = await receiver.receive(5)
        await asyncio.to_thread(queue.namespace.kill_connections)
        await receiver.complete(one)
        await receiver.abandon(two, {"a": 1})
        await receiver.defer(three, {"b": 2})
        await receiver.dead_letter(four, "reason", "description", {"c": 3})
        await receiver.renew_lock(five)
        await receiver.complete(five)
        [again] = await receiver.receive()
        assert (again.body, again.application_properties) == (b"abandon", {"a": 1})
        await receiver.complete(again)
        [deferred] = await receiver.receive_deferred(three.sequence_number)
        assert deferred.application_properties == {"b": 2}
        await receiver.complete(deferred)
        [dead] = await (await queue.dead_letters()).receive()
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("reason", "description")
        assert dead.application_properties["c"] == 3
        assert await queue.count() == 0

    with_queue(namespace, scenario)


def test_a3_lost_lock_raises(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver, other = await queue.receiver(), await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        await other.abandon(message)
        message.is_settled = False
        with pytest.raises(MessageLockLostError) as caught:
            await receiver.complete(message)
        assert caught.value.entity == queue.path
        assert not message.is_settled
        with pytest.raises(MessageLockLostError):
            await receiver.renew_lock(message)

    with_queue(namespace, scenario)


@pytest.mark.parametrize("wrong", [BrokeredMessage(), "text", None])
def test_e3_unreceived_message_cannot_be_settled(wrong: Any) -> None:
    async def scenario() -> None:
        async with receiving() as (_, receiver):
            for operation in (receiver.complete([wrong]), receiver.renew_lock(wrong)):
                with pytest.raises(InvalidRequestError, match="was not received"):
                    await operation

    run(scenario())


def test_e4_peeked_message_cannot_be_settled(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.peek()
        for operation in (receiver.complete(message), receiver.renew_lock(message)):
            with pytest.raises(MessagingError, match=r"no lock|not locked|peek") as caught:
                await operation
            assert caught.value.entity == queue.path

    with_queue(namespace, scenario)


@pytest.mark.parametrize("wrong", [BrokeredMessage("text"), "text", b"text", 5, None])
def test_e4_settling_sent_message_raises(wrong: Any) -> None:
    async def scenario() -> None:
        async with receiving() as (_, receiver):
            for operation in (receiver.complete(wrong), receiver.abandon(wrong)):
                with pytest.raises(InvalidRequestError) as caught:
                    await operation
                assert f"{wrong!r} was not received" in str(caught.value)

    run(scenario())


def test_a3_message_from_another_process_can_be_settled(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2")
        first, second = await receiver.receive(2)
        pickled = pickle.loads(pickle.dumps(first))  # noqa: S301 (our own)
        for message, twin in ((first, pickled), (second, copy.deepcopy(second))):
            assert (twin.body, twin.message_id) == (message.body, message.message_id)
            assert twin.lock_token == message.lock_token
            await receiver.complete(twin)
        assert await queue.count() == 0

    with_queue(namespace, scenario)


def test_a6_copy_of_dead_letter_is_not_a_duplicate(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        await queue.send("1")
        receiver, dead_letters = await queue.receiver(), await queue.dead_letters()
        [message] = await receiver.receive()
        await receiver.dead_letter(message, "reason", "description")
        [dead] = await dead_letters.receive()
        assert dead.dead_letter_reason == "reason"
        async with await queue.factory.create_message_sender(queue.path) as sender:
            await sender.send(dead.copy())
        await dead_letters.complete(dead)
        [again] = await receiver.receive(1, SECOND)
        assert again.body == b"1"
        assert again.message_id != dead.message_id
        assert (again.dead_letter_reason, again.dead_letter_error_description) == (None, None)

    with_queue(namespace, scenario, requires_duplicate_detection=True)


# Settling with a peer that listens closely


def test_a3_settlements_of_one_turn_are_sent_as_ranges() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 60)
            messages = await receiver.receive(60)
            await asyncio.gather(*(receiver.complete(message) for message in messages[:20]))
            await receiver.complete(messages[20:40])
            await receiver.abandon(messages[40:])
            counts = reported(peer)
            assert counts[0] == (20, ACCEPTED)
            assert (20, ACCEPTED) in counts[1:]
            assert counts[-1][0] == 20
            assert isinstance(counts[-1][1], Modified)
            assert len(counts) == 3

    run(scenario())


def test_a3_settlements_use_terms_of_service() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 4)
            one, two, three, four = await receiver.receive(4)
            await receiver.complete(one)
            await receiver.abandon(two, {"a": 1})
            await receiver.defer(three)
            await receiver.dead_letter(four, "r", "d", {"b": 2})
            assert [state for _, state in reported(peer)] == [
                ACCEPTED,
                Modified(delivery_failed=True, undeliverable_here=False, message_annotations={"a": 1}),
                Modified(delivery_failed=True, undeliverable_here=True),
                Rejected(
                    Error(
                        "com.microsoft:dead-letter",
                        None,
                        {"b": 2, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"},
                    )
                ),
            ]

    run(scenario())


@pytest.mark.parametrize(
    ("settle", "status", "details"),
    [
        (lambda receiver, message: receiver.complete(message), "completed", {}),
        (
            lambda receiver, message: receiver.abandon(message, {"a": 1}),
            "abandoned",
            {"properties-to-modify": {"a": 1}},
        ),
        (lambda receiver, message: receiver.defer(message), "defered", {}),
        (
            lambda receiver, message: receiver.dead_letter(message, "r", "d"),
            "suspended",
            {"deadletter-reason": "r", "deadletter-description": "d"},
        ),
    ],
    ids=["complete", "abandon", "defer", "dead letter"],
)
def test_a3_settlement_after_lost_link_uses_lock_token(
    settle: Callable[[MessageReceiver, ReceivedMessage], Awaitable[None]], status: str, details: dict[str, Any]
) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            peer.last.hang_up()
            await settled()
            await settle(receiver, message)
            [request] = peer.requests
            assert request.operation == UPDATE
            body = dict(request.body)
            assert list(body.pop("lock-tokens").items) == [message.lock_token]
            assert body == {"disposition-status": status, **details}
            assert message.is_settled

    run(scenario())


@pytest.mark.parametrize("end", ["hang up", "detach", "detach with an internal error", "end the session"])
def test_a3_settlement_in_flight_at_link_loss_continues_by_lock_token(end: str) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 3)
            messages = await receiver.receive(3)
            confirmed = iter([ACCEPTED, ACCEPTED, None])
            peer.verdict = lambda _delivery, _state: next(confirmed)
            task = asyncio.create_task(receiver.complete(messages))
            await settled()
            match end:
                case "hang up":
                    peer.last.hang_up()
                case "detach":
                    peer.detach(peer.receiver)
                case "detach with an internal error":
                    peer.detach(peer.receiver, Error("amqp:internal-error", "oops"))
                case _:
                    peer.receiver.session.end()
                    peer.flush()
            await task
            [request] = peer.requests
            assert tokens(request) == [messages[2].lock_token]
            assert all(message.is_settled for message in messages)

    run(scenario())


@pytest.mark.parametrize("lost", [{0}, {3}, {9}, {2, 5, 6}])
def test_a3_lost_lock_does_not_prevent_settling_others(lost: set[int]) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 10)
            messages = await receiver.receive(10)
            gone = {messages[number].lock_token for number in lost}
            done: set[Any] = set()

            def answer(request: Request) -> Response:
                if gone & {*tokens(request)}:
                    return Response(status=410, condition="com.microsoft:message-lock-lost")
                done.update(tokens(request))
                return Response()

            peer.answers[UPDATE] = answer
            peer.last.hang_up()
            await settled()
            with pytest.raises(MessageLockLostError) as caught:
                await receiver.complete(messages)
            assert caught.value.entity == "orders"
            assert {number for number, message in enumerate(messages) if not message.is_settled} == lost
            assert done == {message.lock_token for message in messages} - gone

    run(scenario())


def test_b2_settlement_denied_as_busy_is_retried_after_ten_seconds() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            peer.verdict = lambda _delivery, _state: Rejected(Error("com.microsoft:server-busy", "busy"))
            started_s = loop.time()
            await receiver.complete(message)
            assert loop.time() - started_s >= 10
            assert message.is_settled

    run(scenario())


def test_permanently_denied_settlement_is_not_retried() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 3)
            messages = await receiver.receive(3)
            outcomes = iter([ACCEPTED, Rejected(Error("com.microsoft:message-lock-lost", "late")), ACCEPTED])
            peer.verdict = lambda _delivery, _state: next(outcomes)
            with pytest.raises(MessageLockLostError, match="late") as caught:
                await receiver.complete(messages)
            assert caught.value.entity == "orders"
            assert [message.is_settled for message in messages] == [True, False, True]
            assert peer.requests == []

    run(scenario())


def test_unanswered_settlement_continues_by_lock_token_within_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            peer.verdict = lambda _delivery, _state: None
            started_s = loop.time()
            await receiver.complete(message)
            assert 15 <= loop.time() - started_s < 20
            [request] = peer.requests
            assert tokens(request) == [message.lock_token]

    run(scenario())


def test_unanswered_settlement_ends_with_operation_timeout() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            peer.verdict = lambda _delivery, _state: None
            peer.answers[UPDATE] = lambda _request: None
            started_s = loop.time()
            with pytest.raises(MessagingTimeoutError) as caught:
                await receiver.complete(message)
            assert loop.time() - started_s <= 60.01
            assert caught.value.entity == "orders"
            assert not message.is_settled

    run(scenario())


def test_cancelled_settlement_can_be_repeated_or_is_settled() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            peer.verdict = lambda _delivery, _state: None
            task = asyncio.create_task(receiver.complete(message))
            await settled()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            peer.settle(peer.seen(DispositionReceived)[0].deliveries)
            await settled()
            with pytest.raises(MessageLockLostError):
                await receiver.complete(message)

    run(scenario())


@pytest.mark.parametrize(
    "changes",
    [{"a": object()}, {"a": datetime(2030, 1, 1)}, {"é": 1}, {"a": 2**70}],  # noqa: DTZ001 (that is the point)
    ids=["no value of AMQP", "no time zone", "no symbol", "too large"],
)
@pytest.mark.parametrize("is_lost", [False, True])
def test_e3_invalid_changes_are_rejected_and_message_stays_locked(changes: dict[str, Any], is_lost: bool) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            if is_lost:
                peer.last.hang_up()
                await settled()
            for settle in (receiver.abandon, receiver.defer):
                try:
                    await settle(message, changes)
                except (MessagingError, ValueError) as error:
                    assert not getattr(error, "is_transient", False)  # noqa: PT017 (a node takes what a link cannot)
                else:
                    return
            await receiver.complete(message)
            assert message.is_settled

    run(scenario())


def test_peer_without_lock_tokens_settles_only_over_link() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.mode = ReceiverSettleMode.FIRST
        async with receiving(peer=peer) as (_, receiver):
            task = asyncio.create_task(receiver.receive(2))
            await settled()
            for tag in (b"\1", b"\2"):
                peer.deliver(message_bytes(), tag=tag)
            messages = await task
            messages += await receiver.receive(2 - len(messages)) if len(messages) < 2 else []
            await receiver.complete(messages[0])
            await settled()
            assert reported(peer) == [(1, ACCEPTED)]
            peer.last.hang_up()
            await settled()
            with pytest.raises(MessageLockLostError, match="link of the message is lost"):
                await receiver.complete(messages[1])

    run(scenario())


# Losing the link


def test_receive_continues_over_new_link() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            task = asyncio.create_task(receiver.receive(1, 60 * SECOND))
            await settled()
            peer.detach(peer.receiver, Error("amqp:link:detach-forced", "idle"))
            await settled()
            await asyncio.sleep(1)
            peer.last.hang_up()
            await asyncio.sleep(5)
            stock(peer, 1)
            peer.supply(peer.receiver)
            peer.flush()
            assert bodies(await task) == [b"0"]
            assert len(peer.connections) == 2

    run(scenario())


def test_a3_locked_prefetched_messages_survive_lost_link() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=5) as (peer, receiver):
            peer.answers[RENEW] = lambda request: Response(
                body={"expirations": Array(tuple(Timestamp(2_000_000_000_000) for _ in tokens(request)))}
            )
            stock(peer, 3)
            [first] = await receiver.receive()
            peer.last.hang_up()
            await settled()
            assert bodies(await receiver.receive(5)) == [b"1", b"2"]
            assert not first.is_settled

    run(scenario())


def test_a3_unlocked_prefetched_messages_are_left_for_redelivery() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=5) as (peer, receiver):
            peer.answers[RENEW] = lambda _request: Response(status=410, condition="com.microsoft:message-lock-lost")
            stock(peer, 3)
            await receiver.receive()
            peer.last.hang_up()
            await settled()
            assert await receiver.receive(5, SECOND) == []

    run(scenario())


def test_received_and_deleted_prefetched_messages_survive_lost_link() -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=5) as (peer, receiver):
            stock(peer, 3)
            assert bodies(await receiver.receive()) == [b"0"]
            peer.last.hang_up()
            await settled()
            assert bodies(await receiver.receive(5)) == [b"1", b"2"]

    run(scenario())


def test_received_and_deleted_messages_are_returned_during_outage() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10) as (peer, receiver):
            stock(peer, 6)
            assert bodies(await receiver.receive()) == [b"0"]
            peer.close()
            await settled()
            started_s = loop.time()
            assert bodies(await receiver.receive(2)) == [b"1", b"2"]
            assert bodies(await receiver.receive(10)) == [b"3", b"4", b"5"]
            assert loop.time() == started_s
            with pytest.raises(MessagingTimeoutError):
                await receiver.receive(10)

    run(scenario())


def test_received_and_deleted_messages_survive_failed_reopening() -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10) as (peer, receiver):
            stock(peer, 3)
            [first] = await receiver.receive()
            peer.last.hang_up()
            await settled()
            peer.refusals.append(Error("amqp:not-found", "deleted"))
            assert [first.body, *bodies(await receiver.receive(10))] == [b"0", b"1", b"2"]
            with pytest.raises(EntityNotFoundError):
                await receiver.receive(10)

    run(scenario())


def test_long_receive_forgets_past_outages() -> None:
    async def scenario() -> None:
        async with receiving(retry_policy=RetryPolicy(maximum_retries=3)) as (peer, receiver):
            task = asyncio.create_task(receiver.receive(1, timedelta(hours=10)))
            for _ in range(8):
                for _ in range(2):
                    await asyncio.sleep(50)
                    peer.last.beat()
                assert not task.done()
                peer.last.hang_up()
            await asyncio.sleep(10)
            stock(peer, 1)
            peer.supply(peer.receiver)
            peer.flush()
            assert bodies(await task) == [b"0"]

    run(scenario())


def test_permanent_refusal_is_raised() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            task = asyncio.create_task(receiver.receive())
            await settled()
            peer.detach(peer.receiver, Error("amqp:not-found", "deleted"))
            with pytest.raises(EntityNotFoundError, match="deleted"):
                await task

    run(scenario())


def test_busy_namespace_is_not_flooded_with_attaches() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            peer.refusals.extend([Error("com.microsoft:server-busy", "busy")] * 1_000)
            with pytest.raises(ServerBusyError):
                await receiver.receive()
            assert len(peer.attached) <= 7

    run(scenario())


# Peeking


def test_a3_peek_continues_where_it_ended(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2", "3", "4")
        assert bodies(await receiver.peek()) == [b"1"]
        assert bodies(await receiver.peek(2)) == [b"2", b"3"]
        assert bodies(await receiver.peek(10, from_sequence_number=2)) == [b"2", b"3", b"4"]
        assert await receiver.peek() == []
        assert bodies(await receiver.peek(1, 0)) == [b"1"]
        [message] = await receiver.peek(1, 1)
        assert message.lock_token is None
        assert len(await receiver.receive(10)) == 4

    with_queue(namespace, scenario)


# Answers that make no sense


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "x", "expirations": "x"},
        {"messages": ["x"], "expirations": ["x"]},
        {"messages": [{}], "expirations": [None]},
        {"messages": [{"message": 5}], "expirations": [[]]},
        {"messages": [None], "expirations": Array((1, 2, 3))},
    ],
    ids=str,
)
def test_e3_malformed_response_is_internal_server_error(body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with receiving(retry_policy=NO_RETRY) as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            for operation in (RENEW, "com.microsoft:peek-message", "com.microsoft:receive-by-sequence-number"):
                peer.answers[operation] = lambda _request: Response(body=body)
            with pytest.raises(InternalServerError) as caught:
                await receiver.renew_lock(message)
            assert caught.value.entity == "orders"
            for asking in (receiver.peek(3), receiver.receive_deferred(1)):
                try:
                    found = await asking
                except InternalServerError as error:
                    assert error.entity == "orders"  # noqa: PT017 (either is fine)
                else:
                    assert found == []

    run(scenario())


# Iterating


def test_iteration_ends_when_receiver_is_closed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2", "3")
        found = []
        async for message in receiver:
            found.append(message.body)
            await receiver.complete(message)
            if len(found) == 3:
                asyncio.get_running_loop().call_later(0.01, lambda: tasks.append(asyncio.create_task(receiver.close())))
        await asyncio.gather(*tasks)
        assert found == [b"1", b"2", b"3"]

    tasks: list[asyncio.Task[None]] = []
    with_queue(namespace, scenario)


def test_iteration_survives_outages_and_raises_permanent_errors() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            found: list[bytes] = []

            async def iterate() -> None:
                async for message in receiver:
                    found.append(message.body)  # noqa: PERF401 (it never ends)

            task = asyncio.create_task(iterate())
            await settled()
            port = peer.port
            peer.close()
            await asyncio.sleep(300)
            peer.port = port
            await peer.listen()
            await until(lambda: peer.links(RECEIVER))
            await settled()
            stock(peer, 1)
            peer.supply(peer.receiver)
            peer.flush()
            await until(lambda: found == [b"0"])
            await settled()
            peer.detach(peer.receiver, Error("amqp:not-found", "deleted"))
            with pytest.raises(EntityNotFoundError):
                await task

    run(scenario())


def test_iteration_without_retries_does_not_poll_in_a_loop() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.closing = Error("amqp:connection:forced", "not now")
        async with receiving(peer=peer, retry_policy=NO_RETRY) as (_, receiver):
            task = asyncio.ensure_future(anext(receiver))
            await asyncio.sleep(10)
            assert 5 <= len(peer.connections) <= 20
            peer.closing = None
            stock(peer, 1)
            assert (await task).body == b"0"

    run(scenario())


def test_b2_iteration_without_retries_waits_ten_seconds_when_busy() -> None:
    async def scenario() -> None:
        async with receiving(retry_policy=NO_RETRY) as (peer, receiver):
            peer.refusals.extend([Error("com.microsoft:server-busy", "busy")] * 3)
            stock(peer, 1)
            started_s = asyncio.get_running_loop().time()
            assert (await anext(receiver)).body == b"0"
            assert asyncio.get_running_loop().time() - started_s >= 30
            assert len(peer.attached) == 4

    run(scenario())


def test_c17_iteration_raises_when_factory_is_faulted() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            receiver = await factory.create_message_receiver("orders")

            async def iterate() -> None:
                async for _ in receiver:
                    pass

            task = asyncio.create_task(iterate())
            await settled()
            reason = RuntimeError("the disk is full")
            factory.fault(reason)
            with pytest.raises(FactoryFaultedError, match="the disk is full") as caught:
                await task
            assert caught.value.__cause__ is reason
            await settled()
            with pytest.raises(FactoryFaultedError, match="the disk is full"):
                await iterate()

    run(scenario())


# Its end


def test_closed_receiver_rejects_receives() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 1)
            [message] = await receiver.receive()
            waiting = [asyncio.create_task(receiver.receive()) for _ in range(2)]
            await settled()
            await receiver.close()
            await receiver.close()
            for task in waiting:
                with pytest.raises(ClosedError):
                    await task
            for operation in (
                receiver.receive(),
                receiver.complete(message),
                receiver.renew_lock(message),
                receiver.peek(),
                receiver.receive_deferred(1),
            ):
                with pytest.raises(ClosedError, match="MessageReceiver has been closed") as caught:
                    await operation
                assert caught.value.entity == "orders"
            with pytest.raises(StopAsyncIteration):
                await anext(receiver)
            assert peer.all_links() == []

    run(scenario())


def test_a3_messages_arriving_during_close_are_released(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        other = await queue.receiver()
        for _ in range(10):
            receiver = await queue.receiver()
            task = asyncio.create_task(receiver.receive(10))
            await receiver.peek()
            sending = asyncio.create_task(queue.send("1", "2"))
            await asyncio.sleep(0)
            await receiver.close()
            await sending
            [result] = await asyncio.gather(task, return_exceptions=True)
            taken = result if isinstance(result, list) else []
            while len(taken) < 2:
                found = await other.receive(10, SECOND)
                assert found, "it stays locked"
                taken += found
            await other.complete(taken)

    with_queue(namespace, scenario, max_delivery_count=100)


def released(peer: Peer) -> int:
    return sum(count for count, state in reported(peer) if state == RELEASED)


def test_a3_cancelled_close_still_releases_messages() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=10) as (peer, receiver):
            stock(peer, 5)
            await receiver.receive()
            await settled()
            closing = asyncio.create_task(receiver.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            await settled()
            assert released(peer) == 4
            assert peer.all_links() == []
            await receiver.close()

    run(scenario())


def test_a3_concurrent_closes_wait_for_release() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            receiver = await factory.create_message_receiver("orders", prefetch_count=10)
            stock(peer, 5)
            await receiver.receive()
            await settled()
            closing = asyncio.create_task(receiver.close())
            await asyncio.sleep(0)
            await factory.close()
            assert closing.done()
            assert released(peer) == 4

    run(scenario())


def test_a3_messages_arriving_for_waiter_during_close_are_not_returned() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            receiver = await factory.create_message_receiver(
                "orders", prefetch_count=10, max_auto_lock_renewal=timedelta(minutes=10)
            )
            waiting = asyncio.create_task(receiver.receive())
            await settled()
            peer.drains = False
            closing = asyncio.create_task(receiver.close())
            await asyncio.sleep(0)
            peer.deliver(message_bytes(locked_s=60))
            with pytest.raises(ClosedError, match="MessageReceiver has been closed"):
                await waiting
            await closing
            await settled()
            assert released(peer) == 1

    run(scenario())


def test_received_and_deleted_messages_during_close_go_to_waiter(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE) as (peer, receiver):
            waiting = asyncio.create_task(receiver.receive(5))
            await settled()
            peer.drains = False
            closing = asyncio.create_task(receiver.close())
            await asyncio.sleep(0)
            stock(peer, 2)
            peer.supply(peer.receiver)  # it was sent before the credit was asked back
            peer.flush()
            await asyncio.sleep(1)
            peer.receiver.drained()
            peer.flush()
            assert bodies(await waiting) == [b"0", b"1"]
            await closing

    run(scenario())
    assert "discarded" not in caplog.text


@pytest.mark.parametrize("is_lost", [False, True], ids=["attached", "lost"])
def test_discarded_received_and_deleted_messages_are_logged_at_close(
    caplog: pytest.LogCaptureFixture, is_lost: bool
) -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10) as (peer, receiver):
            stock(peer, 5)
            await receiver.receive()
            if is_lost:
                peer.last.hang_up()
            await settled()
            await receiver.close()

    run(scenario())
    assert "received and deleted messages discarded entity=orders count=4" in caplog.text


def test_discarded_salvaged_messages_are_logged_at_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=10) as (peer, receiver):
            stock(peer, 5)
            await receiver.receive()
            peer.last.hang_up()
            await settled()
            assert len(await receiver.receive()) == 1
            await receiver.close()

    run(scenario())
    assert "received and deleted messages discarded entity=orders count=3" in caplog.text


def test_a1_subscriptions_and_sub_queues_are_received_from_by_their_paths(namespace: RunningNamespace) -> None:
    async def scenario() -> None:
        topic = make_topic(namespace, "all")
        async with factory_of(namespace) as factory:
            sender = await factory.create_message_sender(topic)
            await sender.send(BrokeredMessage(b"news"))
            receiver = await factory.create_message_receiver(f"{topic}/Subscriptions/all")
            [message] = await receiver.receive()
            await receiver.dead_letter(message, "old")
            path = f"{topic}/Subscriptions/all/$DeadLetterQueue"
            dead_letters = await factory.create_message_receiver(path)
            [dead] = await dead_letters.receive()
            assert (dead.body, dead.dead_letter_reason, dead_letters.path) == (b"news", "old", path)
            await dead_letters.complete(dead)

    play(scenario())


def test_returned_messages_are_never_released() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 2)
            await receiver.receive(2)
            await receiver.close()
            assert (2, RELEASED) not in reported(peer)
            assert (1, RELEASED) not in reported(peer)

    run(scenario())


@pytest.mark.parametrize("longest", [timedelta(), timedelta(minutes=5)], ids=["as they are", "kept locked"])
@pytest.mark.parametrize("prefetch_count", [0, 10])
def test_e3_unreadable_message_does_not_block_others(longest: timedelta, prefetch_count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            receiver = await factory.create_message_receiver(
                "orders", prefetch_count=prefetch_count, max_auto_lock_renewal=longest
            )
            peer.stock.extend([message_bytes(b"1", locked_s=60), b"garbage", message_bytes(b"2", locked_s=60)])
            found: list[ReceivedMessage] = []
            while len(found) < 3:
                found += await receiver.receive(3)
            first, garbage, second = found
            assert (first.body, second.body) == (b"1", b"2")
            with pytest.raises(InvalidMessageError):
                _ = garbage.body
            await receiver.dead_letter(garbage, "it cannot be read")
            await receiver.complete([first, second])

    run(scenario())


def test_e3_unreadable_message_can_be_settled_after_lost_link() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            peer.stock.extend([b"garbage", message_bytes(b"1")])
            messages = await receiver.receive(2)
            peer.last.hang_up()
            await settled()
            await receiver.dead_letter(messages, "it cannot be read")
            assert all(message.is_settled for message in messages)
            [request] = peer.requests
            assert len(tokens(request)) == 2

    run(scenario())


def test_a3_salvaged_messages_are_abandoned_at_close() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=5) as (peer, receiver):
            peer.answers[RENEW] = lambda request: Response(
                body={"expirations": Array(tuple(Timestamp(2_000_000_000_000) for _ in tokens(request)))}
            )
            stock(peer, 3)
            await receiver.receive()
            peer.last.hang_up()
            await settled()
            [second] = await receiver.receive()
            await receiver.close()
            given_back = [request for request in peer.requests if request.operation == UPDATE]
            assert [request.body["disposition-status"] for request in given_back] == ["abandoned"]
            [token] = tokens(given_back[0])
            assert token != second.lock_token

    run(scenario())


def test_concurrent_receives_do_not_block_each_other_with_prefetch() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=10) as (peer, receiver):
            tasks = [asyncio.create_task(receiver.receive(1, 30 * SECOND)) for _ in range(5)]
            await settled()
            stock(peer, 3)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            assert [len(task.result()) for task in tasks if task.done()] == [1, 1, 1]
            assert [len(result) for result in await asyncio.gather(*tasks)] == [1, 1, 1, 0, 0]

    run(scenario())


@pytest.mark.parametrize("prefetch_count", [0, 3])
def test_e1_cancellation_loses_and_locks_nothing(namespace: RunningNamespace, prefetch_count: int) -> None:
    async def scenario(queue: Queue) -> None:
        random = Random(prefetch_count)  # noqa: S311 (the same each time)
        receivers = [await queue.receiver(prefetch_count=prefetch_count) for _ in range(3)]
        handed_out: set[str] = set()
        done: set[str] = set()

        async def work(receiver: MessageReceiver) -> None:
            messages = await receiver.receive(random.randint(1, 5), SHORT)
            handed_out.update(message.text() for message in messages)
            for message in messages:
                done.add(message.text())
                await receiver.complete(message)

        await queue.send(*(str(number) for number in range(200)))
        for _ in range(40):
            tasks = [asyncio.create_task(work(receiver)) for receiver in receivers for _ in range(2)]
            for _ in range(random.randint(0, 40)):
                await asyncio.sleep(0)
            for task in tasks:
                if random.random() < 0.7:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for receiver in receivers:
            await receiver.close()
        last = await queue.receiver()
        left: set[str] = set()
        while found := await last.receive(100, SHORT):
            left |= {message.text() for message in found}
        locked = {message.text() for message in await last.peek(300, 0)} - left
        assert locked <= handed_out
        assert done | left | locked == {str(number) for number in range(200)}

    with_queue(namespace, scenario, max_delivery_count=2_000)
