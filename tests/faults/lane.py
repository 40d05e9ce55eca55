"""One way of a connection through the proxy: what comes in at one end, and when it comes out at the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from tests.faults.fault import Fault, Kind, Way

HELD_BYTES: Final = 256 * 1024
"""With more than this held back, whoever sends is no longer read."""

_HEADER: Final = b"AMQP"
_HEADER_BYTES: Final = 8
_SIZE_BYTES: Final = 4
_OTHER: Final = 0x55


class Ending(Enum):
    """The way in which the sender's end has ended."""

    EOF = "eof"
    """Nothing more comes, though it still listens."""
    CLOSED = "closed"
    RESET = "reset"


class Lane:
    """Forwards bytes until a fault is due, which it reports. It stalls, delays and drips by itself."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, way: Way, on_due: Callable[[Fault], object], on_end: Callable[[], object]
    ) -> None:
        self.way = way
        self.passed_bytes = 0
        self.has_ended = False
        """True if the end was reported to the receiver."""
        self._loop = loop
        self._on_due = on_due
        self._on_end = on_end
        self._due: list[Fault] = []
        self._held = bytearray()
        self._late: deque[bytes] = deque()
        self._late_until_s = 0.0
        self._ending: Ending | None = None
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._frames = Frames()
        self._cut: Fault | None = None
        self._cut_at: int | None = None
        """The end of the frame to cut."""
        self._stalls = 0
        self._corrupts = 0
        """The number of bytes to change."""
        self._delay_s = 0.0
        self._drip: Fault | None = None
        self._is_between_drops = False
        self._is_writable = True
        self._is_over = False

    # What is connected to it.

    def expect(self, faults: list[Fault]) -> None:
        """Count bytes for these."""
        self._due += faults
        self._due.sort(key=lambda fault: fault.after_bytes or 0)

    def begin(self, source: asyncio.Transport, sink: asyncio.Transport) -> None:
        self._source, self._sink = source, sink
        if self.has_ended:
            self._end_sink()
        self.pump()

    def feed(self, data: bytes) -> None:
        if not self._is_over:
            self._held += data
            self.pump()

    def end(self, ending: Ending) -> None:
        """The sender has ended; whoever is at the other end learns it after all that was sent before."""
        if not self._is_over and self._ending in {None, Ending.EOF}:
            self._ending = ending
            self.has_ended = False
            self.pump()

    def set_writable(self, *, is_writable: bool) -> None:
        self._is_writable = is_writable
        self.pump()

    def stop(self) -> None:
        """Pass on nothing any more."""
        self._is_over = True
        self._held.clear()
        self._late.clear()

    # What goes wrong with it.

    def stall(self, lasts_s: float | None) -> None:
        self._stalls += 1
        if lasts_s is not None:
            self._loop.call_later(lasts_s, self._go_on)

    def delay(self, fault: Fault) -> None:
        self._delay_s = fault.pause_s
        if fault.lasts_s is not None:
            self._loop.call_later(fault.lasts_s, self._catch_up)

    def drip(self, fault: Fault) -> None:
        self._drip = fault
        if fault.lasts_s is not None:
            self._loop.call_later(fault.lasts_s, self._flow, fault)

    def heal(self) -> None:
        """Neither drip nor delay any more, and forget what was to come."""
        self._drip = self._cut = self._cut_at = None
        self._due.clear()
        self._catch_up()

    def truncate(self, fault: Fault) -> None:
        self._cut = fault

    def corrupt(self) -> None:
        self._corrupts += 1

    def half_close(self) -> None:
        """End this direction after the bytes that were forwarded."""
        self.stop()
        if not self.has_ended:
            self._end_sink()

    def _go_on(self) -> None:
        self._stalls -= 1
        self.pump()

    def _catch_up(self) -> None:
        self._delay_s = 0.0
        self.pump()

    def _flow(self, fault: Fault) -> None:
        if self._drip is fault:
            self._drip = None
            self.pump()

    def _next_drop(self) -> None:
        self._is_between_drops = False
        self.pump()

    # How the bytes go through.

    def pump(self) -> None:
        """Pass on as much as may pass now."""
        while not self._is_over and self._sink is not None and self._stalls == 0:
            if self._is_due():
                continue
            if not self._held or self._is_between_drops or not self._is_writable:
                break
            size = self._most()
            if size == 0:
                break
            self._pass_on(bytes(self._held[:size]))
        self._balance()
        if self._ending is not None and self._stalls == 0 and not self.has_ended and self._is_drained():
            self._finish(self._ending)

    def _is_drained(self) -> bool:
        """Return whether everything was forwarded. A reset does not wait for it."""
        is_stuck = self._cut is not None and self._cut_at is None  # for a frame of which no more will come
        return self._ending is Ending.RESET or (not self._late and (is_stuck or not self._held))

    def _is_due(self) -> bool:
        """Return whether a fault is due."""
        if self._cut_at is not None and self.passed_bytes >= self._cut_at and self._cut is not None:
            fault, self._cut, self._cut_at = self._cut, None, None
            self._on_due(Fault(kind=Kind.CLOSE, connection=fault.connection, way=fault.way))
            return True
        if self._due and (self._due[0].after_bytes or 0) <= self.passed_bytes:
            self._on_due(self._due.pop(0))
            return True
        return False

    def _most(self) -> int:
        """Return the number of bytes that may pass at once."""
        size = len(self._held)
        if self._due:
            size = min(size, (self._due[0].after_bytes or 0) - self.passed_bytes)
        if self._drip is not None:
            size = min(size, self._drip.size_bytes)
        if self._cut is not None:
            if self._cut_at is None:
                left = self._frames.left(bytes(self._held[:_HEADER_BYTES]))
                if left is None:
                    return 0  # not even its size is known
                self._cut_at = self.passed_bytes + max(1, left // 2)
            size = min(size, self._cut_at - self.passed_bytes)
        return size

    def _pass_on(self, data: bytes) -> None:
        del self._held[: len(data)]
        if self._corrupts:
            self._corrupts -= 1
            data = bytes([data[0] ^ _OTHER]) + data[1:]
        self.passed_bytes += len(data)
        self._frames.feed(data)
        if self._drip is not None:
            self._is_between_drops = True
            self._loop.call_later(self._drip.pause_s, self._next_drop)
        due_s = max(self._late_until_s, self._loop.time() + self._delay_s)
        if self._late or due_s > self._loop.time():
            self._late_until_s = due_s
            self._late.append(data)
            self._loop.call_at(due_s, self._arrive)
        elif self._sink is not None:
            self._sink.write(data)

    def _arrive(self) -> None:
        if self._late and self._sink is not None:
            self._sink.write(self._late.popleft())
            self.pump()

    def _balance(self) -> None:
        if self._source is None or self._source.is_closing():
            return
        if len(self._held) > HELD_BYTES:
            self._source.pause_reading()
        elif not self._source.is_reading():
            self._source.resume_reading()

    def _finish(self, ending: Ending) -> None:
        if self._sink is None or self._is_over:
            return
        if ending is Ending.EOF:
            self._end_sink()
        elif ending is Ending.CLOSED:
            self._sink.close()
        else:
            reset(self._sink)
        self._is_over = ending is not Ending.EOF

    def _end_sink(self) -> None:
        self.has_ended = True
        if self._sink is not None and not self._sink.is_closing() and self._sink.can_write_eof():
            self._sink.write_eof()
        self._on_end()


class Frames:
    """Knows where in a stream of AMQP frames and headers it is."""

    def __init__(self) -> None:
        self._left = 0
        self._start = b""

    def feed(self, data: bytes) -> None:
        """So much has passed."""
        at = 0
        while at < len(data):
            if self._left == 0:
                taken = _SIZE_BYTES - len(self._start)
                self._start += data[at : at + taken]
                at += taken
                if len(self._start) < _SIZE_BYTES:
                    return
                self._left, self._start = _size(self._start) - _SIZE_BYTES, b""
            passed = min(self._left, max(0, len(data) - at))
            self._left -= passed
            at += passed

    def left(self, following: bytes) -> int | None:
        """Return the number of bytes to the end of the frame; ``None`` if its header is incomplete."""
        if self._left:
            return self._left
        start = (self._start + following)[:_SIZE_BYTES]
        return None if len(start) < _SIZE_BYTES else _size(start) - len(self._start)


def _size(start: bytes) -> int:
    return _HEADER_BYTES if start == _HEADER else max(_SIZE_BYTES, int.from_bytes(start, "big"))


def reset(transport: asyncio.Transport) -> None:
    """Abort so that the other end gets a reset, which sockets must be configured for."""
    sock = transport.get_extra_info("socket")
    if sock is not None and not transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
