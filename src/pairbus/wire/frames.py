"""Reading and writing of frames (part 2.3 of the standard)."""

from __future__ import annotations

import struct
from typing import Final

from pairbus.wire.errors import FrameTooLargeError, FramingError
from pairbus.wire.hotpath import encode_state, write_disposition

AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
HEADER_SIZE: Final = 8
"""The size of a protocol header, and of a frame header."""

AMQP_FRAME: Final = 0
SASL_FRAME: Final = 1

_DISPOSITION_SIZE: Final = 32
"""The maximum size of a disposition without its state."""

_FRAME_HEADER: Final = struct.Struct(">IBBH")


class FrameBuffer:
    """Splits a stream of bytes, in pieces of any size, into protocol headers and frames."""

    __slots__ = ("_data", "_missing", "_position", "_tail", "max_frame_size")

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self._data = b""
        self._position = 0
        self._tail = bytearray()
        """The start of an incomplete frame. It grows in place: a frame that arrives byte by byte must not be copied for
        each of them."""
        self._missing = 0
        """The length of the tail at which the next check can succeed."""

    def __len__(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._tail)

    def feed(self, data: bytes) -> None:
        """Append received bytes; all complete frames have to be taken out first."""
        if not self._tail:
            self._data = data
        else:
            self._tail += data
            if len(self._tail) < self._missing:
                self._data = b""
            else:
                self._data = bytes(self._tail)
                self._tail.clear()
        self._position = 0

    def take_header(self) -> bytes | None:
        """Return and remove a protocol header, or return ``None`` if it is incomplete."""
        return self._take(HEADER_SIZE)

    def take_frame(self) -> bytes | None:
        """Return and remove a frame, including its header, or return ``None`` if it is incomplete."""
        position = self._position
        data = self._data
        if len(data) - position < HEADER_SIZE:
            return self._take(HEADER_SIZE)
        size = data[position] << 24 | data[position + 1] << 16 | data[position + 2] << 8 | data[position + 3]
        if size > self.max_frame_size:
            raise FramingError(f"a frame of {size} bytes, where {self.max_frame_size} are allowed")
        if size < HEADER_SIZE:
            raise FramingError(f"a frame of {size} bytes, where its header alone has {HEADER_SIZE}")
        end = position + size
        if end > len(data):
            return self._take(size)
        self._position = end
        return data[position:end]

    def _take(self, size: int) -> bytes | None:
        if self._tail:  # less than required has arrived
            return None
        end = self._position + size
        if end <= len(self._data):
            taken = self._data[self._position : end]
            self._position = end
            return taken
        self._tail += self._data[self._position :]
        self._missing = size
        self._data = b""
        self._position = 0
        return None


def body_of(frame: bytes) -> int:
    """Return the position at which a frame's body starts."""
    position = frame[4] * 4
    if position < HEADER_SIZE or position > len(frame):
        raise FramingError(f"a frame of {len(frame)} bytes whose body starts at {position}")
    return position


class FrameWriter:
    """Collects the bytes to send.

    Dispositions are delayed until something else is written or the bytes are taken, so that those of adjacent
    deliveries with the same state are combined into one.
    """

    __slots__ = (
        "_channel",
        "_chunks",
        "_first",
        "_held",
        "_last",
        "_role",
        "_settled",
        "_state",
        "_waiting",
        "max_frame_size",
        "written",
    )

    def __init__(self) -> None:
        self.max_frame_size = 512
        """The largest frame that the peer accepts; the standard's minimum until the peer's open."""
        self.written = False
        """True if anything was written since the last check; used to detect silence."""
        self._chunks: list[bytes] = []
        self._held: list[bytes] | None = None
        """While AMQP frames are held back: the bytes that are sent before them."""
        self._waiting = False
        self._channel = 0
        self._role = False
        self._first = 0
        self._last = 0
        self._settled = False
        self._state = b""

    def write_header(self, header: bytes) -> None:
        self._chunks.append(header)
        self.written = True

    def write_sasl(self, body: bytes) -> None:
        """Write a SASL frame, before all frames that are held back."""
        frame = _FRAME_HEADER.pack(HEADER_SIZE + len(body), 2, SASL_FRAME, 0) + body
        if self._held is None:
            self._chunks.append(frame)
        else:
            self._held.append(frame)
        self.written = True

    def hold(self) -> None:
        """Hold back AMQP frames until authentication is complete; bytes written before are still sent."""
        self._held = self._chunks
        self._chunks = [AMQP_HEADER]

    def release(self) -> None:
        """Release the frames that were held back."""
        if self._held is not None:
            self._chunks = self._held + self._chunks
            self._held = None

    def write(self, channel: int, body: bytes, payload: bytes = b"") -> None:
        """Write one AMQP frame."""
        size = HEADER_SIZE + len(body) + len(payload)
        if size > self.max_frame_size:
            raise FrameTooLargeError(f"a frame of {size} bytes, where the peer allows {self.max_frame_size}")
        if self._waiting:
            self._write_disposition()
        self._chunks.append(_FRAME_HEADER.pack(size, 2, AMQP_FRAME, channel))
        self._chunks.append(body)
        if payload:
            self._chunks.append(payload)
        self.written = True

    def dispose(self, channel: int, role: bool, delivery_id: int, settled: bool, state: object) -> None:
        """Write the state of one delivery, combined with adjacent ones."""
        encoded = encode_state(state)
        if len(encoded) + _DISPOSITION_SIZE > self.max_frame_size:
            raise FrameTooLargeError(f"a delivery state of {len(encoded)} bytes does not fit a frame of the peer's")
        if self._waiting:
            if (
                delivery_id == (self._last + 1) & 0xFFFFFFFF
                and channel == self._channel
                and role == self._role
                and settled == self._settled
                and encoded == self._state
            ):
                self._last = delivery_id
                return
            self._write_disposition()
        self._waiting = True
        self._channel = channel
        self._role = role
        self._first = delivery_id
        self._last = delivery_id
        self._settled = settled
        self._state = encoded

    def _write_disposition(self) -> None:
        self._waiting = False
        self.write(self._channel, write_disposition(self._role, self._first, self._last, self._settled, self._state))

    def take(self) -> bytes:
        """Return and clear the written bytes."""
        if self._waiting:
            self._write_disposition()
        chunks = self._chunks if self._held is None else self._held
        data = b"".join(chunks)
        chunks.clear()
        return data
