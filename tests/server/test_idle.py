"""Connections that are idle for long, or from the start; the byte stream and the clock are simulated."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, Final
from uuid import UUID

import looptime
import pytest

from pairbus.broker import STANDARD, AuthorizationRule, Namespace, QueueDescription, Records, Right
from pairbus.dialect.management import Operation
from pairbus.dialect.sas import make_sas_token
from pairbus.server.access import Authorizer
from pairbus.server.amqp.services import AmqpServices
from pairbus.server.counters import Counters
from pairbus.server.dispatcher import Dispatcher
from pairbus.server.host import NamespaceHost
from pairbus.server.listener import Listener, ProtocolSniffer
from pairbus.server.messages import MessageView
from pairbus.store import GroupCommitter, MemoryStore
from pairbus.wire import (
    ACCEPTED,
    AMQP_VALUE,
    RECEIVER,
    SENDER,
    Configuration,
    Connection,
    Delivery,
    Link,
    LinkAttached,
    LinkDetached,
    Message,
    Properties,
    ProtocolError,
    Source,
    Symbol,
    Target,
    anonymous,
    encode_message,
)
from tests.waiting import eventually_async

START_MS: Final = 1_700_000_000_000
HOUR_S: Final = 3_600
DAY_S: Final = 24 * HOUR_S
SERVER_IDLE_S: Final = 240
SESSION_LOCK_S: Final = 300
CLIENT_IDLE_S: Final = 60
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
ROOT: Final = AuthorizationRule(
    name="root", rights=(Right.MANAGE, Right.SEND, Right.LISTEN), primary_key="first", secondary_key="second"
)


class Stream(asyncio.Transport):
    """The server's end of a stream in memory. What it writes arrives a moment later, unless the wire is cut."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.on_data: Callable[[bytes], object] = lambda _data: None
        self.heartbeats = 0
        """Number of empty frames that the server has sent."""
        self.closed_s: float | None = None
        """The time at which the server closed the stream."""
        protocol.connection_made(self)

    def feed(self, data: bytes) -> None:
        """Deliver bytes from the client."""
        self.loop.call_soon(self._arrive, data)

    def _arrive(self, data: bytes) -> None:
        if self.closed_s is None:
            self.protocol.data_received(data)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.heartbeats += data == HEARTBEAT
        self.loop.call_soon(self.on_data, bytes(data))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.closed_s is None:
            self.closed_s = self.loop.time()
            self.loop.call_soon(self.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self.closed_s is not None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits: there is no buffer."""

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Ignore the call: no test sends that much."""

    def resume_reading(self) -> None:
        """Ignore the call: no test sends that much."""


class Stage:
    """A namespace with two queues, served on a loop whose clock jumps to the next event."""

    def __init__(self, idle_s: int = SERVER_IDLE_S) -> None:
        self.loop = looptime.new_event_loop(start=0, noop_cycles=1)
        tokens, ids = count(1), count(1)

        def make(records: Records) -> Namespace:
            return Namespace(
                records,
                limits=STANDARD,
                view=MessageView,
                fresh_id=lambda: UUID(int=next(ids)),
                fresh_token=lambda: next(tokens).to_bytes(16, "big"),
            )

        keeper = GroupCommitter(MemoryStore(), make, START_MS)  # without a thread: a commit takes no time
        self.host = NamespaceHost("stage", STANDARD, keeper, self.now_ms, self.loop)
        namespace = self.host.use_namespace()
        namespace.set_authorization_rules([ROOT], START_MS)
        visits = QueueDescription(requires_session=True, lock_duration_ms=SESSION_LOCK_S * 1_000)
        namespace.create_queue("orders", QueueDescription(), START_MS)
        namespace.create_queue("visits", visits, START_MS)
        self.services = AmqpServices(
            self.host, Authorizer(self.host), Dispatcher(self.host), Counters(), idle_s * 1_000
        )

    def now_ms(self) -> int:
        return START_MS + round(self.loop.time() * 1_000)

    def stream(self) -> Stream:
        """Return a new connection that has sent nothing yet."""
        return Stream(self.loop, self.reception(secure=False))

    def reception(self, *, secure: bool) -> asyncio.Protocol:
        return ProtocolSniffer(self.services, asyncio.Protocol, secure=secure)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(scenario)

    def close(self) -> None:
        self.host.close()
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    try:
        yield stage
    finally:
        stage.close()


async def pass_time(seconds: float) -> None:
    """Advance the virtual time, which takes no real time."""
    await asyncio.sleep(seconds)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition is true, for a virtual minute at the most, checked every virtual millisecond."""
    await eventually_async(lambda: bool(condition()), 60.0, every_s=0.001)


class Client:
    """A client on the same clock. It keeps its connection alive until it becomes silent."""

    def __init__(self, stage: Stage, *, idle_s: int | None = CLIENT_IDLE_S) -> None:
        self.engine = Connection(
            Configuration(container_id="client", idle_time_out_ms=None if idle_s is None else idle_s * 1_000),
            anonymous(),
        )
        self.stream = stage.stream()
        self.stream.on_data = self._receive
        self.detached: list[LinkDetached] = []
        self.attached: list[Link] = []
        self.received: list[Delivery] = []
        self.heartbeats = 0
        self._house = stage
        self._loop = stage.loop
        self._numbers = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._requests: Link | None = None
        self._is_silent = False
        self.engine.open()
        self.session = self.engine.begin()
        self.flush()

    def fall_silent(self) -> None:
        """Simulate a machine that is gone: nothing is read or written, and the server is not notified."""
        self._is_silent = True
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        data = self.engine.data_to_send()
        if data and not self._is_silent:
            self.heartbeats += data == HEARTBEAT
            self.stream.feed(data)

    def _receive(self, data: bytes) -> None:
        if self._is_silent:
            return
        try:
            events = self.engine.receive_data(data)
        except ProtocolError as error:
            pytest.fail(f"the server broke the protocol: {error}")
        for event in events:
            match event:
                case LinkAttached():
                    self.attached.append(event.link)
                case LinkDetached():
                    self.detached.append(event)
                case Delivery():
                    self.received.append(event)
        self.flush()

    def beat(self) -> None:
        """Tick from now on, whenever the engine wants it."""
        next_ms = self.engine.tick(round(self._loop.time() * 1_000))
        self.flush()
        if next_ms is not None:
            self._timer = self._loop.call_at(next_ms / 1_000, self.beat)

    async def opened(self) -> None:
        await until(lambda: self.engine.is_open)

    async def put_token(self, lifetime_s: int) -> None:
        """Put a token, and wait for the response."""
        if self._requests is None:
            answers = self.session.attach("answers", RECEIVER, source=Source(address="$cbs"), target=Target())
            answers.flow(1_000)
            self._requests = await self.sender("$cbs")
        expires_s = self._house.now_ms() // 1_000 + lifetime_s
        words = {"operation": str(Operation.PUT_TOKEN), "name": "sb://house/", "type": "sastoken"}
        token = make_sas_token("sb://house/", ROOT.name, ROOT.primary_key, expires_s)
        request = Message(
            properties=Properties(message_id=str(next(self._numbers)), reply_to="answers"),
            application_properties=words,
            body=(token,),
            body_kind=AMQP_VALUE,
        )
        before = len(self.received)
        self._requests.send(encode_message(request), tag=next(self._numbers).to_bytes(4, "big"), settled=True)
        self.flush()
        await until(lambda: len(self.received) > before)

    async def sender(self, address: str) -> Link:
        link = self.session.attach(f"to {address}", SENDER, source=Source(), target=Target(address=address))
        self.flush()
        await until(lambda: link.can_send)
        return link

    async def receiver(self, address: str, session_id: str | None = None) -> Link:
        wanted = None if session_id is None else {Symbol("com.microsoft:session-filter"): session_id}
        name = f"from {address} {next(self._numbers)}"
        link = self.session.attach(name, RECEIVER, source=Source(address=address, filter=wanted), target=Target())
        self.flush()
        await until(lambda: link in self.attached)
        return link

    async def send(self, link: Link) -> object:
        """Send a message; return its outcome."""
        payload = encode_message(Message(properties=Properties(message_id="1"), body=(b"still here",)))
        delivery = link.send(payload, tag=next(self._numbers).to_bytes(4, "big"))
        self.flush()
        await until(lambda: delivery.settled)
        return delivery.state


async def _guest(stage: Stage, *, idle_s: int | None = CLIENT_IDLE_S, token_s: int = 2 * DAY_S) -> Client:
    client = Client(stage, idle_s=idle_s)
    await client.opened()
    client.beat()
    await client.put_token(token_s)
    return client


# A day of silence


def test_connection_idle_for_a_day_is_kept_by_heartbeats_and_works_afterwards(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage)
        sender, receiver = await client.sender("orders"), await client.receiver("orders")

        await pass_time(DAY_S)

        assert not client.stream.is_closing()
        assert await client.send(sender) == ACCEPTED
        before = len(client.received)
        receiver.flow(1)
        client.flush()
        await until(lambda: len(client.received) > before)

    stage.run(scenario())


@pytest.mark.parametrize("idle_s", [CLIENT_IDLE_S, 600])
def test_heartbeats_are_sent_at_the_requested_rate_and_at_most_twice_that(stage: Stage, idle_s: int) -> None:
    async def scenario() -> None:
        client = await _guest(stage, idle_s=idle_s)
        sent, received = client.heartbeats, client.stream.heartbeats

        await pass_time(DAY_S)

        assert DAY_S / idle_s <= client.stream.heartbeats - received <= 2 * DAY_S / idle_s + 1
        assert DAY_S / SERVER_IDLE_S <= client.heartbeats - sent <= 2 * DAY_S / SERVER_IDLE_S + 1

    stage.run(scenario())


def test_client_that_wants_no_heartbeats_gets_none(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage, idle_s=None)

        await pass_time(DAY_S)

        assert client.stream.heartbeats == 0
        assert not client.stream.is_closing()

    stage.run(scenario())


def test_busy_connection_has_no_more_heartbeats_than_an_idle_one(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage)
        sender = await client.sender("orders")
        before = client.stream.heartbeats

        for _ in range(0, HOUR_S, 10):
            await pass_time(10)
            assert await client.send(sender) == ACCEPTED

        assert client.stream.heartbeats - before <= 2 * HOUR_S / CLIENT_IDLE_S + 1

    stage.run(scenario())


def test_token_that_is_renewed_keeps_the_links_for_a_day(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage, token_s=HOUR_S)
        sender = await client.sender("orders")

        for _ in range(0, DAY_S, 3_000):  # every fifty minutes
            await pass_time(3_000)
            await client.put_token(HOUR_S)

        assert not client.detached
        assert await client.send(sender) == ACCEPTED

    stage.run(scenario())


def test_token_that_is_not_renewed_ends_the_links_but_not_the_connection(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage, token_s=HOUR_S)
        sender = await client.sender("orders")

        await pass_time(DAY_S)

        assert [event.link for event in client.detached] == [sender]
        assert client.detached[0].error is not None
        assert client.detached[0].error.condition == "amqp:unauthorized-access"
        await client.put_token(HOUR_S)
        assert await client.send(await client.sender("orders")) == ACCEPTED

    stage.run(scenario())


# Silent peers


@pytest.mark.parametrize("idle_s", [CLIENT_IDLE_S, None], ids=["wanted-heartbeats", "wanted-none"])
def test_silent_client_is_dropped_after_twice_the_idle_timeout(stage: Stage, idle_s: int | None) -> None:
    async def scenario() -> None:
        client = await _guest(stage, idle_s=idle_s)
        await client.receiver("orders")
        silent_s = stage.loop.time()
        client.fall_silent()

        await pass_time(2 * SERVER_IDLE_S - 1)
        assert not client.stream.is_closing()

        await pass_time(4 * SERVER_IDLE_S)
        assert client.stream.closed_s is not None
        assert client.stream.closed_s - silent_s <= 3 * SERVER_IDLE_S
        assert not stage.services.connections

    stage.run(scenario())


def test_session_of_a_silent_client_is_free_when_it_is_dropped() -> None:
    stage = Stage(idle_s=SESSION_LOCK_S // 5)

    async def scenario() -> None:
        holder, other = await _guest(stage), await _guest(stage)
        await holder.receiver("visits", "alice")
        holder.fall_silent()

        refused = await other.receiver("visits", "alice")
        await until(lambda: refused in [event.link for event in other.detached])

        await pass_time(SESSION_LOCK_S // 5 * 3)  # its lock would have lasted longer
        assert holder.stream.is_closing()
        assert (await other.receiver("visits", "alice")).is_attached

    try:
        stage.run(scenario())
    finally:
        stage.close()


def test_client_that_resumes_in_time_is_not_dropped(stage: Stage) -> None:
    async def scenario() -> None:
        client = await _guest(stage)
        for _ in range(24):
            await pass_time(2 * SERVER_IDLE_S - 10)  # late, but still in time
            client.stream.feed(HEARTBEAT)
        assert not client.stream.is_closing()

    stage.run(scenario())


# Peers that never open


def test_connection_that_is_not_opened_is_dropped_after_a_minute(stage: Stage) -> None:
    async def scenario() -> None:
        stream = stage.stream()
        stream.feed(SASL_HEADER)

        await pass_time(59)
        assert not stream.is_closing()
        await pass_time(2)
        assert stream.is_closing()
        assert not stage.services.connections

    stage.run(scenario())


def test_client_that_sends_its_open_slowly_is_dropped(stage: Stage) -> None:
    async def scenario() -> None:
        stream = stage.stream()
        for octet in SASL_HEADER:
            stream.feed(bytes([octet]))
            await pass_time(10)
        assert stream.is_closing()

    stage.run(scenario())


def test_connection_without_data_is_closed_after_half_a_minute(stage: Stage) -> None:
    async def scenario() -> None:
        stream = stage.stream()

        await pass_time(29)
        assert not stream.is_closing()
        await pass_time(2)
        assert stream.is_closing()

    stage.run(scenario())


def test_socket_without_data_is_closed_after_half_a_minute(stage: Stage) -> None:
    async def scenario() -> None:
        listener = Listener(
            stage.loop,
            lambda _accepted, secure: stage.reception(secure=secure),
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
            lambda: True,
        )
        port = listener.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
            await until(lambda: listener.waiting_count)
            await pass_time(29)
            assert listener.waiting_count
            await pass_time(2)
            assert not listener.waiting_count
            assert silent.recv(1) == b""
        listener.close()

    stage.run(scenario())
