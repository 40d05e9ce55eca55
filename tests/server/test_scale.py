"""Many connections at once, and many queues: they work, and the resources of each are bounded."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from pairbus.broker import Address, QueueDescription
from pairbus.server.host import NamespaceHost
from pairbus.testing import RunningNamespace, running_namespace
from pairbus.wire import ACCEPTED, Link, plain
from tests.server.amqp.wire_client import WireClient, text_message
from tests.waiting import eventually

CONNECTION_BYTES: Final = 200 * 1024
"""Allowed memory of a connection, both ends together."""

QUEUE_BYTES: Final = 50 * 1024
PER_COMMIT: Final = 500


@pytest.fixture
def namespace(tmp_path: Path) -> Iterator[RunningNamespace]:
    with running_namespace(data=tmp_path / "contoso") as running:
        yield running


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files: every connection is two, since both ends are here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_096:
        pytest.skip(f"the system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4_096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def private_bytes() -> int:
    """Return the memory of this process, the server included."""
    gc.collect()
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system does not say how much memory a process has")
    line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def create_queues(namespace: RunningNamespace, first: int, number: int) -> None:
    def create(host: NamespaceHost) -> None:
        for each in range(first, first + number):
            host.use_namespace().create_queue(f"queue-{each}", QueueDescription(), host.now_ms())

    namespace.call(create)


def connect(namespace: RunningNamespace) -> WireClient:
    return WireClient(namespace.port, sasl=plain("RootManageSharedAccessKey", namespace.key)).open()


def connection_count(namespace: RunningNamespace) -> int:
    server = namespace._server
    assert server is not None
    return len(server._running.services.connections)


def send(client: WireClient, link: Link) -> object:
    return client.send(link, text_message(message_id="1"))


@pytest.mark.parametrize("number", [200, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("many_files")
def test_many_connections_at_once_work_and_each_takes_little(namespace: RunningNamespace, number: int) -> None:
    create_queues(namespace, 0, 2)
    with ExitStack() as stack:
        before = private_bytes()
        clients = [stack.enter_context(connect(namespace)) for _ in range(number)]
        senders = [client.sender("queue-0") for client in clients[::2]]
        receivers = [client.receiver("queue-0", credit=1) for client in clients[1::2]]
        assert connection_count(namespace) == number
        assert (private_bytes() - before) / number < CONNECTION_BYTES

        deliveries = [
            client.begin_send(link, text_message(message_id="1"))
            for client, link in zip(clients[::2], senders, strict=True)
        ]
        outcomes = [client.outcome(each) for client, each in zip(clients[::2], deliveries, strict=True)]
        assert outcomes == [ACCEPTED] * len(senders)
        for client, link in zip(clients[1::2], receivers, strict=True):
            (delivery,) = client.receive(link)
            assert client.settle(delivery, ACCEPTED) == ACCEPTED
    eventually(lambda: connection_count(namespace) == 0)


@pytest.mark.usefixtures("many_files")
def test_closed_connections_leave_nothing_behind(namespace: RunningNamespace) -> None:
    create_queues(namespace, 0, 1)

    def come_and_go() -> int:
        for _ in range(200):
            with connect(namespace) as client:
                client.sender("queue-0")
                client.receiver("queue-0", credit=1)
        eventually(lambda: connection_count(namespace) == 0)
        return private_bytes()

    come_and_go()  # one-time allocations happen now
    before = come_and_go()
    assert (come_and_go() - before) / 200 < CONNECTION_BYTES / 20


@pytest.mark.parametrize("number", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_many_queues_work_take_little_and_survive_a_restart(namespace: RunningNamespace, number: int) -> None:
    before = private_bytes()
    for first in range(0, number, PER_COMMIT):
        create_queues(namespace, first, min(PER_COMMIT, number - first))
    assert (private_bytes() - before) / number < QUEUE_BYTES

    chosen = [f"queue-{each}" for each in range(0, number, number // 20)]
    with connect(namespace) as client:
        assert [send(client, client.sender(name)) for name in chosen] == [ACCEPTED] * len(chosen)
    namespace.restart()

    assert len(namespace.call(lambda host: host.use_namespace().queues(host.now_ms()))) == number
    with connect(namespace) as client:
        for name in chosen:
            assert client.receive(client.receiver(name, credit=1))
    waiting = namespace.call(lambda host: host.use_namespace().entity(Address.of("queue-1"), host.now_ms()))
    assert waiting.message_count == 0
