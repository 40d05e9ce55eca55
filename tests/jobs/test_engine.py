"""The syphon on Spark inside an application: an engine that its pair is told by name, or is handed (C3, C17, D2)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from pairbus import (
    EntityState,
    FactoryFaultedError,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.client.factory import FactoryState
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.options import find_engine
from pairbus.pairing.syphon import Syphon, SyphonContext
from pairbus.spark.session import ensured_session
from tests.pairing.processes import QUEUE, Books, NamespaceProcess, TwoNamespaces, receiving, sending
from tests.waiting import eventually_async

LIMIT_S: Final = 500.0


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


def test_d2_engine_is_found_by_its_name() -> None:
    assert find_engine("spark") is SparkSyphon
    with pytest.raises(ValueError, match=r"no syphon engine 'flink'; there are: in-process, spark"):
        find_engine("flink")


@pytest.fixture
def namespaces(tmp_path: Path) -> Iterator[TwoNamespaces]:
    with ExitStack() as stack:
        primary, secondary = (
            stack.enter_context(NamespaceProcess(tmp_path / name)) for name in ("contoso", "fabrikam")
        )
        yield TwoNamespaces(primary, secondary)


def children() -> list[int]:
    """The processes that this one has started, and those that they have."""
    found: list[int] = []
    parents = [os.getpid()]
    while parents:
        parent = parents.pop()
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                young = [int(pid) for pid in tasks.read_text().split()]
            except OSError:
                continue
            found += young
            parents += young
    return found


async def outlive_an_outage(namespaces: TwoNamespaces, books: Books, **options: Any) -> None:
    """Kill the primary, divert messages, and restart it: then everything is delivered.

    Nobody receives before it is back: a message may be delivered before it is on disk, and is another one then if the
    kill comes between. What is received twice here was kept twice.
    """
    factory = namespaces.primary_factory()
    async with namespaces.pairing(factory, enable_syphon=True, **options) as pair:
        assert syphon_of(pair).engine == "spark"
        async with sending(await factory.create_message_sender(QUEUE), books):
            await eventually_async(lambda: len(books.sent) > 50)
            namespaces.primary.kill()
            await eventually_async(lambda: pair.status().diverted >= 300)
            await asyncio.to_thread(namespaces.primary.start)
            await eventually_async(lambda: pair.status().entities[0].state is EntityState.HEALTHY)
        async with receiving(namespaces.primary_factory(), books):
            await eventually_async(lambda: not books.lost)
            await eventually_async(lambda: _is_drained(pair))
        print(books.summary(pair.status().diverted))
        await eventually_async(lambda: syphon_of(pair).syphoned >= 300)  # it is told when the batch has ended
    assert not books.failed


def syphon_of(pair: NamespacePair) -> Any:
    return pair.status().syphon


async def _is_drained(pair: NamespacePair) -> bool:
    return not any((await pair.backlog_depth()).values())


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 100)
def test_e1_pair_that_has_its_syphon_on_spark_outlives_an_outage_and_leaves_no_process(
    namespaces: TwoNamespaces,
) -> None:
    async def scenario() -> None:
        await namespaces.prepare(requires_duplicate_detection=True)
        before = {*children()}
        books = Books()
        # The namespace that is started again is another process.
        await outlive_an_outage(namespaces, books, syphon_engine="spark")
        assert not books.duplicated, {one: books.received[one] for one in books.duplicated}
        await eventually_async(lambda: len({*children()}) <= len(before))

    play(scenario())


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 100)
def test_c17_session_can_be_handed_over_and_a_factory_that_is_left_alone_is_faulted(
    namespaces: TwoNamespaces, tmp_path: Path
) -> None:
    def engine(session: SparkSession) -> Any:
        def make(context: SyphonContext) -> Syphon:
            return SparkSyphon(context, SparkSyphonSettings(session=session, checkpoint=tmp_path / "checkpoint"))

        return make

    async def scenario(session: SparkSession) -> None:
        await namespaces.prepare()
        await outlive_an_outage(namespaces, Books(), syphon_engine=engine(session))
        assert session.range(3).count() == 3, "it is the application's own"
        assert not session.streams.active

        async with paired(namespaces, syphon_engine=engine(session)) as (primary, secondary):
            await secondary.close()
            await eventually_async(lambda: primary.state is FactoryState.FAULTED)
            with pytest.raises(FactoryFaultedError):
                await primary.create_message_sender(QUEUE)
            await eventually_async(lambda: not session.streams.active)

    with ensured_session("local[2]") as session:
        play(scenario(session))


@asynccontextmanager
async def paired(namespaces: TwoNamespaces, **options: Any) -> AsyncIterator[tuple[MessagingFactory, MessagingFactory]]:
    """Factories of a pair whose ends are the test's own affair."""
    primary = namespaces.primary_factory()
    secondary = MessagingFactory.from_connection_string(namespaces.secondary.connection_string)
    async with (
        NamespaceManager.from_connection_string(namespaces.secondary.connection_string) as manager,
        secondary,
        primary,
    ):
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager, secondary, 2, timedelta(), enable_syphon=True, primary_name="contoso", **options
            )
        )
        yield primary, secondary
