"""The drill: a marked message is diverted and delivered, and no message of the application is touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, Final

import pytest

from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    InternalServerError,
    MessagingCommunicationError,
    MessagingTimeoutError,
)
from pairbus.pairing import DrillReport, EntityState
from pairbus.pairing.syphon.destination import DeliveryDestination
from tests.pairing.scenes import ORDERS, OTHERS, Scene, backlog_path, begin, letter, letters, paired, seconds
from tests.simulation.pair_world import PairWorld, run

MARK: Final = "x-pairbus-drill"
DOWN: Final = "destination down, messages wait in the backlog"


def test_c21_drill_diverts_a_marked_message_and_reports_the_times() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        async with _syphoning(scene, every_s=5):
            report = await scene.pair.drill(world.primary_manager())
        (diverted,) = scene.secondary.seen
        (delivered,) = scene.primary.seen
        assert diverted.message.application_properties["x-ms-path"] == report.path == delivered.path
        assert MARK in diverted.message.application_properties
        assert diverted.message.message_id == delivered.message.message_id
        assert timedelta() < report.diverted_in < seconds(0.1)
        assert seconds(0) < report.delivered_in <= seconds(5.1)
        assert report.total == report.diverted_in + report.delivered_in

    run(scenario)


def test_c21_drill_works_with_the_syphon_of_the_pair() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, enable_syphon=True)
        report = await scene.pair.drill(world.primary_manager())
        assert report.total < seconds(5)
        assert not await scene.backlog()
        assert not await world.primary_manager().queue_exists(report.path)
        await asyncio.gather(scene.factory.close(), *(factory.close() for factory in world.factories))

    run(scenario)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            ORDERS,
            [f'{DOWN} entity={ORDERS} error="the pair does not send to it at the moment"'],
        ),
        (f"{MARK}/1", []),
    ],
)
def test_held_destination_is_logged_as_a_warning_except_for_a_drill(
    path: str, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: PairWorld) -> None:
        destination = DeliveryDestination(path, world.primary_factory(), lambda _: True, lambda _: None)
        assert destination.hold()

    run(scenario)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == expected


def test_c21_drill_leaves_nothing_behind() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        manager = world.primary_manager()
        async with _syphoning(scene):
            report = await scene.pair.drill(manager)
        assert not await manager.queue_exists(report.path)
        assert sorted(queue.path for queue in await manager.get_queues()) == [ORDERS, OTHERS]
        assert not await scene.backlog()
        assert all(entity.path != report.path for entity in scene.pair.status().entities)

    run(scenario)


def test_c21_nothing_is_logged_for_a_drill_queue_after_its_deletion(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        async with _syphoning(scene):
            await scene.pair.drill(world.primary_manager())
        await asyncio.sleep(65 * 60)  # its tokens have expired by then
        caplog.clear()
        await asyncio.sleep(5 * 60)
        assert not [record for record in caplog.records if MARK in record.getMessage()]

    run(scenario)


@pytest.mark.parametrize("state", [EntityState.HEALTHY, EntityState.HELD_OVER, EntityState.FAILED_OVER])
def test_c21_drill_does_not_touch_messages_of_the_application(state: EntityState) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, ping_s=1_000)
        sender = await scene.sender()
        await sender.send(letters(3))
        if state is EntityState.HELD_OVER:
            scene.pair.engage(ORDERS)
        elif state is EntityState.FAILED_OVER:
            world.primary.disable(ORDERS)
            await sender.send(letter("diverted"))
            world.primary.enable(ORDERS)
        backlog_ids = [message.message_id for message in await scene.backlog()]
        before = world.primary.info(ORDERS)
        async with _syphoning(scene, only=MARK):
            await scene.pair.drill(world.primary_manager())
        assert scene.state() is state
        assert world.primary.info(ORDERS).message_count == before.message_count == 3
        assert [message.message_id for message in await scene.backlog()] == backlog_ids
        assert {path for _, path, _ in scene.changes if not path.startswith(MARK)} <= {ORDERS}

    run(scenario)


def test_c21_drill_works_while_all_entities_are_held_over() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        scene.pair.engage()
        async with _syphoning(scene):
            await scene.pair.drill(world.primary_manager())
        await (await scene.sender()).send(letter("held"))
        assert await scene.bodies() == [b"held"]

    run(scenario)


def test_c21_drill_without_a_syphon_raises_a_timeout() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        began_s = scene.now_s
        with pytest.raises(MessagingTimeoutError, match="is a syphon running") as caught:
            await scene.pair.drill(world.primary_manager(), seconds(20))
        assert scene.now_s - began_s == pytest.approx(20, abs=0.5)
        assert caught.value.entity is not None
        assert caught.value.entity.startswith(MARK)
        assert scene.pair.status().entities == ()

    run(scenario)


def test_c21_late_drill_message_is_harmless() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(MessagingTimeoutError):
            await scene.pair.drill(world.primary_manager(), seconds(20))
        assert await scene.deliver_all() == 1
        await asyncio.sleep(3_700)
        assert sorted(queue.path for queue in await world.primary_manager().get_queues()) == [ORDERS, OTHERS]

    run(scenario)


def test_c21_concurrent_drills_are_independent() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        async with _syphoning(scene):
            manager = world.primary_manager()
            reports: list[DrillReport] = await asyncio.gather(*(scene.pair.drill(manager) for _ in range(5)))
        assert len({report.path for report in reports}) == 5

    run(scenario)


def test_c21_drill_without_a_primary_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        world.primary_network.refuse()
        manager = world.primary_manager(operation_timeout=seconds(5))
        with pytest.raises((MessagingCommunicationError, MessagingTimeoutError)):
            await scene.pair.drill(manager)
        assert scene.pair.status().entities == ()

    run(scenario)


def test_c21_drill_without_a_backlog_raises_and_deletes_its_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1, factory=world.primary_factory(operation_timeout=seconds(10)))
        world.secondary.disable(backlog_path(0))
        with pytest.raises(BacklogUnavailableError):
            await scene.pair.drill(world.primary_manager())
        assert scene.pair.status().entities == ()
        assert sorted(queue.path for queue in await world.primary_manager().get_queues()) == [ORDERS, OTHERS]

    run(scenario)


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.006, 0.009, 0.012, 2.0])
def test_c21_cancelled_drill_leaves_the_pair_as_it_was(after_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        drilling = begin(scene.pair.drill(world.primary_manager()))
        await asyncio.sleep(after_s)
        drilling.cancel()
        await asyncio.gather(drilling, return_exceptions=True)
        assert drilling.cancelled()
        assert scene.pair.status().entities == ()
        await (await scene.sender()).send(letter("direct"))
        assert await scene.delivered() == [b"direct"]

    run(scenario)


def test_c21_drill_requires_a_manager_and_an_open_factory() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(TypeError):
            await scene.pair.drill(world.secondary_factory())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            await scene.pair.drill(world.primary_manager(), 5)  # type: ignore[arg-type]
        await scene.factory.close()
        with pytest.raises(ClosedError):
            await scene.pair.drill(world.primary_manager())

    run(scenario)


def test_c21_drill_with_the_manager_of_another_namespace_is_rejected() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(ValueError, match="primary"):
            await scene.pair.drill(world.secondary_manager())
        assert not scene.secondary.seen

    run(scenario)


# In an outage


def test_c21_drill_in_an_outage_diverts_the_message_and_delivers_it_afterwards() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        paths: list[str] = []

        @asynccontextmanager
        async def outage(path: str) -> AsyncIterator[None]:
            world.primary.disable(path)
            try:
                yield
            finally:
                assert scene.secondary.seen, "the message is diverted before the outage ends"
                world.primary.enable(path)
                paths.append(path)

        async with _syphoning(scene, every_s=5):
            report = await scene.pair.drill_outage(world.primary_manager(), outage)
        assert paths == [report.path]
        (diverted,) = scene.secondary.seen
        delivered = scene.primary.seen[-1]
        assert diverted.message.application_properties["x-ms-path"] == report.path == delivered.path
        assert timedelta() < report.diverted_in < seconds(5)
        assert report.delivered_in <= seconds(5.1)
        await _expect_nothing_left(scene)

    run(scenario)


def test_c21_drill_whose_outage_does_not_stop_sends_raises() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        with pytest.raises(InternalServerError, match="not diverted") as caught:
            await scene.pair.drill_outage(world.primary_manager(), lambda _path: nullcontext())
        assert not caught.value.is_transient
        assert not scene.secondary.seen
        await _expect_nothing_left(scene)

    run(scenario)


def test_c21_drill_whose_outage_cannot_begin_or_end_raises_its_error() -> None:
    class BrokenOutage:
        def __init__(self, path: str, *, begins: bool) -> None:
            self._path, self._begins = path, begins

        async def __aenter__(self) -> None:
            if not self._begins:
                raise RuntimeError("cannot begin")

        async def __aexit__(self, *_: object) -> None:
            raise RuntimeError("cannot end")

    async def scenario(world: PairWorld) -> None:
        scene = await paired(world)
        for begins, expected in ((False, "cannot begin"), (True, "cannot end")):
            with pytest.raises(RuntimeError, match=expected):
                await scene.pair.drill_outage(world.primary_manager(), partial(BrokenOutage, begins=begins))
            await _expect_nothing_left(scene)

    run(scenario)


async def _expect_nothing_left(scene: Scene) -> None:
    assert scene.pair.status().entities == ()
    assert not await scene.backlog()
    manager = scene.world.primary_manager()
    assert sorted(queue.path for queue in await manager.get_queues()) == [ORDERS, OTHERS]


@asynccontextmanager
async def _syphoning(scene: Scene, every_s: float = 0.1, only: str | None = None) -> AsyncIterator[None]:
    """Deliver the backlog manually during the block; with ``only``, just the marked messages."""

    async def work() -> None:
        while True:
            await asyncio.sleep(every_s)
            if only is None:
                await scene.deliver_all()
            else:
                await scene.deliver_marked(only)

    syphon: asyncio.Task[Any] = begin(work())
    try:
        yield
    finally:
        syphon.cancel()
        await asyncio.gather(syphon, return_exceptions=True)
