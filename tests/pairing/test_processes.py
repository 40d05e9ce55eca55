"""E1, C6, C15: no confirmed message is lost when a process is killed. All namespaces and applications are processes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest

from pairbus import BacklogUnavailableError, BrokeredMessage, EntityState, MessagingFactory, NamespacePair
from tests.pairing.processes import (
    BACKLOG_QUEUES,
    QUEUE,
    Books,
    NamespaceProcess,
    TwoNamespaces,
    application,
    drained,
    receiving,
    sending,
)
from tests.waiting import eventually_async

LIMIT_S = 250.0


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[TwoNamespaces]:
    with ExitStack() as stack:
        primary, secondary = (
            stack.enter_context(NamespaceProcess(tmp_path / name)) for name in ("contoso", "fabrikam")
        )
        yield TwoNamespaces(primary, secondary)


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


def state_of(pair: NamespacePair) -> EntityState:
    (entity,) = pair.status().entities
    return entity.state


async def outlive_outages(
    namespaces: TwoNamespaces, books: Books, *, outages: int, diverted: int, detects: bool
) -> int:
    """Kill the primary, and restart it when enough messages were diverted; return the total number of those."""
    factory = namespaces.primary_factory()
    async with (
        receiving(namespaces.primary_factory(), books),
        namespaces.pairing(factory, enable_syphon=True) as pair,
    ):
        async with sending(await factory.create_message_sender(QUEUE), books):
            for _ in range(outages):
                before = len(books.sent)
                await eventually_async(lambda before=before: len(books.sent) > before + 50)  # type: ignore[misc]
                wanted = pair.status().diverted + diverted
                async with books.turn if detects else nullcontext():
                    namespaces.primary.kill()
                await eventually_async(lambda wanted=wanted: pair.status().diverted >= wanted)  # type: ignore[misc]
                assert state_of(pair) is EntityState.FAILED_OVER
                await asyncio.to_thread(namespaces.primary.start)
                await eventually_async(lambda: state_of(pair) is EntityState.HEALTHY)
        await eventually_async(lambda: not books.lost)
        await drained(pair)
        print(books.summary(pair.status().diverted))
        return pair.status().diverted


@pytest.mark.parametrize(
    ("outages", "diverted"),
    [(1, 100), pytest.param(3, 300, marks=pytest.mark.slow)],
    ids=["one outage", "three outages"],
)
@pytest.mark.parametrize("detects", [False, True], ids=["plain", "duplicate detection"])
def test_e1_killed_primary_fails_no_send_and_loses_nothing(
    namespaces: TwoNamespaces, outages: int, diverted: int, detects: bool
) -> None:
    books = Books()

    async def scenario() -> None:
        await namespaces.prepare(requires_duplicate_detection=detects)
        found = await outlive_outages(namespaces, books, outages=outages, diverted=diverted, detects=detects)
        assert found >= outages * diverted

    play(scenario())
    assert books.failed == {}
    assert books.lost == set()
    assert books.received.keys() == books.sent
    if detects:
        assert books.duplicated == set()


async def divert_many(namespaces: TwoNamespaces, factory: MessagingFactory, books: Books, count: int) -> None:
    """Fill the backlog with several senders while the primary is down."""
    namespaces.primary.kill()
    for _ in range(BACKLOG_QUEUES):
        sender = await factory.create_message_sender(QUEUE)
        ids = [uuid4().hex for _ in range(count // BACKLOG_QUEUES)]
        await sender.send([BrokeredMessage(message_id, message_id=message_id) for message_id in ids])
        books.sent.update(ids)
    await asyncio.to_thread(namespaces.primary.start)


async def kill_application(namespaces: TwoNamespaces, books: Books, random: Random) -> None:
    """Run an application, and kill it when a number of further messages have been received."""
    async with application(namespaces, books) as running:
        received = len(books.received) + random.randrange(1, 600)
        await eventually_async(lambda: len(books.received) >= received)
        await running.kill()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("detects", [False, True], ids=["plain", "duplicate detection"])
def test_e1_repeatedly_killed_application_loses_nothing(namespaces: TwoNamespaces, seed: int, detects: bool) -> None:
    books = Books()
    random = Random(seed)  # noqa: S311 (random times of kills)

    async def scenario() -> None:
        await namespaces.prepare(requires_duplicate_detection=detects)
        factory = namespaces.primary_factory()
        async with namespaces.pairing(factory) as pair:
            is_through = True
            while is_through:  # it may have sent everything before the kill
                await divert_many(namespaces, factory, books, 6_000)
                async with receiving(namespaces.primary_factory(), books):
                    await kill_application(namespaces, books, random)
                is_through = not any((await pair.backlog_depth()).values())
            async with receiving(namespaces.primary_factory(), books):
                for _ in range(3):
                    await kill_application(namespaces, books, random)
                async with application(namespaces, books) as running:
                    await eventually_async(lambda: running.said > 50)
                    await drained(pair)
                await eventually_async(lambda: not books.lost)
            print(books.summary(pair.status().diverted))

    play(scenario())
    assert books.lost == set()
    if detects:
        assert books.duplicated == set()


@pytest.mark.slow
def test_e1_outage_of_both_raises_and_loses_no_confirmed_message(namespaces: TwoNamespaces) -> None:
    books = Books()

    async def scenario() -> None:
        await namespaces.prepare()
        short = timedelta(seconds=5)
        factory = namespaces.primary_factory(operation_timeout=2 * short)
        async with (
            receiving(namespaces.primary_factory(), books),
            namespaces.pairing(factory, enable_syphon=True, attempt_timeout=short) as pair,
        ):
            async with sending(await factory.create_message_sender(QUEUE), books):
                await eventually_async(lambda: len(books.sent) > 50)
                namespaces.primary.kill()
                await eventually_async(lambda: pair.status().diverted > 50)
                namespaces.secondary.kill()
                await eventually_async(lambda: len(books.failed) > 50)
                diverted = pair.status().diverted
                await asyncio.to_thread(namespaces.secondary.start)
                await eventually_async(lambda: pair.status().diverted > diverted + 50)
                await asyncio.to_thread(namespaces.primary.start)
                await eventually_async(lambda: state_of(pair) is EntityState.HEALTHY)
            await eventually_async(lambda: not books.lost)
            await drained(pair)
            print(books.summary(pair.status().diverted))

    play(scenario())
    assert books.lost == set()
    assert {type(error) for error in books.failed.values()} == {BacklogUnavailableError}
