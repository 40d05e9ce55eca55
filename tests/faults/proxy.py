"""A proxy between clients and a namespace that misbehaves by a schedule.

It works on whatever loop runs: over sockets on an ordinary one, in memory and in virtual time on a ``VirtualLoop``.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Self, cast

from tests.faults.fault import SOUND, Fault, Kind, Outage, Schedule, Way
from tests.faults.lane import Ending, Lane, reset

_HOST: Final = "127.0.0.1"


class Proxy:
    """Use it as ``async with Proxy(host, port, schedule) as proxy``. The schedule begins when it does."""

    def __init__(self, host: str, port: int, schedule: Schedule = SOUND) -> None:
        self.schedule = schedule
        self.port = 0
        self.relays: list[Relay] = []
        """All connections there have been, in the order in which they came."""
        self._upstream = host, port
        self._listening: asyncio.AbstractServer | None = None
        self._outages: dict[Outage, float] = {}
        """Outages in progress, and their ends."""
        self._first = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._changing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, port: int = 0) -> None:
        self.port = port
        await self._listen()
        self.misbehave(self.schedule)

    async def close(self) -> None:
        """Accept nothing more, and reset what there is."""
        self._is_closed = True
        self._clear()
        await self._refuse()
        for relay in self.open_relays:
            relay.cut()
        for task in self.tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await task
        await asyncio.sleep(0)  # the transports have their last word

    @property
    def open_relays(self) -> list[Relay]:
        return [relay for relay in self.relays if not relay.is_over]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the proxy."""
        return [*self._changing, *(relay.connecting for relay in self.relays if relay.connecting is not None)]

    # What goes wrong.

    def misbehave(self, schedule: Schedule) -> None:
        """From now on, by this schedule: its first connection is the next one, its time begins now."""
        self._clear()
        self.schedule = schedule
        self._first = len(self.relays)
        loop = asyncio.get_running_loop()
        for outage in schedule.outages:
            self._timers += [
                loop.call_later(outage.after_s, self._begin, outage),
                loop.call_later(outage.after_s + outage.lasts_s, self._end, outage),
            ]

    def heal(self) -> None:
        """Nothing more goes wrong, and what is slow is fast again. Connections that have stalled stay as they are."""
        self.misbehave(SOUND)
        for relay in self.open_relays:
            relay.heal()
        self._outages.clear()
        self._change(self._listen)

    def apply(self, fault: Fault) -> None:
        """Let this happen now to every connection there is."""
        for relay in self.open_relays:
            relay.apply(fault)

    def _clear(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _begin(self, outage: Outage) -> None:
        self._outages[outage] = asyncio.get_running_loop().time() + outage.lasts_s
        if outage.is_silent:
            self.apply(Fault(kind=Kind.STALL, way=Way.BOTH, lasts_s=outage.lasts_s))
        else:
            self.apply(Fault(kind=Kind.CUT))
            self._change(self._refuse)

    def _end(self, outage: Outage) -> None:
        self._outages.pop(outage, None)
        if all(other.is_silent for other in self._outages):
            self._change(self._listen)

    def _change(self, change: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.get_running_loop().create_task(change())
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    # Who comes.

    async def _listen(self) -> None:
        if self._listening is None and not self._is_closed:
            loop = asyncio.get_running_loop()
            listening = await loop.create_server(self._accept, _HOST, self.port)
            self._listening = listening
            self.port = self.port or _port_of(listening)

    async def _refuse(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.close()

    def _accept(self) -> asyncio.Protocol:
        faults = self.schedule.of(len(self.relays) - self._first)
        now_s = asyncio.get_running_loop().time()
        silent = [until_s for outage, until_s in self._outages.items() if outage.is_silent]
        relay = Relay(self._upstream, len(self.relays), faults)
        self.relays.append(relay)
        if silent:
            relay.stall(max(silent) - now_s)
        return relay.client


class Relay:
    """One connection through the proxy."""

    def __init__(self, upstream: tuple[str, int], number: int, faults: list[Fault]) -> None:
        self.number = number
        self.is_over = False
        self.connecting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self.began_s = self._loop.time()
        self._upstream = upstream
        self.up = Lane(self._loop, Way.UP, self.apply, self._ended)
        self.down = Lane(self._loop, Way.DOWN, self.apply, self._ended)
        self.client = _Side(self, self.up, self.down)
        self.server = _Side(self, self.down, self.up)
        self._timers: list[asyncio.TimerHandle] = []
        self._faults = faults

    def stall(self, lasts_s: float) -> None:
        self.up.stall(lasts_s)
        self.down.stall(lasts_s)

    def begin(self, side: _Side) -> None:
        """A side is connected: with the first one, the other is called."""
        if side is self.client:
            for lane in (self.up, self.down):
                lane.expect([fault for fault in self._faults if fault.after_s is None and fault.counted is lane.way])
            for fault in self._faults:
                if fault.after_s is not None:
                    self._timers.append(self._loop.call_later(fault.after_s, self.apply, fault))
            if any(fault.kind is Kind.REFUSE and fault.after_s is None for fault in self._faults):
                self.cut()
            else:
                self.connecting = self._loop.create_task(self._connect())
        elif self.client.transport is not None and self.server.transport is not None:
            self.up.begin(self.client.transport, self.server.transport)
            self.down.begin(self.server.transport, self.client.transport)

    async def _connect(self) -> None:
        try:
            await self._loop.create_connection(lambda: self.server, *self._upstream)
        except OSError:
            self.cut()
        else:
            if self.is_over and self.server.transport is not None:
                reset(self.server.transport)
        finally:
            self.connecting = None

    def apply(self, fault: Fault) -> None:
        """Let it go wrong."""
        if self.is_over:
            return
        lanes = [lane for lane in (self.up, self.down) if fault.way in {lane.way, Way.BOTH}]
        match fault.kind:
            case Kind.CUT | Kind.REFUSE:
                self.cut()
            case Kind.CLOSE:
                self.close()
            case Kind.HALF_CLOSE:
                for lane in lanes:
                    lane.half_close()
            case Kind.STALL:
                for lane in lanes:
                    lane.stall(fault.lasts_s)
            case Kind.DELAY:
                for lane in lanes:
                    lane.delay(fault)
            case Kind.DRIP:
                for lane in lanes:
                    lane.drip(fault)
            case Kind.CORRUPT:
                for lane in lanes:
                    lane.corrupt()
            case Kind.TRUNCATE:
                lanes[0].truncate(fault)
                lanes[0].pump()

    def heal(self) -> None:
        """Nothing more goes wrong here, except that what has stalled stays as it is."""
        for timer in self._timers:
            timer.cancel()
        self.up.heal()
        self.down.heal()

    def cut(self) -> None:
        """Reset both ends."""
        for transport in self._finish():
            reset(transport)

    def close(self) -> None:
        for transport in self._finish():
            transport.close()

    def _finish(self) -> list[asyncio.Transport]:
        self.is_over = True
        self.up.stop()
        self.down.stop()
        for timer in self._timers:
            timer.cancel()
        transports = [side.transport for side in (self.client, self.server)]
        return [transport for transport in transports if transport is not None]

    def _ended(self) -> None:
        if self.up.has_ended and self.down.has_ended:
            self.close()

    def lost(self) -> None:
        """An end has gone, by itself or because it was told to."""
        if all(side.is_lost or side.transport is None for side in (self.client, self.server)):
            self._finish()


class _Side(asyncio.Protocol):
    """One end of a relay: what it reads goes into one lane, and what comes out of the other is written to it."""

    def __init__(self, relay: Relay, lane: Lane, other: Lane) -> None:
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self._relay = relay
        self._lane = lane
        self._other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._relay.begin(self)

    def data_received(self, data: bytes) -> None:
        self._lane.feed(data)

    def eof_received(self) -> bool:
        self._lane.end(Ending.EOF)
        return True  # the other way may go on

    def pause_writing(self) -> None:
        self._other.set_writable(is_writable=False)

    def resume_writing(self) -> None:
        self._other.set_writable(is_writable=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._lane.end(Ending.CLOSED if exc is None else Ending.RESET)
        self._other.stop()
        self._relay.lost()


def _port_of(listening: asyncio.AbstractServer) -> int:
    sockets = getattr(listening, "sockets", None)
    if sockets is None:
        return int(listening.port)  # type: ignore[attr-defined]
    bound: socket.socket = sockets[0]
    return int(bound.getsockname()[1])
