"""The syphon on a Spark session of this machine, between two namespaces (D2, C14, C15)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from pairbus import (
    BrokeredMessage,
    EntityStatus,
    MessagingFactory,
    NamespaceManager,
    NamespacePair,
    ReceiveMode,
    SendAvailabilityPairedNamespaceOptions,
)
from pairbus.client.endpoint import open_connection_string
from pairbus.client.message import encode_brokered
from pairbus.client.received_message import MessageState
from pairbus.dialect.transfer import PATH, TIME_TO_LIVE, divert
from pairbus.jobs.syphon.outcome import BatchReport, OutcomeKind
from pairbus.jobs.syphon.settings import SparkSyphonSettings
from pairbus.jobs.syphon.spark_syphon import SparkSyphon
from pairbus.pairing.events import MessageDeadLettered, PairEvent
from pairbus.pairing.syphon import Held, InProcessSyphon, SyphonContext, SyphonSettings
from pairbus.spark.session import ensured_session
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.stage import make_queue
from tests.jobs.sent_messages import (
    SentMessages,
    Strings,
    dead_letters,
    depth,
    make_backlog,
    make_queues,
    peek_all,
    send_raw,
)
from tests.waiting import eventually_async

LIMIT_S: Final = 500.0

pytestmark = pytest.mark.timeout(LIMIT_S + 100)


@pytest.fixture(scope="module")
def primary() -> Iterator[RunningNamespace]:
    with running_namespace("contoso", tier="relaxed") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def secondary() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as namespace:
        yield namespace


@pytest.fixture(scope="module")
def strings(primary: RunningNamespace, secondary: RunningNamespace) -> Strings:
    return Strings(primary=primary.connection_string, secondary=secondary.connection_string)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with ensured_session("local[2]") as session:
        yield session


def play(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, LIMIT_S))


@dataclass(slots=True, kw_only=True)
class Scene:
    """A pair with a backlog of its own, and the events of syphons."""

    strings: Strings
    spark: SparkSession
    directory: Path
    primary: MessagingFactory
    secondary: MessagingFactory
    queues: tuple[str, ...]
    name: str
    events: list[PairEvent] = field(default_factory=list)
    reports: list[BatchReport] = field(default_factory=list)

    def context(self, held: Callable[[], Held] = Held, **settings: Any) -> SyphonContext:
        return SyphonContext(
            primary=self.primary,
            secondary=self.secondary,
            backlog_queues=self.queues,
            settings=SyphonSettings(**{"long_poll": timedelta(seconds=2), **settings}),
            is_held=lambda _: False,
            publish=self.events.append,
            held=held,
        )

    def syphon(self, checkpoint: str = "checkpoint", max_messages: int = 1_000, **settings: Any) -> SparkSyphon:
        made = SparkSyphonSettings(
            session=self.spark, checkpoint=self.directory / checkpoint, max_messages=max_messages
        )
        return SparkSyphon(self.context(**settings), made, self.reports.append)

    async def drain(self, **settings: Any) -> SparkSyphon:
        syphon = self.syphon(**settings)
        try:
            await syphon.drain()
        finally:
            await syphon.close()
        return syphon

    @asynccontextmanager
    async def running(self, **settings: Any) -> AsyncIterator[SparkSyphon]:
        syphon = self.syphon(**settings)
        try:
            await syphon.start()
            yield syphon
        finally:
            await syphon.close()

    async def destinations(self, count: int, **description: Any) -> list[str]:
        return await make_queues(self.strings.primary, f"{self.name}-{uuid4().hex[:4]}", count, **description)

    async def set_status(self, path: str, status: EntityStatus) -> None:
        async with NamespaceManager.from_connection_string(self.strings.primary) as manager:
            await manager.update_queue(replace(await manager.get_queue(path), status=status))

    async def left(self) -> int:
        return await depth(self.secondary, self.queues)

    async def emptied(self) -> None:
        async def is_empty() -> bool:
            return await self.left() == 0

        await eventually_async(is_empty)


@asynccontextmanager
async def scene(
    strings: Strings, spark: SparkSession, directory: Path, *, queues: int = 3, lock_s: int = 60
) -> AsyncIterator[Scene]:
    name = uuid4().hex[:8]
    paths = await make_backlog(strings.secondary, queues, timedelta(seconds=lock_s), name)
    async with strings.factories() as (primary, secondary):
        yield Scene(
            strings=strings,
            spark=spark,
            directory=directory,
            primary=primary,
            secondary=secondary,
            queues=paths,
            name=name,
        )


def poison(destination: str) -> dict[str, bytes]:
    """Messages that can go nowhere, by the reason for it."""

    def raw(**properties: Any) -> bytes:
        return encode_brokered(BrokeredMessage(b"?", message_id="poison", application_properties=properties))

    return {
        "PairbusNoDestination": raw(),
        "PairbusUnreadable": raw(**{PATH: destination, TIME_TO_LIVE: "soon"}),
        "PairbusInvalidDestination": raw(**{PATH: f"{destination}/$DeadLetterQueue"}),
        "PairbusEntityNotFound": divert(encode_brokered(BrokeredMessage(b"?", message_id="poison")), "nowhere"),
    }


async def receive_all(factory: MessagingFactory, path: str) -> int:
    """Take away what lies in a queue."""
    count = 0
    async with await factory.create_message_receiver(path, ReceiveMode.RECEIVE_AND_DELETE) as receiver:
        while found := await receiver.receive(1_000, timedelta(seconds=1)):
            count += len(found)
    return count


def test_d2_backlog_is_delivered(strings: Strings, spark: SparkSession, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            destinations = await at.destinations(2)
            sent_messages = SentMessages(destinations, at.queues)
            await sent_messages.load(at.secondary, 100)
            drained = await at.drain()
            assert drained.counts[OutcomeKind.DELIVERED] == 100
            assert {path: str(one) for path, one in drained.status.guarantees.items()} == dict.fromkeys(
                destinations, "at least once"
            )
            (await sent_messages.arrivals(at.primary)).assert_exact()
            assert await at.left() == 0

    play(scenario())


@pytest.mark.slow
def test_c15_once_what_can_be_delivered_is_and_the_rest_is_parked_or_dead_lettered_and_comes_when_it_can(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            good, down = await at.destinations(6), await at.destinations(2, status=EntityStatus.SEND_DISABLED)
            sent_messages, waiting = (
                SentMessages(good, at.queues, sessions=5),
                SentMessages(down, at.queues, seed=2, sessions=3),
            )
            await sent_messages.load(at.secondary, 600)
            await waiting.load(at.secondary, 300)
            await send_raw(at.secondary, at.queues[0], poison(good[0]).values())
            await sent_messages.load(at.secondary, 1_400)

            drained = await at.drain(max_messages=700)
            arrived = await sent_messages.arrivals(at.primary)
            arrived.assert_exact()
            assert not arrived.disordered
            assert drained.counts[OutcomeKind.DELIVERED] == drained.status.syphoned == 2_000
            assert {*drained.status.waiting} == {*down}
            parked = [one for path in at.queues for one in await peek_all(at.secondary, path)]
            assert [one.state for one in parked] == [MessageState.DEFERRED] * 300

            dead = {one.dead_letter_reason: one for one in await dead_letters(at.secondary, at.queues)}
            assert {*dead} == {*poison(good[0])}
            assert "'nowhere'" in str(dead["PairbusEntityNotFound"].dead_letter_error_description)
            reported = [event for event in at.events if isinstance(event, MessageDeadLettered)]
            assert {event.reason for event in reported} == {*dead}
            assert {event.path for event in reported} == {None, good[0], f"{good[0]}/$DeadLetterQueue", "nowhere"}

            async with at.running() as syphon:
                for path in down:
                    await at.set_status(path, EntityStatus.ACTIVE)
                await at.emptied()
                await eventually_async(lambda: syphon.status.syphoned == 300)  # it is told after they are gone
            arrived = await waiting.arrivals(at.primary)
            arrived.assert_exact()
            assert not arrived.disordered

    play(scenario())


@pytest.mark.slow
def test_c15_running_syphon_keeps_up_with_a_backlog_that_grows_and_outlives_the_primary(
    strings: Strings, primary: RunningNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            sent_messages = SentMessages(await at.destinations(4), at.queues)
            await sent_messages.load(at.secondary, 200)
            async with at.running() as syphon:
                for _ in range(4):  # it grows while it is drained
                    await sent_messages.load(at.secondary, 200)
                    await asyncio.sleep(0.3)
                await at.emptied()
                (await sent_messages.arrivals(at.primary)).assert_exact()

                await asyncio.to_thread(primary.stop)
                await sent_messages.load(at.secondary, 500)
                await eventually_async(lambda: OutcomeKind.GIVEN_BACK in syphon.counts)
                await asyncio.to_thread(primary.start)
                await at.emptied()
                assert OutcomeKind.PARKED not in syphon.counts
            (await sent_messages.arrivals(at.primary)).assert_complete()

    play(scenario())


@pytest.mark.slow
def test_c15_short_locks_are_renewed_until_a_batch_is_delivered(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    lock_s = 15

    def held_later() -> Held:
        time.sleep(lock_s + 3)  # a batch has been planned, and its tasks are late
        return Held()

    async def scenario() -> None:
        async with scene(strings, spark, tmp_path, queues=1, lock_s=lock_s) as at:
            sent_messages = SentMessages(await at.destinations(3), at.queues)
            await sent_messages.load(at.secondary, 2_000)
            syphon = at.syphon(max_messages=2_000, held=held_later)
            await syphon.drain()
            await syphon.close()
            assert syphon.counts == {OutcomeKind.DELIVERED: 2_000}
            (await sent_messages.arrivals(at.primary)).assert_exact()

    play(scenario())


def test_e4_factory_without_a_connection_string_raises_with_advice(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        endpoint, token_provider, _ = open_connection_string(strings.secondary)
        async with (
            scene(strings, spark, tmp_path) as at,
            MessagingFactory.create(endpoint, token_provider) as secondary,
        ):
            syphon = SparkSyphon(replace(at.context(), secondary=secondary), SparkSyphonSettings(session=spark))
            with pytest.raises(
                ValueError, match=r"factory of the secondary namespace has no connection string for the executors"
            ):
                await syphon.start()
            await syphon.close()
            assert not secondary.is_closed
            assert not spark.streams.active

    play(scenario())


# What takes longer.


@pytest.mark.slow
def test_c14_idle_syphon_asks_no_more_than_its_long_polls(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at, at.running(long_poll=timedelta(seconds=3)) as syphon:
            sent_messages = SentMessages(await at.destinations(1), at.queues)
            await sent_messages.load(at.secondary, 10)
            await at.emptied()
            loop = asyncio.get_running_loop()

            async def read_counts() -> tuple[int, float]:
                before = syphon.status.receives
                await eventually_async(lambda: syphon.status.receives > before)
                return syphon.status.receives, loop.time()

            before, began_s = await read_counts()
            await asyncio.sleep(30)
            receives, ended_s = await read_counts()
            assert receives - before >= len(at.queues)
            # What it tells first may be ten seconds old, and more where many share the processors.
            assert receives - before <= len(at.queues) * ((ended_s - began_s + 25) / 3 + 1)

    play(scenario())


@pytest.mark.slow
def test_c15_full_destination_is_waited_for_and_holds_up_no_other(
    strings: Strings, primary: RunningNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            full, good = make_queue(primary, max_size_megabytes=1), await at.destinations(3)
            await send_raw(at.primary, full, [encode_brokered(BrokeredMessage(b"x" * 100_000))] * 10)
            sent_messages, waiting = SentMessages(good, at.queues), SentMessages([full], at.queues, seed=2, sessions=4)
            async with at.running() as syphon:
                await waiting.load(at.secondary, 500)
                await sent_messages.load(at.secondary, 1_000)

                async def others_are_home() -> bool:
                    return not (await sent_messages.arrivals(at.primary)).lost

                await eventually_async(others_are_home)
                await eventually_async(lambda: {*syphon.status.waiting} == {full})
                assert await at.left() > 0
                assert await receive_all(at.primary, full) >= 10
                await at.emptied()
            arrived = await waiting.arrivals(at.primary)
            assert not arrived.changed
            assert not arrived.disordered
            assert arrived.repeats == 0

    play(scenario())


@pytest.mark.slow
def test_c15_destination_that_comes_and_goes_gets_everything_in_order(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            flapping, good = await at.destinations(1), await at.destinations(3)
            sent_messages, other = (
                SentMessages(flapping, at.queues[:1], sessions=6),
                SentMessages(good, at.queues, seed=2),
            )
            async with at.running(max_messages=100) as syphon:
                for turn in range(6):
                    await sent_messages.load(at.secondary, 150)
                    await other.load(at.secondary, 150)
                    status = EntityStatus.SEND_DISABLED if turn % 2 == 0 else EntityStatus.ACTIVE
                    await at.set_status(flapping[0], status)
                    await asyncio.sleep(1.5)
                await at.emptied()
                await eventually_async(lambda: syphon.status.syphoned >= 1_800)  # it is told after they are gone
            arrived = await sent_messages.arrivals(at.primary)
            arrived.assert_exact()
            assert not arrived.disordered
            (await other.arrivals(at.primary)).assert_exact()

    play(scenario())


@pytest.mark.slow
def test_c15_once_ends_though_the_backlog_grows_all_the_time(
    strings: Strings, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            sent_messages = SentMessages(await at.destinations(4), at.queues)
            await sent_messages.load(at.secondary, 1_000)
            first = {*sent_messages.sent}

            drained = asyncio.Event()

            async def grow() -> None:
                while not drained.is_set():
                    await sent_messages.load(at.secondary, 50)
                    await asyncio.sleep(0.05)

            async with asyncio.TaskGroup() as group:
                group.create_task(grow())
                try:
                    await asyncio.wait_for(at.drain(max_messages=200), 120)
                finally:
                    drained.set()  # what is being sent then is sent to its end
            arrived = await sent_messages.arrivals(at.primary)
            assert not first & arrived.lost
            assert arrived.lost, "it has not grown to the end"
            await at.drain()
            (await sent_messages.arrivals(at.primary)).assert_exact()

    play(scenario())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "detects"),
    [("spark", False), ("in-process", True)],
    ids=["spark, plain", "in-process, duplicate detection"],
)
def test_c15_two_syphons_at_once(
    strings: Strings, spark: SparkSession, tmp_path: Path, other: str, detects: bool
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at, strings.factories() as (primary, secondary):
            sent_messages = SentMessages(
                await at.destinations(5, requires_duplicate_detection=detects), at.queues, sessions=0 if detects else 7
            )
            await sent_messages.load(at.secondary, 4_000)
            context = replace(at.context(), primary=primary, secondary=secondary)
            settings = SparkSyphonSettings(session=spark, checkpoint=tmp_path / "other", max_messages=400)
            second = SparkSyphon(context, settings) if other == "spark" else InProcessSyphon(context)
            async with at.running(max_messages=400) as first:
                await eventually_async(lambda: first.status.syphoned > 0)
                try:  # one on Spark first waits for the locks of what lies before
                    await second.start()
                    await sent_messages.load(at.secondary, 1_000)
                    await at.emptied()
                    # a batch is counted when it ends, which is after its messages are gone
                    await eventually_async(lambda: first.status.syphoned + second.status.syphoned == 5_000)
                finally:
                    await second.close()
            (await sent_messages.arrivals(at.primary)).assert_exact()

    play(scenario())


@pytest.mark.slow
def test_c15_it_can_be_closed_while_the_primary_is_away(
    strings: Strings, primary: RunningNamespace, spark: SparkSession, tmp_path: Path
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            sent_messages = SentMessages(await at.destinations(2), at.queues)
            syphon = at.syphon()
            await syphon.start()
            await asyncio.to_thread(primary.stop)
            try:
                await sent_messages.load(at.secondary, 200)
                await eventually_async(lambda: OutcomeKind.GIVEN_BACK in syphon.counts)
                await asyncio.wait_for(syphon.close(), 60)
                assert await at.left() == 200
            finally:
                await asyncio.to_thread(primary.start)
            assert spark.range(3).count() == 3, "the session goes on"
            assert not spark.streams.active
            while await at.left():  # what a drain finds locked or parked, or cannot deliver yet, stays for the next one
                await at.drain()
            (await sent_messages.arrivals(at.primary)).assert_exact()

    play(scenario())


@pytest.mark.slow
def test_d2_queue_deleted_under_a_pair_is_created_again_and_drained_by_the_query_that_runs(
    strings: Strings, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with (
            scene(strings, spark, tmp_path) as at,
            NamespaceManager.from_connection_string(strings.secondary) as manager,
        ):
            (path,) = await at.destinations(1)
            settings = SparkSyphonSettings(session=spark, checkpoint=tmp_path / "pair")
            options = SendAvailabilityPairedNamespaceOptions(
                manager,
                at.secondary,
                3,
                enable_syphon=True,
                primary_name=at.name,
                syphon=SyphonSettings(long_poll=timedelta(seconds=2)),
                syphon_engine=lambda context: SparkSyphon(context, settings),
            )
            pair = await at.primary.pair_namespace(options)
            await eventually_async(lambda: _receives(pair) > 0)  # the query runs
            await manager.delete_queue(at.queues[1])
            await eventually_async(lambda: pair.status().backlog_queues[1].recreated == 1)
            await eventually_async(lambda: all(one.is_used for one in pair.status().backlog_queues))
            message = BrokeredMessage(b"new", message_id="new")
            await send_raw(at.secondary, at.queues[1], [divert(encode_brokered(message), path)])
            await at.emptied()
            assert [one.message_id for one in await peek_all(at.primary, path)] == ["new"]
            await at.primary.close()

    with caplog.at_level("INFO", "pairbus.jobs"):
        play(scenario())
    reported = [record.getMessage() for record in caplog.records]
    missed = [text for text in reported if text.startswith("backlog queue not found, waiting for it")]
    assert len(missed) <= 1, "the pair may create the queue again before the query has missed it"
    assert not [text for text in reported if "restarting" in text], "the query has ended"


def _receives(pair: NamespacePair) -> int:
    status = pair.status().syphon
    return 0 if status is None else status.receives


@pytest.mark.slow
def test_c15_queue_that_stays_deleted_holds_up_no_other(
    strings: Strings, spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with scene(strings, spark, tmp_path) as at:
            async with at.running() as syphon, NamespaceManager.from_connection_string(strings.secondary) as manager:
                lost, kept = await at.destinations(2)
                await manager.delete_queue(at.queues[0])
                await eventually_async(lambda: at.queues[0] in syphon._missing)
                for number in range(20):
                    message = BrokeredMessage(b"kept", message_id=str(number))
                    await send_raw(at.secondary, at.queues[1], [divert(encode_brokered(message), kept)])
                    await asyncio.sleep(1)
                await eventually_async(lambda: syphon.status.syphoned == 20)
                await manager.create_queue(at.queues[0])
                message = BrokeredMessage(b"found", message_id="found")
                await send_raw(at.secondary, at.queues[0], [divert(encode_brokered(message), lost)])
                await eventually_async(lambda: syphon.status.syphoned == 21)
            assert [one.message_id for one in await peek_all(at.primary, lost)] == ["found"]
            assert len(await peek_all(at.primary, kept)) == 20

    with caplog.at_level("INFO", "pairbus.jobs"):
        play(scenario())
    reported = [record.getMessage() for record in caplog.records]
    missed = [text for text in reported if text.startswith("backlog queue not found, waiting for it")]
    assert len(missed) <= 1, "the pair may create the queue again before the query has missed it"
    assert not [text for text in reported if "restarting" in text], "the query has ended"
