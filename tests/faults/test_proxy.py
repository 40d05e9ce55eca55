"""The effects of the proxy on a connection, over sockets and in memory; and the network in memory itself."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final, Self

import pytest

from pairbus.store.certificate import open_certificate
from tests.faults.fault import HONEST, SOUND, Fault, Kind, Outage, Schedule, Way
from tests.faults.lane import Frames
from tests.faults.network import KERNEL_BYTES, Stream
from tests.faults.proxy import Proxy
from tests.faults.recorder import Recorder
from tests.faults.virtual_loop import VirtualLoop
from tests.waiting import eventually_async

HOST: Final = "127.0.0.1"
OPEN: Final = b"AMQP\x00\x01\x00\x00"
FRAME: Final = (24).to_bytes(4, "big") + bytes(range(20))
MEGABYTE: Final = 1024 * 1024

NewLoop = Callable[[], asyncio.AbstractEventLoop]
everywhere = pytest.mark.parametrize("new_loop", [asyncio.SelectorEventLoop, VirtualLoop], ids=["sockets", "virtual"])


class Scene:
    """A client, the proxy, and a server behind it."""

    def __init__(self, schedule: Schedule = SOUND, *, echoes: bool = False, stays: bool = False) -> None:
        self.servers: list[Recorder] = []
        self._make: Callable[[], Recorder] = lambda: Recorder(echoes=echoes, stays=stays)
        self._schedule = schedule
        self._stays = stays
        self._clients: list[Recorder] = []

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.get_running_loop().create_server(self._accept, HOST, 0)
        self.proxy = Proxy(HOST, _port(self._listening), self._schedule)
        await self.proxy.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.close()
        self._listening.close()
        ends = [*self._clients, *self.servers]
        for end in ends:
            end.transport.abort()
        await eventually_async(lambda: all(end.is_lost for end in ends))
        await eventually_async(lambda: not self.proxy.open_relays)

    def _accept(self) -> Recorder:
        self.servers.append(self._make())
        return self.servers[-1]

    async def client(self) -> Recorder:
        """A new connection."""
        _, client = await asyncio.get_running_loop().create_connection(
            lambda: Recorder(stays=self._stays), HOST, self.proxy.port
        )
        self._clients.append(client)
        return client

    async def pair(self) -> tuple[Recorder, Recorder]:
        """A new connection, and its end at the server."""
        before = len(self.servers)
        client = await self.client()
        await eventually_async(lambda: len(self.servers) > before and self.servers[before].is_connected)
        return client, self.servers[before]


def _port(listening: Any) -> int:
    return int(listening.port if hasattr(listening, "port") else listening.sockets[0].getsockname()[1])


def run(new_loop: NewLoop, scenario: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Run it to its end, on a loop of its own, which nothing may be left on; what its clock says then."""
    loop = new_loop()
    try:
        loop.run_until_complete(scenario())
        assert not asyncio.all_tasks(loop)
        if isinstance(loop, VirtualLoop):
            assert not loop.complaints
            assert not loop.network.streams
        return loop.time()
    finally:
        loop.close()


async def pass_time(seconds: float) -> None:
    """Virtual seconds: they take no time."""
    assert isinstance(asyncio.get_running_loop(), VirtualLoop)
    await asyncio.sleep(seconds)


# Nothing wrong


@everywhere
def test_without_faults_everything_arrives_both_ways(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(echoes=True) as scene:
            client, server = await scene.pair()
            sent = Random(1).randbytes(3 * MEGABYTE)  # noqa: S311
            client.write(sent)
            await eventually_async(lambda: len(client.data) == len(sent))
            assert client.data == server.data == sent

    run(new_loop, scenario)


@everywhere
def test_end_of_one_direction_is_forwarded_and_the_other_continues(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(stays=True) as scene:
            client, server = await scene.pair()
            client.write(b"question")
            client.transport.write_eof()
            await eventually_async(lambda: server.ended_s is not None)
            assert server.data == b"question"
            server.write(b"answer")
            server.transport.write_eof()
            await eventually_async(lambda: client.ended_s is not None)
            assert client.data == b"answer"
            await eventually_async(lambda: not scene.proxy.open_relays)

    run(new_loop, scenario)


@everywhere
@pytest.mark.parametrize("by_client", [True, False], ids=["client", "server"])
def test_close_of_one_end_reaches_the_other_after_all_data(new_loop: NewLoop, by_client: bool) -> None:
    async def scenario() -> None:
        async with Scene() as scene:
            ends = await scene.pair()
            first, second = ends if by_client else ends[::-1]
            first.write(b"goodbye")
            first.transport.close()
            await eventually_async(lambda: second.is_lost)
            assert second.data == b"goodbye"
            assert second.error is None
            await eventually_async(lambda: not scene.proxy.open_relays)

    run(new_loop, scenario)


@everywhere
def test_server_that_cannot_be_reached_resets_the_client(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene() as scene:
            scene._listening.close()
            client = await scene.client()
            await eventually_async(lambda: client.is_lost)
            assert client.was_reset

    run(new_loop, scenario)


@everywhere
def test_peer_that_does_not_read_blocks_the_writer(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene() as scene:
            client, server = await scene.pair()
            server.transport.pause_reading()
            sent = 0
            while client.is_writable:
                client.write(bytes(MEGABYTE))
                sent += MEGABYTE
                await asyncio.sleep(0)
                assert sent < 64 * MEGABYTE
            server.transport.resume_reading()
            await eventually_async(lambda: len(server.data) == sent)
            assert client.is_writable

    run(new_loop, scenario)


# One fault


@everywhere
@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_cut_resets_both_ends_after_the_given_number_of_bytes(new_loop: NewLoop, way: Way, after: int) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.CUT, way=way, after_bytes=after),))) as scene:
            client, server = await scene.pair()
            writer, reader = (client, server) if way is Way.UP else (server, client)
            with suppress(OSError):
                writer.write(b"0123456789")
            await eventually_async(lambda: client.is_lost and server.is_lost)
            assert reader.data == b"0123456789"[:after]
            assert reader.was_reset
            if isinstance(asyncio.get_running_loop(), VirtualLoop):  # else it depends on what it was doing just then
                assert writer.was_reset

    run(new_loop, scenario)


@everywhere
@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
def test_close_ends_both_ends_in_order_after_the_given_number_of_bytes(new_loop: NewLoop, way: Way) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.CLOSE, way=way, after_bytes=5),))) as scene:
            client, server = await scene.pair()
            writer, reader = (client, server) if way is Way.UP else (server, client)
            writer.write(b"01234")
            await eventually_async(lambda: client.is_lost and server.is_lost)
            assert reader.data == b"01234"
            assert client.error is None
            assert server.error is None

    run(new_loop, scenario)


@everywhere
@pytest.mark.parametrize("way", [Way.UP, Way.DOWN])
def test_half_close_ends_one_direction_and_the_other_continues(new_loop: NewLoop, way: Way) -> None:
    async def scenario() -> None:
        schedule = Schedule(faults=(Fault(kind=Kind.HALF_CLOSE, way=way, after_bytes=4),))
        async with Scene(schedule, stays=True) as scene:
            client, server = await scene.pair()
            writer, reader = (client, server) if way is Way.UP else (server, client)
            writer.write(b"01234567")
            await eventually_async(lambda: reader.ended_s is not None)
            assert reader.data == b"0123"
            reader.write(b"still there")
            await eventually_async(lambda: writer.data == b"still there")
            assert not writer.is_lost

    run(new_loop, scenario)


@everywhere
@pytest.mark.parametrize("after", [0, 3, 8, 9, 12, 40])
def test_truncation_cuts_a_frame_in_half_and_closes(new_loop: NewLoop, after: int) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.TRUNCATE, after_bytes=after),))) as scene:
            client, server = await scene.pair()
            client.write(OPEN + 5 * FRAME)
            await eventually_async(lambda: server.is_lost)
            assert after < len(server.data) < after + len(FRAME)
            assert (OPEN + 5 * FRAME).startswith(server.data)
            within = len(server.data) - len(OPEN)
            assert within % len(FRAME) != 0, "it ends between two frames"

    run(new_loop, scenario)


@everywhere
def test_incomplete_frame_does_not_delay_the_end(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.TRUNCATE, after_bytes=8),))) as scene:
            client, server = await scene.pair()
            client.write(OPEN + b"\x00\x00")
            client.transport.close()
            await eventually_async(lambda: server.is_lost)
            assert server.data == OPEN

    run(new_loop, scenario)


@everywhere
def test_refused_connection_is_reset_and_the_next_one_is_not(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.REFUSE),)), echoes=True) as scene:
            refused = await scene.client()
            await eventually_async(lambda: refused.is_lost)
            assert refused.was_reset
            assert not scene.servers
            client, _ = await scene.pair()
            client.write(b"hello")
            await eventually_async(lambda: client.data == b"hello")

    run(new_loop, scenario)


@everywhere
def test_drip_delivers_everything_a_few_bytes_at_a_time(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        drip = Fault(kind=Kind.DRIP, after_bytes=2, size_bytes=3, pause_s=0.001)
        async with Scene(Schedule(faults=(drip,))) as scene:
            client, server = await scene.pair()
            client.write(b"0123456789abcdef")
            client.transport.close()
            await eventually_async(lambda: server.is_lost)
            assert server.data == b"0123456789abcdef"
            if isinstance(asyncio.get_running_loop(), VirtualLoop):  # the kernel puts together what it likes
                assert [piece for _, piece in server.pieces] == [b"01", b"234", b"567", b"89a", b"bcd", b"ef"]

    run(new_loop, scenario)


@everywhere
def test_corruption_changes_one_byte(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.CORRUPT, after_bytes=3),))) as scene:
            client, server = await scene.pair()
            client.write(b"0123456789")
            await eventually_async(lambda: len(server.data) == 10)
            assert [number for number in range(10) if server.data[number] != b"0123456789"[number]] == [3]

    run(new_loop, scenario)


@pytest.mark.parametrize("way", list(Way))
def test_stall_is_silent_until_it_ends_and_then_delivers_everything(way: Way) -> None:
    async def scenario() -> None:
        stall = Fault(kind=Kind.STALL, way=way, after_bytes=None, after_s=1.0, lasts_s=100.0)
        async with Scene(Schedule(faults=(stall,))) as scene:
            client, server = await scene.pair()
            await pass_time(2)
            client.write(b"question")
            server.write(b"answer")
            await pass_time(1)
            server.transport.close()
            await pass_time(90)
            assert bool(server.data) == (way is Way.DOWN)
            assert bool(client.data) == (way is Way.UP)
            assert client.is_lost == (way is Way.UP)
            await pass_time(30)
            assert client.data == b"answer"
            assert client.is_lost

    run(VirtualLoop, scenario)


def test_endless_stall_is_not_reported_to_either_end() -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.STALL, way=Way.BOTH, after_bytes=3),))) as scene:
            client, server = await scene.pair()
            client.write(b"012345")
            await pass_time(1)
            client.transport.abort()
            await pass_time(100_000)
            assert server.data == b"012"
            assert not server.is_lost

    run(VirtualLoop, scenario)


def test_stalled_direction_buffers_a_limited_amount() -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.STALL, after_bytes=0, lasts_s=60.0),))) as scene:
            client, server = await scene.pair()
            sent = bytes(4 * MEGABYTE)
            client.write(sent)
            await pass_time(30)
            assert client.transport.get_write_buffer_size() > 3 * MEGABYTE - KERNEL_BYTES
            await pass_time(60)
            assert server.data == sent

    run(VirtualLoop, scenario)


def test_delay_delivers_everything_late_and_in_order_until_it_ends() -> None:
    async def scenario() -> None:
        delay = Fault(kind=Kind.DELAY, after_bytes=1, pause_s=5.0, lasts_s=8.0)
        async with Scene(Schedule(faults=(delay,))) as scene:
            client, server = await scene.pair()
            start_s = asyncio.get_running_loop().time()
            for digit in b"0123":
                client.write(bytes([digit]))
                await pass_time(3)
            client.write(b"4")
            client.transport.close()
            await eventually_async(lambda: server.is_lost)
            assert server.data == b"01234"
            arrived = [round(when_s - start_s) for when_s, _ in server.pieces]
            assert arrived == [0, 8, 11, 11, 12]  # the last delayed one is due at 11, and nothing overtakes it

    run(VirtualLoop, scenario)


def test_fault_occurs_after_the_given_number_of_seconds() -> None:
    async def scenario() -> None:
        async with Scene(Schedule(faults=(Fault(kind=Kind.CUT, after_s=7.5),))) as scene:
            start_s = asyncio.get_running_loop().time()
            client, server = await scene.pair()
            await eventually_async(lambda: client.is_lost and server.is_lost)
            assert client.lost_s == pytest.approx(start_s + 7.5, abs=0.01)

    run(VirtualLoop, scenario)


# Outages, and changes by hand


@everywhere
def test_outage_cuts_existing_connections_and_refuses_new_ones_until_it_ends(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(echoes=True) as scene:
            before, server = await scene.pair()
            scene.proxy.misbehave(Schedule(outages=(Outage(after_s=0.0, lasts_s=0.2),)))
            await eventually_async(lambda: before.is_lost and server.is_lost)
            with pytest.raises(ConnectionRefusedError):
                await scene.client()
            after: list[Recorder] = []

            async def comes_back() -> None:
                while not after:
                    with suppress(ConnectionRefusedError):
                        after.append(await scene.client())
                    await asyncio.sleep(0.01)

            await asyncio.wait_for(comes_back(), 20)
            after[0].write(b"again")
            await eventually_async(lambda: after[0].data == b"again")

    run(new_loop, scenario)


def test_silent_outage_stalls_existing_and_new_connections() -> None:
    async def scenario() -> None:
        schedule = Schedule(outages=(Outage(after_s=10.0, lasts_s=20.0, is_silent=True),))
        async with Scene(schedule, echoes=True) as scene:
            before, _ = await scene.pair()
            await pass_time(11)
            during, _ = await scene.pair()
            before.write(b"1")
            during.write(b"2")
            await pass_time(15)
            assert (before.data, during.data) == (b"", b"")
            await pass_time(5)
            assert (before.data, during.data) == (b"1", b"2")

    run(VirtualLoop, scenario)


@everywhere
def test_healing_ends_an_outage(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene(Schedule(outages=(Outage(after_s=0.0, lasts_s=10_000.0),)), echoes=True) as scene:
            loop = asyncio.get_running_loop()
            await eventually_async(lambda: scene.proxy._listening is None)
            scene.proxy.heal()
            await eventually_async(lambda: scene.proxy._listening is not None)
            client, _ = await scene.pair()
            client.write(b"well")
            await eventually_async(lambda: client.data == b"well")
            assert loop.time() >= 0

    run(new_loop, scenario)


def test_healing_ends_current_and_scheduled_faults_but_keeps_stalled_connections_silent() -> None:
    async def scenario() -> None:
        slow = (
            Fault(kind=Kind.DRIP, after_bytes=0, pause_s=100.0),
            Fault(kind=Kind.DELAY, connection=1, after_bytes=0, pause_s=1_000.0),
            Fault(kind=Kind.STALL, connection=2, after_bytes=0),
            Fault(kind=Kind.CUT, connection=3, after_bytes=6),
            Fault(kind=Kind.CUT, connection=4, after_s=1_000.0),
        )
        async with Scene(Schedule(faults=slow)) as scene:
            pairs = [await scene.pair() for _ in slow]
            for client, _ in pairs:
                client.write(b"first")
            await pass_time(1)
            scene.proxy.heal()
            for client, _ in pairs:
                client.write(b", second")
            await pass_time(2_000)
            whole = b"first, second"
            assert [server.data for _, server in pairs] == [whole, whole, b"", whole, whole]

    run(VirtualLoop, scenario)


@everywhere
def test_fault_can_be_applied_to_all_connections(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene() as scene:
            ends = [*await scene.pair(), *await scene.pair()]
            scene.proxy.apply(Fault(kind=Kind.CUT))
            await eventually_async(lambda: all(end.is_lost for end in ends))
            later = await scene.pair()
            assert not any(end.is_lost for end in later)

    run(new_loop, scenario)


@everywhere
def test_connections_are_counted_from_when_a_schedule_begins(new_loop: NewLoop) -> None:
    async def scenario() -> None:
        async with Scene() as scene:
            first = await scene.client()
            scene.proxy.misbehave(Schedule(faults=(Fault(kind=Kind.REFUSE, connection=1),)))
            second, third = await scene.client(), await scene.client()
            await eventually_async(lambda: third.is_lost)
            assert not first.is_lost
            assert not second.is_lost

    run(new_loop, scenario)


# Schedules


@pytest.mark.parametrize("seed", range(30))
def test_repr_of_a_schedule_is_python_that_creates_it(seed: int) -> None:
    schedule = Schedule.seeded(Random(seed))  # noqa: S311
    assert eval(repr(schedule)) == schedule  # noqa: S307


def test_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    made = [Schedule.seeded(Random(seed)) for seed in range(50)]  # noqa: S311
    assert made == [Schedule.seeded(Random(seed)) for seed in range(50)]  # noqa: S311
    assert len(set(made)) == len(made)


def test_seeded_schedules_hold_every_kind_on_every_way_by_bytes_and_by_time() -> None:
    faults = [fault for seed in range(500) for fault in Schedule.seeded(Random(seed)).faults]  # noqa: S311
    assert {(fault.kind, fault.way) for fault in faults} == {(kind, way) for kind in HONEST for way in Way}
    timed = {kind for kind in HONEST if kind is not Kind.REFUSE}
    assert {fault.kind for fault in faults if fault.after_s is not None} == timed
    assert {fault.kind for fault in faults if fault.after_bytes is not None} == timed
    assert any(Schedule.seeded(Random(seed)).outages for seed in range(10))  # noqa: S311


@pytest.mark.parametrize(
    "make",
    [
        lambda: Fault(kind=Kind.CUT, after_bytes=1, after_s=1.0),
        lambda: Fault(kind=Kind.CUT, lasts_s=1.0),
        lambda: Fault(kind=Kind.DRIP, size_bytes=0, pause_s=1.0),
        lambda: Fault(kind=Kind.DRIP, size_bytes=1),
    ],
)
def test_invalid_fault_is_rejected(make: Callable[[], Fault]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        make()


@pytest.mark.parametrize("seed", range(100))
def test_random_schedule_changes_no_byte_and_ends_the_same_each_time(seed: int) -> None:
    """The bytes that arrive are a prefix of those sent; two runs have the same bytes at the same times."""
    reported: list[list[tuple[float, bytes]]] = []

    async def scenario() -> None:
        random = Random(seed)  # noqa: S311
        schedule = Schedule.seeded(random, connections=1)
        async with Scene(schedule, echoes=True) as scene:
            await pass_time(schedule.quiet_s)
            client = await scene.client()
            sent = OPEN
            client.write(OPEN)
            for _ in range(20):
                data = (1_000).to_bytes(4, "big") + random.randbytes(996)
                if not client.transport.is_closing():
                    sent += data
                    client.write(data)
                await pass_time(random.uniform(0, 5))
            await pass_time(1_000)
            for server in scene.servers:
                assert sent.startswith(server.data)
                assert server.data.startswith(client.data)
            reported.append([*client.pieces, (client.lost_s or -1.0, repr(client.error).encode())])

    assert run(VirtualLoop, scenario) == run(VirtualLoop, scenario)
    assert reported[0] == reported[1]


# Frames


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 100])
def test_frames_are_followed_however_they_are_cut(step: int) -> None:
    data = OPEN + FRAME + OPEN + 3 * FRAME
    ends = [8, 32, 40, 64, 88, 112]
    frames = Frames()
    for start in range(0, len(data), step):
        left = frames.left(data[start : start + 8])
        known = len(data) - start >= 4 or start not in ends
        assert left == (min(end for end in ends if end > start) - start if known else None)
        frames.feed(data[start : start + step])


def test_size_of_a_frame_is_unknown_until_its_header_arrives() -> None:
    frames = Frames()
    assert frames.left(b"\x00\x00") is None
    frames.feed(b"\x00\x00")
    assert frames.left(b"") is None
    assert frames.left(b"\x00\x18") == 22


# The network in memory


def test_port_without_listener_refuses_and_unknown_host_has_no_address() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(Recorder, HOST, 5672)
        listening.close()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, HOST, 5672)
        with pytest.raises(socket.gaierror):
            await loop.create_connection(Recorder, "nowhere.example", 5672)

    run(VirtualLoop, scenario)


def test_port_is_bound_once() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(Recorder, HOST, 5672)
        with pytest.raises(OSError, match="in use") as caught:
            await loop.create_server(Recorder, "localhost", 5672)
        assert caught.value.errno == errno.EADDRINUSE
        listening.close()
        assert (await loop.create_server(Recorder, HOST, 5672)).is_serving()

    run(VirtualLoop, scenario)


def test_connection_to_a_silent_address_is_never_established() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.network.hanging.add((HOST, 5672))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_connection(Recorder, HOST, 5672), 100)
        assert loop.network.attempts == [(0.0, (HOST, 5672))]

    assert run(VirtualLoop, scenario) >= 100


def test_write_to_a_closed_peer_causes_a_reset() -> None:
    async def scenario() -> None:
        client, server = await _joined()
        server.transport.close()
        client.write(b"too late")
        await eventually_async(lambda: client.is_lost)

    run(VirtualLoop, scenario)


def test_failing_protocol_is_reported_and_loses_its_connection() -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ZeroDivisionError(data)

    loop = VirtualLoop()

    async def scenario() -> None:
        listening = await loop.create_server(Failing, HOST, 0)
        _, client = await loop.create_connection(Recorder, HOST, listening.port)
        client.write(b"x")
        await eventually_async(lambda: client.is_lost)
        assert client.was_reset

    try:
        loop.run_until_complete(scenario())
        assert [type(complaint["exception"]) for complaint in loop.complaints] == [ZeroDivisionError]
    finally:
        loop.close()


@pytest.mark.parametrize("is_abort", [False, True], ids=["close", "abort"])
def test_close_waits_until_everything_is_read_and_abort_does_not(is_abort: bool) -> None:
    async def scenario() -> None:
        client, server = await _joined()
        server.transport.pause_reading()
        client.write(bytes(MEGABYTE))
        if is_abort:
            client.transport.abort()
        else:
            client.transport.close()
        await pass_time(1)
        assert client.is_lost == is_abort
        server.transport.resume_reading()
        await eventually_async(lambda: client.is_lost and server.is_lost)
        assert len(server.data) == MEGABYTE
        assert server.was_reset == is_abort

    run(VirtualLoop, scenario)


def test_virtual_time_passes_without_waiting() -> None:
    async def scenario() -> None:
        client, server = await _joined()
        before_s = asyncio.get_running_loop().time()
        await pass_time(86_400)
        client.write(b"x")
        await eventually_async(lambda: server.data)
        assert server.pieces[0][0] == pytest.approx(before_s + 86_400.001)
        client.transport.abort()
        await eventually_async(lambda: server.is_lost)

    run(VirtualLoop, scenario)


def test_tls_works_in_memory_and_through_faults(tmp_path: Path) -> None:
    certificate = open_certificate(tmp_path, ["localhost"], round(time.time() * 1_000))
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate.cert_file, certificate.key_file)
    trusting = ssl.create_default_context(cafile=str(certificate.ca_file))

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Recorder(echoes=True), HOST, 0, ssl=serving)
        faults = (Fault(kind=Kind.CUT, way=Way.DOWN, after_bytes=100), Fault(kind=Kind.CUT, connection=1, after_s=5.0))
        async with Proxy(HOST, _port(listening), Schedule(faults=faults)) as proxy:
            with pytest.raises(ConnectionError):
                await loop.create_connection(Recorder, "localhost", proxy.port, ssl=trusting)
            _, client = await loop.create_connection(Recorder, "localhost", proxy.port, ssl=trusting)
            client.write(b"secret")
            await eventually_async(lambda: client.data == b"secret")
            await eventually_async(lambda: client.is_lost)
            _, third = await loop.create_connection(Recorder, "localhost", proxy.port, ssl=trusting)
            third.transport.close()
            await eventually_async(lambda: third.is_lost and not proxy.open_relays)

    run(VirtualLoop, scenario)


async def _joined() -> tuple[Recorder, Recorder]:
    """Two ends without a proxy between them."""
    loop = asyncio.get_running_loop()
    servers: list[Recorder] = []

    def accept() -> Recorder:
        servers.append(Recorder())
        return servers[0]

    listening = await loop.create_server(accept, HOST, 0)
    transport, client = await loop.create_connection(Recorder, HOST, _port(listening))
    assert isinstance(transport, Stream)
    await eventually_async(lambda: servers and servers[0].is_connected)
    listening.close()
    return client, servers[0]
