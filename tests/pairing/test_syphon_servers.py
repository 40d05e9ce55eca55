"""The syphon between two real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pairbus.client.entity_link import EntityLink, SendBatch
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage, encode_brokered
from pairbus.client.settings import ReceiveMode
from pairbus.dialect.transfer import divert
from pairbus.pairing.syphon import InProcessSyphon, SyphonContext, SyphonSettings
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import factory_of, make_queue, play
from tests.pairing.syphon_fixture import seconds
from tests.waiting import eventually_async


@pytest.fixture(scope="module")
def primary() -> Iterator[RunningNamespace]:
    with running_namespace("contoso") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def secondary() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


def _syphon(primary: MessagingFactory, secondary: MessagingFactory, *queues: str) -> InProcessSyphon:
    return InProcessSyphon(
        SyphonContext(
            primary=primary,
            secondary=secondary,
            backlog_queues=queues,
            settings=SyphonSettings(),
            is_held=lambda _: False,
            publish=lambda _: None,
        )
    )


async def _divert(factory: MessagingFactory, queue: str, destinations: list[str], count: int) -> None:
    link = EntityLink(factory, queue)
    messages = [
        (destinations[number % len(destinations)], BrokeredMessage(b"x" * 100, message_id=str(number), session_id="a"))
        for number in range(count)
    ]
    await link.send(SendBatch([divert(encode_brokered(message), path) for path, message in messages]))
    await link.close()


async def _ids(factory: MessagingFactory, path: str, count: int) -> list[str]:
    receiver = await factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE)
    found: list[str] = []
    while len({*found}) < count:
        found += [str(message.message_id) for message in await receiver.receive(1_000, seconds(10))]
    await receiver.close()
    return found


def test_c14_backlog_is_delivered_in_order(primary: RunningNamespace, secondary: RunningNamespace) -> None:
    backlog, destinations = make_queue(secondary), [make_queue(primary) for _ in range(4)]

    async def scenario() -> None:
        async with factory_of(primary) as primary_factory, factory_of(secondary) as secondary_factory:
            await _divert(secondary_factory, backlog, destinations, 2_000)
            syphon = _syphon(primary_factory, secondary_factory, backlog)
            await syphon.start()
            for index, path in enumerate(destinations):
                assert await _ids(primary_factory, path, 500) == [str(number) for number in range(index, 2_000, 4)]
            await syphon.close()
            async with await secondary_factory.create_message_receiver(backlog) as receiver:
                assert await receiver.peek(1) == []

    play(scenario())


def test_c15_restarted_primary_gets_everything(primary: RunningNamespace, secondary: RunningNamespace) -> None:
    backlog, path = make_queue(secondary), make_queue(primary, requires_duplicate_detection=True)

    async def scenario() -> None:
        async with factory_of(primary) as primary_factory, factory_of(secondary) as secondary_factory:
            syphon = _syphon(primary_factory, secondary_factory, backlog)
            await syphon.start()
            await _divert(secondary_factory, backlog, [path], 1_000)
            await eventually_async(lambda: syphon.status.syphoned > 0)
            await asyncio.to_thread(primary.restart)
            assert await _ids(primary_factory, path, 1_000) == [str(number) for number in range(1_000)]
            await syphon.close()

    play(scenario())


@pytest.mark.slow
def test_c15_two_syphons_deliver_each_message_once_with_duplicate_detection(
    primary: RunningNamespace, secondary: RunningNamespace
) -> None:
    backlog, path = make_queue(secondary), make_queue(primary, requires_duplicate_detection=True)

    async def scenario() -> None:
        async with (
            factory_of(primary) as primary_factory,
            factory_of(secondary) as secondary_factory,
            factory_of(secondary) as other,
        ):
            await _divert(secondary_factory, backlog, [path], 1_000)
            syphons = [_syphon(primary_factory, secondary_factory, backlog), _syphon(primary_factory, other, backlog)]
            await asyncio.gather(*(syphon.start() for syphon in syphons))
            assert await _ids(primary_factory, path, 1_000) == [str(number) for number in range(1_000)]
            await asyncio.gather(*(syphon.close() for syphon in syphons))

    play(scenario())


def test_c15_locked_messages_are_free_after_close(primary: RunningNamespace, secondary: RunningNamespace) -> None:
    backlog, path = make_queue(secondary), make_queue(primary)

    async def scenario() -> None:
        async with factory_of(primary) as primary_factory, factory_of(secondary) as secondary_factory:
            await _divert(secondary_factory, backlog, [path], 1_000)
            syphon = _syphon(primary_factory, secondary_factory, backlog)
            await syphon.start()
            await eventually_async(lambda: syphon.status.syphoned > 0)
            await syphon.close()
            again = _syphon(primary_factory, secondary_factory, backlog)
            await again.start()
            found = await _ids(primary_factory, path, 1_000)
            assert [*dict.fromkeys(found)] == [str(number) for number in range(1_000)]
            await again.close()

    play(scenario())
