"""Links that messages are received on, with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pairbus.client.amqp.receiving_link import ReceivingLink, Wish
from pairbus.client.errors import (
    ClosedError,
    EntityNotFoundError,
    InvalidRequestError,
    MessageLockLostError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    QuotaExceededError,
    SessionLockLostError,
)
from pairbus.dialect.annotations import LINK_TIMEOUT, SESSION_FILTER
from pairbus.wire import (
    ACCEPTED,
    RELEASED,
    CreditGranted,
    Delivery,
    DispositionReceived,
    Error,
    Modified,
    ReceiverSettleMode,
    Rejected,
    Released,
    SenderSettleMode,
)
from tests.client.amqp_peer import (
    LOCK_S,
    START_S,
    Peer,
    connected,
    lock_token,
    message_bytes,
    run,
    scripted,
    settled,
    until,
)

NO_WAIT: Final = 0.0


@asynccontextmanager
async def attached(peer: Peer | None = None, **wish: Any) -> AsyncIterator[tuple[Peer, ReceivingLink]]:
    async with connected(peer) as (chosen, connection):
        link = ReceivingLink(connection, "orders", Wish(**wish))
        await link.attached(15)
        await settled()
        yield chosen, link
        await link.close()


def soon(seconds: float = 5.0) -> float:
    return asyncio.get_running_loop().time() + seconds


async def take(link: ReceivingLink, count: int, deadline_s: float) -> list[Delivery]:
    return await link.take(count, deadline_s, soon(1_000))


def stock(peer: Peer, count: int) -> list[bytes]:
    payloads = [message_bytes(b"%d" % number) for number in range(count)]
    peer.stock.extend(payloads)
    return payloads


def payloads_of(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.payload for delivery in deliveries]


def granted(peer: Peer) -> list[tuple[int, bool]]:
    """What credit the client has given so far, and whether it wanted the rest back."""
    return [(event.credit, event.drain) for event in peer.seen(CreditGranted)]


def told(peer: Peer) -> list[tuple[int, object, bool]]:
    """What the client has said of its messages: of how many at a time, what, and whether that was its last word."""
    return [(len(event.deliveries), event.state, event.settled) for event in peer.seen(DispositionReceived)]


# Without prefetching


def test_nothing_is_asked_for_before_it_is_wanted() -> None:
    async def scenario() -> None:
        async with attached() as (peer, _):
            stock(peer, 3)
            await settled()
            assert granted(peer) == []

    run(scenario())


def test_so_many_are_asked_for_as_are_wanted_and_the_rest_of_the_credit_is_taken_back() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            payloads = stock(peer, 3)
            assert payloads_of(await take(link, 10, soon())) == payloads
            assert granted(peer) == [(10, False), (7, True)]
            assert peer.receiver.credit == 0

    run(scenario())


def test_when_all_have_come_there_is_no_credit_to_take_back() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            payloads = stock(peer, 3)
            assert payloads_of(await take(link, 2, soon())) == payloads[:2]
            assert granted(peer) == [(2, False)]
            assert payloads_of(await take(link, 2, soon())) == payloads[2:]

    run(scenario())


def test_without_a_wait_credit_comes_with_the_wish_to_have_it_back() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            assert await take(link, 5, NO_WAIT) == []
            assert granted(peer) == [(5, True)]
            payloads = stock(peer, 2)
            assert payloads_of(await take(link, 5, NO_WAIT)) == payloads

    run(scenario())


def test_the_wait_ends_with_the_first_message_or_with_the_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached() as (peer, link):
            started_s = loop.time()
            assert await take(link, 5, soon(3)) == []
            assert loop.time() - started_s == pytest.approx(3, abs=0.1)
            task = asyncio.create_task(take(link, 5, soon(60)))
            await asyncio.sleep(2)
            peer.deliver(message_bytes(b"late"))
            assert len(await task) == 1
            assert loop.time() - started_s == pytest.approx(5, abs=0.2)

    run(scenario())


def test_what_comes_while_credit_is_taken_back_is_handed_out_too() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            task = asyncio.create_task(take(link, 5, soon(1)))
            await asyncio.sleep(2)
            for number in range(2):
                peer.deliver(message_bytes(b"%d" % number))
            peer.receiver.drained()
            peer.flush()
            assert len(await task) == 2

    run(scenario())


def test_credit_that_is_given_back_late_is_waited_for_and_never_is_not() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            task = asyncio.create_task(take(link, 5, soon(1)))
            await asyncio.sleep(10)
            assert not task.done()
            peer.last.beat()
            with pytest.raises(MessagingTimeoutError, match="credit was not given back within 15 s"):
                await task
            assert link.error is not None
            assert link.connection.error is None

    run(scenario())


def test_messages_that_came_before_the_credit_was_not_given_back_are_not_lost() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            payloads = stock(peer, 2)
            assert payloads_of(await take(link, 5, soon(60))) == payloads
            assert link.error is not None

    run(scenario())


def test_more_messages_than_were_asked_for_are_kept_for_the_next() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            task = asyncio.create_task(take(link, 1, soon()))
            await settled()
            for number in range(3):
                peer.receiver.send(message_bytes(b"%d" % number), tag=lock_token(number), beyond_credit=True)
            peer.flush()
            taken = [*await task]
            await settled()
            taken += await take(link, 5, NO_WAIT)
            released = [state for _, state, _ in told(peer) if isinstance(state, Released)]
            assert len(taken) + len(released) == 3
            assert link.error is None

    run(scenario())


def test_a_message_that_nobody_waits_for_goes_back_at_once() -> None:
    async def scenario() -> None:
        async with attached() as (peer, _):
            peer.deliver(message_bytes())
            await settled()
            assert told(peer) == [(1, RELEASED, True)]

    run(scenario())


def test_a3_what_comes_for_somebody_who_was_cancelled_goes_back_at_once() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            task = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            task.cancel()
            stock(peer, 2)
            peer.supply(peer.receiver)
            peer.flush()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled()
            assert told(peer) == [(2, RELEASED, True)]
            assert granted(peer)[-1][1]
            payloads = stock(peer, 1)
            assert payloads_of(await take(link, 5, soon())) == payloads

    run(scenario())


def test_a3_what_has_come_when_somebody_is_cancelled_goes_back_at_once() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            stock(peer, 2)
            task = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await settled()
            assert told(peer) == [(2, RELEASED, True)]
            peer.drains = True
            peer.receiver.drained()
            peer.flush()

    run(scenario())


# With prefetching


def test_so_many_are_sent_ahead_and_replaced_when_half_of_them_are_taken() -> None:
    async def scenario() -> None:
        async with attached(prefetch=10) as (peer, link):
            assert granted(peer) == [(10, False)]
            payloads = stock(peer, 30)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            assert len(link.buffer) == 10
            taken: list[Delivery] = []
            while len(taken) < 30:
                taken += await take(link, 3, NO_WAIT)
                await settled()
                assert len(link.buffer) + peer.receiver.credit <= 10
            assert payloads_of(taken) == payloads
            assert 6 <= len(granted(peer)) <= 12

    run(scenario())


def test_what_was_sent_ahead_is_there_without_a_wait() -> None:
    async def scenario() -> None:
        async with attached(prefetch=2) as (peer, link):
            assert await take(link, 1, NO_WAIT) == []
            stock(peer, 2)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            assert len(await take(link, 5, NO_WAIT)) == 2

    run(scenario())


def test_somebody_who_is_cancelled_leaves_what_was_sent_ahead_for_the_next() -> None:
    async def scenario() -> None:
        async with attached(prefetch=2) as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            task.cancel()
            stock(peer, 1)
            peer.supply(peer.receiver)
            peer.flush()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(await take(link, 1, soon())) == 1
            assert told(peer) == []

    run(scenario())


def test_more_than_twenty_thousand_may_wait_to_be_settled() -> None:
    async def scenario() -> None:
        async with attached(prefetch=25_000) as (peer, link):
            peer.stock.extend([message_bytes()] * 25_000)
            peer.supply(peer.receiver)
            peer.flush()
            await until(lambda: len(link.buffer) == 25_000)
            assert link.error is None

    run(scenario())


@pytest.mark.parametrize("prefetch", [-1, 1 << 31])
def test_e3_a_prefetch_count_that_credit_cannot_say_is_refused(prefetch: int) -> None:
    with pytest.raises(ValueError, match="prefetch_count"):
        Wish(prefetch=prefetch)


def test_a3_what_was_sent_ahead_goes_back_when_the_link_is_closed() -> None:
    async def scenario() -> None:
        async with attached(prefetch=5) as (peer, link):
            stock(peer, 3)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            await take(link, 1, NO_WAIT)
            await link.close()
            assert [(count, state) for count, state, _ in told(peer)] == [(2, RELEASED)]
            assert peer.all_links() == []

    run(scenario())


# Settlement


def test_a3_what_is_settled_in_one_turn_is_told_as_one_range() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 100)
            deliveries = await take(link, 100, soon())
            settlements = [link.settle([delivery], ACCEPTED) for delivery in deliveries]
            await asyncio.gather(*(settlement.done for settlement in settlements))
            assert told(peer)[0] == (100, ACCEPTED, False)
            assert len(told(peer)) <= 2  # in mode second we settle after the peer, if it has not done so for both

    run(scenario())


def test_a3_neighbours_with_different_outcomes_are_told_apart() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 6)
            one, two, three, four, five, six = await take(link, 6, soon())
            modified = Modified(delivery_failed=True)
            for deliveries, state in (([one, two], ACCEPTED), ([three], modified), ([six, five], ACCEPTED)):
                link.settle(deliveries, state)
            await settled()
            assert [(count, state) for count, state, _ in told(peer)] == [
                (2, ACCEPTED),
                (1, modified),
                (1, ACCEPTED),
                (1, ACCEPTED),
            ]
            link.settle([four], ACCEPTED)
            await settled()
            assert not link.unsettled

    run(scenario())


def test_the_word_of_the_namespace_is_waited_for() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 2)
            deliveries = await take(link, 2, soon())
            peer.verdict = lambda _delivery, _state: None
            settlement = link.settle(deliveries, ACCEPTED)
            await settled()
            assert not settlement.done.done()
            sent = peer.seen(DispositionReceived)[0].deliveries
            peer.settle(sent[:1])
            await settled()
            assert not settlement.done.done()
            assert settlement.confirmed == {deliveries[0]}
            peer.settle(sent[1:], Rejected(Error("com.microsoft:message-lock-lost", "too late")))
            await settlement.done
            assert settlement.confirmed == {deliveries[0]}
            assert isinstance(settlement.error, MessageLockLostError)
            assert not link.unsettled

    run(scenario())


def test_a_word_that_is_not_the_last_is_answered_with_ours() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 1)
            [delivery] = await take(link, 1, soon())
            peer.verdict = lambda _delivery, _state: None
            settlement = link.settle([delivery], ACCEPTED)
            await settled()
            [sent] = peer.seen(DispositionReceived)[0].deliveries
            sent.link.update(sent, ACCEPTED)
            peer.flush()
            await settlement.done
            await settled()
            assert sent.settled

    run(scenario())


@pytest.mark.parametrize("together", [True, False])
def test_a_delivery_that_is_settled_twice_at_once_is_settled_once(together: bool) -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 1)
            [delivery] = await take(link, 1, soon())
            if together:
                settlements = [link.settle([delivery, delivery], ACCEPTED)]
            else:
                settlements = [link.settle([delivery], ACCEPTED), link.settle([delivery], RELEASED)]
            async with asyncio.timeout(1):
                await asyncio.gather(*(settlement.done for settlement in settlements))
            assert isinstance(settlements[-1].error, MessageLockLostError)
            assert settlements[0].confirmed == {delivery}
            assert [state for _, state, _ in told(peer)][:1] == [ACCEPTED]
            again = link.settle([delivery], ACCEPTED)
            await again.done
            assert isinstance(again.error, MessageLockLostError)

    run(scenario())


def test_a_peer_that_settles_first_is_told_once_and_not_waited_for() -> None:
    async def scenario() -> None:
        peer = Peer()
        peer.mode = ReceiverSettleMode.FIRST
        async with attached(peer) as (_, link):
            stock(peer, 3)
            deliveries = await take(link, 3, soon())
            settlement = link.settle(deliveries, ACCEPTED)
            assert settlement.done.done()
            assert settlement.error is None
            await settled()
            assert told(peer) == [(3, ACCEPTED, True)]

    run(scenario())


def test_what_is_not_confirmed_when_the_link_is_lost_is_told_so() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 3)
            deliveries = await take(link, 3, soon())
            peer.verdict = lambda _delivery, _state: None
            settlement = link.settle(deliveries, ACCEPTED)
            await settled()
            peer.settle(peer.seen(DispositionReceived)[0].deliveries[:1])
            peer.detach(peer.receiver, Error("amqp:link:detach-forced", "moved"))
            await settlement.done
            assert settlement.confirmed == {deliveries[0]}
            assert isinstance(settlement.error, MessagingCommunicationError)
            assert settlement.error.entity == "orders"

    run(scenario())


def test_what_is_settled_after_the_link_was_lost_is_told_so_at_once() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 1)
            deliveries = await take(link, 1, soon())
            peer.last.hang_up()
            await settled()
            settlement = link.settle(deliveries, ACCEPTED)
            assert settlement.done.done()
            assert settlement.error is not None

    run(scenario())


# What the peer does to the link


@pytest.mark.parametrize("prefetch", [0, 5])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Error("amqp:not-found", "deleted"), EntityNotFoundError),
        (Error("amqp:resource-limit-exceeded", "full"), QuotaExceededError),
        (None, MessagingCommunicationError),
    ],
)
def test_whoever_waits_is_told_when_the_link_is_lost(
    prefetch: int, error: Error | None, kind: type[MessagingError]
) -> None:
    async def scenario() -> None:
        async with attached(prefetch=prefetch) as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            peer.detach(peer.receiver, error)
            with pytest.raises(kind):
                await task
            with pytest.raises(kind):
                await take(link, 1, soon(60))

    run(scenario())


def test_what_has_come_is_handed_out_though_the_link_is_lost() -> None:
    async def scenario() -> None:
        async with attached(prefetch=5) as (peer, link):
            payloads = stock(peer, 3)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            peer.last.hang_up()
            await settled()
            assert payloads_of(await take(link, 5, NO_WAIT)) == payloads
            with pytest.raises(MessagingCommunicationError):
                await take(link, 5, NO_WAIT)

    run(scenario())


# What is asked for in the attach


def attach_of(peer: Peer) -> Any:
    return peer.attached[-1].attach


def test_a3_peek_lock_and_receive_and_delete_are_asked_for_in_the_words_of_amqp() -> None:
    async def scenario() -> None:
        async with attached() as (peer, _):
            attach = attach_of(peer)
            assert attach.source.address == "orders"
            assert attach.source.filter in (None, {})
            assert attach.snd_settle_mode is SenderSettleMode.UNSETTLED
            assert attach.rcv_settle_mode is ReceiverSettleMode.SECOND
        async with attached(peek_lock=False) as (peer, link):
            attach = attach_of(peer)
            assert attach.snd_settle_mode is SenderSettleMode.SETTLED
            assert attach.rcv_settle_mode is ReceiverSettleMode.FIRST
            payloads = stock(peer, 2)
            deliveries = await take(link, 5, soon())
            assert payloads_of(deliveries) == payloads
            assert all(delivery.settled for delivery in deliveries)
            assert told(peer) == []

    run(scenario())


@pytest.mark.parametrize("session_id", ["alice", None])
def test_a5_a_session_is_asked_for_with_a_filter_and_a_wait(session_id: str | None) -> None:
    async def scenario() -> None:
        async with attached(wants_session=True, session_id=session_id, session_wait_ms=5_000) as (peer, link):
            attach = attach_of(peer)
            assert attach.source.filter == {SESSION_FILTER: session_id}
            assert attach.properties == {LINK_TIMEOUT: 5_000}
            assert link.session_id == (session_id or "next")
            assert link.session_locked_until_ms == pytest.approx((START_S + LOCK_S) * 1_000, abs=1_000)

    run(scenario())


def test_a5_a_session_whose_lock_is_lost_tells_so() -> None:
    async def scenario() -> None:
        async with attached(wants_session=True, session_id="alice") as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            peer.detach(peer.receiver, Error("com.microsoft:session-lock-lost", "too late"))
            with pytest.raises(SessionLockLostError):
                await task

    run(scenario())


# Its end


def test_a_link_that_is_closed_while_somebody_waits_tells_them() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            await link.close()
            with pytest.raises(MessagingError):
                await task
            assert peer.all_links() == []

    run(scenario())


def test_a_peer_that_does_not_give_credit_back_is_waited_for_only_a_little() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached(prefetch=5) as (peer, link):
            peer.drains = False
            started_s = loop.time()
            await link.close()
            assert loop.time() - started_s < 12

    run(scenario())


@pytest.mark.parametrize("peek_lock", [False, True])
def test_a_peer_that_does_not_give_credit_back_keeps_a_receive_under_way_only_a_little(peek_lock: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached(peek_lock=peek_lock) as (peer, link):
            peer.drains = False
            task = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            started_s = loop.time()
            await link.close()
            await asyncio.gather(task, return_exceptions=True)
            assert loop.time() - started_s < 12

    run(scenario())


@pytest.mark.parametrize("peek_lock", [False, True])
def test_a_receive_that_waits_for_the_credit_of_another_asks_for_none_when_the_link_closes(peek_lock: bool) -> None:
    async def scenario() -> None:
        async with attached(peek_lock=peek_lock) as (peer, link):
            peer.drains = False
            first = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            first.cancel()
            await asyncio.wait((first,))
            second = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            closing = asyncio.create_task(link.close())
            await asyncio.sleep(1)
            stock(peer, 3)
            peer.receiver.drained()
            peer.flush()
            outcomes = await asyncio.gather(second, return_exceptions=True)
            await closing
            assert isinstance(outcomes[0], ClosedError)

    run(scenario())


def test_a_link_that_is_closed_while_credit_is_taken_back_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached() as (peer, link):
            peer.drains = False
            stock(peer, 1)
            task = asyncio.create_task(take(link, 5, soon(60)))
            await settled()
            started_s = loop.time()
            await link.close()
            await asyncio.gather(task, return_exceptions=True)
            assert loop.time() - started_s < 12
            assert link.connection.error is None

    run(scenario())


@pytest.mark.parametrize("prefetch", [2, 8])
def test_a_link_that_is_being_closed_gives_no_more_credit(prefetch: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached(prefetch=prefetch) as (peer, link):
            peer.drains = False
            tasks = waiting(link, 2)
            await settled()
            closing = asyncio.create_task(link.close())
            await asyncio.sleep(0)
            started_s = loop.time()
            for _ in range(prefetch - 1):  # they were under way
                peer.deliver(message_bytes())
            await settled()
            peer.receiver.drained()
            peer.flush()
            await closing
            assert loop.time() - started_s < 1
            assert [wants_it_back for _, wants_it_back in granted(peer)] == [False, True]
            for task in tasks:
                with pytest.raises(ClosedError):
                    await task
            assert sum(count for count, state, _ in told(peer) if isinstance(state, Released)) == prefetch - 1

    run(scenario())


def test_e3_a_link_that_cannot_be_attached_is_refused_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with connected() as (_, connection):
            for _ in range(2):
                with pytest.raises(InvalidRequestError, match="no link can be attached like this") as caught:
                    ReceivingLink(connection, "orders", Wish(wants_session=True, session_wait_ms=2**32))
                assert caught.value.entity == "orders"
            assert not connection.links

    run(scenario())


# Several who wait at the same time


def waiting(link: ReceivingLink, count: int, most: int = 1) -> list[asyncio.Task[list[Delivery]]]:
    return [asyncio.create_task(take(link, most, soon(60))) for _ in range(count)]


def supply(peer: Peer, count: int) -> None:
    stock(peer, count)
    peer.supply(peer.receiver)
    peer.flush()


def test_those_who_wait_for_what_is_sent_ahead_are_served_in_their_order() -> None:
    async def scenario() -> None:
        async with attached(prefetch=10) as (peer, link):
            tasks = waiting(link, 5)
            await settled()
            for number in range(5):
                supply(peer, 1)
                await settled()
                assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (4 - number)

    run(scenario())


def test_somebody_who_is_cancelled_as_a_message_comes_leaves_it_to_the_next() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached(prefetch=10) as (peer, link):
            for delay_us in range(500, 1_600, 100):  # a message takes a millisecond
                first, second = waiting(link, 2)
                await settled()
                supply(peer, 1)
                loop.call_later(delay_us / 1_000_000, first.cancel)
                done, _ = await asyncio.wait((first, second), return_when=asyncio.ALL_COMPLETED, timeout=1)
                taken = [task for task in done if not task.cancelled()]
                assert len(taken) == 1
                second.cancel()
                await asyncio.gather(first, second, return_exceptions=True)
            assert not link.buffer

    run(scenario())


def test_somebody_who_takes_everything_leaves_the_others_waiting_for_the_next() -> None:
    async def scenario() -> None:
        async with attached(prefetch=10) as (peer, link):
            [greedy] = waiting(link, 1, most=10)
            others = waiting(link, 2)
            await settled()
            supply(peer, 2)
            await settled()
            assert greedy.done()
            assert sum(task.done() for task in others) + len(greedy.result()) in {2, 3}
            supply(peer, 2)
            results = await asyncio.gather(greedy, *others)
            assert sum(len(result) for result in results) + len(link.buffer) == 4

    run(scenario())


def test_all_who_wait_are_told_when_the_link_is_lost() -> None:
    async def scenario() -> None:
        async with attached(prefetch=10) as (peer, link):
            tasks = waiting(link, 3)
            await settled()
            peer.detach(peer.receiver, Error("amqp:not-found", "deleted"))
            for task in tasks:
                with pytest.raises(EntityNotFoundError):
                    await task

    run(scenario())


# Peers that are no Service Bus


def test_a_peer_that_knows_no_tokens_is_told_once_what_becomes_of_a_message() -> None:
    async def scenario() -> None:
        async with scripted(None) as (peer, factory):
            receiver = await factory.create_message_receiver("orders")
            stock(peer, 2)
            first, second = await receiver.receive(2)
            assert attach_of(peer).rcv_settle_mode is ReceiverSettleMode.FIRST
            await receiver.complete(first)
            await receiver.abandon(second)
            await settled()
            assert [(count, final) for count, _, final in told(peer)] == [(1, True), (1, True)]
            assert peer.requests == []

    run(scenario())
