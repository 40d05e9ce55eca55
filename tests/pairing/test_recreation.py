"""Backlog queues deleted under a running pair are created again, and others are used meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any, Final, NamedTuple

import pytest

from pairbus.broker import EntityInfo, QueueDescription, Right
from pairbus.broker import EntityNotFoundError as NoSuchEntityError
from pairbus.client.errors import (
    BacklogUnavailableError,
    ClosedError,
    EntityAlreadyExistsError,
    EntityNotFoundError,
    UnauthorizedError,
)
from pairbus.client.management.http import HttpConnections
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.pairing import BacklogQueueChanged, NamespacePair
from pairbus.pairing.backlog import backlog_description
from tests.pairing.scenes import (
    ATTEMPT_S,
    ORDERS,
    VISITS,
    Scene,
    allow,
    app_manager,
    backlog_path,
    begin,
    heal,
    letter,
    letters,
    paired,
    seconds,
    spoil,
    texts,
    took,
    until,
)
from tests.simulation.pair_world import PairWorld, run

MOMENT_S: Final = 0.1
EVERYTHING: Final = (Right.MANAGE, Right.SEND, Right.LISTEN)


# One of several queues.


@pytest.mark.parametrize("is_failed_over", [True, False], ids=["failed over", "healthy"])
def test_c10_queue_deleted_under_a_pair_is_created_again(is_failed_over: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=3)
        senders = [await scene.sender() for _ in range(12)]
        if is_failed_over:
            world.primary_network.refuse()
            await _all(sender.send(letter("first")) for sender in senders)
        _delete(world, 1)
        world.primary_network.refuse()
        assert await took(_all(sender.send(letter("second")) for sender in senders)) < MOMENT_S
        await until(lambda: _used(scene) == [True, True, True])
        assert (await _bodies(scene)).count(b"second") == 12
        assert _events(scene) == [
            Event(backlog_path(1), False, EntityNotFoundError, False),
            Event(backlog_path(1), True, None, True),
        ]
        assert _recreated(scene.pair) == [0, 1, 0]

    run(scenario)


def test_c5_recreated_queue_has_the_same_description() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        manager = world.secondary_manager()
        before = await manager.get_queue(backlog_path(0))
        assert before.max_delivery_count == backlog_description(before.path).max_delivery_count
        scene.pair.engage()
        _delete(world, 0, 1)
        await (await scene.sender()).send(letter())
        await until(lambda: _used(scene) == [True, True])
        assert await manager.get_queue(backlog_path(0)) == before

    run(scenario)


def test_c10_queue_is_created_once_for_many_senders() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=4)
        scene.pair.engage()
        senders = [await scene.sender() for _ in range(40)]
        await _all(sender.send(letter("first")) for sender in senders)
        created = _creations(world)
        _delete(world, 1, 2)
        with _requests(world) as times_s:
            await _all(sender.send(letters(5)) for sender in senders for _ in range(3))
            await until(lambda: all(_used(scene)))
        assert sorted(path for _, path in created) == [backlog_path(1), backlog_path(2)]
        assert len(times_s) == 4  # two look-ups and creations

    run(scenario)


def test_c10_several_processes_create_a_queue_once_and_all_use_it() -> None:
    async def scenario(world: PairWorld) -> None:
        scenes = [await paired(world, count=2) for _ in range(5)]
        senders = [await scene.sender() for scene in scenes]
        for scene in scenes:
            scene.pair.engage()
        _delete(world, 0, 1)
        await _all(sender.send(letter(str(number))) for number, sender in enumerate(senders))
        await until(lambda: all(all(_used(scene)) for scene in scenes))
        assert sum(sum(_recreated(scene.pair)) for scene in scenes) == 2
        assert sorted(await scenes[0].bodies()) == texts(5)

    run(scenario)


# All queues.


@pytest.mark.parametrize("is_failed_over", [True, False], ids=["failed over", "healthy"])
@pytest.mark.parametrize("count", [1, 3])
def test_c10_sends_wait_for_a_recreation_when_all_queues_are_deleted(count: int, is_failed_over: bool) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=count)
        senders = [await scene.sender() for _ in range(10)]
        if is_failed_over:
            world.primary_network.refuse()
            await _all(sender.send(letter("first")) for sender in senders)
        _delete(world, *range(count))
        world.primary_network.refuse()
        assert await took(_all(sender.send(letter(str(number))) for number, sender in enumerate(senders))) < MOMENT_S
        assert sorted(await _bodies(scene)) == texts(10)
        await until(lambda: all(_used(scene)))
        assert _recreated(scene.pair) == [1] * count

    run(scenario)


def test_c10_send_with_a_short_timeout_waits_for_a_queue_being_created() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=1, factory=world.primary_factory(operation_timeout=seconds(0.5)))
        scene.pair.engage()
        sender = await scene.sender()
        world.secondary_network.slow(0.1)
        _delete(world, 0)
        await sender.send(letter("0"))
        assert await _bodies(scene) == texts(1)

    run(scenario)


def test_c10_send_raises_in_time_when_no_queue_is_created() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2, factory=world.primary_factory(operation_timeout=seconds(20)))
        scene.pair.engage()
        sender = await scene.sender()
        _delete(world, 0, 1)
        await spoil(world.secondary, world.secondary_network, "stall")
        began_s = scene.now_s
        with pytest.raises(BacklogUnavailableError):
            await sender.send(letter("lost"))
        assert scene.now_s - began_s < 20 + 2 * ATTEMPT_S + MOMENT_S
        await heal(world.secondary, world.secondary_network)
        await sender.send(letter("0"))
        assert await _bodies(scene) == texts(1)

    run(scenario)


@pytest.mark.parametrize("what", ["refuse", "kill", "stall"])
def test_c10_secondary_that_fails_during_a_creation_gets_the_queue_later(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        sender = await scene.sender()
        _delete(world, 0, 1)
        sending = begin(sender.send(letter("0")))
        await asyncio.sleep(0)
        await spoil(world.secondary, world.secondary_network, what)
        await asyncio.sleep(8)
        await heal(world.secondary, world.secondary_network)
        await sending
        for _ in range(30):  # a send retries an unreachable queue
            await asyncio.sleep(1)
            await sender.send(letter("1"))
        assert _used(scene) == [True, True]
        assert {*await _bodies(scene)} == {b"0", b"1"}

    run(scenario)


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_c10_send_cancelled_while_waiting_for_a_queue_does_not_affect_others(step: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        sender, other = await scene.sender(), await scene.sender()
        _delete(world, 0, 1)
        victim = begin(sender.send(letter("victim")))
        for _ in range(step):
            await asyncio.sleep(0)
        victim.cancel()
        await asyncio.gather(victim, return_exceptions=True)
        await _all([sender.send(letter("0")), other.send(letter("1"))])
        await until(lambda: all(_used(scene)))
        assert sorted(body for body in await _bodies(scene) if body != b"victim") == texts(2)

    run(scenario)


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_c17_pair_closed_during_a_creation_leaves_nothing_running(step: int) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        sender = await scene.sender()
        _delete(world, 0, 1)
        waiting = begin(sender.send(letter("0")))
        for _ in range(step):
            await asyncio.sleep(0)
        await scene.factory.close()
        await asyncio.wait((waiting,))
        assert waiting.exception() is None or isinstance(waiting.exception(), ClosedError)
        _delete(world, 0)
        scene.pair._backlog.missing(backlog_path(0), EntityNotFoundError("too late"))
        await asyncio.sleep(5)
        with pytest.raises(NoSuchEntityError):
            world.secondary.info(backlog_path(0))

    run(scenario)


# Repeated deletions, and other entities at the same path.


def test_c10_repeatedly_deleted_queue_is_created_at_most_once_a_second() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        created = _creations(world)
        sender = await scene.sender()
        ends_s = scene.now_s + 10
        while scene.now_s < ends_s:
            _delete(world, 0, 1)
            await sender.send(letter())
            await asyncio.sleep(0.01)
        for index in range(2):
            times_s = [at_s for at_s, path in created if path == backlog_path(index)]
            assert len(times_s) > 5
            assert all(later - earlier >= 1 for earlier, later in pairwise(times_s))

    run(scenario)


def test_c5_other_entity_at_the_path_of_a_queue_is_reported_and_left_alone() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        _delete(world, 0)
        world.secondary.create_topic(backlog_path(0))  # it would accept messages without storing them
        scene.pair._backlog.missing(backlog_path(0), EntityNotFoundError("gone"))
        senders = [await scene.sender() for _ in range(10)]
        for _ in range(10):
            await asyncio.sleep(5)
            await _all(sender.send(letter()) for sender in senders)
        assert len(await scene.queue(1)) == 100
        queue, _ = scene.pair.status().backlog_queues
        assert isinstance(queue.cause, EntityNotFoundError)
        assert isinstance(queue.cause.__cause__, EntityAlreadyExistsError)

    run(scenario)


# A key that has lost the claim Manage.


def test_c10_other_queues_are_used_and_the_cause_is_reported_without_manage(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _without_manage(world, count=3)
        senders = [await scene.sender() for _ in range(12)]
        _delete(world, 1)
        assert await took(_all(sender.send(letter("0")) for sender in senders)) < MOMENT_S
        scene.secondary.seen.clear()
        for _ in range(300):
            await asyncio.sleep(1)
            assert await took(_all(sender.send(letter("1")) for sender in senders)) < MOMENT_S
        assert backlog_path(1) not in {one.path for one in scene.secondary.seen}
        assert _used(scene) == [True, False, True]
        cause = scene.pair.status().backlog_queues[1].cause
        assert isinstance(cause, EntityNotFoundError)
        assert isinstance(cause.__cause__, UnauthorizedError)
        assert "Manage" in str(cause)
        assert [event.is_used for event in _events(scene)] == [False]
        assert _recreated(scene.pair) == [0, 0, 0]

    with caplog.at_level(logging.WARNING, "pairbus.pairing"):
        run(scenario)
    log_lines = [record.getMessage() for record in caplog.records if backlog_path(1) in record.getMessage()]
    assert len(log_lines) == 2
    assert log_lines[0].startswith("backlog queue out of rotation ")
    assert log_lines[1].startswith(f"backlog queue not re-created, retrying entity={backlog_path(1)}")


def test_c10_creation_attempts_back_off_to_one_a_minute() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _without_manage(world, count=2)
        _delete(world, 0)
        with _requests(world) as times_s:
            scene.pair._backlog.missing(backlog_path(0), EntityNotFoundError("gone"))
            await asyncio.sleep(300)
        gaps_s = [round(later - earlier) for earlier, later in pairwise(times_s)]
        assert gaps_s == [1, 2, 4, 8, 16, 32, 60, 60, 60]

    run(scenario)


def test_c10_key_that_regains_manage_creates_the_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _without_manage(world, count=2)
        _delete(world, 0, 1)
        sending = begin((await scene.sender()).send(letter("0")))
        await asyncio.sleep(20)
        assert not sending.done()
        allow(world.secondary, *EVERYTHING)
        await sending
        await until(lambda: all(_used(scene)))
        assert await _bodies(scene) == texts(1)
        assert _recreated(scene.pair) == [1, 1]

    run(scenario)


def test_c10_send_without_manage_and_queues_lists_every_cause() -> None:
    async def scenario(world: PairWorld) -> None:
        factory = world.primary_factory(operation_timeout=seconds(30))
        scene = await _without_manage(world, count=2, factory=factory)
        _delete(world, 0, 1)
        began_s = scene.now_s
        with pytest.raises(BacklogUnavailableError, match="Manage") as caught:
            await (await scene.sender()).send(letter("lost"))
        assert scene.now_s - began_s < 16  # the next attempt would be at 31 s
        assert [*caught.value.causes] == [backlog_path(0), backlog_path(1)]
        assert all(isinstance(cause, EntityNotFoundError) for cause in caught.value.causes.values())

    run(scenario)


@pytest.mark.parametrize("reason", ["no Manage", "manager closed"])
def test_c10_queue_recreated_by_another_process_is_used_without_manage(reason: str) -> None:
    async def scenario(world: PairWorld) -> None:
        if reason == "no Manage":
            scene = await _without_manage(world, count=2)
        else:
            manager = world.secondary_manager()
            scene = await paired(world, count=2, manager=manager)
            scene.pair.engage()
            await manager.close()
        _delete(world, 0, 1)
        sender = await scene.sender()
        sending = begin(sender.send(letter("0")))
        await asyncio.sleep(10)
        assert not sending.done()
        world.secondary.create_queue(backlog_path(1), QueueDescription(max_delivery_count=1_000))
        await sending
        assert [bytes(message.body) for message in await scene.queue(1)] == texts(1)
        assert _used(scene) == [False, True]
        assert _recreated(scene.pair) == [0, 0]

    run(scenario)


# Other causes of a re-creation.


def test_c14_syphon_triggers_the_recreation_of_a_queue_and_continues(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2, enable_syphon=True)
        sender = await scene.sender()
        for turn in range(3):
            _delete(world, 0, 1)
            await until(lambda: all(_used(scene)))
            await asyncio.sleep(10)
            scene.pair.engage()
            await _all(sender.send(letter(f"{turn}-{number}")) for number in range(5))
            scene.pair.release()
        await _wait_until_delivered(scene, 15)
        assert _recreated(scene.pair) == [3, 3]

    with caplog.at_level(logging.WARNING, "pairbus.pairing.syphon"):
        run(scenario)
    log_lines = [record.getMessage() for record in caplog.records if "receive failed, retrying" in record.getMessage()]
    assert len(log_lines) == 6


def test_c14_syphon_waits_for_a_missing_queue_and_drains_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await _without_manage(world, count=2, enable_syphon=True)
        _delete(world, 0)
        sender = await scene.sender()
        await _all(sender.send(letter(str(number))) for number in range(5))
        scene.pair.release()
        await _wait_until_delivered(scene, 5)
        status = scene.pair.status().syphon
        assert status is not None
        before = status.receives
        await asyncio.sleep(3_600)
        status = scene.pair.status().syphon
        assert status is not None
        assert status.receives - before < 150  # 4 of one queue, and one every 30 s of the other
        allow(world.secondary, *EVERYTHING)
        await until(lambda: all(_used(scene)))

    with caplog.at_level(logging.WARNING, "pairbus.pairing.syphon"):
        run(scenario)
    assert len([record for record in caplog.records if backlog_path(0) in record.getMessage()]) == 4


def test_c19_depth_request_triggers_the_recreation_of_a_deleted_queue() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=3)
        _delete(world, 1)
        with pytest.raises(EntityNotFoundError, match=backlog_path(1)):
            await scene.pair.backlog_depth()
        await until(lambda: all(_used(scene)))
        assert await scene.pair.backlog_depth() == {backlog_path(index): 0 for index in range(3)}

    run(scenario)


def test_c10_queue_deleted_during_pairing_is_created_again() -> None:
    async def scenario(world: PairWorld) -> None:
        find = NamespaceManager.get_queue
        manager = world.secondary_manager()

        async def find_and_delete(manager: NamespaceManager, path: str) -> Any:
            found = await find(manager, path)
            if path == backlog_path(1):
                _delete(world, 1)
            return found

        for index in range(3):
            world.secondary.create_queue(backlog_path(index))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NamespaceManager, "get_queue", find_and_delete)
            scene = await paired(world, count=3, manager=manager)
        await until(lambda: all(_used(scene)))
        assert _recreated(scene.pair) == [0, 1, 0]

    run(scenario)


def test_c19_metrics_count_recreated_queues() -> None:
    async def scenario(world: PairWorld) -> None:
        scene = await paired(world, count=2)
        scene.pair.engage()
        _delete(world, 0, 1)
        await (await scene.sender()).send(letter())
        await until(lambda: all(_used(scene)))
        lines = (await scene.pair.metrics()).splitlines()
        assert f'pairbus_pair_backlog_queue_recreated_total{{queue="{backlog_path(1)}"}} 1' in lines

    run(scenario)


# Order of sessions.


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("notices", ["a send", "a look", "a syphon"])
def test_c20_session_of_a_deleted_queue_stays_in_order(count: int, notices: str) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
        has_syphon = notices == "a syphon"
        scene = await paired(world, count=count, preserve_session_order=True, enable_syphon=has_syphon)
        sender = await scene.sender(VISITS)
        scene.pair.engage()
        await sender.send(letter("lost", session_id="a"))
        (pinned,) = [index for index in range(count) if await scene.queue(index)]
        if notices == "a look":
            scene.pair.release()
        _delete(world, pinned)
        if notices != "a send":
            await until(lambda: _recreated(scene.pair)[pinned] == 1)
        scene.pair.engage()
        for number in range(20):
            await sender.send(letter(str(number), session_id="a"))
        used = [index for index in range(count) if await scene.queue(index)]
        assert len(used) == 1
        scene.pair.release()
        await sender.send(letter("20", session_id="a"))
        await until(lambda: all(_used(scene)))
        if notices != "a syphon":
            assert await scene.deliver_all() == 21
        await _wait_until_delivered(scene, 21, VISITS)
        assert await scene.delivered(VISITS) == texts(21)

    run(scenario)


def test_c20_session_leaves_a_deleted_queue_in_order_without_manage() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue(VISITS, QueueDescription(requires_session=True))
        scene = await _without_manage(world, count=3, preserve_session_order=True)
        sender = await scene.sender(VISITS)
        await sender.send(letter("lost", session_id="a"))
        (pinned,) = [index for index in range(3) if await scene.queue(index)]
        _delete(world, pinned)
        for number in range(5):
            await sender.send(letter(str(number), session_id="a"))
            await asyncio.sleep(10)
        allow(world.secondary, *EVERYTHING)
        await until(lambda: all(_used(scene)))
        for number in range(5, 10):
            await sender.send(letter(str(number), session_id="a"))
        assert await _bodies(scene) == texts(10)

    run(scenario)


# Helpers.


class Event(NamedTuple):
    """The content of a ``BacklogQueueChanged``."""

    path: str
    is_used: bool
    cause: type[BaseException] | None
    is_recreated: bool


def _events(scene: Scene) -> list[Event]:
    return [
        Event(event.path, event.is_used, None if event.cause is None else type(event.cause), event.is_recreated)
        for event in scene.events
        if isinstance(event, BacklogQueueChanged)
    ]


def _used(scene: Scene) -> list[bool]:
    return [one.is_used for one in scene.pair.status().backlog_queues]


def _recreated(pair: NamespacePair) -> list[int]:
    return [one.recreated for one in pair.status().backlog_queues]


def _delete(world: PairWorld, *indexes: int) -> None:
    """Delete these queues as far as they exist, with all their messages."""
    for index in indexes:
        with suppress(NoSuchEntityError):
            world.secondary.delete(backlog_path(index))


def _creations(world: PairWorld) -> list[tuple[float, str]]:
    """Return a list that gets the time and the path of each queue created in the secondary from now on."""
    found: list[tuple[float, str]] = []
    broker, loop = world.secondary.host.use_namespace(), asyncio.get_running_loop()
    create = broker.create_queue

    def noted(path: str, description: QueueDescription, now_ms: int) -> EntityInfo:
        created = create(path, description, now_ms)
        found.append((loop.time(), path))
        return created

    broker.create_queue = noted  # type: ignore[method-assign]
    return found


@contextmanager
def _requests(world: PairWorld) -> Iterator[list[float]]:
    """Note the times of the requests of all managers."""
    times_s: list[float] = []
    exchange = HttpConnections.exchange

    async def noted(connections: HttpConnections, *arguments: Any, **options: Any) -> Any:
        times_s.append(world.loop.time())
        return await exchange(connections, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpConnections, "exchange", noted)
        yield times_s


async def _without_manage(world: PairWorld, **options: Any) -> Scene:
    """Return a pair that is held over, and whose manager has lost the claim Manage."""
    allow(world.secondary, *EVERYTHING)
    scene = await paired(world, manager=app_manager(world), **options)
    allow(world.secondary, Right.SEND, Right.LISTEN)
    scene.pair.engage()
    return scene


async def _bodies(scene: Scene) -> list[bytes]:
    """Return the bodies of the messages in the existing backlog queues."""
    found: list[bytes] = []
    for index in range(len(scene.pair.status().backlog_queues)):
        with suppress(EntityNotFoundError):
            found += [bytes(message.body) for message in await scene.queue(index)]
    return found


async def _wait_until_delivered(scene: Scene, count: int, path: str = ORDERS) -> None:
    """Wait until ``count`` messages are in a queue of the primary."""
    async with asyncio.timeout(300):
        while len(await scene.delivered(path)) < count:  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0.1)


async def _all(work: Any) -> None:
    await asyncio.gather(*work)
