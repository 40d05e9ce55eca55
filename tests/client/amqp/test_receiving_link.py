"""Links that messages are received on, with a peer that does what no namespace should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from pairbus.client.amqp.receiving_link import ReceiveOptions, ReceivingLink, is_confirmed
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
        link = ReceivingLink(connection, "orders", ReceiveOptions(**wish))
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
    """Return the credit that the client has granted so far, and whether it requested a drain."""
    return [(event.credit, event.drain) for event in peer.seen(CreditGranted)]


def reported(peer: Peer) -> list[tuple[int, object, bool]]:
    """Return the dispositions of the client: the number of deliveries, the state, and whether they are settled."""
    return [(len(event.deliveries), event.state, event.settled) for event in peer.seen(DispositionReceived)]


# Without prefetching


def test_no_credit_is_granted_before_receive() -> None:
    async def scenario() -> None:
        async with attached() as (peer, _):
            stock(peer, 3)
            await settled()
            assert granted(peer) == []

    run(scenario())


def test_credit_matches_request_and_rest_is_drained() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            payloads = stock(peer, 3)
            assert payloads_of(await take(link, 10, soon())) == payloads
            assert granted(peer) == [(10, False), (7, True)]
            assert peer.receiver.credit == 0

    run(scenario())


def test_used_up_credit_is_not_drained() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            payloads = stock(peer, 3)
            assert payloads_of(await take(link, 2, soon())) == payloads[:2]
            assert granted(peer) == [(2, False)]
            assert payloads_of(await take(link, 2, soon())) == payloads[2:]

    run(scenario())


def test_receive_without_wait_grants_and_drains_credit() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            assert await take(link, 5, NO_WAIT) == []
            assert granted(peer) == [(5, True)]
            payloads = stock(peer, 2)
            assert payloads_of(await take(link, 5, NO_WAIT)) == payloads

    run(scenario())


def test_wait_ends_with_first_message_or_timeout() -> None:
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


def test_messages_arriving_during_drain_are_returned() -> None:
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


def test_late_drain_is_awaited_and_missing_one_times_out() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            task = asyncio.create_task(take(link, 5, soon(1)))
            await asyncio.sleep(10)
            assert not task.done()
            peer.last.beat()
            with pytest.raises(MessagingTimeoutError, match="credit was not returned within 15 s"):
                await task
            assert link.error is not None
            assert link.connection.error is None

    run(scenario())


def test_messages_before_failed_drain_are_not_lost() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            peer.drains = False
            payloads = stock(peer, 2)
            assert payloads_of(await take(link, 5, soon(60))) == payloads
            assert link.error is not None

    run(scenario())


def test_surplus_messages_are_kept_for_next_receive() -> None:
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
            released = [state for _, state, _ in reported(peer) if isinstance(state, Released)]
            assert len(taken) + len(released) == 3
            assert link.error is None

    run(scenario())


def test_message_without_waiting_receiver_is_released_at_once() -> None:
    async def scenario() -> None:
        async with attached() as (peer, _):
            peer.deliver(message_bytes())
            await settled()
            assert reported(peer) == [(1, RELEASED, True)]

    run(scenario())


def test_a3_message_for_cancelled_receive_is_released_at_once() -> None:
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
            assert reported(peer) == [(2, RELEASED, True)]
            assert granted(peer)[-1][1]
            payloads = stock(peer, 1)
            assert payloads_of(await take(link, 5, soon())) == payloads

    run(scenario())


def test_a3_buffered_message_of_cancelled_receive_is_released_at_once() -> None:
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
            assert reported(peer) == [(2, RELEASED, True)]
            peer.drains = True
            peer.receiver.drained()
            peer.flush()

    run(scenario())


# With prefetching


def test_prefetch_is_replenished_when_half_is_taken() -> None:
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


def test_prefetched_message_is_returned_without_wait() -> None:
    async def scenario() -> None:
        async with attached(prefetch=2) as (peer, link):
            assert await take(link, 1, NO_WAIT) == []
            stock(peer, 2)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            assert len(await take(link, 5, NO_WAIT)) == 2

    run(scenario())


def test_waiting_receives_end_each_at_its_own_time() -> None:
    async def scenario() -> None:
        async with attached(prefetch=2) as (peer, link):
            loop = asyncio.get_running_loop()
            began_s, ended_s = loop.time(), {}

            async def wait(seconds: float) -> list[Delivery]:
                taken = await take(link, 1, soon(seconds))
                ended_s[seconds] = round(loop.time() - began_s, 3)
                return taken

            waits = [asyncio.create_task(wait(seconds)) for seconds in (60.0, 5.0, 2.0, 0.0, 3.0)]
            await asyncio.sleep(1)
            waits[-1].cancel()
            await asyncio.sleep(10)
            assert ended_s == {0.0: 0.0, 2.0: 2.0, 5.0: 5.0}
            payloads = stock(peer, 1)
            peer.supply(peer.receiver)
            peer.flush()
            assert payloads_of(await waits[0]) == payloads

    run(scenario())


def test_cancelled_receive_leaves_prefetched_messages_for_next() -> None:
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
            assert reported(peer) == []

    run(scenario())


def test_more_than_twenty_thousand_deliveries_may_be_unsettled() -> None:
    async def scenario() -> None:
        async with attached(prefetch=25_000) as (peer, link):
            peer.stock.extend([message_bytes()] * 25_000)
            peer.supply(peer.receiver)
            peer.flush()
            await until(lambda: len(link.buffer) == 25_000)
            assert link.error is None

    run(scenario())


@pytest.mark.parametrize("prefetch", [-1, 1 << 31])
def test_e3_prefetch_count_beyond_credit_range_is_rejected(prefetch: int) -> None:
    with pytest.raises(ValueError, match="prefetch_count"):
        ReceiveOptions(prefetch=prefetch)


def test_a3_prefetched_messages_are_released_at_close() -> None:
    async def scenario() -> None:
        async with attached(prefetch=5) as (peer, link):
            stock(peer, 3)
            peer.supply(peer.receiver)
            peer.flush()
            await settled()
            await take(link, 1, NO_WAIT)
            await link.close()
            assert [(count, state) for count, state, _ in reported(peer)] == [(2, RELEASED)]
            assert peer.all_links() == []

    run(scenario())


# Settlement


def test_a3_settlements_of_one_turn_are_sent_as_one_range() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 100)
            deliveries = await take(link, 100, soon())
            settlements = [link.settle([delivery], ACCEPTED) for delivery in deliveries]
            await asyncio.gather(*(settlement.done for settlement in settlements))
            assert reported(peer)[0] == (100, ACCEPTED, False)
            assert len(reported(peer)) <= 2  # in mode second we settle after the peer, if it has not done so for both

    run(scenario())


def test_a3_adjacent_deliveries_with_different_outcomes_are_sent_separately() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            stock(peer, 6)
            one, two, three, four, five, six = await take(link, 6, soon())
            modified = Modified(delivery_failed=True)
            for deliveries, state in (([one, two], ACCEPTED), ([three], modified), ([six, five], ACCEPTED)):
                link.settle(deliveries, state)
            await settled()
            assert [(count, state) for count, state, _ in reported(peer)] == [
                (2, ACCEPTED),
                (1, modified),
                (1, ACCEPTED),
                (1, ACCEPTED),
            ]
            link.settle([four], ACCEPTED)
            await settled()
            assert not link.unsettled

    run(scenario())


def test_settlement_waits_for_confirmation() -> None:
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
            assert [one for one in deliveries if is_confirmed(one)] == deliveries[:1]
            peer.settle(sent[1:], Rejected(Error("com.microsoft:message-lock-lost", "too late")))
            await settlement.done
            assert [one for one in deliveries if is_confirmed(one)] == deliveries[:1]
            assert isinstance(settlement.error, MessageLockLostError)
            assert not link.unsettled

    run(scenario())


def test_unsettled_outcome_of_peer_is_settled() -> None:
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
def test_concurrent_settlement_is_sent_once(together: bool) -> None:
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
            assert is_confirmed(delivery)
            assert [state for _, state, _ in reported(peer)][:1] == [ACCEPTED]
            again = link.settle([delivery], ACCEPTED)
            await again.done
            assert isinstance(again.error, MessageLockLostError)

    run(scenario())


def test_peer_that_settles_first_gets_one_disposition() -> None:
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
            assert reported(peer) == [(3, ACCEPTED, True)]

    run(scenario())


def test_unconfirmed_settlement_fails_when_link_is_lost() -> None:
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
            assert [one for one in deliveries if is_confirmed(one)] == deliveries[:1]
            assert isinstance(settlement.error, MessagingCommunicationError)
            assert settlement.error.entity == "orders"

    run(scenario())


def test_settlement_after_lost_link_fails_at_once() -> None:
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
def test_waiting_receive_raises_when_link_is_lost(
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


def test_buffered_messages_are_returned_after_lost_link() -> None:
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


def test_a3_receive_modes_map_to_settle_modes() -> None:
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
            assert reported(peer) == []

    run(scenario())


@pytest.mark.parametrize("session_id", ["alice", None])
def test_a5_session_is_requested_with_filter_and_timeout(session_id: str | None) -> None:
    async def scenario() -> None:
        async with attached(wants_session=True, session_id=session_id, session_wait_ms=5_000) as (peer, link):
            attach = attach_of(peer)
            assert attach.source.filter == {SESSION_FILTER: session_id}
            assert attach.properties == {LINK_TIMEOUT: 5_000}
            assert link.session_id == (session_id or "next")
            assert link.session_locked_until_ms == pytest.approx((START_S + LOCK_S) * 1_000, abs=1_000)

    run(scenario())


def test_a5_lost_session_lock_is_raised() -> None:
    async def scenario() -> None:
        async with attached(wants_session=True, session_id="alice") as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            peer.detach(peer.receiver, Error("com.microsoft:session-lock-lost", "too late"))
            with pytest.raises(SessionLockLostError):
                await task

    run(scenario())


# Its end


def test_waiting_receive_raises_when_link_is_closed() -> None:
    async def scenario() -> None:
        async with attached() as (peer, link):
            task = asyncio.create_task(take(link, 1, soon(60)))
            await settled()
            await link.close()
            with pytest.raises(MessagingError):
                await task
            assert peer.all_links() == []

    run(scenario())


def test_close_waits_briefly_for_missing_drain() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with attached(prefetch=5) as (peer, link):
            peer.drains = False
            started_s = loop.time()
            await link.close()
            assert loop.time() - started_s < 12

    run(scenario())


@pytest.mark.parametrize("peek_lock", [False, True])
def test_missing_drain_delays_receive_only_briefly(peek_lock: bool) -> None:
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
def test_receive_waiting_for_drain_grants_no_credit_after_close(peek_lock: bool) -> None:
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


def test_close_during_drain_wakes_all_waiters() -> None:
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
def test_closing_link_grants_no_credit(prefetch: int) -> None:
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
            assert sum(count for count, state, _ in reported(peer) if isinstance(state, Released)) == prefetch - 1

    run(scenario())


def test_e3_invalid_attach_is_rejected_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with connected() as (_, connection):
            for _ in range(2):
                with pytest.raises(InvalidRequestError, match="invalid attach") as caught:
                    ReceivingLink(connection, "orders", ReceiveOptions(wants_session=True, session_wait_ms=2**32))
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


def test_waiting_receives_are_served_in_order() -> None:
    async def scenario() -> None:
        async with attached(prefetch=10) as (peer, link):
            tasks = waiting(link, 5)
            await settled()
            for number in range(5):
                supply(peer, 1)
                await settled()
                assert [task.done() for task in tasks] == [True] * (number + 1) + [False] * (4 - number)

    run(scenario())


def test_cancelled_receive_passes_message_to_next() -> None:
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


def test_receive_that_takes_everything_leaves_others_waiting() -> None:
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


def test_all_waiting_receives_raise_when_link_is_lost() -> None:
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


def test_plain_amqp_peer_gets_one_disposition_per_message() -> None:
    async def scenario() -> None:
        async with scripted(None) as (peer, factory):
            receiver = await factory.create_message_receiver("orders")
            stock(peer, 2)
            first, second = await receiver.receive(2)
            assert attach_of(peer).rcv_settle_mode is ReceiverSettleMode.FIRST
            await receiver.complete(first)
            await receiver.abandon(second)
            await settled()
            assert [(count, final) for count, _, final in reported(peer)] == [(1, True), (1, True)]
            assert peer.requests == []

    run(scenario())
