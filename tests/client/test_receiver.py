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
from pairbus.client.receive_mode import ReceiveMode
from pairbus.client.received_message import MessageState, ReceivedMessage
from pairbus.client.receiver import MessageReceiver
from pairbus.client.retry import NO_RETRY, RetryPolicy
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


def told(peer: Peer) -> list[tuple[int, object]]:
    """What the client has said of its messages over links, and of how many at a time."""
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


def test_a3_up_to_so_many_are_received_and_what_is_there_is_enough(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1", "2", "3")
        assert bodies(await receiver.receive(2)) == [b"1", b"2"]
        assert bodies(await receiver.receive(10)) == [b"3"]

    with_queue(namespace, scenario)


def test_a3_without_a_wait_what_is_there_now_is_given(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        assert await receiver.receive(5, NO_WAIT) == []
        await queue.send("1", "2")
        assert bodies(await receiver.receive(5, NO_WAIT)) == [b"1", b"2"]
        with pytest.raises(ValueError, match="cannot be below 0"):
            await receiver.receive(5, timedelta(seconds=-1))

    with_queue(namespace, scenario)


def test_a3_whoever_waits_gets_a_message_when_it_comes(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        task = asyncio.create_task(receiver.receive())
        await receiver.peek()
        await queue.send("late")
        assert bodies(await task) == [b"late"]

    with_queue(namespace, scenario)


def test_a3_what_is_received_and_deleted_is_gone(namespace: RunningNamespace) -> None:
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
            with pytest.raises(InvalidRequestError, match="received and deleted"):
                await operation

    with_queue(namespace, scenario)


def test_a3_what_somebody_waited_for_who_was_cancelled_goes_to_the_next_at_once(namespace: RunningNamespace) -> None:
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


def test_receives_at_the_same_time_share_what_comes_and_lose_nothing(namespace: RunningNamespace) -> None:
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


def test_whoever_waits_behind_somebody_else_waits_no_longer_than_it_said() -> None:
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


def test_whoever_comes_again_as_its_turn_ends_waits_no_longer_than_it_said() -> None:
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


def test_without_a_word_it_waits_for_the_operation_time_out() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with receiving(operation_timeout=timedelta(seconds=40)) as (_, receiver):
            assert await receiver.receive() == []
            assert loop.time() == pytest.approx(40, abs=0.2)

    run(scenario())


@pytest.mark.parametrize("count", [0, -1])
def test_e3_fewer_than_one_message_cannot_be_asked_for(count: int) -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            with pytest.raises(ValueError, match="it must be at least 1"):
                await receiver.receive(count)
            with pytest.raises(ValueError, match="it must be at least 1"):
                await receiver.peek(count)
            assert peer.connections == []

    run(scenario())


def test_more_than_credit_can_say_may_be_asked_for() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 3)
            assert len(await receiver.receive(2**40, SECOND)) == 3

    run(scenario())


# Prefetching


def test_so_many_are_sent_ahead(namespace: RunningNamespace) -> None:
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


def test_a3_what_was_sent_ahead_goes_back_when_the_receiver_is_closed(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        await queue.send("1", "2", "3")
        receiver = await queue.receiver(prefetch_count=10)
        [first] = await receiver.receive()
        await receiver.complete(first)
        await receiver.close()
        found = await (await queue.receiver()).receive(10, SECOND)
        assert bodies(found) == [b"2", b"3"]

    with_queue(namespace, scenario)


def test_the_window_is_replenished_as_messages_are_handed_out() -> None:
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
def test_e3_a_prefetch_count_that_makes_no_sense_is_refused(prefetch_count: int) -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            for make in (factory.create_message_receiver, factory.create_queue_client):
                with pytest.raises(ValueError, match="prefetch_count"):
                    await make("orders", prefetch_count=prefetch_count)
            with pytest.raises(ValueError, match="prefetch_count"):
                await factory.accept_message_session("orders", prefetch_count=prefetch_count)

    run(scenario())


# Settling with a real namespace


def test_a3_what_is_completed_is_gone(namespace: RunningNamespace) -> None:
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


def test_a3_what_is_abandoned_comes_again_with_what_was_changed(namespace: RunningNamespace) -> None:
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


def test_a3_what_is_deferred_is_received_by_its_number_only(namespace: RunningNamespace) -> None:
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


def test_a3_what_is_deferred_can_be_received_and_deleted(namespace: RunningNamespace) -> None:
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


def test_a3_what_is_dead_lettered_is_in_the_dead_letter_queue_with_the_reason(namespace: RunningNamespace) -> None:
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


def test_a3_what_has_been_settled_cannot_be_settled_again(namespace: RunningNamespace) -> None:
    async def scenario(queue: Queue) -> None:
        receiver = await queue.receiver()
        await queue.send("1")
        [message] = await receiver.receive()
        await receiver.complete(message)
        for operation in (receiver.complete(message), receiver.abandon([message]), receiver.renew_lock(message)):
            with pytest.raises(MessageLockLostError, match="has been settled already"):
                await operation

    with_queue(namespace, scenario)


def test_a3_one_message_settled_twice_at_once_is_settled_once(namespace: RunningNamespace) -> None:
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


def test_a3_a_lock_that_has_been_lost_is_told(namespace: RunningNamespace) -> None:
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
def test_e3_what_was_not_received_cannot_be_settled(wrong: Any) -> None:
    async def scenario() -> None:
        async with receiving() as (_, receiver):
            for operation in (receiver.complete([wrong]), receiver.renew_lock(wrong)):
                with pytest.raises(InvalidRequestError, match="was not received"):
                    await operation

    run(scenario())


def test_e4_what_was_peeked_cannot_be_settled(namespace: RunningNamespace) -> None:
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
def test_e4_whoever_settles_what_was_sent_is_told_that_it_was_not_received(wrong: Any) -> None:
    async def scenario() -> None:
        async with receiving() as (_, receiver):
            for operation in (receiver.complete(wrong), receiver.abandon(wrong)):
                with pytest.raises(InvalidRequestError) as caught:
                    await operation
                assert f"{wrong!r} was not received" in str(caught.value)

    run(scenario())


def test_a3_what_went_to_another_process_can_be_settled_when_it_comes_back(namespace: RunningNamespace) -> None:
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


def test_a6_a_copy_of_a_dead_letter_is_no_duplicate_of_it(namespace: RunningNamespace) -> None:
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


def test_a3_settlements_of_one_turn_travel_as_ranges() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 60)
            messages = await receiver.receive(60)
            await asyncio.gather(*(receiver.complete(message) for message in messages[:20]))
            await receiver.complete(messages[20:40])
            await receiver.abandon(messages[40:])
            counts = told(peer)
            assert counts[0] == (20, ACCEPTED)
            assert (20, ACCEPTED) in counts[1:]
            assert counts[-1][0] == 20
            assert isinstance(counts[-1][1], Modified)
            assert len(counts) == 3

    run(scenario())


def test_a3_the_words_for_each_settlement_are_those_of_the_service() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 4)
            one, two, three, four = await receiver.receive(4)
            await receiver.complete(one)
            await receiver.abandon(two, {"a": 1})
            await receiver.defer(three)
            await receiver.dead_letter(four, "r", "d", {"b": 2})
            assert [state for _, state in told(peer)] == [
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
def test_a3_after_the_link_was_lost_the_node_is_asked_with_the_lock_token(
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
def test_a3_a_settlement_under_way_when_the_link_is_lost_goes_on_through_the_node(end: str) -> None:
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
                    peer.receiver.session.end()  # type: ignore[attr-defined]
                    peer.flush()
            await task
            [request] = peer.requests
            assert tokens(request) == [messages[2].lock_token]
            assert all(message.is_settled for message in messages)

    run(scenario())


@pytest.mark.parametrize("lost", [{0}, {3}, {9}, {2, 5, 6}])
def test_a3_one_lock_that_is_lost_does_not_keep_the_others_from_being_settled(lost: set[int]) -> None:
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


def test_b2_a_settlement_that_a_busy_namespace_denies_is_made_again_after_ten_seconds() -> None:
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


def test_a_settlement_that_is_denied_for_good_is_told_and_not_made_again() -> None:
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


def test_a_settlement_that_is_not_answered_goes_on_through_the_node_within_the_time_out() -> None:
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


def test_a_settlement_that_nobody_answers_ends_with_the_operation_time_out() -> None:
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


def test_a_settlement_that_is_cancelled_can_be_made_again_or_is_told_as_settled() -> None:
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
def test_e3_changes_that_cannot_be_written_are_refused_and_the_message_stays(
    changes: dict[str, Any], is_lost: bool
) -> None:
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


def test_a_peer_without_lock_tokens_is_settled_with_over_its_link_only() -> None:
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
            assert told(peer) == [(1, ACCEPTED)]
            peer.last.hang_up()
            await settled()
            with pytest.raises(MessageLockLostError, match="link that is gone"):
                await receiver.complete(messages[1])

    run(scenario())


# Losing the link


def test_receiving_goes_on_over_another_link() -> None:
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


def test_a3_what_was_sent_ahead_and_is_still_locked_is_handed_out_after_the_link_was_lost() -> None:
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


def test_a3_what_was_sent_ahead_and_is_locked_no_more_is_left_for_another_delivery() -> None:
    async def scenario() -> None:
        async with receiving(prefetch_count=5) as (peer, receiver):
            peer.answers[RENEW] = lambda _request: Response(status=410, condition="com.microsoft:message-lock-lost")
            stock(peer, 3)
            await receiver.receive()
            peer.last.hang_up()
            await settled()
            assert await receiver.receive(5, SECOND) == []

    run(scenario())


def test_what_was_received_and_deleted_ahead_is_not_lost_with_the_link() -> None:
    async def scenario() -> None:
        async with receiving(ReceiveMode.RECEIVE_AND_DELETE, prefetch_count=5) as (peer, receiver):
            stock(peer, 3)
            assert bodies(await receiver.receive()) == [b"0"]
            peer.last.hang_up()
            await settled()
            assert bodies(await receiver.receive(5)) == [b"1", b"2"]

    run(scenario())


def test_what_was_received_and_deleted_ahead_is_handed_out_while_the_namespace_is_away() -> None:
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


def test_what_was_received_and_deleted_is_there_after_an_open_link_was_looked_for_in_vain() -> None:
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


def test_a_long_receive_forgets_outages_that_are_long_over() -> None:
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


def test_what_is_refused_for_good_is_told() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            task = asyncio.create_task(receiver.receive())
            await settled()
            peer.detach(peer.receiver, Error("amqp:not-found", "deleted"))
            with pytest.raises(EntityNotFoundError, match="deleted"):
                await task

    run(scenario())


def test_a_namespace_that_is_busy_is_not_asked_for_links_all_the_time() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            peer.refusals.extend([Error("com.microsoft:server-busy", "busy")] * 1_000)
            with pytest.raises(ServerBusyError):
                await receiver.receive()
            assert len(peer.attached) <= 7

    run(scenario())


# Peeking


def test_a3_peeking_goes_on_where_it_ended(namespace: RunningNamespace) -> None:
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
def test_e3_an_answer_of_the_node_that_makes_no_sense_is_an_error_of_the_namespace(body: dict[str, Any]) -> None:
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


def test_messages_are_iterated_over_until_the_receiver_is_closed(namespace: RunningNamespace) -> None:
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


def test_iterating_rides_out_outages_and_ends_with_what_is_for_good() -> None:
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


def test_iterating_without_retries_does_not_ask_all_the_time() -> None:
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


def test_b2_iterating_without_retries_leaves_a_busy_namespace_alone_for_ten_seconds() -> None:
    async def scenario() -> None:
        async with receiving(retry_policy=NO_RETRY) as (peer, receiver):
            peer.refusals.extend([Error("com.microsoft:server-busy", "busy")] * 3)
            stock(peer, 1)
            started_s = asyncio.get_running_loop().time()
            assert (await anext(receiver)).body == b"0"
            assert asyncio.get_running_loop().time() - started_s >= 30
            assert len(peer.attached) == 4

    run(scenario())


def test_c17_iterating_does_not_end_quietly_when_the_factory_is_given_up() -> None:
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


def test_a_receiver_that_is_closed_receives_no_more() -> None:
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


def test_a3_what_comes_while_a_receiver_is_closed_goes_back(namespace: RunningNamespace) -> None:
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
    return sum(count for count, state in told(peer) if state == RELEASED)


def test_a3_a_close_that_is_cancelled_gives_back_all_the_same() -> None:
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


def test_a3_two_who_close_at_the_same_time_both_wait_until_everything_is_given_back() -> None:
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


def test_a3_what_comes_while_somebody_waits_and_the_receiver_closes_is_not_handed_out() -> None:
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


def test_what_is_received_and_deleted_as_the_receiver_closes_goes_to_whoever_waits_for_it(
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
    assert "never asked for" not in caplog.text


@pytest.mark.parametrize("is_lost", [False, True], ids=["attached", "lost"])
def test_what_was_received_and_deleted_and_never_asked_for_is_told_when_the_receiver_is_closed(
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
    assert "4 messages of orders, received and deleted, were never asked for" in caplog.text


def test_what_was_salvaged_and_never_asked_for_is_told_when_the_receiver_is_closed(
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
    assert "3 messages of orders, received and deleted, were never asked for" in caplog.text


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


def test_released_is_never_told_of_what_was_handed_out() -> None:
    async def scenario() -> None:
        async with receiving() as (peer, receiver):
            stock(peer, 2)
            await receiver.receive(2)
            await receiver.close()
            assert (2, RELEASED) not in told(peer)
            assert (1, RELEASED) not in told(peer)

    run(scenario())


@pytest.mark.parametrize("longest", [timedelta(), timedelta(minutes=5)], ids=["as they are", "kept locked"])
@pytest.mark.parametrize("prefetch_count", [0, 10])
def test_e3_a_message_that_cannot_be_read_does_not_keep_the_others_back(
    longest: timedelta, prefetch_count: int
) -> None:
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


def test_e3_a_message_that_cannot_be_read_can_be_settled_after_its_link_was_lost() -> None:
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


def test_a3_what_was_salvaged_from_a_lost_link_goes_back_when_the_receiver_is_closed() -> None:
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


def test_receives_at_the_same_time_do_not_wait_for_one_another_when_messages_are_sent_ahead() -> None:
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
def test_e1_whatever_is_cancelled_nothing_is_lost_and_nothing_stays_locked(
    namespace: RunningNamespace, prefetch_count: int
) -> None:
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
