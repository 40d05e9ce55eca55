"""E1: a server whose storage does not answer stops in time, confirms nothing that is not durable, and says so."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from pairbus.ledger.events import LIVES
from pairbus.server import NamespaceServer, Settings, StopTimeoutError
from pairbus.server.declaration import parse_declaration
from pairbus.server.messages import received_message
from pairbus.store import StoreInUseError
from pairbus.wire import ACCEPTED, Delivery, Link
from tests.server.amqp.wire_client import DEADLINE_S, HungUpError, WireClient, body_of, text_message
from tests.server.disks import MEGABYTE, frozen, mounted
from tests.server.ledger_rows import rows_of
from tests.server.served_process import PATIENCE_S, ServedProcess, served_process
from tests.server.test_stopping import ORDERS
from tests.waiting import eventually

pytestmark = pytest.mark.slow

NO_ANSWER: Final = 3
LARGE: Final = 200_000
SMALL_STORE: Final = 40 * MEGABYTE
"""Maximum size of the store's file: it is full after some messages."""

BEGUN: Final = 5
"""Sends in progress when the server is stopped."""

MARGIN_S: Final = 6.0
"""A stop takes ``drain_s`` and about a second; the rest is for a machine that many tests share."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "disk").mkdir()
    with mounted(tmp_path / "disk") as place:
        yield place


def received(served: ServedProcess, number: int) -> list[bytes]:
    """Receive messages from the queue."""
    with served.connect() as client:
        return [
            body_of(each) for each in client.receive(client.receiver("orders", credit=number, deletes=True), number)
        ]


def is_listening(served: ServedProcess) -> bool:
    try:
        socket.create_connection(("127.0.0.1", served.port), timeout=DEADLINE_S).close()
    except ConnectionRefusedError:
        return False
    return True


def stopped_on(
    served: ServedProcess, place: Path, begin: Callable[[], list[Delivery]], drain_s: float
) -> list[Delivery]:
    """Begin some sends while a disk is frozen, stop the server, verify that it ends in time, and thaw the disk."""
    with frozen(place):
        begun = begin()
        served.process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        eventually(served.has_ended)
        assert time.monotonic() - began_s < drain_s + MARGIN_S
        assert not is_listening(served)
    assert served.process.wait(PATIENCE_S) == NO_ANSWER
    return begun


def timed_out(served: ServedProcess, drain_s: float) -> tuple[str, int]:
    """Return the parts that the one log line lists as abandoned, and the number of unconfirmed sends.

    The time in that line must be the setting's, within the margin.
    """
    (line,) = served.lines("stop timed out")
    found = re.fullmatch(
        r'stop timed out namespace=contoso reason="storage does not answer" abandoned="?([^"]*?)"?'
        r" unconfirmed_sends=(\d+) seconds=([0-9.]+)",
        line,
    )
    assert found is not None, line
    assert float(found[3]) < drain_s + MARGIN_S, line
    return found[1], int(found[2])


def begin(client: WireClient, link: Link) -> list[Delivery]:
    """Begin some sends, and wait until the server has received them."""
    begun = [client.begin_send(link, text_message("begun")) for _ in range(BEGUN)]
    client.barrier()
    return begun


def begun_and_confirmed(client: WireClient, link: Link) -> list[Delivery]:
    begun = begin(client, link)
    assert [client.outcome(each) for each in begun] == [ACCEPTED] * BEGUN
    return begun


def settled(client: WireClient, deliveries: list[Delivery]) -> int:
    """Read everything that the server has sent; return how many sends it has confirmed."""
    with suppress(HungUpError):
        client.until(lambda: None)
    return sum(each.settled for each in deliveries)


def test_stop_with_a_frozen_store_ends_in_time_and_loses_nothing_confirmed(tmp_path: Path, disk: Path) -> None:
    drain_s = 1
    with served_process(tmp_path, "--data", disk / "data", "--drain-s", drain_s) as served:
        with served.connect() as client:
            link = client.sender("orders")
            assert client.send(link, text_message("confirmed")) == ACCEPTED
            begun = stopped_on(served, disk, lambda: begin(client, link), drain_s)
            assert settled(client, begun) == 0
        assert timed_out(served, drain_s) == ("store", BEGUN)
        others = ("storage stalled", "audit log closed with unwritten records")  # that is on the same disk
        assert [line for line in served.errors() if not any(map(line.__contains__, others))] == [served.errors()[-1]]
    with served_process(tmp_path, "--data", disk / "data") as served:
        assert received(served, 1) == [b"confirmed"]


def test_stop_with_a_frozen_ledger_ends_in_time_and_the_next_start_writes_the_ledger(
    tmp_path: Path, disk: Path
) -> None:
    arguments = ["--data", tmp_path / "data", "--ledger", disk / "ledger", "--ledger-lives"]
    drain_s = 3
    with served_process(tmp_path, *arguments, "--drain-s", drain_s) as served:
        with served.connect() as client:
            link = client.sender("orders")
            stopped_on(served, disk, lambda: begun_and_confirmed(client, link), drain_s)
        assert timed_out(served, drain_s) == ("ledger", 0)
    with served_process(tmp_path, *arguments) as served:
        assert received(served, BEGUN) == [b"begun"] * BEGUN
        served.process.terminate()
        assert served.process.wait(PATIENCE_S) == 0
    rows = [row for row in rows_of(disk / "ledger", LIVES) if row["event"] == "accepted"]
    assert len(rows) == BEGUN, "each once"


def test_stop_with_a_frozen_side_buffer_ends_in_time_and_loses_nothing_confirmed(tmp_path: Path, disk: Path) -> None:
    arguments = ["--data", tmp_path / "data", "--side-buffer", disk / "side"]
    drain_s = 1
    with served_process(tmp_path, *arguments, "--drain-s", drain_s, largest_file=SMALL_STORE) as served:
        confirmed: list[bytes] = []
        with served.connect() as client:
            link = client.sender("orders")
            while "pairbus_side_buffer_messages 0.0" in served.get("/metrics")[1]:
                confirmed.append(b"%d" % len(confirmed) + bytes(LARGE))
                assert client.send(link, text_message(confirmed[-1])) == ACCEPTED
            begun = stopped_on(served, disk, lambda: begin(client, link), drain_s)
            assert settled(client, begun) == 0
        assert timed_out(served, drain_s) == ("side buffer", BEGUN)
    with served_process(tmp_path, *arguments) as served:
        assert received(served, len(confirmed)) == confirmed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_second_signal_does_not_wait_for_a_frozen_store(tmp_path: Path, disk: Path, number: signal.Signals) -> None:
    with served_process(tmp_path, "--data", disk / "data", "--drain-s", 10 * PATIENCE_S) as served:
        with served.connect() as client:
            link = client.sender("orders")
            assert client.send(link, text_message("confirmed")) == ACCEPTED
            with frozen(disk):
                begun = begin(client, link)
                served.process.send_signal(number)
                eventually(lambda: not is_listening(served))
                served.process.send_signal(number)
                eventually(served.has_ended)
            assert settled(client, begun) == 0
        assert served.process.wait(PATIENCE_S) == -number
    with served_process(tmp_path, "--data", disk / "data") as served:
        assert received(served, 1) == [b"confirmed"]


def test_stop_in_process_raises_and_the_directory_is_free_when_the_storage_answers(disk: Path) -> None:
    settings = Settings(
        data=disk / "data", port=(0,), drain_s=0.5, entities=parse_declaration({"queues": [{"name": "orders"}]})
    )

    async def scene() -> None:
        server = NamespaceServer(settings)
        await server.start()
        host = server.host
        with frozen(disk):
            host.use_namespace().send(ORDERS, [received_message(text_message("begun"))], host.now_ms())
            durable = asyncio.create_task(host.durable())
            turns = asyncio.create_task(count_turns())
            with pytest.raises(
                StopTimeoutError, match=r"'pairbus' has stopped, .* store could not be closed"
            ) as raised:
                await server.stop()
            assert raised.value.parts == ("store",)
            turns.cancel()
            assert await turns > 10, "the loop went on"
            assert not durable.done()
            with pytest.raises(StoreInUseError):
                await NamespaceServer(settings).start()
        await asyncio.wait_for(durable, DEADLINE_S)
        async with NamespaceServer(settings) as again:
            assert len(again.host.use_namespace().peek(ORDERS, 0, 10, again.host.now_ms())) == 1

    asyncio.run(scene())


async def count_turns() -> int:
    turns = 0
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(0.01)
            turns += 1
    return turns
