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
    """Something with a lock."""

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


class Book:
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


def test_a3_a_lock_is_renewed_in_time_until_it_is_not_needed_any_more() -> None:
    async def scenario() -> None:
        book = Book()
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
def test_a3_renewing_stops_when_the_longest_time_has_passed(lock_s: float) -> None:
    async def scenario() -> None:
        book = Book()
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a", lock_s)
        renewer.watch(thing)
        await asyncio.sleep(2_000)
        assert book.entries[-1][0] <= LONG.total_seconds()
        assert book.entries[-1][0] >= LONG.total_seconds() - lock_s
        await renewer.close()

    run(scenario())


def test_what_is_due_at_the_same_time_is_renewed_with_one_request() -> None:
    async def scenario() -> None:
        book = Book()
        renewer = LockRenewer(book.renew, LONG)
        for number in range(100):
            renewer.watch(Thing(str(number)))
        await asyncio.sleep(LOCK_S)
        assert [len(names) for _, names in book.entries] == [100] * len(book.entries)
        await renewer.close()

    run(scenario())


def test_what_is_more_urgent_goes_first_though_it_came_later() -> None:
    async def scenario() -> None:
        book = Book()
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


def test_a_lock_that_is_lost_does_not_take_the_others_with_it() -> None:
    async def scenario() -> None:
        book = Book()
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


def test_what_fails_in_passing_is_tried_again_before_the_lock_ends() -> None:
    async def scenario() -> None:
        book = Book()
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


def test_a_renewal_that_takes_long_does_not_keep_others_waiting() -> None:
    async def scenario() -> None:
        book = Book()
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


def test_what_has_no_lock_is_not_renewed() -> None:
    async def scenario() -> None:
        book = Book()
        renewer = LockRenewer(book.renew, LONG)
        thing = Thing("a")
        thing.locked_until = None
        renewer.watch(thing)
        await asyncio.sleep(1_000)
        assert book.entries == []
        await renewer.close()

    run(scenario())


def test_a_lock_that_has_ended_already_is_not_renewed_all_the_time() -> None:
    async def scenario() -> None:
        book = Book()
        book.failure = MessagingCommunicationError("lost")
        renewer = LockRenewer(book.renew, timedelta(seconds=60))
        renewer.watch(Thing("a", -100))
        await asyncio.sleep(60)
        assert len(book.entries) <= 125
        await renewer.close()

    run(scenario())


def test_to_close_ends_a_renewal_that_is_under_way() -> None:
    async def scenario() -> None:
        book = Book()
        book.takes_s = 1_000
        renewer = LockRenewer(book.renew, LONG)
        renewer.watch(Thing("a"))
        await asyncio.sleep(40)
        assert book.entries
        await renewer.close()
        assert len(asyncio.all_tasks()) == 1
        await renewer.close()

    run(scenario())


def test_whoever_comes_after_the_close_is_not_renewed_and_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        book = Book()
        renewer = LockRenewer(book.renew, LONG)
        await renewer.close()
        renewer.watch(Thing("a"))
        assert len(asyncio.all_tasks()) == 1
        await asyncio.sleep(100)
        assert book.entries == []

    run(scenario())


# With a receiver


def expirations(peer: Peer, lock_s: float = LOCK_S) -> list[int]:
    """Renew whatever is asked for; gives how many were renewed each time."""
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


def test_a3_a_receiver_keeps_what_it_has_handed_out_locked_until_it_is_settled() -> None:
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


def test_a3_a_receiver_renews_over_another_link_when_its_own_was_lost() -> None:
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
def test_e3_an_answer_that_makes_no_sense_does_not_end_all_renewing(body: dict[str, object]) -> None:
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


def test_what_has_been_settled_is_not_kept_in_memory() -> None:
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


def test_nothing_is_renewed_unless_that_is_wanted() -> None:
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
def test_e3_a_longest_time_below_zero_is_refused(longest: timedelta) -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            with pytest.raises(ValueError, match="max_auto_lock_renewal"):
                await factory.create_message_receiver("orders", max_auto_lock_renewal=longest)

    run(scenario())
