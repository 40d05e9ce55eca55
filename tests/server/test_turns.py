"""E5: unproven peers are served one at a time, the one that has sent least first; deliveries share each pass."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from itertools import pairwise

import pytest

from pairbus.server.turns import DeliveryTurns, Share, Turns


def share_of(size_bytes: int, now_s: float) -> Share:
    share = Share()
    share.add(size_bytes, now_s)
    return share


async def served_all(turns: Turns) -> None:
    for _ in range(10_000):
        if not turns:
            return
        await asyncio.sleep(0.001)
    pytest.fail("a peer still waits for a turn")


def test_share_decays_with_time() -> None:
    share = share_of(10_000, 100.0)
    assert share.at(100.0) == 10_000
    assert share.at(101.0) < 10_000
    assert share.at(110.0) == 0
    share.add(500, 110.0)
    assert share.at(110.0) == 500


def test_first_unproven_peer_is_served_at_once_and_the_others_one_per_pass_least_first() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop)
        served: list[str] = []
        passes: list[int] = []

        def serve(name: str) -> Callable[[], object]:
            return lambda: served.append(name)

        for name, size in (("first", 3_000), ("much", 2_000), ("little", 100), ("some", 1_000)):
            turns.take(share_of(size, loop.time()), serve(name))
        assert (served, len(turns)) == (["first"], 3)
        while turns:
            await asyncio.sleep(0)
            passes.append(len(served))
        assert served == ["first", "little", "some", "much"]
        assert all(after - before <= 1 for before, after in pairwise(passes))
        await asyncio.sleep(0)
        turns.take(share_of(0, loop.time()), serve("later"))
        assert served[-1] == "later", "no peer has had the turn of this pass"

    asyncio.run(scenario())


def test_new_peer_is_served_during_the_pause_of_heavy_senders() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop)
        served: list[str] = []
        for _ in range(3):
            turns.take(share_of(1_000_000, loop.time()), lambda: served.append("greedy"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert served == ["greedy"], "the next one waits, and the loop can rest"
        turns.take(Share(), lambda: served.append("newcomer"))
        assert served == ["greedy", "newcomer"]
        await served_all(turns)
        assert served == ["greedy", "newcomer", "greedy", "greedy"]

    asyncio.run(scenario())


def test_turn_requested_within_a_turn_queues_behind_waiting_peers() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop)
        served: list[str] = []

        def again() -> None:
            served.append("again")
            if served.count("again") < 3:
                turns.take(share_of(200, loop.time()), again)

        turns.take(Share(), again)
        turns.take(share_of(100, loop.time()), lambda: served.append("other"))
        await served_all(turns)
        assert served == ["again", "other", "again", "again"]

    asyncio.run(scenario())


def test_peer_that_is_gone_is_neither_served_nor_kept_in_memory() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        turns = Turns(loop)
        served: list[str] = []
        turns.take(Share(), lambda: served.append("first"))
        gone = [share_of(size, loop.time()) for size in range(1_000)]
        held = [weakref.ref(Held(turns, share)) for share in gone]
        turns.take(stays := share_of(10_000, loop.time()), lambda: served.append("last"))
        for share in gone:
            turns.drop(share)
        assert not any(reference() for reference in held)
        assert len(turns) == 1
        assert len(turns._queue) < 100, "the places of peers that are gone are few"
        await served_all(turns)
        turns.drop(stays)
        assert served == ["first", "last"]

    asyncio.run(scenario())


class Held:
    """An object that a waiting peer keeps alive."""

    def __init__(self, turns: Turns, share: Share) -> None:
        turns.take(share, self.serve)

    def serve(self) -> None:
        pytest.fail("the peer is gone")


class Deliveries:
    """Work that takes time by a stopwatch of its own, and the passes of the loop in which it was done."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.turns = DeliveryTurns(asyncio.get_running_loop(), lambda: self.now_s)
        self.done: list[str] = []

    def work(self, name: str, length_s: float, more: int = 0) -> Callable[[], object]:
        def deliver() -> None:
            self.now_s += length_s
            self.done.append(name)
            if more:
                self.turns.wait(name, self.work(name, length_s, more - 1))

        return deliver

    def take(self, names: str, length_s: float, more: int = 0) -> None:
        for name in names:
            self.turns.take(name, self.work(name, length_s, more))

    async def next_pass(self, served_s: float = 0.0) -> list[str]:
        """Return what is done in a pass in which clients are served as long as given."""
        self.now_s += served_s
        self.turns.add_served(served_s)
        self.done.clear()
        await asyncio.sleep(0)
        return [*self.done]


def test_deliveries_of_a_pass_end_with_their_time_and_go_on_in_the_next() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        deliveries.take("abcd", 0.0007)
        assert deliveries.done == ["a", "b"], "the turn of 1 ms is over in the middle of the second"
        deliveries.turns.take("c", deliveries.work("c again", 0.0007))
        assert await deliveries.next_pass() == ["c again", "d"]
        assert await deliveries.next_pass() == []
        deliveries.take("e", 0.0007)
        assert deliveries.done == ["e"]

    asyncio.run(scenario())


def test_deliveries_have_a_quarter_of_the_time_for_which_clients_are_served_within_limits() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        deliveries.take("abcdefghijklmnopqrstuvwxyz", 0.004, more=9)
        assert deliveries.done == ["a"]
        assert len(await deliveries.next_pass()) == 1
        assert len(await deliveries.next_pass(served_s=0.080)) == 5
        assert len(await deliveries.next_pass(served_s=5.0)) == 13, "at most 50 ms"
        assert len(await deliveries.next_pass()) == 1

    asyncio.run(scenario())


def test_deliveries_wait_for_a_commit_that_has_enough_messages_to_remove() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        turns = deliveries.turns
        turns.add_requests(1)
        turns.add_removed(127)
        deliveries.take("a", 0.0)
        turns.add_removed(1)
        deliveries.take("bc", 0.0)
        assert deliveries.done == ["a"], "128 are removed beside a send"
        assert await deliveries.next_pass() == []
        turns.add_removed(-1)
        assert await deliveries.next_pass() == ["b", "c"]
        turns.add_removed(1)
        turns.add_requests(99)
        deliveries.take("d", 0.0)
        assert deliveries.done == ["b", "c", "d"], "two for each send"
        turns.add_requests(-100)
        turns.add_removed(1_024 - 128)
        deliveries.take("e", 0.0)
        assert await deliveries.next_pass() == [], "1,024 if no client waits for the commit"
        turns.add_removed(-1_024)
        assert await deliveries.next_pass() == ["e"]

    asyncio.run(scenario())


def test_delivery_that_has_more_comes_after_the_others() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        deliveries.turns.wait("a", deliveries.work("a", 0.0004, more=5))
        deliveries.turns.wait("b", deliveries.work("b", 0.0004, more=1))
        assert await deliveries.next_pass() == ["a", "b"], "each at most once in a pass"
        assert await deliveries.next_pass() == ["a", "b"]
        assert await deliveries.next_pass() == ["a"]

    asyncio.run(scenario())


def test_work_that_waits_for_a_later_pass_is_known_until_it_is_done() -> None:
    async def scenario() -> None:
        deliveries = Deliveries()
        deliveries.take("a", 0.005)
        deliveries.take("b", 0.001)
        assert [deliveries.turns.has_waiting(key) for key in "ab"] == [False, True]
        assert await deliveries.next_pass() == ["b"]
        assert not deliveries.turns.has_waiting("b")

    asyncio.run(scenario())
