"""E5: simultaneous connections are handed over one by one, and none is lost."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from pairbus.server.listener import Listener
from pairbus.server.process import new_event_loop
from tests.server.amqp.wire_client import DEADLINE_S
from tests.waiting import eventually_async

CONNECTIONS = 200
"""More than may wait to be handed over, and fewer than the system's backlog takes."""

NewLoop = Callable[[], asyncio.AbstractEventLoop]
new_loop = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "best"])


class Passes:
    """Counts the passes of a loop, and notes in which of them each connection was handed over."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._number = 0
        self.handed_over: list[int] = []
        self.transports: list[asyncio.BaseTransport] = []
        self._pass()

    def _pass(self) -> None:
        self._number += 1
        self._loop.call_soon(self._pass)

    def make_protocol(self, _accepted: socket.socket, _secure: bool) -> asyncio.Protocol:
        self.handed_over.append(self._number)
        return _Kept(self.transports)


class _Kept(asyncio.Protocol):
    def __init__(self, transports: list[asyncio.BaseTransport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)


@contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have all said something before the loop looks at any of them."""
    with ExitStack() as stack:
        connected = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), DEADLINE_S)) for _ in range(count)
        ]
        for stream in connected:
            stream.sendall(b"A")
        yield connected


@new_loop
def test_one_connection_is_handed_over_in_a_pass_of_the_loop(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        passes = Passes(loop)
        listener = Listener(
            loop, passes.make_protocol, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), lambda: True
        )
        with crowd(listener.listen("127.0.0.1", 0), CONNECTIONS):
            await eventually_async(lambda: len(passes.transports) == CONNECTIONS)
            assert set(Counter(passes.handed_over).values()) == {1}
            await eventually_async(lambda: listener.waiting_count == 0)
        listener.close()
        for transport in passes.transports:
            transport.close()
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@new_loop
def test_connections_that_wait_to_be_handed_over_are_closed_with_the_listener(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        passes = Passes(loop)
        listener = Listener(
            loop, passes.make_protocol, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), lambda: True
        )
        with crowd(listener.listen("127.0.0.1", 0), CONNECTIONS) as connected:
            await eventually_async(lambda: len(listener._ready) > 1)
            listener.close()
            assert not listener._ready
            await eventually_async(lambda: listener.waiting_count == 0)
            for transport in passes.transports:
                transport.close()
            await asyncio.sleep(0)
            closed = await asyncio.to_thread(lambda: [is_closed(stream) for stream in connected])
            assert all(closed)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


@new_loop
def test_connection_is_closed_and_logged_if_its_protocol_cannot_be_created(
    new_loop: NewLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def make_protocol(_accepted: socket.socket, _secure: bool) -> asyncio.Protocol:
        raise RuntimeError("no protocol for this peer")

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(loop, make_protocol, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), lambda: True)
        with crowd(listener.listen("127.0.0.1", 0), 1) as [stream]:
            assert await asyncio.to_thread(is_closed, stream)
            [line] = [record for record in caplog.records if record.name == "pairbus.server.listener"]
            assert (line.levelname, line.message.partition(" peer=127.0.0.1:")[0]) == ("ERROR", "handshake failed")
            assert "no protocol for this peer" in line.message
        listener.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(scenario())


def is_closed(stream: socket.socket) -> bool:
    try:
        return stream.recv(1) == b""
    except ConnectionError:
        return True
