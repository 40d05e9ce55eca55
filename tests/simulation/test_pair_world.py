"""The world that pairs are tested in: two namespaces with their management, and all that can happen to them."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from random import Random, SystemRandom
from typing import Final
from uuid import uuid4

import pytest

from pairbus.broker import QueueDescription as BrokerQueue
from pairbus.client.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessagingCommunicationError,
    MessagingError,
    MessagingTimeoutError,
    ServerBusyError,
)
from pairbus.client.management.descriptions import QueueDescription
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import ReceiveMode
from tests.faults.fault import Way
from tests.faults.namespace import START_MS, VirtualNamespace
from tests.faults.recorder import Recorder
from tests.faults.trouble import Trouble
from tests.simulation.pair_world import PRIMARY, SECONDARY, NetworkPath, PairWorld, run
from tests.waiting import eventually_async

QUEUE: Final = "contoso/x-servicebus-transfer/0"
SOON: Final = {"operation_timeout": timedelta(seconds=20)}
ATTEMPT_S: Final = 15.0


# Management, over HTTP in memory.


def test_queues_are_managed_in_virtual_time() -> None:
    async def scenario(world: PairWorld) -> None:
        manager = world.secondary_manager()
        made = await manager.create_queue(QueueDescription(QUEUE, max_delivery_count=7))
        assert made.max_delivery_count == 7
        assert (await manager.get_queue(QUEUE)).max_delivery_count == 7
        await manager.create_queue("other")
        assert [queue.path for queue in await manager.get_queues()] == [QUEUE, "other"]
        await manager.delete_queue("other")
        assert not await manager.queue_exists("other")
        assert world.secondary.info(QUEUE).description == BrokerQueue(max_delivery_count=7)

    took_s = run(scenario)
    assert 10.0 < took_s < 11.0  # ten of which are to see that nothing more happens


def test_http_reports_the_counts_of_messages_sent_over_amqp() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.create_queue(QUEUE)
        sender = await world.secondary_factory().create_message_sender(QUEUE)
        await sender.send([BrokeredMessage(b"x") for _ in range(3)])
        info = await world.secondary_manager().get_queue_runtime_info(QUEUE)
        assert (info.message_count, info.active_message_count) == (3, 3)

    run(scenario)


def test_topics_and_subscriptions_are_managed_too() -> None:
    async def scenario(world: PairWorld) -> None:
        manager = world.primary_manager()
        await manager.create_topic("news")
        await manager.create_subscription("news", "all")
        world.primary.create_topic("letters", ["first", "second"])
        assert [topic.path for topic in await manager.get_topics()] == ["news", "letters"]
        assert [found.name for found in await manager.get_subscriptions("letters")] == ["first", "second"]

    run(scenario)


def test_each_namespace_announces_its_name_and_is_reached_by_it() -> None:
    async def scenario(world: PairWorld) -> None:
        for manager, name in ((world.primary_manager(), PRIMARY), (world.secondary_manager(), SECONDARY)):
            assert (await manager.get_namespace_info()).name == name
            assert manager.endpoint.namespace == name

    run(scenario)


def test_no_thread_is_needed() -> None:
    before = threading.active_count()

    async def scenario(world: PairWorld) -> None:
        await world.secondary_manager().create_queue(QUEUE)
        assert threading.active_count() == before

    run(scenario)


# What can happen to a namespace.


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_entities_created_over_http_survive_a_restart(how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        manager = world.secondary_manager()
        await manager.create_queue(QUEUE)
        created_at = (await manager.get_namespace_info()).created_at
        await _end(world.secondary, how)
        with pytest.raises(MessagingError) as caught:
            await world.secondary_manager(**SOON).get_queue(QUEUE)
        assert caught.value.is_transient
        world.secondary.start()
        assert (await manager.get_queue(QUEUE)).path == QUEUE
        assert (await manager.get_namespace_info()).created_at == created_at

    run(scenario)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_requests_that_are_under_way_end_with_the_namespace(how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        requests = [asyncio.create_task(_create(world, f"q{number}")) for number in range(20)]
        await asyncio.sleep(0.0065)  # some have come, and some are answered
        await _end(world.secondary, how)
        world.secondary.start()
        await asyncio.gather(*requests)
        assert len(await world.secondary_manager().get_queues()) == 20

    run(scenario)


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("after_ms", range(12))
def test_request_releases_everything_whenever_the_namespace_ends(how: str, after_ms: int) -> None:
    async def scenario(world: PairWorld) -> None:
        creating = asyncio.create_task(_create(world, QUEUE))
        await asyncio.sleep(after_ms / 1_000)
        await _end(world.secondary, how)
        assert not await _is_running(world.secondary)
        world.secondary.start()
        await creating
        assert await world.secondary_manager().queue_exists(QUEUE)

    run(scenario)


def test_request_that_waits_for_its_commit_ends_when_the_namespace_is_killed() -> None:
    async def scenario(world: PairWorld) -> None:
        disk = world.secondary.host.committer
        disk._is_committing = True  # as during a commit that takes for ever
        creating = asyncio.create_task(_create(world, QUEUE))
        await eventually_async(lambda: disk._waiting)
        assert world.secondary.tasks
        world.secondary.kill()
        assert not await _is_running(world.secondary)
        world.secondary.start()
        await creating
        assert await world.secondary_manager().queue_exists(QUEUE)

    run(scenario)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_kept_alive_connection_ends_with_the_namespace(how: str) -> None:
    async def scenario(world: PairWorld) -> None:
        _, recorder = await world.loop.create_connection(Recorder, SECONDARY, world.secondary.port)
        recorder.write(b"GET /health HTTP/1.1\r\nHost: fabrikam\r\n\r\n")
        await eventually_async(lambda: recorder.data.startswith(b"HTTP/1.1 200 OK"))
        await asyncio.sleep(100)
        assert not recorder.is_lost
        await _end(world.secondary, how)
        await eventually_async(lambda: recorder.is_lost)
        assert recorder.was_reset is (how == "kill")

    run(scenario)


def test_b2_busy_namespace_denies_management_too() -> None:
    async def scenario(world: PairWorld) -> None:
        world.secondary.busy_until_s = world.loop.time() + 15.0
        await world.secondary_manager().create_queue(QUEUE)
        assert [round(when_s, 1) > 10.0 for when_s, _ in world.secondary.denied] == [False, True]
        world.secondary.busy_until_s = world.loop.time() + 1_000.0
        with pytest.raises(ServerBusyError):
            await world.secondary_manager().get_queue(QUEUE)

    run(scenario)


@pytest.mark.parametrize("skew_s", [-40.0, 0.0, 300.0])
def test_clocks_of_the_namespaces_differ(skew_s: float) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders")
        factory = world.primary_factory()
        await (await factory.create_message_sender("orders")).send(BrokeredMessage())
        message = (await (await factory.create_message_receiver("orders")).receive(1))[0]
        assert message.enqueued_time is not None
        ahead_s = (message.enqueued_time - datetime.fromtimestamp(world.wall_s(), UTC)).total_seconds()
        assert abs(ahead_s - skew_s) < 1.0
        assert world.secondary.now_ms() == START_MS + round(world.loop.time() * 1_000)

    run(scenario, primary_skew_s=skew_s)


def test_entity_is_disabled_enabled_and_deleted() -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_topic("news", ["all"])
        sender = await world.primary_factory().create_message_sender("news")
        receiver = await world.primary_factory().create_message_receiver("news/Subscriptions/all")
        world.primary.disable("news")
        with pytest.raises(EntityDisabledError):
            await sender.send(BrokeredMessage())
        world.primary.enable("news")
        await sender.send(BrokeredMessage(b"again"))
        world.primary.disable("news/Subscriptions/all")
        with pytest.raises(EntityDisabledError):
            await receiver.receive(1, timedelta(seconds=5))
        world.primary.enable("news/Subscriptions/all")
        assert [bytes(message.body) for message in await receiver.receive(1)] == [b"again"]
        world.primary.delete("news")
        with pytest.raises(EntityNotFoundError):
            await sender.send(BrokeredMessage())

    run(scenario)


# What can happen to sends to one entity.


def test_sends_to_one_entity_are_denied_and_all_else_goes_well() -> None:
    async def scenario(world: PairWorld) -> None:
        _queues(world.primary, "orders", "others")
        factory = world.primary_factory(**SOON)
        sender, other = [await factory.create_message_sender(path) for path in ("orders", "others")]
        world.primary.trouble_sends("Orders", Trouble.BUSY)
        with pytest.raises(ServerBusyError):
            await sender.send(BrokeredMessage())
        with pytest.raises(ServerBusyError):
            await sender.schedule(BrokeredMessage(), datetime.fromtimestamp(world.wall_s() + 100, UTC))
        await other.send(BrokeredMessage())
        world.primary.take_sends("orders")
        await sender.send(BrokeredMessage())

    run(scenario)


@pytest.mark.parametrize(("trouble", "taken"), [(Trouble.LOST, 0), (Trouble.UNCONFIRMED, 1)])
def test_sends_to_one_entity_are_never_answered(trouble: Trouble, taken: int) -> None:
    async def scenario(world: PairWorld) -> None:
        world.primary.create_queue("orders", BrokerQueue(requires_duplicate_detection=True))
        world.primary.create_queue("others")
        factory = world.primary_factory(**SOON)
        sender, other = [await factory.create_message_sender(path) for path in ("orders", "others")]
        world.primary.trouble_sends("orders", trouble)
        with pytest.raises(MessagingTimeoutError):
            await world.timed("send", sender.send(BrokeredMessage()), 20.0)
        await world.timed("send", other.send(BrokeredMessage()), 1.0)
        assert world.primary.info("orders").ready_count == taken
        world.primary.take_sends("orders")
        await world.timed("send", sender.send(BrokeredMessage()), 1.0)
        assert world.primary.info("orders").ready_count == taken + 1

    run(scenario)


# What can happen on the networks.


@pytest.mark.parametrize("what", ["refuse", "stall", "stall up", "stall down", "hide"])
def test_one_network_path_fails_alone_and_recovers(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        _queues(world.primary, "orders")
        _queues(world.secondary, QUEUE)
        sender = await world.primary_factory(**SOON).create_message_sender("orders")
        await sender.send(BrokeredMessage())
        _spoil(world.primary_network, what)
        if what == "hide":
            world.primary_network.cut()
        with pytest.raises((MessagingTimeoutError, MessagingCommunicationError)):
            await sender.send(BrokeredMessage())
        with pytest.raises((MessagingTimeoutError, MessagingCommunicationError)):
            await world.primary_manager(**SOON).get_queue("orders")
        await world.timed("get", world.secondary_manager().get_queue(QUEUE), 1.0)
        world.primary_network.heal()
        await world.timed("send", sender.send(BrokeredMessage()), ATTEMPT_S)
        await world.timed("get", world.primary_manager().get_queue("orders"), 1.0)

    run(scenario)


def test_delayed_data_arrives_when_the_network_recovers() -> None:
    async def scenario(world: PairWorld) -> None:
        _queues(world.primary, "orders")
        sender = await world.primary_factory(**SOON).create_message_sender("orders")
        await sender.send(BrokeredMessage())
        world.primary_network.stall(Way.UP)
        sending = asyncio.create_task(sender.send(BrokeredMessage()))
        await asyncio.sleep(10)
        assert world.primary.info("orders").ready_count == 1
        world.primary_network.heal()
        await world.timed("send", _done(sending), 1.0)
        assert world.primary.info("orders").ready_count == 2

    run(scenario)


def test_cut_ends_at_once() -> None:
    async def scenario(world: PairWorld) -> None:
        _queues(world.primary, "orders")
        sender = await world.primary_factory().create_message_sender("orders")
        await sender.send(BrokeredMessage())
        world.primary_network.cut()
        await world.timed("send", sender.send(BrokeredMessage()), 1.0)
        assert len(world.primary_network.relays) == 2

    run(scenario)


# The same seed, the same run.


def test_run_with_the_same_seed_is_identical() -> None:
    assert _play(1) == _play(1)
    assert _play(1) != _play(2)


def test_random_numbers_are_determined_by_the_seed() -> None:
    drawn: list[object] = []

    async def scenario(_world: PairWorld) -> None:
        for _ in range(len(drawn)):  # another thread must not change what this one draws
            other = threading.Thread(target=uuid4)
            other.start()
            other.join()
        drawn.append((SystemRandom().random(), uuid4(), BrokeredMessage().message_id))

    for seed in (1, 1, 2):
        run(scenario, seed)
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def _play(seed: int) -> list[object]:
    trace: list[object] = []

    async def scenario(world: PairWorld) -> None:
        random = Random(seed)  # noqa: S311 (it has to be repeatable)
        _queues(world.primary, "orders")
        await asyncio.gather(
            *(_send(world, number, trace) for number in range(3)),
            *(_manage(world, number, trace) for number in range(3)),
            _spoil_at_random(world, random),
        )
        receiver = await world.primary_factory().create_message_receiver("orders", ReceiveMode.RECEIVE_AND_DELETE)
        while messages := await receiver.receive(100, timedelta(seconds=5)):
            trace.extend((message.message_id, message.enqueued_time) for message in messages)
        trace.append(world.footprint)

    trace.append(run(scenario, seed))
    return trace


async def _send(world: PairWorld, number: int, trace: list[object]) -> None:
    sender = await world.primary_factory(**SOON).create_message_sender("orders")
    for _ in range(20):
        await asyncio.sleep(3)
        try:
            await sender.send(BrokeredMessage())
        except MessagingError as error:
            trace.append((world.loop.time(), number, str(error)))
        else:
            trace.append((world.loop.time(), number))


async def _manage(world: PairWorld, number: int, trace: list[object]) -> None:
    for turn in range(20):
        await asyncio.sleep(3)
        try:
            await world.secondary_manager(**SOON).create_queue(f"{number}/{turn}")
        except MessagingError as error:
            trace.append((world.loop.time(), number, str(error)))
        else:
            trace.append((world.loop.time(), number))


async def _spoil_at_random(world: PairWorld, random: Random) -> None:
    for _ in range(10):
        await asyncio.sleep(random.uniform(0, 10))
        network, namespace = random.choice(
            [(world.primary_network, world.primary), (world.secondary_network, world.secondary)]
        )
        what = random.choice(["refuse", "stall", "stall up", "stall down", "hide", "kill", "stop"])
        if what in {"kill", "stop"}:
            await _end(namespace, what)
        else:
            _spoil(network, what)
        await asyncio.sleep(random.uniform(0, 30))
        network.heal()
        if what in {"kill", "stop"}:
            namespace.start()


def _spoil(network: NetworkPath, what: str) -> None:
    match what:
        case "refuse":
            network.refuse()
        case "hide":
            network.hide()
        case "stall up":
            network.stall(Way.UP)
        case "stall down":
            network.stall(Way.DOWN)
        case _:
            network.stall()


async def _end(namespace: VirtualNamespace, how: str) -> None:
    if how == "kill":
        namespace.kill()
    else:
        await namespace.stop()


async def _is_running(namespace: VirtualNamespace) -> bool:
    """Return whether a task still runs after the cancelled ones have ended."""
    await asyncio.sleep(0.1)
    return bool(namespace.tasks or namespace._http.connections or namespace._streams())


async def _create(world: PairWorld, path: str) -> None:
    await world.secondary_manager().create_queue(path)


async def _done(task: asyncio.Task[None]) -> None:
    await task


def _queues(namespace: VirtualNamespace, *paths: str) -> None:
    for path in paths:
        namespace.create_queue(path, BrokerQueue(max_delivery_count=1_000))
