"""The client, the proxy and a namespace with a disk, over sockets, with and without TLS, and over WebSocket."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from pairbus.client.endpoint import Endpoint
from pairbus.client.errors import MessageLockLostError, MessagingCommunicationError, MessagingTimeoutError
from pairbus.client.factory import MessagingFactory
from pairbus.client.message import BrokeredMessage
from pairbus.client.settings import MessagingFactorySettings, ReceiveMode, RetryPolicy, Transport
from pairbus.client.token_provider import TokenProvider
from pairbus.server import NamespaceServer, Settings
from pairbus.server.declaration import parse_declaration
from tests.faults.fault import SOUND, Fault, Kind, Schedule, Way
from tests.faults.proxy import Proxy

QUEUE: Final = "orders"
SUDDEN: Final = (Kind.CUT, Kind.CLOSE, Kind.HALF_CLOSE, Kind.TRUNCATE, Kind.REFUSE)
WAYS: Final = ("tcp", "tls", "websocket", "secure websocket")


@asynccontextmanager
async def _joined(
    directory: Path, how: str, schedule: Schedule = SOUND
) -> AsyncIterator[tuple[NamespaceServer, Proxy, MessagingFactory]]:
    """A namespace, the proxy before it, and a client of the proxy."""
    # What a lost connection had is free again soon.
    queue = {"name": QUEUE, "requires_duplicate_detection": True, "lock_duration": "PT5S", "max_delivery_count": 100}
    entities = parse_declaration({"queues": [queue]})
    settings = Settings(data=directory / "contoso", name="contoso", port=(0,), entities=entities)
    async with NamespaceServer(settings) as server, Proxy("127.0.0.1", server.ports[0], schedule) as proxy:
        factory = MessagingFactory.create(
            Endpoint("localhost", proxy.port, tls=how in {"tls", "secure websocket"}),
            TokenProvider.from_key(settings.key_name, server.key),
            MessagingFactorySettings(
                transport=Transport.WEB_SOCKET if how.endswith("websocket") else Transport.TCP,
                ca_file=server.ca_file,
                operation_timeout=timedelta(seconds=30),
                attempt_timeout=timedelta(seconds=2),
                retry_policy=RetryPolicy(minimum_backoff=timedelta(milliseconds=5)),
            ),
        )
        async with factory:
            yield server, proxy, factory
        ours = {asyncio.current_task(), *proxy.tasks}
        assert not [task for task in asyncio.all_tasks() if task not in ours and "pairbus/client" in repr(task)]


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    complaints: list[dict[str, object]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        await scenario
        gc.collect()

    asyncio.run(asyncio.wait_for(watched(), 100))
    gc.collect()
    assert not complaints


def _schedule(random: Random, connections: int) -> Schedule:
    """Return faults that occur at once, so that tests do not wait."""
    kinds = [random.choice(SUDDEN) for _ in range(connections)]
    return Schedule(
        faults=tuple(
            Fault(
                kind=kind,
                connection=connection,
                way=random.choice(tuple(Way)),
                after_bytes=None if kind is Kind.REFUSE else int(40_000 ** random.random()),
            )
            for connection, kind in enumerate(kinds)
        )
    )


def _exchange(directory: Path, how: str, seed: int) -> None:
    random = Random(f"{how} {seed}")  # noqa: S311 (which faults)
    schedules = _schedule(random, 6), _schedule(random, 1)

    async def scenario() -> None:
        async with _joined(directory, how, schedules[0]) as (_, proxy, factory):
            sender = await factory.create_message_sender(QUEUE)
            sent = [f"{number}" for number in range(40)]
            for number in sent[:20]:
                await sender.send(BrokeredMessage(bytes(500), message_id=number))
            await sender.send([BrokeredMessage(bytes(500), message_id=number) for number in sent[20:]])
            proxy.misbehave(schedules[1])
            proxy.apply(Fault(kind=Kind.CUT))
            receiver = await factory.create_message_receiver(QUEUE, prefetch_count=random.choice((0, 7)))
            received: set[str] = set()
            while received < set(sent):
                for message in await receiver.receive(10, timedelta(seconds=1)):
                    received.add(str(message.message_id))
                    try:
                        await receiver.complete(message)
                    except MessageLockLostError:  # the answer to the first try was lost
                        assert len(proxy.relays) > 1
            assert received == set(sent)

    try:
        _run(scenario())
    except BaseException as error:
        error.add_note(repr(schedules))
        raise


@pytest.mark.parametrize("how", WAYS)
def test_e1_nothing_confirmed_is_lost_over_sockets_that_are_cut(tmp_path: Path, how: str) -> None:
    _exchange(tmp_path, how, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("seed", range(1, 26))
def test_e1_confirmed_messages_survive_random_socket_faults(tmp_path: Path, how: str, seed: int) -> None:
    _exchange(tmp_path, how, seed)


@pytest.mark.parametrize("how", WAYS)
def test_b4_receiver_outlives_a_restart_of_the_namespace(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        async with _joined(tmp_path, how) as (server, _, factory):
            sender = await factory.create_message_sender(QUEUE)
            receiver = await factory.create_message_receiver(QUEUE, ReceiveMode.RECEIVE_AND_DELETE)
            receiving = asyncio.create_task(anext(receiver))
            await sender.send(BrokeredMessage("before"))
            assert (await receiving).text() == "before"
            receiving = asyncio.create_task(anext(receiver))
            await asyncio.sleep(0)
            port = server.ports[0]
            await server.stop()
            server.settings = Settings(data=server.settings.data, name="contoso", port=(port,))
            await server.start()
            await sender.send(BrokeredMessage("after"))
            assert (await receiving).text() == "after"

    _run(scenario())


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("after_bytes", [0, 1, 100, 600])
def test_connection_cut_while_it_opens_raises_a_messaging_error(tmp_path: Path, how: str, after_bytes: int) -> None:
    """Not as an error of sockets, of TLS or of WebSockets."""

    async def scenario() -> None:
        faults = tuple(
            Fault(kind=Kind.CUT, way=Way.DOWN, connection=number, after_bytes=after_bytes) for number in range(1_000)
        )
        async with _joined(tmp_path, how, Schedule(faults=faults)) as (_, _, factory):
            impatient = MessagingFactorySettings(
                transport=factory.settings.transport,
                ca_file=factory.settings.ca_file,
                retry_policy=RetryPolicy(maximum_retries=2, minimum_backoff=timedelta(milliseconds=1)),
            )
            async with MessagingFactory(factory.endpoint, factory._credentials, impatient) as other:
                sender = await other.create_message_sender(QUEUE)
                with pytest.raises(MessagingCommunicationError) as caught:
                    await sender.send(BrokeredMessage())
                assert caught.value.entity == QUEUE
                assert caught.value.is_transient

    _run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["tls", "websocket", "secure websocket"])
def test_silent_peer_times_out(tmp_path: Path, how: str) -> None:
    async def scenario() -> None:
        faults = tuple(Fault(kind=Kind.STALL, way=Way.BOTH, connection=n, after_bytes=0) for n in range(1_000))
        async with _joined(tmp_path, how, Schedule(faults=faults)) as (_, _, factory):
            impatient = MessagingFactorySettings(
                transport=factory.settings.transport,
                ca_file=factory.settings.ca_file,
                operation_timeout=timedelta(seconds=1),
                attempt_timeout=timedelta(milliseconds=300),
            )
            async with MessagingFactory(factory.endpoint, factory._credentials, impatient) as other:
                sender = await other.create_message_sender(QUEUE)
                with pytest.raises(MessagingTimeoutError) as caught:
                    await sender.send(BrokeredMessage())
                assert caught.value.entity == QUEUE
                assert caught.value.__cause__ is not None

    _run(scenario())
