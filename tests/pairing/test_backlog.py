"""Backlog queues: their names, and their creation on a real namespace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any, Final

import pytest

from pairbus.broker import AuthorizationRule, Right
from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import (
    EntityAlreadyExistsError,
    EntityNotFoundError,
    InvalidRequestError,
    MessagingCommunicationError,
    MessagingTimeoutError,
    UnauthorizedError,
)
from pairbus.client.factory import MessagingFactory
from pairbus.client.management.descriptions import EntityStatus, QueueDescription
from pairbus.client.management.namespace_manager import NamespaceManager
from pairbus.client.settings import NO_RETRY, MessagingFactorySettings
from pairbus.client.token_provider import SharedAccessKeyTokenProvider, TokenProvider
from pairbus.dialect.paths import backlog_path
from pairbus.pairing.backlog import (
    Backlog,
    backlog_description,
    ensure_backlog_queues,
)
from pairbus.pairing.events import Listeners
from pairbus.pairing.primary_names import names_by_address
from pairbus.testing import RunningNamespace, running_namespace
from tests.client.http_peer import Answer, Asked, Peer, peer, refuses, relays
from tests.client.stage import play
from tests.faults.namespace import KEY
from tests.simulation.pair_world import PairWorld
from tests.simulation.pair_world import run as run_virtually
from tests.waiting import eventually_async

NUMBERS: Final = count()
ONE_TRY: Final = MessagingFactorySettings(retry_policy=NO_RETRY)
INT32_MAX: Final = 2_147_483_647


@pytest.fixture(scope="module")
def namespace() -> Iterator[RunningNamespace]:
    with running_namespace("fabrikam") as running:
        yield running


@pytest.fixture
def primary() -> str:
    """Return a unique name of a primary namespace."""
    return f"contoso{next(NUMBERS)}"


def run(namespace: RunningNamespace, use: Callable[[NamespaceManager], Awaitable[None]]) -> None:
    async def using() -> None:
        async with manager_of(namespace) as manager:
            await use(manager)

    play(using())


def manager_of(namespace: RunningNamespace) -> NamespaceManager:
    return NamespaceManager.from_connection_string(namespace.connection_string)


@asynccontextmanager
async def watched(
    namespace: RunningNamespace, *answers: Answer, settings: MessagingFactorySettings = ONE_TRY
) -> AsyncIterator[tuple[NamespaceManager, Peer]]:
    """Create a manager whose requests are recorded, and answered by ``answers`` or else by the namespace."""
    given = answers or (relays(namespace.port),)
    async with peer(*given * 100) as proxy:
        key = TokenProvider.from_key("RootManageSharedAccessKey", namespace.key)
        yield NamespaceManager.create(proxy.endpoint, key, settings), proxy


def methods(proxy: Peer) -> list[str]:
    return [asked.line.partition(" ")[0] for asked in proxy.asked]


def created_paths(proxy: Peer) -> list[str]:
    """Return the paths of the create requests."""
    targets = [asked.line.split(" ")[1] for asked in proxy.asked if asked.line.startswith("PUT ")]
    return [target.partition("?")[0].strip("/") for target in targets]


# Names


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("sb://contoso.servicebus.windows.net", "contoso"),
        ("sb://contoso.servicebus.windows.net/", "contoso"),
        ("sb://CONTOSO.servicebus.windows.net:5671", "contoso"),
        ("amqp://contoso.example:5673", "contoso"),
        ("amqp://contoso", "contoso"),
        ("amqp://contoso-2.eu.example", "contoso-2"),
        ("amqp://localhost", "localhost-5672"),
        ("sb://localhost", "localhost-5671"),
        ("amqp://localhost:5673", "localhost-5673"),
        ("amqp://LocalHost:5673", "localhost-5673"),
        ("amqp://127.0.0.1", "localhost-5672"),
        ("sb://10.1.2.3:443", "10.1.2.3-443"),
        ("amqp://[::1]", "localhost-5672"),
        ("amqp://[2001:db8::7]:5673", "2001-db8--7-5673"),
    ],
)
def test_c5_primary_is_named_after_its_host(address: str, name: str) -> None:
    assert names_by_address(Endpoint.parse(address))[0] == name


def test_c5_spellings_of_localhost_have_the_same_names() -> None:
    names = {names_by_address(Endpoint(host, 5672)) for host in ("localhost", "127.0.0.1", "::1")}
    assert names == {("localhost-5672", "127.0.0.1-5672", "1-5672")}, "the later ones are those of earlier versions"


def test_c5_namespaces_on_one_host_have_separate_backlog_queues() -> None:
    for host in ("localhost", "127.0.0.1", "::1"):
        assert names_by_address(Endpoint(host, 5672))[0] != names_by_address(Endpoint(host, 5673))[0]


@pytest.mark.parametrize("host", ["contoso.example", "localhost", "192.168.0.17", "::1", "fe80::1", "1::", "::"])
def test_c5_any_host_gives_a_valid_queue_path(host: str) -> None:
    path = backlog_path(names_by_address(Endpoint(host, 5672))[0], 0)
    assert QueueDescription(path).path == path


def test_c5_index_is_the_last_part_of_the_path() -> None:
    assert backlog_path("contoso", 0) == "contoso/x-servicebus-transfer/0"
    assert backlog_path("contoso", 41) == "contoso/x-servicebus-transfer/41"


# Properties


def test_c5_create_request_has_the_documented_properties() -> None:
    assert backlog_description("contoso/x-servicebus-transfer/0") == QueueDescription(
        "contoso/x-servicebus-transfer/0",
        max_size_in_megabytes=5_120,
        max_delivery_count=INT32_MAX,
        default_message_time_to_live=timedelta.max,
        auto_delete_on_idle=timedelta.max,
        lock_duration=timedelta(minutes=1),
        enable_dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
    )


def test_c5_created_queues_have_the_requested_properties(namespace: RunningNamespace, primary: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        queues = await ensure_backlog_queues(manager, primary, 10)
        assert [queue.path for queue in queues] == [f"{primary}/x-servicebus-transfer/{index}" for index in range(10)]
        for queue in queues:
            found = await manager.get_queue(queue.path)
            assert found == queue
            assert found.max_size_in_megabytes == 5_120
            assert found.max_delivery_count == INT32_MAX
            assert found.default_message_time_to_live == timedelta.max
            assert found.auto_delete_on_idle == timedelta.max
            assert found.lock_duration == timedelta(minutes=1)
            assert found.enable_dead_lettering_on_message_expiration is True
            assert found.enable_batched_operations is True

    run(namespace, use)


def test_c5_other_properties_have_their_defaults(namespace: RunningNamespace, primary: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        [queue] = await ensure_backlog_queues(manager, primary, 1)
        plain = await manager.create_queue(f"{primary}/plain")
        same = replace(
            queue,
            path=plain.path,
            max_size_in_megabytes=plain.max_size_in_megabytes,
            max_delivery_count=plain.max_delivery_count,
            default_message_time_to_live=plain.default_message_time_to_live,
            auto_delete_on_idle=plain.auto_delete_on_idle,
            lock_duration=plain.lock_duration,
            enable_dead_lettering_on_message_expiration=plain.enable_dead_lettering_on_message_expiration,
            enable_batched_operations=plain.enable_batched_operations,
        )
        assert same == plain
        assert queue.requires_session is False
        assert queue.requires_duplicate_detection is False
        assert queue.status is EntityStatus.ACTIVE

    run(namespace, use)


# Creation of missing queues


def test_c5_each_queue_is_looked_up_before_it_is_created(namespace: RunningNamespace, primary: str) -> None:
    async def scenario() -> None:
        async with watched(namespace) as (manager, proxy):
            await ensure_backlog_queues(manager, primary, 3)
        assert sorted(methods(proxy)) == ["GET"] * 3 + ["PUT"] * 3
        assert methods(proxy)[:2] == ["GET", "PUT"]
        for path in created_paths(proxy):
            lines = [asked.line for asked in proxy.asked if f"/{path}?" in asked.line]
            assert [line.partition(" ")[0] for line in lines] == ["GET", "PUT"]

    play(scenario())


def test_c5_existing_queues_are_not_created(namespace: RunningNamespace, primary: str) -> None:
    async def scenario() -> None:
        async with watched(namespace) as (manager, proxy):
            first = await ensure_backlog_queues(manager, primary, 3)
            proxy.asked.clear()
            assert await ensure_backlog_queues(manager, primary, 3) == first
            assert methods(proxy) == ["GET"] * 3

    play(scenario())


def test_c5_only_missing_queues_are_created(namespace: RunningNamespace, primary: str) -> None:
    async def scenario() -> None:
        async with watched(namespace) as (manager, proxy):
            for index in (0, 3):
                await manager.create_queue(backlog_path(primary, index))
            proxy.asked.clear()
            await ensure_backlog_queues(manager, primary, 5)
        assert sorted(created_paths(proxy)) == [backlog_path(primary, index) for index in (1, 2, 4)]

    play(scenario())


def test_c5_extra_queues_are_left_alone_and_not_used(namespace: RunningNamespace, primary: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        await ensure_backlog_queues(manager, primary, 5)
        before = {queue.path: queue for queue in await manager.get_queues()}
        queues = await ensure_backlog_queues(manager, primary, 2)
        assert [queue.path for queue in queues] == [backlog_path(primary, index) for index in range(2)]
        assert {queue.path: queue for queue in await manager.get_queues()} == before

    run(namespace, use)


def test_c5_existing_queue_with_other_properties_is_used_as_it_is(namespace: RunningNamespace, primary: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        given = QueueDescription(
            backlog_path(primary, 1),
            max_delivery_count=3,
            lock_duration=timedelta(seconds=10),
            max_size_in_megabytes=1_024,
            default_message_time_to_live=timedelta(hours=1),
            user_metadata="somebody has made this",
        )
        other = await manager.create_queue(given)
        queues = await ensure_backlog_queues(manager, primary, 3)
        assert queues[1] == other
        assert await manager.get_queue(other.path) == other
        assert queues[0].max_delivery_count == queues[2].max_delivery_count == INT32_MAX

    run(namespace, use)


def test_c5_concurrent_pairings_use_the_same_queues(namespace: RunningNamespace, primary: str) -> None:
    async def use(manager: NamespaceManager) -> None:
        async with manager_of(namespace) as other:
            found = await asyncio.gather(
                *(ensure_backlog_queues(one, primary, 10) for one in (manager, other, manager, other))
            )
        assert all(queues == found[0] for queues in found)
        assert len(found[0]) == 10

    run(namespace, use)


def faster(namespace: RunningNamespace, path: str) -> Answer:
    """Return an answer that creates the queue between the look-up and the create request."""

    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked.line.startswith("PUT "):
            async with manager_of(namespace) as other:
                await other.create_queue(QueueDescription(path, max_delivery_count=5))
        await relays(namespace.port)(asked, reader, writer)

    return answer


def test_c5_queue_created_concurrently_by_another_process_is_used_as_it_is(
    namespace: RunningNamespace, primary: str
) -> None:
    async def scenario() -> None:
        async with watched(namespace, faster(namespace, backlog_path(primary, 0))) as (manager, proxy):
            [queue] = await ensure_backlog_queues(manager, primary, 1)
        assert queue.max_delivery_count == 5
        assert methods(proxy) == ["GET", "PUT", "GET"]

    play(scenario())


# Services with a lower maximum delivery count


def modest(namespace: RunningNamespace) -> Answer:
    """Return the answers of a service that allows 2,000 deliveries."""

    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        too_many = refuses(400, "MaxDeliveryCount must be between 1 and 2000")
        chosen = too_many if b">2147483647<" in asked.body else relays(namespace.port)
        await chosen(asked, reader, writer)

    return answer


def test_c5_service_that_rejects_the_delivery_count_gets_its_own_maximum(
    namespace: RunningNamespace, primary: str
) -> None:
    async def scenario() -> None:
        async with watched(namespace, modest(namespace)) as (manager, proxy):
            queues = await ensure_backlog_queues(manager, primary, 3)
            assert methods(proxy)[:3] == ["GET", "PUT", "PUT"]
        async with watched(namespace) as (manager, _):
            for queue in queues:
                expected = replace(backlog_description(queue.path), max_delivery_count=2_000)
                found = await manager.get_queue(queue.path)
                assert found == queue
                assert replace(found, **open_fields(expected)) == expected

    play(scenario())


def open_fields(description: QueueDescription) -> dict[str, Any]:
    return {name: None for name in description.__slots__ if getattr(description, name) is None}


def test_c5_description_that_the_service_rejects_raises(namespace: RunningNamespace, primary: str) -> None:
    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_look = asked.line.startswith("GET ")
        chosen = relays(namespace.port) if is_look else refuses(400, "there is no room for queues")
        await chosen(asked, reader, writer)

    async def scenario() -> None:
        async with watched(namespace, answer) as (manager, proxy):
            with pytest.raises(InvalidRequestError, match="no room for queues") as caught:
                await ensure_backlog_queues(manager, primary, 10)
            assert caught.value.entity == backlog_path(primary, 0)
            assert methods(proxy) == ["GET", "PUT", "PUT"]  # only once, and not for each of the ten

    play(scenario())


# Errors


def test_c3_wrong_key_raises_at_the_first_request(namespace: RunningNamespace, primary: str) -> None:
    async def scenario() -> None:
        async with watched(namespace) as (_, proxy):
            wrong = TokenProvider.from_key("RootManageSharedAccessKey", "wrong")
            manager = NamespaceManager.create(proxy.endpoint, wrong, ONE_TRY)
            with pytest.raises(UnauthorizedError):
                await ensure_backlog_queues(manager, primary, 10)
            assert methods(proxy) == ["GET"]

    play(scenario())


@pytest.mark.parametrize("index", [0, 1, 9])
def test_c3_topic_at_the_path_of_a_backlog_queue_raises(namespace: RunningNamespace, primary: str, index: int) -> None:
    async def use(manager: NamespaceManager) -> None:
        await manager.create_topic(backlog_path(primary, index))
        with pytest.raises(EntityAlreadyExistsError) as caught:
            await ensure_backlog_queues(manager, primary, 10)
        assert caught.value.entity == backlog_path(primary, index)

    run(namespace, use)


def reluctant(namespace: RunningNamespace) -> Answer:
    """Return answers that create the first queue, reject the second, and do not respond for the others."""

    async def answer(asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match asked.line.partition("?")[0].rpartition("/")[2]:
            case "0":
                await relays(namespace.port)(asked, reader, writer)
            case "1":
                await refuses(401, "not you")(asked, reader, writer)
            case _:
                await reader.read()

    return answer


def test_c3_failed_creation_stops_the_creation_of_the_others(namespace: RunningNamespace, primary: str) -> None:
    async def scenario() -> None:
        impatient = replace(ONE_TRY, attempt_timeout=timedelta(seconds=0.5))
        async with watched(namespace, reluctant(namespace), settings=impatient) as (manager, _):
            with pytest.raises(UnauthorizedError, match="not you"):
                await ensure_backlog_queues(manager, primary, 10)
            assert ours() == {asyncio.current_task()}
            await eventually_async(lambda: asyncio.all_tasks() == ours())  # until the peer has noticed as well

    play(scenario())


def ours() -> set[asyncio.Task[Any]]:
    """Return the tasks that do not belong to the peer."""
    return {task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__qualname__", "") != "Peer.serve"}


def test_c3_name_that_the_service_rejects_raises(namespace: RunningNamespace) -> None:
    async def use(manager: NamespaceManager) -> None:
        with pytest.raises((InvalidRequestError, EntityNotFoundError)):
            await ensure_backlog_queues(manager, "x" * 400, 2)

    run(namespace, use)


# Links


def backlog_in(world: PairWorld, factory: MessagingFactory, *missing: int) -> Backlog:
    """Return a backlog of three queues, of which some were deleted after the look-up."""
    paths = [backlog_path("contoso", index) for index in range(3)]
    for index, path in enumerate(paths):
        if index not in missing:
            world.secondary.create_queue(path)
    random = Random(7)  # noqa: S311 (tests have to be repeatable)
    return Backlog(factory, world.secondary_manager(), paths, random, Listeners())


def test_c10_unreachable_queue_is_out_of_the_rotation_from_the_start() -> None:
    async def scenario(world: PairWorld) -> None:
        backlog = backlog_in(world, world.secondary_factory(), 1)
        await backlog.connect()
        assert [one.is_used for one in backlog.status] == [True, False, True]
        assert [type(one.cause) for one in backlog.status] == [type(None), EntityNotFoundError, type(None)]
        assert {backlog.rotation.pick() for _ in range(100)} == {0, 2}
        assert backlog.max_message_bytes == 256 * 1024
        await backlog.close()

    run_virtually(scenario)


def test_c3_connect_raises_when_no_queue_is_reachable() -> None:
    async def scenario(world: PairWorld) -> None:
        backlog = backlog_in(world, world.secondary_factory(), 0, 1, 2)
        with pytest.raises(EntityNotFoundError, match="contoso/x-servicebus-transfer/"):
            await backlog.connect()
        await backlog.close()

    run_virtually(scenario)


def test_c3_key_without_send_raises_although_another_queue_is_only_missing() -> None:
    async def scenario(world: PairWorld) -> None:
        listener = AuthorizationRule(
            name="listener", rights=(Right.LISTEN,), primary_key="listener-1", secondary_key="listener-2"
        )
        world.secondary.call(lambda namespace, now_ms: namespace.set_authorization_rules([KEY, listener], now_ms))
        key = SharedAccessKeyTokenProvider("listener", "listener-1", clock=world.wall_s)
        factory = MessagingFactory.create(world.secondary_network.endpoint, key)
        world.factories.append(factory)
        backlog = backlog_in(world, factory, 0)
        with pytest.raises(UnauthorizedError, match="Send"):
            await backlog.connect()
        await backlog.close()

    run_virtually(scenario)


@pytest.mark.parametrize("what", ["refuse", "stall"])
def test_c3_unreachable_namespace_raises(what: str) -> None:
    async def scenario(world: PairWorld) -> None:
        backlog = backlog_in(world, world.secondary_factory())
        getattr(world.secondary_network, what)()
        with pytest.raises((MessagingCommunicationError, MessagingTimeoutError)):
            await world.timed("connect", backlog.connect(), 15.0)
        await backlog.close()

    run_virtually(scenario)


# Many queues


def test_c5_creation_of_many_queues_limits_concurrent_connections() -> None:
    async def scenario(world: PairWorld) -> None:
        max_open = 0

        async def watch() -> None:
            nonlocal max_open
            while True:
                max_open = max(max_open, len(world.secondary_network.open_relays))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        queues = await ensure_backlog_queues(world.secondary_manager(), "contoso", 150)
        watching.cancel()
        await asyncio.wait((watching,))
        assert len(queues) == 150
        assert max_open <= 50

    run_virtually(scenario)
