"""The ways to entities that stay open between tasks."""

from __future__ import annotations

from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.parcel import Parcel
from pairbus.spark.lanes import Lanes, lanes_of
from tests.client.amqp_peer import Peer, run, scripted, settled


def parcel() -> Parcel:
    return Parcel([encode_brokered(BrokeredMessage("x"))])


def links(peer: Peer) -> int:
    """How many are open, beside the one for tokens: each has a session."""
    return len(peer.last.engine.sessions) - 1


def test_a_lane_is_used_again_however_its_name_is_written() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            lanes = Lanes(factory)
            lane = lanes.take("orders")
            await lanes.give_back(lane)
            assert lanes.take("Orders") is lane

    run(scenario())


def test_nobody_gets_a_lane_that_is_in_use() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            lanes = Lanes(factory)
            first, second = lanes.take("orders"), lanes.take("orders")
            assert first is not second
            for lane in (first, second):
                await lane.send(parcel())
            assert len(peer.attached) == 2
            await lanes.give_back(first)
            await lanes.give_back(second)
            await settled()
            assert lanes.take("orders") is second
            assert links(peer) == 1

    run(scenario())


def test_the_lane_that_was_not_used_for_longest_is_closed() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            lanes = Lanes(factory, 3)
            for path in ("a", "b", "c", "a", "d", "e"):
                lane = lanes.take(path)
                await lane.send(parcel())
                await lanes.give_back(lane)
            await settled()
            assert len(peer.attached) == 5
            assert links(peer) == 3
            for path in ("a", "d", "e"):
                lane = lanes.take(path)
                await lane.send(parcel())
                await lanes.give_back(lane)
            assert len(peer.attached) == 5

    run(scenario())


def test_lanes_are_a_factory_s_own_and_go_with_it() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            lanes = lanes_of(factory)
            assert lanes_of(factory) is lanes
        async with scripted() as (_, other):
            assert lanes_of(other) is not lanes
        assert lanes_of(factory) is not lanes

    run(scenario())
