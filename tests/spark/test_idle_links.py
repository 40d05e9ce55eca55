"""Links to entities that stay open between tasks."""

from __future__ import annotations

from pairbus.client.entity_link import SendBatch
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.spark.sink import IdleLinks, idle_links_of
from tests.client.amqp_peer import Peer, run, scripted, settled


def parcel() -> SendBatch:
    return SendBatch([encode_brokered(BrokeredMessage("x"))])


def open_links(peer: Peer) -> int:
    """Return the number of open links, without the one for tokens: each has a session."""
    return len(peer.last.engine.sessions) - 1


def test_idle_link_is_reused_case_insensitively() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            links = IdleLinks(factory)
            link = links.take("orders")
            await links.give_back(link)
            assert links.take("Orders") is link

    run(scenario())


def test_link_in_use_is_not_shared() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            links = IdleLinks(factory)
            first, second = links.take("orders"), links.take("orders")
            assert first is not second
            for link in (first, second):
                await link.send(parcel())
            assert len(peer.attached) == 2
            await links.give_back(first)
            await links.give_back(second)
            await settled()
            assert links.take("orders") is second
            assert open_links(peer) == 1

    run(scenario())


def test_least_recently_used_link_is_closed() -> None:
    async def scenario() -> None:
        async with scripted() as (peer, factory):
            links = IdleLinks(factory, 3)
            for path in ("a", "b", "c", "a", "d", "e"):
                link = links.take(path)
                await link.send(parcel())
                await links.give_back(link)
            await settled()
            assert len(peer.attached) == 5
            assert open_links(peer) == 3
            for path in ("a", "d", "e"):
                link = links.take(path)
                await link.send(parcel())
                await links.give_back(link)
            assert len(peer.attached) == 5

    run(scenario())


def test_idle_links_belong_to_their_factory() -> None:
    async def scenario() -> None:
        async with scripted() as (_, factory):
            links = idle_links_of(factory)
            assert idle_links_of(factory) is links
        async with scripted() as (_, other):
            assert idle_links_of(other) is not links
        assert idle_links_of(factory) is not links

    run(scenario())
