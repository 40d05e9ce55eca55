"""E5: unproven peers are served one at a time; the one that has sent least comes first."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from itertools import pairwise

import pytest

from pairbus.server.turns import Share, Turns


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
    """What is held for a peer that waits."""

    def __init__(self, turns: Turns, share: Share) -> None:
        turns.take(share, self.serve)

    def serve(self) -> None:
        pytest.fail("the peer is gone")
