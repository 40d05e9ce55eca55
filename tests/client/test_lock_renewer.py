"""Locks that are renewed while the application works, in virtual time."""

from __future__ import annotations

import asyncio
import gc
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from pairbus.client.errors import MessageLockLostError, MessagingCommunicationError, MessagingError
from pairbus.client.lock_renewer import LockRenewer
from pairbus.client.received_message import ReceivedMessage
from pairbus.dialect.management import Request, Response
from pairbus.wire import Array, Error, Timestamp
from tests.client.amqp_peer import Peer, message_bytes, now, run, scripted, settled

LOCK_S: Final = 60.0
LONG: Final = timedelta(minutes=10)
RENEW: Final = "com.microsoft:renew-lock"


class Thing:
    """An object with a lock."""

    def __init__(self, name: str, lock_s: float = LOCK_S) -> None:
        self.name = name
        self.lock_s = lock_s
        self.is_settled = False
        self.locked_until: datetime | None = None
        self.renew()

    def renew(self) -> None:
        self.locked_until = datetime.fromtimestamp(time.time() + self.lock_s, UTC)

    @property
    def is_locked(self) -> bool:
        return self.locked_until is not None and self.locked_until > now()


class RenewalLog:
    """Renews, and notes what was renewed when."""

    def __init__(self) -> None:
        self.entries: list[tuple[float, list[str]]] = []
        self.lost: set[str] = set()
        self.failure: MessagingError | None = None
        self.takes_s = 0.0

    async def renew(self, things: list[Thing]) -> None:
        self.entries.append((asyncio.get_running_loop().time(), [thing.name for thing in things]))
        await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        if any(thing.name in self.lost for thing in things):
            raise MessageLockLostError("too late")
        for thing in things:
            thing.renew()

    def times_s(self, name: str) -> list[float]:
        return [time_s for time_s, names in self.entries if name in names]


def test_a3_lock_is_renewed_until_settled() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a")
        renewer.watch(thing)
        for _ in range(310):
            await asyncio.sleep(1)
            assert thing.is_locked
        thing.is_settled = True
        renewed = len(book.entries)
        assert 5 <= renewed <= 15
        await asyncio.sleep(300)
        assert len(book.entries) == renewed
        await renewer.close()

    run(scenario())


@pytest.mark.parametrize("lock_s", [5, 60, 300])
def test_a3_renewal_stops_after_longest_time(lock_s: float) -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a", lock_s)
        renewer.watch(thing)
        await asyncio.sleep(2_000)
        assert book.entries[-1][0] <= LONG.total_seconds()
        assert book.entries[-1][0] >= LONG.total_seconds() - lock_s
        await renewer.close()

    run(scenario())


def test_locks_due_together_are_renewed_with_one_request() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        for number in range(100):
            renewer.watch(Thing(str(number)))
        await asyncio.sleep(LOCK_S)
        assert [len(names) for _, names in book.entries] == [100] * len(book.entries)
        await renewer.close()

    run(scenario())


def test_more_urgent_lock_is_renewed_first() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        slow = Thing("slow", 300)
        renewer.watch(slow)
        await asyncio.sleep(10)
        quick = Thing("quick", 5)
        renewer.watch(quick)
        for _ in range(100):
            await asyncio.sleep(1)
            assert quick.is_locked
            assert slow.is_locked
        await renewer.close()

    run(scenario())


def test_lost_lock_does_not_affect_others() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        book.lost.add("lost")
        renewer = LockRenewer(book.renew, LONG)
        things = [Thing(name) for name in ("a", "lost", "b")]
        for thing in things:
            renewer.watch(thing)
        await asyncio.sleep(3 * LOCK_S)
        assert things[0].is_locked
        assert things[2].is_locked
        assert len({*book.times_s("lost")}) == 1  # once it is found to be lost it is let go
        await renewer.close()

    run(scenario())


def test_transient_failure_is_retried_before_lock_ends() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        book.failure = MessagingCommunicationError("lost")
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a")
        renewer.watch(thing)
        await asyncio.sleep(50)
        assert len(book.entries) >= 2
        book.failure = None
        await asyncio.sleep(9)
        assert thing.is_locked
        await asyncio.sleep(100)
        assert thing.is_locked
        await renewer.close()

    run(scenario())


def test_slow_renewal_does_not_delay_others() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        first, second = Thing("first"), Thing("second")
        renewer.watch(first)
        await asyncio.sleep(20)
        second.renew()
        renewer.watch(second)
        book.takes_s = 50
        await asyncio.sleep(35)
        assert book.times_s("second")
        await renewer.close()

    run(scenario())


def test_unlocked_message_is_not_renewed() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a")
        thing.locked_until = None
        renewer.watch(thing)
        await asyncio.sleep(1_000)
        assert book.entries == []
        await renewer.close()

    run(scenario())


def test_expired_lock_is_not_renewed_in_a_loop() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        book.failure = MessagingCommunicationError("lost")
        renewer = LockRenewer(book.renew, timedelta(seconds=60))
        renewer.watch(Thing("a", -100))
        await asyncio.sleep(60)
        assert len(book.entries) <= 125
        await renewer.close()

    run(scenario())


def test_close_cancels_running_renewal() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        book.takes_s = 1_000
        renewer = LockRenewer(book.renew, LONG)
        renewer.watch(Thing("a"))
        await asyncio.sleep(40)
        assert book.entries
        await renewer.close()
        assert len(asyncio.all_tasks()) == 1
        await renewer.close()

    run(scenario())


def test_closed_renewer_ignores_new_locks() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG)
        await renewer.close()
        renewer.watch(Thing("a"))
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(100)
        assert book.entries == []

    run(scenario())


# With a known lock duration


class Lost:
    """Notes lost locks."""

    def __init__(self) -> None:
        self.entries: list[tuple[list[str], MessagingError | None]] = []

    def note(self, things: list[Thing], error: MessagingError | None) -> None:
        self.entries.append(([thing.name for thing in things], error))

    @property
    def names(self) -> list[str]:
        return sorted(name for names, _ in self.entries for name in names)


@pytest.mark.parametrize("skew_s", [-1_000.0, 0.0, 1_000.0])
def test_known_lock_duration_is_measured_on_the_clock_of_the_loop(skew_s: float) -> None:
    async def scenario() -> None:
        book = RenewalLog()
        renewer = LockRenewer(book.renew, LONG, lock_s=lambda: LOCK_S)
        renewer.watch(Thing("a", LOCK_S + skew_s))
        await asyncio.sleep(100)
        assert [round(time_s) for time_s in book.times_s("a")] == [30, 60, 90]
        await renewer.close()

    run(scenario())


def test_expired_lock_is_reported_as_lost() -> None:
    async def scenario() -> None:
        book, lost = RenewalLog(), Lost()
        book.failure = MessagingCommunicationError("lost")
        renewer = LockRenewer(book.renew, lock_s=lambda: LOCK_S, on_lost=lost.note)
        renewer.watch(Thing("a"))
        await asyncio.sleep(LOCK_S - 1)
        assert len(book.entries) >= 3
        assert lost.entries == []
        await asyncio.sleep(2)
        assert lost.entries == [(["a"], None)]
        book.entries.clear()
        await asyncio.sleep(300)
        assert book.entries == []
        await renewer.close()

    run(scenario())


def test_shorter_lock_duration_moves_renewals_forward() -> None:
    async def scenario() -> None:
        book = RenewalLog()
        lock_s = [LOCK_S]
        renewer = LockRenewer(book.renew, lock_s=lambda: lock_s[0])
        renewer.watch(Thing("early"))
        await asyncio.sleep(4)
        lock_s[0] = 10.0
        renewer.watch(Thing("late"))
        await asyncio.sleep(3)
        assert [round(time_s) for time_s in book.times_s("early")] == [5]
        await renewer.close()

    run(scenario())


@pytest.mark.parametrize("is_adjacent", [False, True])
def test_lost_locks_are_found_among_others(is_adjacent: bool) -> None:
    async def scenario() -> None:
        book, lost = RenewalLog(), Lost()
        book.lost.update("efgh")
        renewer = LockRenewer(book.renew, lock_s=lambda: LOCK_S, on_lost=lost.note, lost_are_adjacent=is_adjacent)
        for name in "abcdefgh":
            renewer.watch(Thing(name))
        await asyncio.sleep(40)
        assert lost.names == [*"efgh"]
        book.entries.clear()
        await asyncio.sleep(30)
        assert [names for _, names in book.entries] == [[*"abcd"]]
        await renewer.close()

    run(scenario())


def test_many_adjacent_lost_locks_take_few_requests() -> None:
    async def scenario() -> None:
        book, lost = RenewalLog(), Lost()
        names = [str(number) for number in range(2_500)]
        book.lost.update(names)
        renewer = LockRenewer(book.renew, lock_s=lambda: LOCK_S, on_lost=lost.note, lost_are_adjacent=True)
        for name in names:
            renewer.watch(Thing(name))
        await asyncio.sleep(40)
        assert lost.names == sorted(names)
        assert len(book.entries) == 3 * 3  # for each request of 1,000: all, the last, the first
        await renewer.close()

    run(scenario())


def test_locks_settled_elsewhere_are_not_lost() -> None:
    async def scenario() -> None:
        book, lost = RenewalLog(), Lost()
        things = [Thing(name) for name in "abcd"]

        async def find_settled(asked: list[Thing]) -> None:
            for thing in asked:
                thing.is_settled = thing.name in book.lost

        renewer = LockRenewer(book.renew, lock_s=lambda: LOCK_S, on_lost=lost.note, find_settled=find_settled)
        for thing in things:
            renewer.watch(thing)
        book.lost.update("bc")
        await asyncio.sleep(40)
        assert lost.entries == []
        assert [names for _, names in book.entries] == [[*"abcd"], [*"ad"]]
        await renewer.close()

    run(scenario())


def test_error_that_is_no_lost_lock_is_retried_until_the_lock_expires() -> None:
    async def scenario() -> None:
        book, lost = RenewalLog(), Lost()
        book.failure = MessagingError("entity deleted")
        renewer = LockRenewer(book.renew, lock_s=lambda: LOCK_S, on_lost=lost.note)
        renewer.watch(Thing("a"))
        await asyncio.sleep(50)
        assert lost.entries == []
        book.failure = None
        await asyncio.sleep(100)
        assert lost.entries == []
        await renewer.close()

    run(scenario())


# With a receiver


def expirations(peer: Peer, lock_s: float = LOCK_S) -> list[int]:
    """Renew all requested locks; return the number of locks of each request."""
    counts: list[int] = []

    def answer(request: Request) -> Response:
        tokens = request.body["lock-tokens"].items
        counts.append(len(tokens))
        until = Timestamp(int((time.time() + lock_s) * 1_000))
        return Response(body={"expirations": Array((until,) * len(tokens))})

    peer.answers[RENEW] = answer
    return counts


async def beats(peer: Peer, seconds: int) -> None:
    for _ in range(seconds // 10):
        await asyncio.sleep(10)
        peer.last.beat()


def test_a3_receiver_renews_returned_messages_until_settled() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            counts = expirations(peer)
            receiver = await factory.create_message_receiver("orders", max_auto_lock_renewal=LONG)
            peer.stock.extend(message_bytes(locked_s=LOCK_S) for _ in range(3))
            messages = await receiver.receive(3)
            await beats(peer, 120)
            assert set(counts) == {3}
            assert all(message.locked_until is not None and message.locked_until > now() for message in messages)
            await receiver.complete(messages[:2])
            counts.clear()
            await beats(peer, 60)
            assert set(counts) == {1}
            await receiver.abandon(messages[2])
            counts.clear()
            await beats(peer, 120)
            assert counts == []

    run(scenario())


def test_a3_receiver_renews_over_new_link_after_loss() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            counts = expirations(peer)
            receiver = await factory.create_message_receiver("orders", max_auto_lock_renewal=LONG)
            peer.stock.append(message_bytes(locked_s=LOCK_S))
            [message] = await receiver.receive()
            peer.last.hang_up()
            await beats(peer, 120)
            assert len(counts) >= 3
            await receiver.complete(message)

    run(scenario())


@pytest.mark.parametrize("body", [{}, {"expirations": ["x"]}, {"expirations": Array((1, 2, 3))}], ids=str)
def test_e3_malformed_response_does_not_end_renewal(body: dict[str, object]) -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            peer.answers[RENEW] = lambda _request: Response(body=body)
            receiver = await factory.create_message_receiver("orders", max_auto_lock_renewal=LONG)
            peer.stock.append(message_bytes(locked_s=LOCK_S))
            [first] = await receiver.receive()
            await beats(peer, 40)
            counts = expirations(peer)
            peer.stock.append(message_bytes(locked_s=LOCK_S))
            [second] = await receiver.receive()
            await beats(peer, 120)
            assert counts
            assert second.locked_until is not None
            assert second.locked_until > now()
            await receiver.complete([first, second])

    run(scenario())


def test_settled_messages_are_released_from_memory() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            receiver = await factory.create_message_receiver("orders", max_auto_lock_renewal=LONG)
            for _ in range(20):
                peer.stock.extend(message_bytes(locked_s=LOCK_S) for _ in range(50))
                messages = await receiver.receive(50)
                await receiver.complete(messages)
            del messages
            await settled()
            gc.collect()
            alive = sum(isinstance(thing, ReceivedMessage) for thing in gc.get_objects())
            assert alive <= 200

    run(scenario())


def test_locks_are_not_renewed_by_default() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            receiver = await factory.create_message_receiver("orders")
            peer.stock.append(message_bytes(locked_s=LOCK_S))
            [message] = await receiver.receive()
            await beats(peer, 100)
            assert peer.requests == []
            peer.detach(peer.receiver, Error("amqp:link:detach-forced"))
            await receiver.complete(message)

    run(scenario())


@pytest.mark.parametrize("longest", [timedelta(seconds=-1), timedelta(days=-1)])
def test_e3_negative_renewal_time_is_rejected(longest: timedelta) -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            with pytest.raises(ValueError, match="max_auto_lock_renewal"):
                await factory.create_message_receiver("orders", max_auto_lock_renewal=longest)

    run(scenario())
